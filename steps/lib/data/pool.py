"""One function over many tasks in several processes, which all end with the caller.

Processes are spawned: obstore, Arrow and tokenizers have threads that a fork would break.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

from steps.lib.errors import TemporaryError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Task = TypeVar("Task")
Answer = TypeVar("Answer")


def map_processes(function: Callable[[Task], Answer], tasks: Sequence[Task], *, workers: int) -> list[Answer]:
    """`function` of every task, in the order of `tasks`; in this process when one is enough.

    Whatever ends the call early (a failed task, SIGTERM, Ctrl-C) ends the processes too.

    Raises:
        TemporaryError: a process died, killed by the system.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        return [function(task) for task in tasks]
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent)
    try:
        with _signals_later():  # a process starts whole or not at all
            futures = [pool.submit(function, task) for task in tasks]
        wait(futures, return_when=FIRST_EXCEPTION)
        failed = [f for f in futures if f.done() and f.exception()]
        answers = [f.result() for f in failed or futures]
    except BaseException as e:  # a signal too
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(e, BrokenProcessPool):
            raise TemporaryError("a worker process was killed (out of memory?); give it more, then run again") from e
        raise
    pool.shutdown()
    return answers


@contextmanager
def _signals_later() -> Iterator[None]:
    """Signals that end this process are handled after the block (a mask would not do: threads share handlers)."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers never run here
        return
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for missed in arrived:
            signal.raise_signal(missed)


def _end_with_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and never outlive it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
