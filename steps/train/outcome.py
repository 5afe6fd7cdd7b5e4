"""How a gang ended: every worker writes a file, the agent reads them.

torchrun turns every failure into exit code 1, so its code says nothing; these files do.

    <folder>/rank-<n>.json   Outcome of a worker, written as its last act
    <folder>/pid-<n>         the worker's process id, written as its first
    <folder>/stop            the agent was told to stop before some worker could be told
"""

import os
import time
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ConfigDict

from steps.lib.errors import Exit, about_file, error_of


class Outcome(BaseModel):
    """The end of one worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    code: int
    """Of the exit table; 0 is done."""
    message: str
    """One line."""
    secondary: bool = False
    """The worker only lost contact with its peers: another one knows the cause."""
    time: float
    """Seconds since the epoch."""


def write_outcome(folder: Path, rank: int, code: int, message: str, *, secondary: bool = False) -> None:
    """Leave the outcome of worker `rank` in `folder`, whole or not at all."""
    outcome = Outcome(rank=rank, code=code, message=message, secondary=secondary, time=time.time())
    path = folder / f"rank-{rank}.json"
    part = path.with_suffix(".part")
    with about_file(path):
        part.write_text(outcome.model_dump_json())
        os.replace(part, path)


def read_outcomes(folder: Path) -> list[Outcome]:
    """What the workers of this machine left, causes first, then by time."""
    found = [Outcome.model_validate_json(path.read_text()) for path in folder.glob("rank-*.json")]
    return sorted(found, key=lambda o: (o.code == Exit.DONE, o.secondary, o.time))


def raise_outcome(outcome: Outcome) -> NoReturn:
    """Fail as the worker failed: the error kind of its code, its message."""
    raise error_of(outcome.code, outcome.message)


class Mailbox:
    """How the agent reaches the workers of this machine: their pids, and a stop mark for late starters."""

    def __init__(self, folder: Path):
        self.folder = folder

    def announce(self, local_rank: int) -> None:
        """A worker says that it can be signalled (call with the handlers in place)."""
        part = self.folder / f"pid-{local_rank}.part"
        with about_file(part):
            part.write_text(str(os.getpid()))
            os.replace(part, self.folder / f"pid-{local_rank}")

    def stop_was_asked(self) -> bool:
        """Whether the agent was told to stop."""
        return (self.folder / "stop").exists()

    def ask_to_stop(self) -> None:
        """For workers that have not announced themselves yet."""
        (self.folder / "stop").touch()

    def signal(self, signum: int) -> None:
        """Send a signal to every worker that has announced itself and still lives."""
        for path in self.folder.glob("pid-*"):
            if path.suffix != ".part":
                try:
                    os.kill(int(path.read_text()), signum)
                except ProcessLookupError:
                    continue
