"""What the verbs of `python -m pipelines.runs` do."""

import difflib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Lock

from pipelines import runs_argo
from pipelines.engine.events import Phase
from pipelines.execute import execute
from pipelines.run_state import NodeState, RunState
from pipelines.runs_store import Run, load_document, load_run, load_runs, log_reader, log_tail
from pipelines.settings.site import Site
from pipelines.summary import summary as model_summary
from pipelines.telling import detail, node_seconds, printable, state_word, summary, took
from pipelines.view import choose_view
from steps.lib.errors import Exit, UserError
from steps.lib.log_parts import LogReader
from steps.lib.store import Store
from steps.lib.wait import wait

_LOOK_EVERY_S = 0.5
_DETAIL_CHARS = 200
_CANCEL_MARGIN_S = 30.0
"""How long after the grace time a cancelled engine may take to end its record."""


def show_list(store: Store, here: Site, *, as_json: bool) -> int:
    """Print all runs, the newest first."""
    runs, problems = load_runs(store)
    _say([f"warning: {problem}" for problem in problems])
    runs_argo.ask_clusters(here, runs, _say_line)
    if as_json:
        print(json.dumps([_as_json(run) for run in runs], ensure_ascii=False, indent=1))
        return Exit.DONE
    if not runs and not problems:
        _say([f"no runs in {store.uri}; start one with `python -m pipelines.train --model NAME`"])
        return Exit.DONE
    rows = [("RUN", "STATE", "STARTED", "TOOK", "WHAT")] + [_list_row(run) for run in runs]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip())
    return Exit.DONE


def show_status(store: Store, here: Site, run_id: str, *, follow: bool, as_json: bool) -> int:
    """Print what each step does or did; with `follow`, until the run has ended.

    Returns:
        0, or with `follow` the exit code of the run.
    """
    run = load_run(store, run_id)
    if run.on_argo and follow and run.state.phase == "Running":
        return _come_back(store, here, run, as_json=as_json)
    if run.on_argo:
        runs_argo.look(store, here, run, _say_line)
        _say(runs_argo.orphans(here, run))
    if follow:
        return _follow(store, run, as_json=as_json)
    if as_json:
        nodes = run.state.model_dump(mode="json")["nodes"]
        print(json.dumps(_as_json(run) | {"nodes": nodes}, ensure_ascii=False, indent=1))
        return Exit.DONE
    now = time.time()
    print(f"{run_id}  {state_word(run.state)}  {took((run.state.finished or now) - run.state.started)}")
    name_chars = max(len(name) for name in run.state.nodes)
    for node in run.state.shown():
        seconds = node_seconds(node, now)
        time_taken = "" if seconds is None else took(seconds)
        said = printable(detail(run.state, node, now, _DETAIL_CHARS))
        print(f"  {node.name:<{name_chars}}  {node.phase:<9}  {time_taken:>8}  {said}".rstrip())
    sys.stdout.flush()
    _say(_last_words(store, run.state))
    return Exit.DONE


def show_logs(store: Store, here: Site, run_id: str, step: str, *, follow: bool, as_json: bool) -> int:
    """Print what the steps wrote, one after the other; with `follow`, as it comes, until the run has ended.

    A step that has not started yet is waited for.
    """
    run = load_run(store, run_id)
    if run.on_argo and not follow:
        runs_argo.look(store, here, run, _say_line)
    _check_step(run.state, step)
    if run.on_argo and follow and run.state.phase == "Running":
        with runs_argo.following(store, here, run) as check:
            return _print_logs(store, run, step, follow=True, as_json=as_json, check=check)
    return _print_logs(store, run, step, follow=follow, as_json=as_json)


def _print_logs(
    store: Store,
    run: Run,
    step: str,
    *,
    follow: bool,
    as_json: bool,
    check: Callable[[], None] = lambda: None,
) -> int:
    run_id = run.info.run_id
    readers: dict[tuple[str, int], LogReader] = {}
    try:
        while True:
            for node in _nodes_with_logs(run.state, step):
                _print_news(store, run.state, node, readers, as_json=as_json, named=node.name != step)
            sys.stdout.flush()
            if run.state.phase != "Running" or not follow:
                return Exit.DONE
            check()
            time.sleep(_LOOK_EVERY_S)
            run = load_run(store, run_id)
    except KeyboardInterrupt:
        return say_detached(run_id)


def cancel(store: Store, here: Site, run_id: str, *, grace_s: float) -> int:
    """Ask the process that runs a run to stop, and wait for it.

    Raises:
        UserError: it runs on another machine.
        TemporaryError: it has not ended in time.
    """
    run = load_run(store, run_id)
    if run.on_argo:
        waited_s = runs_argo.cancel(store, here, run, grace_s=grace_s, say=_say_line)
        return _say_cancelled(store, runs_argo.look(store, here, run, _say_line), waited_s)
    if run.holder is None:
        return _say_cancelled(store, run.state, None)
    if not run.holder.here:
        raise UserError(f"run {run_id} runs on {run.holder.host}; run `python -m pipelines.runs cancel {run_id}` there")
    with suppress(ProcessLookupError):  # it has ended this moment
        os.kill(run.holder.pid, signal.SIGTERM)
    took_s = wait(
        lambda: load_run(store, run_id).holder is None,
        what=f"run {run_id} ends",
        timeout_s=grace_s + _CANCEL_MARGIN_S,
        say=_say_line,
    )
    return _say_cancelled(store, load_run(store, run_id).state, took_s)


def resume(store: Store, here: Site, run_id: str, *, grace_s: float, as_json: bool, verbose: bool) -> int:
    """Run a run's workflow again under the same id; what is recorded is not repeated.

    Returns:
        The exit code of the run.

    Raises:
        UserError: it is running.
    """
    run = load_run(store, run_id)
    if run.on_argo:
        runs_argo.look(store, here, run, _say_line)
    if run.state.phase == "Succeeded":
        _say([f"run {run_id} has succeeded, nothing is left to do; next: python -m pipelines.runs status {run_id}"])
        return Exit.DONE
    view = choose_view(json_lines=as_json, verbose=verbose)
    if run.on_argo:
        outcome = runs_argo.resume(store, here, run, view)
    else:
        outcome = execute(load_document(store, run_id), store=store, info=run.info, view=view, grace_s=grace_s)
    if outcome is None:
        return say_detached(run_id)
    if outcome.exit_code == Exit.DONE and not as_json:
        state = load_run(store, run_id).state
        served_as = (run.info.settings.get("serving") or {}).get("name") or run.info.recipe
        lines = summary(state, lambda node: [])
        if "register" in outcome.nodes:
            wall_s = (state.finished or time.time()) - state.started
            lines = model_summary(run_id, run.info.recipe, served_as, outcome.nodes, wall_s)
        _say(lines)
    return outcome.exit_code


def _follow(store: Store, run: Run, *, as_json: bool) -> int:
    view = choose_view(json_lines=as_json)
    state = run.state
    try:
        with view.showing(state, Lock()):
            for state in _states(store, run):
                view.refresh(state)
    except KeyboardInterrupt:
        return say_detached(run.info.run_id)
    view.ended(state, _last_words(store, state))
    return Exit.USER if state.phase == "Lost" else state.exit_code or Exit.DONE


def say_detached(run_id: str) -> int:
    """Tell how to come back to a run that goes on without us. Returns the exit code."""
    _say(
        [
            f"run {run_id} goes on; `python -m pipelines.runs cancel {run_id}` stops it",
            f"next: python -m pipelines.runs status {run_id} --follow",
        ]
    )
    return Exit.DONE


def _come_back(store: Store, here: Site, run: Run, *, as_json: bool) -> int:
    """Follow a run on Argo to its end. Returns its exit code."""
    outcome = runs_argo.follow(store, here, run, choose_view(json_lines=as_json))
    if outcome is None:
        return say_detached(run.info.run_id)
    if outcome.exit_code == Exit.DONE and not as_json:
        _say(summary(run.state, lambda node: []))
    return outcome.exit_code


def _say_cancelled(store: Store, state: RunState, waited_s: float | None) -> int:
    """Tell how a run has ended that was asked to; None: it did not run. Returns the exit code."""
    if waited_s is None:
        _say([f"run {state.run_id} does not run: {state.phase}", *summary(state, lambda node: [])[1:]])
        return Exit.DONE
    ended = f"run {state.run_id} ended {took(waited_s)} after it was asked to stop: {state.phase}, {state.message}"
    _say([ended.rstrip(", "), *_last_words(store, state)[1:]])
    return Exit.DONE


def _states(store: Store, run: Run) -> Iterator[RunState]:
    """The states of a run, each once, to the last."""
    yield run.state
    while run.state.phase == "Running":
        time.sleep(_LOOK_EVERY_S)
        before = run
        run = load_run(store, run.info.run_id)
        if run.state != before.state:
            yield run.state


def _last_words(store: Store, state: RunState) -> list[str]:
    if state.phase == "Running":
        return [f"next: python -m pipelines.runs status {state.run_id} --follow"]
    return summary(state, partial(log_tail, store, state))


def _nodes_with_logs(state: RunState, step: str) -> list[NodeState]:
    nodes = [node for node in state.nodes.values() if not step or step in (node.name, node.parent)]
    return [node for node in nodes if not state.items_of(node.name)]


def _check_step(state: RunState, step: str) -> None:
    if step and step not in state.nodes:
        close = difflib.get_close_matches(step, state.nodes, n=3, cutoff=0.4)
        meant = f"did you mean {', '.join(close)}?" if close else f"it has {', '.join(state.nodes)}"
        raise UserError(f"step {step!r}: not in run {state.run_id}; {meant}")


def _print_news(
    store: Store,
    state: RunState,
    node: NodeState,
    readers: dict[tuple[str, int], LogReader],
    *,
    as_json: bool,
    named: bool,
) -> None:
    """Print the lines of one node that have not been printed yet."""
    numbers = state.log_numbers(node)
    for number in numbers:
        key = (node.name, number)
        reader = readers.setdefault(key, log_reader(store, state, node, number))
        ended = number < numbers[-1] or node.phase != Phase.RUNNING
        for line in reader.lines(last=ended):
            if as_json:
                print(json.dumps({"node": node.name, "attempt": number, "line": line}, ensure_ascii=False))
            else:
                print(f"{node.name} | {printable(line)}" if named else printable(line))


def _list_row(run: Run) -> tuple[str, str, str, str, str]:
    state = run.state
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(state.started))
    taken = took((state.finished or time.time()) - state.started)
    running = [node.name for node in state.nodes.values() if node.phase == Phase.RUNNING and not node.parent]
    what = ", ".join(running) if state.phase == "Running" else printable(state.message)
    if state.phase == "Lost":
        what = f"interrupted; python -m pipelines.runs resume {run.info.run_id}"
    return run.info.run_id, state_word(state), started, taken, what if len(what) <= 100 else f"{what[:99]}…"


def _as_json(run: Run) -> dict[str, object]:
    info = run.info.model_dump(mode="json", include={"run_id", "recipe", "site", "tree", "command"})
    kept = {"phase", "started", "finished", "exit_code", "message"}
    return info | run.state.model_dump(mode="json", include=kept)


def _say_line(line: str) -> None:
    _say([line])


def _say(lines: list[str]) -> None:
    for line in lines:
        print(printable(line), file=sys.stderr)
