"""Run one call of a step from its command line: Params in, record or run, Result out.

The only place that catches: every failure becomes one line on stderr and a code of the exit table.
"""

import dataclasses
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast, get_args, get_origin

from pydantic import ValidationError

from steps import records
from steps.contract import Context, Params, Result, load_step, step_names
from steps.lib.deaf import Deaf
from steps.lib.errors import OS_ERRORS, Exit, TripodError, UserError, about_file, describe_os_error
from steps.lib.store import open_store

CACHE_FILE = "_cache"
"""Beside the outputs in $TRIPOD_OUTPUTS: `hit: why`, `miss: why`, or `live: what it did`."""

USAGE = """usage: python -m steps NAME [--field=value ...]
       python -m steps NAME --help

Runs one step. Fields that are not strings take JSON. $TRIPOD_STORE says where the data is.
steps: """


class Terminated(BaseException):
    """SIGTERM: the place that runs us wants the process to end."""


def main(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """The whole of `python -m steps`. Returns the exit code."""
    return guard(lambda: _main(argv, env))


def guard(call: Callable[[], int]) -> int:
    """The boundary of every command: run `call`, turn what it raises into one line and an exit code.

    Inside, nothing fails because stderr takes no more, or because a stream is closed.
    """
    stderr, stdout = sys.stderr, sys.stdout
    with open(os.devnull, "w") as nowhere:  # for a stream that was closed from the start (`2>&-`): Python has none then
        sys.stderr, sys.stdout = cast(TextIO, Deaf(stderr or nowhere)), stdout or nowhere
        try:
            return _guard(call)
        finally:
            sys.stderr, sys.stdout = stderr, stdout


def _guard(call: Callable[[], int]) -> int:
    try:
        return call()
    except TripodError as e:
        return _fail(str(e), e.code)
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] in ("steps", "pipelines"):
            return _bug()
        return _fail(f"library {e.name}: not installed here; {records.how_to_install()}", Exit.USER)
    except BrokenPipeError:
        if not _reader_is_gone():  # another pipe: a worker's, a server's
            return _bug()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except OSError as e:
        return _fail(*describe_os_error(e)) if e.errno in OS_ERRORS else _bug()
    except KeyboardInterrupt:
        return _fail("cancelled", Exit.CANCELLED)
    except Terminated:
        return _fail("ended by SIGTERM", 128 + signal.SIGTERM)
    except Exception:  # noqa: BLE001 - the boundary: what nobody expected is our bug, and said so
        return _bug()


def _reader_is_gone() -> bool:
    """Whether nobody reads our stdout any more, as in `... | head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always told
    return bool(poll.poll(0))


def _main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE + ", ".join(step_names()), file=sys.stdout if argv else sys.stderr)
        return Exit.DONE if argv else Exit.USER
    module = load_step(argv[0])
    if any(a in ("-h", "--help") for a in argv[1:]):
        print(_describe(module))
        return Exit.DONE
    params = parse_params(argv[0], module.Params, argv[1:])
    signal.signal(signal.SIGTERM, _terminate)
    _end_with(env.get("TRIPOD_PARENT", ""))
    result, kind, why = call(module, params, env)
    _write_outputs(env.get("TRIPOD_OUTPUTS", ""), result, kind, why)
    print(result.model_dump_json())
    return Exit.DONE


def call(module: ModuleType, params: Params, env: Mapping[str, str]) -> tuple[Result, str, str]:
    """Take the result from its record, or run the step and record it.

    Returns:
        The result; hit, miss, or live for a step that is never cached; and why, or what a live step said last.
    """
    if "TRIPOD_STORE" not in env:
        raise UserError("TRIPOD_STORE: not set, allowed are file:///folder and s3://bucket/prefix")
    store = open_store(env["TRIPOD_STORE"])
    fingerprint = module.fingerprint if hasattr(module, "fingerprint") else None
    with _Scratch(env) as scratch:
        ctx = Context(
            store=store,
            run_id=env.get("TRIPOD_RUN_ID", "adhoc"),
            key="",
            scratch=scratch,
            workers=_positive(env, "TRIPOD_WORKERS", os.cpu_count() or 1),
            env=env,
        )
        parts = records.key_parts(module, params, fingerprint(params, ctx) if fingerprint else "")
        ctx = dataclasses.replace(ctx, key=parts.key)
        why = ""
        if module.step.cached:
            full = env.get("TRIPOD_CACHE_VERIFY", "head") == "full"
            record, why = records.find(store, parts, module.Result, full=full)
            if record:
                return module.Result.model_validate(record.result), "hit", why
        started = time.time()
        said = _LastSaid(ctx.say)
        result = module.run(params, dataclasses.replace(ctx, say=said))
        if not module.step.cached:
            return result, "live", said.line
        records.save(store, records.now_record(parts, result, ctx.run_id, started), module.Result)
        return result, "miss", why


def parse_params(name: str, params_type: type[Params], argv: Sequence[str]) -> Params:
    """Params from `--field=value` words; fields that are not strings take JSON.

    Raises:
        UserError: a word, a field or a value is wrong; names the field and what is allowed.
    """
    fields = params_type.model_fields
    values: dict[str, Any] = {}
    for word in argv:
        field, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not equals or field not in fields:
            allowed = ", ".join(f"--{f}=..." for f in fields)
            raise UserError(f"step {name}: got {word!r}, allowed are {allowed or 'no arguments'}")
        if field in values:
            raise UserError(f"step {name}: --{field} is given twice")
        if _takes_text(fields[field].annotation):
            values[field] = text
            continue
        try:
            values[field] = json.loads(text)
        except ValueError as e:
            raise UserError(f"step {name}: --{field} takes JSON, got {text!r}") from e
    try:
        return params_type.model_validate(values)
    except ValidationError as e:
        raise UserError(f"step {name}: {first_problem(e)}") from e


def first_problem(error: ValidationError) -> str:
    """The first problem of a pydantic error in one line: field, what is wrong, what was got."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "value"
    got = "" if problem["type"] == "missing" else f", got {problem['input']!r}"
    return f"{where}: {problem['msg']}{got}"


def _takes_text(annotation: Any) -> bool:
    if get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    if annotation is str:
        return True
    args = get_args(annotation)
    return bool(args) and all(isinstance(a, str) for a in args)  # Literal["a", "b"]


def _write_outputs(folder: str, result: Result, kind: str, why: str) -> None:
    """One file a field: strings as they are, everything else as JSON."""
    if not folder:
        return
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for field, value in result.model_dump(mode="json").items():
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        with about_file(root / field):
            (root / field).write_bytes(text.encode())
    with about_file(root / CACHE_FILE):
        (root / CACHE_FILE).write_text(f"{kind}: {why}" if why else kind)


class _LastSaid:
    """Passes on what a step says and remembers the last line: what a step that is never cached has done."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.line = ""

    def __call__(self, text: str) -> None:
        self.line = text
        self.say(text)


class _Scratch:
    """A private temporary folder that is gone afterwards, whatever happened."""

    def __init__(self, env: Mapping[str, str]):
        self.parent = env.get("TRIPOD_SCRATCH") or None

    def __enter__(self) -> Path:
        self.path = Path(tempfile.mkdtemp(prefix="tripod-", dir=self.parent))
        return self.path

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = str(self.path)  # the store names its files; a library that names none wrote here


def _positive(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{name}: got {text!r}, allowed is a whole number from 1")
    return int(text)


def _terminate(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: the clean-up must not be cut short
    raise Terminated


def _end_with(parent: str) -> None:
    """Ask the kernel for SIGTERM when the process `parent` dies (Linux, prctl(2) PR_SET_PDEATHSIG)."""
    if not parent or sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before we asked
        raise Terminated


def _describe(module: ModuleType) -> str:
    lines = [(module.__doc__ or "").strip(), "", f"usage: python -m steps {module.__name__.removeprefix('steps.')}"]
    for name, info in module.Params.model_fields.items():
        default = "required" if info.is_required() else f"default {info.default!r}"
        lines.append(f"  --{name}=...  {getattr(info.annotation, '__name__', info.annotation)}, {default}")
    return "\n".join(lines)


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split("\n")), file=sys.stderr, flush=True)
    return int(code)


def _bug() -> int:
    traceback.print_exc()
    return _fail("this is a bug in tripod; please report it with the traceback above", Exit.BUG)
