"""What is shown of a run, at several widths."""

import io
import json
import os
import sys
import time
from threading import Lock

import pytest
from rich.console import Console

from pipelines.engine.events import LogLine, NodeFinished, NodeRetried, NodeStarted, Phase, Progress, RunStopping
from pipelines.engine.workflow import parse_workflow
from pipelines.live import LiveView
from pipelines.run_state import RunState, new_state
from pipelines.telling import bar, meaning, printable, progress_line, summary, took
from pipelines.view import JsonView, PlainView, tell
from tests.engine.workflows import out, task, workflow

PROGRESS = {
    "step": "120",
    "steps": "1500",
    "loss": "3.2104",
    "lr": "0.0003",
    "tokens_per_s": "12345",
    "mfu": "0.412",
    "eta_s": "130",
    "phase": "training",
}


def state_of(start: float) -> RunState:
    """A run in the middle: one step from its record, one fan-out, one that trains, one that waits."""
    document = workflow(
        [
            task("ingest"),
            task("tokenize", value="{{item}}", depends="ingest", withItems=["a", "b"]),
            task("train", value=out("tokenize"), depends="tokenize"),
            task("evaluate", depends="train"),
        ]
    )
    state = new_state(parse_workflow(document), start)
    state.run_id = "tiny-20260101-120000-abcd"
    for event in events(start):
        state.apply(event)
    return state


def events(start: float) -> list:
    """What happened in it."""
    log = "/nowhere"
    told = [
        NodeStarted(node="ingest", time=start, attempt=0, log=log),
        finished("ingest", start + 1, cache="hit: recorded"),
    ]
    for item in ("tokenize.0", "tokenize.1"):
        told.append(NodeStarted(node=item, time=start + 1, attempt=0, log=log))
        told.append(finished(item, start + 3))
    told.append(finished("tokenize", start + 3))
    told.append(NodeStarted(node="train", time=start + 3, attempt=0, log=log))
    return [*told, Progress(node="train", time=start + 4, values=PROGRESS)]


def finished(node: str, now: float, phase: Phase = Phase.SUCCEEDED, code: int = 0, message: str = "", cache: str = ""):
    """The end of a node."""
    return NodeFinished(
        node=node, time=now, phase=phase, attempt=0, exit_code=code, message=message, outputs={}, cache=cache
    )


def drawn(
    state: RunState, width: int, *, encoding: str = "utf-8", verbose: bool = False, lines: tuple = ()
) -> list[str]:
    """The live view's lines."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    view = LiveView(verbose=verbose, console=console)
    view._state, view._lock = state, Lock()
    for line in lines:
        view.update(line)
    console.print(view)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_table_fits(width):
    state = state_of(time.time() - 10)
    state.apply(finished("train", time.time(), Phase.FAILED, 2, "a long message " * 20))
    state.apply(RunStopping(node="", time=time.time(), reason="cancelled", grace_s=60))
    lines = drawn(state, width)
    assert [len(line) <= width for line in lines] == [True] * len(lines)
    assert [line.split()[1] for line in lines[1:4]] == ["ingest", "tokenize", "train"]


def test_the_table_at_80_columns():
    lines = drawn(state_of(time.time() - 63.2), 80)
    assert lines[0].startswith("tiny-20260101-120000-abcd  Running ")
    assert lines[0].endswith("1m 03s")
    assert lines[1] == "✔ ingest      1.0s  hit: recorded"
    assert lines[2] == "✔ tokenize    2.0s  2 of 2 done"
    assert lines[3] == "▸ train     1m 00s  ━─────── 120/1500 loss 3.210 12.3k tok/s eta 2m 10s"
    assert lines[4] == "  evaluate          waits for train"


def test_the_table_at_160_columns():
    line = drawn(state_of(time.time() - 63.2), 160)[3]
    assert line.endswith("120/1500  loss 3.210  12.3k tok/s  eta 2m 10s  mfu 41.2%  lr 3.00e-04")


def test_the_table_in_ascii():
    lines = drawn(state_of(time.time() - 10), 80, encoding="ascii")
    assert lines[3].startswith("> train ")
    assert "#-------" in lines[3]


def test_verbose_shows_the_last_lines_without_control_characters():
    told = tuple(LogLine(node="train", time=0, attempt=0, line=f"\x1b[31mline\x07 {i}") for i in range(9))
    lines = drawn(state_of(time.time()), 80, verbose=True, lines=told)
    assert lines[4:7] == ["    line 6", "    line 7", "    line 8"]


def test_a_failing_item_has_a_row_of_its_own():
    state = state_of(time.time())
    state.apply(finished("tokenize.1", time.time(), Phase.FAILED, 3, "too many rejects"))
    state.apply(finished("tokenize", time.time(), Phase.FAILED, 3, "too many rejects"))
    assert "✗ tokenize.1" in "\n".join(drawn(state, 80))
    assert state.failed_node() is state.nodes["tokenize.1"]


def test_plain_lines():
    stream = io.StringIO()
    view = PlainView(stream=stream)
    start = time.time() - 10
    state = new_state(parse_workflow(workflow([task("a")])), start)
    with view.showing(state, Lock()):
        for event in (
            NodeStarted(node="a", time=start, attempt=0, log="/nowhere"),
            LogLine(node="a", time=start, attempt=0, line="not shown"),
            NodeRetried(node="a", time=start + 1, attempt=0, exit_code=75, message="busy", wait_s=100),
            NodeStarted(node="a", time=start + 101, attempt=1, log="/nowhere"),
            finished("a", start + 103, cache="miss: never ran"),
        ):
            state.apply(event)
            view.update(event)
    lines = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert lines[0] == "run conformance: steps a"
    assert lines[1] == "a started"
    assert lines[2].startswith("a waits: attempt 1 failed, again in 1m ")
    assert lines[2].endswith("; exit 75: busy")
    assert lines[3] == "a started, attempt 2"
    assert lines[4] == "a succeeded after 1m 43s: miss: never ran"


def test_json_lines():
    stream = io.StringIO()
    view = JsonView(stream=stream)
    state = new_state(parse_workflow(workflow([task("a")])), 1.0)
    with view.showing(state, Lock()):
        view.update(finished("a", 2.0, message="é"))
        view.update(LogLine(node="a", time=2.0, attempt=0, line="not shown"))
    view.ended(state, ["for people"])
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in told] == ["RunStarted", "NodeFinished", "RunFinished"]
    assert told[1]["phase"] == "Succeeded"
    assert told[1]["message"] == "é"


def test_summary_of_a_failure():
    state = state_of(100.0)
    state.apply(finished("train", 160.0, Phase.FAILED, 3, "the loss is not finite"))
    state.phase, state.finished, state.exit_code = "Failed", 161.0, 3
    lines = summary(state, lambda node: [f"last of {node.name}"])
    assert lines[0] == f"run {state.run_id} failed after 1m 01s in train, exit 3: a gate or the data said no"
    assert lines[1] == "  the loss is not finite"
    assert "  | last of train" in lines
    assert f"next: python -m pipelines.runs logs {state.run_id} train" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (12.34, "12.3s"),
        (59.96, "1m 00s"),
        (125, "2m 05s"),
        (3600, "1h 00m"),
        (11220, "3h 07m"),
        (187200, "2d 04h"),
    ],
)
def test_times(seconds, text):
    assert took(seconds) == text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (2, "exit 2: wrong input or settings, or refused"),
        (137, "exit 137: ended by signal 9"),
        (42, "exit 42"),
        (None, "no process ran"),
    ],
)
def test_exit_codes_in_words(code, text):
    assert meaning(code) == text


def test_bars():
    assert [bar(share, 4) for share in (-1, 0, 0.5, 1, 2)] == ["────", "────", "━━──", "━━━━", "━━━━"]


def test_progress_with_odd_values():
    assert progress_line({"step": "x", "loss": "nan", "phase": "checkpointing"}, 60) == "checkpointing loss nan"
    assert progress_line({}, 60) == ""
    assert progress_line(PROGRESS, 0) == ""


def test_control_sequences_are_taken_out():
    assert printable("a\x1b[2Jb\x1b[31mc\x00\x9b\td") == "abc\td"


def test_a_reader_that_is_gone_ends_the_telling_and_not_the_run():
    """`... | head -1`: what comes after goes nowhere."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        tell("first", stream)
        tell("second", stream)


@pytest.mark.skipif(sys.platform != "linux", reason="uses /dev/full")
def test_a_full_disk_ends_the_telling_not_the_run():
    with open("/dev/full", "w") as stream:
        view = JsonView(stream=stream)
        view.refresh(state_of(0.0))
        view.refresh(state_of(0.0))
