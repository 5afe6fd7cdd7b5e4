"""One function over many tasks in several processes, which all end with the caller.

Processes are spawned: obstore, Arrow and tokenizers have threads that a fork would break.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

from steps.lib.errors import TemporaryError

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
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        try:
            futures = [pool.submit(function, task) for task in tasks]
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [f for f in futures if f.done() and not f.cancelled() and f.exception()]
            return [f.result() for f in failed or futures]
        except BrokenProcessPool as e:
            raise TemporaryError("a worker process was killed (out of memory?); give it more memory, run again") from e
        finally:
            if any(not f.done() for f in futures):
                for process in multiprocessing.active_children():
                    process.terminate()
                pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and never outlive it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
