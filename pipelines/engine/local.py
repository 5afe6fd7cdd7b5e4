"""Runs a Workflow here: one process an attempt, independent tasks side by side.

As on Argo: a task starts when all that it depends on has succeeded or was skipped; it is omitted when
something did not; other branches go on and start their tasks too (Argo 4.0.7 does that with failFast
left alone). An attempt is tried again by the exit table (retry.py); one that takes too long is ended by
SIGTERM, fails with 143 and may be tried again like whatever the system ended. The exit handler runs
last, also after a failure, but not after a cancel (as with Argo's `terminate`).

One thread decides (the one that calls `run`); each attempt has a thread that waits for its process.
All that happens comes to the deciding thread as a call in one queue, so nothing polls.
"""

import heapq
import itertools
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from pipelines.engine.attempt import Attempt, AttemptResult
from pipelines.engine.events import (
    EXIT_NODE,
    Event,
    Listener,
    NodeFinished,
    NodeReady,
    NodeResult,
    NodeRetried,
    NodeStarted,
    Outcome,
    Phase,
    RunStopping,
)
from pipelines.engine.nodes import NO_ITEM, NOT_HELD, NOT_REACHED, Node, Scope, TaskError, TaskState
from pipelines.engine.references import Ref
from pipelines.engine.templates import Template
from pipelines.engine.workflow import Workflow
from steps.lib.errors import Exit

Call = Callable[[], None]
SAME_WISH_S = 0.5
"""Cancels that come closer together than this are one."""


class LocalEngine:
    """Runs one workflow once.

    Args:
        scratch: a folder of this run's own; each attempt gets `<node>/<attempt>/` in it, with its log
            and its outputs. The engine removes nothing.
        env: environment of every step, under what its template sets.
        listeners: told of every event.
        max_parallel: attempts at a time, unless the workflow's `parallelism` says fewer; 0: that alone
            counts, else the number of cores.
        grace_s: from asking a process to end to killing it.
    """

    def __init__(
        self,
        workflow: Workflow,
        *,
        scratch: Path,
        env: Mapping[str, str] | None = None,
        listeners: Sequence[Listener] = (),
        max_parallel: int = 0,
        grace_s: float = 60,
    ):
        self._workflow = workflow
        self._scratch = scratch
        self._env = dict(os.environ if env is None else env)
        self._listeners = listeners
        self._slots = min([n for n in (max_parallel, workflow.parallelism) if n], default=os.cpu_count() or 1)
        self._grace_s = grace_s
        self._states = {task.name: TaskState(task) for task in workflow.tasks}
        self._scope = Scope(workflow.name, workflow.parameters, self._states)
        self._exit_node: Node | None = None
        self._status = ""
        """{{workflow.status}} of the exit handler; until it is set, tasks may start."""
        self._inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._timer_numbers = itertools.count()
        self._waiting: deque[Node] = deque()
        self._running: dict[Node, Attempt] = {}
        self._between: dict[Node, NodeResult] = {}
        """Nodes that wait for another attempt, and how the last one ended."""
        self._first_bad: tuple[str, NodeResult] | None = None
        self._stop_reason = ""
        self._cancelled = False
        self._cancelled_at = 0.0
        self._emit_lock = threading.Lock()

    def run(self) -> Outcome:
        """Run to the end. Called in the main thread, it takes SIGINT, SIGTERM and SIGHUP as `cancel`."""
        with ThreadPoolExecutor(self._slots, "attempt") as self._pool, _call_on_signals(self.cancel):
            try:
                if self._workflow.deadline_s:
                    self._after(self._workflow.deadline_s, self._expire_run)
                self._until_idle()
                if self._workflow.on_exit and not self._cancelled:
                    self._run_exit_handler(self._workflow.on_exit)
            finally:
                self._kill_all()
        return self._outcome()

    def cancel(self) -> None:
        """Stop: nothing new starts, processes are asked to end and killed after the grace time.

        A second call, half a second later or more, kills at once. Safe from any thread and from a signal handler.
        """
        self._inbox.put(self._on_cancel)

    # ---- the deciding thread -----------------------------------------------------------------

    def _until_idle(self) -> None:
        self._advance()
        while self._running or self._between or (self._waiting and not self._stop_reason):
            self._next_call()()
            self._advance()

    def _next_call(self) -> Call:
        """The next thing that happened, or the next timer that is due."""
        while True:
            wait_s = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            try:
                return self._inbox.get(timeout=wait_s)
            except queue.Empty:
                return heapq.heappop(self._timers)[2]

    def _after(self, seconds: float, call: Call) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_numbers), call))

    def _advance(self) -> None:
        """Bring every task as far as it can go now; tasks come in the order of their dependencies."""
        for state in self._states.values():
            if not (self._stop_reason or self._status or state.nodes) and not state.result.phase.ended:
                self._open(state)
            if state.settle() and state.task.fans_out:
                self._tell_finished(state.task.name, state.result)
        while self._waiting and len(self._running) < self._slots and not self._stop_reason:
            self._start(self._waiting.popleft())

    def _open(self, state: TaskState) -> None:
        before = [self._states[name].result.phase for name in state.task.depends]
        if not all(phase.ended for phase in before):
            return
        if any(phase not in (Phase.SUCCEEDED, Phase.SKIPPED) for phase in before):
            self._end_task(state, NodeResult(phase=Phase.OMITTED, message=NOT_REACHED))
            return
        try:
            if self._scope.skips(state.task):
                self._end_task(state, NodeResult(phase=Phase.SKIPPED, message=NOT_HELD))
                return
            nodes = self._scope.expand(state.task)
        except TaskError as e:
            self._end_task(state, NodeResult(phase=Phase.ERROR, message=str(e)))
            return
        if not nodes:
            self._end_task(state, NodeResult(phase=Phase.SKIPPED, message=NO_ITEM))
        state.nodes = nodes
        for node in nodes:
            if node.result.phase.ended:
                self._tell_finished(node.name, node.result)
            else:
                self._enqueue(node)

    def _end_task(self, state: TaskState, result: NodeResult) -> None:
        state.result = result
        self._note_bad(state.task.name, result)
        self._tell_finished(state.task.name, result)

    def _enqueue(self, node: Node) -> None:
        self._waiting.append(node)
        self._emit(NodeReady(node=node.name, time=time.time()))

    def _start(self, node: Node) -> None:
        number = node.result.attempts
        attempt = Attempt(
            node=node.name,
            number=number,
            argv=[*node.template.command, *(arg.fill(partial(self._value, node)) for arg in node.template.args)],
            env=self._env | {name: text.fill(partial(self._value, node)) for name, text in node.template.env},
            folder=self._scratch / node.name / str(number),
            outputs=node.template.outputs,
            emit=self._emit_for_attempt,
        )
        self._between.pop(node, None)
        self._running[node] = attempt
        node.result = replace(node.result, phase=Phase.RUNNING, attempts=number + 1)
        self._emit(NodeStarted(node=node.name, time=time.time(), attempt=number, log=attempt.log))
        if node.template.deadline_s:
            self._after(node.template.deadline_s, partial(self._expire, node, attempt))
        future = self._pool.submit(attempt.run)
        future.add_done_callback(lambda done: self._inbox.put(partial(self._attempt_ended, node, done)))

    def _value(self, node: Node, ref: Ref) -> str:
        if ref.kind == "inputs.parameters":
            return node.arguments[ref.parameter]
        return self._status if ref.kind == "workflow.status" else self._scope.workflow_value(ref)

    def _attempt_ended(self, node: Node, future: "Future[AttemptResult]") -> None:
        del self._running[node]
        result = future.result()
        number = node.result.attempts - 1
        ended = NodeResult(
            phase=result.phase,
            exit_code=result.exit_code,
            message=result.message,
            outputs=result.outputs,
            attempts=number + 1,
            wall_s=node.result.wall_s + result.wall_s,
        )
        node.cache = result.cache
        code, error = result.exit_code or 0, result.phase == Phase.ERROR
        if (
            result.phase.bad
            and not self._stop_reason
            and node.template.retry.again(number, exit_code=code, error=error)
        ):
            self._retry(node, ended, node.template.retry.wait_s(number))
        else:
            self._end_node(node, ended)

    def _retry(self, node: Node, last: NodeResult, wait_s: float) -> None:
        node.result = replace(last, phase=Phase.PENDING)
        self._between[node] = last
        self._after(wait_s, partial(self._try_again, node))
        self._emit(
            NodeRetried(
                node=node.name,
                time=time.time(),
                attempt=last.attempts - 1,
                exit_code=last.exit_code or 0,
                message=last.message,
                wait_s=wait_s,
            )
        )

    def _try_again(self, node: Node) -> None:
        if node in self._between:
            self._waiting.append(node)

    def _end_node(self, node: Node, result: NodeResult) -> None:
        node.result = result
        self._note_bad(node.name, result)
        self._tell_finished(node.name, result, node.cache)

    def _note_bad(self, name: str, result: NodeResult) -> None:
        if result.phase.bad and not self._first_bad:
            self._first_bad = (name, result)

    def _run_exit_handler(self, template: Template) -> None:
        self._status = str(self._phase())
        self._stop_reason = ""  # a deadline of the run is none of the exit handler's
        inputs = {name: default or "" for name, default in template.inputs.items()}
        self._exit_node = Node(name=EXIT_NODE, template=template, arguments=inputs)
        self._enqueue(self._exit_node)
        self._until_idle()

    # ---- stopping ----------------------------------------------------------------------------

    def _on_cancel(self) -> None:
        now = time.monotonic()
        if self._cancelled:
            # `timeout` and process managers signal the process and its group: twice at once is one wish
            if now - self._cancelled_at > SAME_WISH_S:
                self._kill_all()
            return
        self._cancelled, self._cancelled_at = True, now
        self._stop("cancelled")

    def _expire_run(self) -> None:
        if not self._status and not self._stop_reason:
            self._stop(f"the run timed out after {self._workflow.deadline_s} s", expired=True)

    def _stop(self, reason: str, *, expired: bool = False) -> None:
        self._stop_reason = reason
        self._emit(RunStopping(node="", time=time.time(), reason=reason, grace_s=self._grace_s))
        self._waiting.clear()
        while self._between:
            self._end_node(*self._between.popitem())
        for attempt in self._running.values():
            attempt.stop(reason, expired=expired)
            self._after(self._grace_s, attempt.kill)  # these alone: the exit handler may run by then

    def _expire(self, node: Node, attempt: Attempt) -> None:
        if self._running.get(node) is attempt:
            attempt.stop(f"timed out after {node.template.deadline_s} s", expired=True)
            self._after(self._grace_s, attempt.kill)

    def _kill_all(self) -> None:
        for attempt in self._running.values():
            attempt.kill()

    # ---- telling -----------------------------------------------------------------------------

    def _phase(self) -> Phase:
        phases = [state.result.phase for state in self._states.values()]
        if Phase.ERROR in phases and Phase.FAILED not in phases:
            return Phase.ERROR
        good = all(phase in (Phase.SUCCEEDED, Phase.SKIPPED) for phase in phases)
        return Phase.SUCCEEDED if good else Phase.FAILED

    def _outcome(self) -> Outcome:
        phase = self._phase()
        nodes = {name: state.result for name, state in self._states.items()}
        nodes |= {node.name: node.result for state in self._states.values() for node in state.nodes}
        if self._exit_node:
            nodes[EXIT_NODE] = self._exit_node.result
            if phase == Phase.SUCCEEDED:
                phase = self._exit_node.result.phase
        if phase == Phase.SUCCEEDED:
            return Outcome(phase=phase, exit_code=Exit.DONE, message="", nodes=nodes)
        if self._cancelled:
            return Outcome(phase=Phase.FAILED, exit_code=Exit.CANCELLED, message="cancelled", nodes=nodes)
        name, result = self._first_bad or ("run", NodeResult(phase=Phase.FAILED, message=self._stop_reason))
        return Outcome(
            phase=phase, exit_code=result.exit_code or Exit.BUG, message=f"{name}: {result.message}", nodes=nodes
        )

    def _tell_finished(self, name: str, result: NodeResult, cache: str = "") -> None:
        self._emit(
            NodeFinished(
                node=name,
                time=time.time(),
                phase=result.phase,
                attempt=result.attempts - 1,
                exit_code=result.exit_code,
                message=result.message,
                outputs=result.outputs,
                cache=cache,
            )
        )

    def _emit(self, event: Event) -> None:
        with self._emit_lock:
            for listener in self._listeners:
                listener(event)

    def _emit_for_attempt(self, event: Event) -> None:
        """A listener's failure ends the run from the deciding thread; the step's pipe is read on."""
        try:
            self._emit(event)
        except Exception as e:  # noqa: BLE001  # raised by the deciding thread
            self._inbox.put(partial(_raise, e))


def _raise(error: Exception) -> None:
    raise error


@contextmanager
def _call_on_signals(call: Call) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP make `call`, when this is the main thread; what was set before comes back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(signum: int, frame: FrameType | None) -> None:
        call()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.getsignal(s) for s in signals}
    taken = [s for s in signals if before[s] != signal.SIG_IGN]  # nohup ignores SIGHUP
    for s in taken:
        signal.signal(s, handler)
    try:
        yield
    finally:
        for s in taken:
            signal.signal(s, before[s])
