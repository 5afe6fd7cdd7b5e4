"""One training as its launcher holds it: what is asked for, where, and how patiently."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from steps.lib.errors import TemporaryError
from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import TRAINJOB
from steps.lib.store import Store
from steps.lib.trainjob.build import KEY_CHARS, TrainSpec, job_name
from steps.lib.trainjob.place import Place

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is waited for what, seconds."""

    poll_s: float = 2.0
    mark_s: float = 6.0
    """Between looks for the mark of a cancel."""
    away_s: float = 1800.0
    """The GPU cluster's API server, or the store, may be out of reach."""
    stuck_s: float = 900.0
    """GPUs may be held by pods that cannot start."""
    logs_s: float = 20.0
    """Ended pods' logs may take to be read."""
    repeat_s: float = 60.0
    """Between two lines that say the same."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is asked for, and the means to get it."""

    cluster: Cluster
    store: Store
    place: Place
    spec: TrainSpec
    recorded: Callable[[], bool]
    """Whether the training's result is recorded in the store."""
    scratch: Path
    say: Callable[[str], None]
    patience: Patience = field(default_factory=Patience)

    @property
    def base(self) -> str:
        """checkpoints/<train-key>."""
        return f"checkpoints/{self.spec.key[:KEY_CHARS]}"

    def job(self, attempt: int) -> Object | None:
        """The TrainJob of an attempt."""
        return self.cluster.get(TRAINJOB, self.spec.namespace, job_name(self.spec.key, attempt))

    def patiently(self, call: Callable[[], T]) -> T:
        """`call`, again and again while cluster or store are out of reach: the training goes on meanwhile.

        Raises:
            TemporaryError: they stay away for longer than `patience.away_s`.
        """
        start = time.monotonic()
        said = ""
        while True:
            try:
                return call()
            except TemporaryError as e:
                away_s = time.monotonic() - start
                if away_s > self.patience.away_s:
                    raise TemporaryError(f"for {away_s:.0f} s: {e}; run again to go on watching the training") from e
                if str(e) != said:
                    said = str(e)
                    self.say(f"gpu: {e}; looking again for up to {self.patience.away_s:.0f} s")
                time.sleep(self.patience.poll_s)
