"""One attempt, where its surroundings fail."""

import sys
from pathlib import Path

import pytest

from pipelines.engine.attempt import Attempt
from pipelines.engine.events import Event, LogLine, Phase


def run(folder: Path, code: str) -> tuple[object, list[str]]:
    """Run Python code as an attempt with its files in `folder`; its result and its lines."""
    events: list[Event] = []
    attempt = Attempt(
        node="a", number=0, argv=[sys.executable, "-c", code], env={}, folder=folder, outputs=[], emit=events.append
    )
    return attempt.run(), [event.line for event in events if isinstance(event, LogLine)]


@pytest.mark.parametrize(("how", "said"), [("full", "No space left on device"), ("folder", "Is a directory")])
@pytest.mark.parametrize("code", [0, 3])
def test_a_log_that_cannot_be_written_holds_no_step_up(how, said, code, tmp_path):
    """More than a pipe holds, so that a reader who gives up would block the step for ever."""
    if how == "full":
        (tmp_path / "log").symlink_to("/dev/full")
    else:
        (tmp_path / "log").mkdir()
    result, lines = run(tmp_path, f"import sys; [print('x' * 99) for _ in range(5000)]; sys.exit({code})")
    assert lines[:-1] == ["x" * 99] * 5000
    assert lines[-1] == f"warning: the log is not whole: {tmp_path}/log: {said}"
    assert (result.phase, result.exit_code) == ((Phase.SUCCEEDED, 0) if code == 0 else (Phase.FAILED, 3))
    if code:
        assert result.message == f"{tmp_path}/log: {said}"


def test_every_byte_reaches_the_log(tmp_path):
    result, _ = run(tmp_path, "import sys; sys.stdout.buffer.write(bytes(range(1, 256)) * 3000)")
    assert result.phase == Phase.SUCCEEDED
    assert (tmp_path / "log").read_bytes() == bytes(range(1, 256)) * 3000
