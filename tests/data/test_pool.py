"""Worker processes: answers in order, failures that surface, none left behind."""

import multiprocessing
import os
import signal

import pytest

from steps.lib.data.pool import map_processes
from steps.lib.errors import TemporaryError, UserError


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refuse_three(number: int) -> int:
    if number == 3:
        raise UserError(f"{number}: not here")
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_answers_in_order_from_other_processes():
    answers = map_processes(square, range(20), workers=2)
    assert [answer for answer, _ in answers] == [n * n for n in range(20)]
    assert os.getpid() not in {pid for _, pid in answers}
    assert [pid for _, pid in map_processes(square, [3], workers=2)] == [os.getpid()]
    assert map_processes(square, [], workers=2) == []


def test_a_failure_in_a_worker_is_raised_here():
    with pytest.raises(UserError, match="3: not here"):
        map_processes(refuse_three, range(50), workers=2)
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_a_temporary_failure():
    with pytest.raises(TemporaryError, match="a worker process was killed"):
        map_processes(die, range(2), workers=2)
    assert multiprocessing.active_children() == []
