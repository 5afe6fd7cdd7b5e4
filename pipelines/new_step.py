"""`make step NAME=word_count`: a new step and its test, both green as they are made."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.cli import guarded

_STEP = '''"""WHAT -> WHAT: one line that says what the step makes of what."""

from datetime import timedelta

from steps.contract import BlobRef, Context, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """What the caller says. Its fields are the command line: --field=value."""

    text: str


class Result(BaseResult):
    """What the caller gets. Content goes into the store; its key goes here."""

    report: BlobRef
    num_words: int


step = Step(image="data", timeout=timedelta(minutes=10))

EXAMPLE = Params(text="the same in, the same out")


def run(params: Params, ctx: Context) -> Result:
    """Count the words."""
    from steps.lib.folder import put_blob

    words = params.text.split()
    report = put_blob(ctx.store, "\\n".join(sorted(words)).encode())
    return Result(report=report.key, num_words=len(words))
'''

_TEST = '''"""steps.NAME: what it computes. That it keeps the step contract is tested for every step in test_contract.py."""

from steps import NAME
from tests.steps.calling import context


def test_counts_words(store):
    result = NAME.run(NAME.Params(text="b a b"), context(store))
    assert result.num_words == 3
    assert store.get(result.report) == b"a\\nb\\nb"
'''


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: one argument, the step's name. Returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: create(words[0] if words else "", Path(__file__).resolve().parent.parent))


def create(name: str, root: Path) -> int:
    """Write steps/<name>.py and tests/steps/test_<name>.py below `root`.

    Raises:
        UserError: the name is no Python name, or taken.
    """
    from steps.contract import step_names
    from steps.lib.errors import UserError

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,29}", name):
        raise UserError(
            f"NAME: got {name!r}, allowed are a-z, 0-9 and _, starting with a letter, up to 30; as in make step NAME=word_count"
        )
    files = {root / "steps" / f"{name}.py": _STEP, root / "tests" / "steps" / f"test_{name}.py": _TEST}
    taken = [path for path in files if path.exists()]
    if name in step_names() or taken:
        raise UserError(f"NAME: got {name!r}, which is there already; choose another")
    for path, text in files.items():
        path.write_text(text.replace("NAME", name))
        print(path.relative_to(root))
    print(
        f"next: python -m steps {name} --help; pytest tests/steps -k {name}; "
        "then a line for it in README's tree, which a test holds to the files"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
