"""What the local engine adds to the steps that it runs."""

import io
import tempfile
import time
from typing import Any

from pipelines.engine.events import Event, NodeFinished, NodeStarted
from pipelines.engine.recorder import RunInfo
from pipelines.execute import execute
from pipelines.view import PlainView
from steps.lib.store import open_store

ROUNDS = 7
NUM_STEPS = 10


def step_overhead_s() -> list[float]:
    """Wall time of a chain of 10 steps less the steps' own wall times, for each step, seconds.

    A step is `python -c` that writes one output. From the start of the first attempt to the end of the
    last node; each attempt's own time is measured by the process itself, from the time it was started
    (/proc/self/stat) to its last statement.
    """
    return [_round() for _ in range(ROUNDS)]


_CODE = """
import os, time
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])  # starttime, proc(5) field 22
started = ticks / os.sysconf("SC_CLK_TCK")
time.sleep(0.1)
os.makedirs(os.environ["TRIPOD_OUTPUTS"], exist_ok=True)
with open(os.environ["TRIPOD_OUTPUTS"] + "/own_s", "w") as f:
    f.write(repr(time.clock_gettime(time.CLOCK_BOOTTIME) - started))
"""


def _round() -> float:
    seen: dict[str, Any] = {"own_s": 0.0}

    class Watch(PlainView):
        """The view of a pipe, which also notes when the first step starts and the last one ends."""

        def update(self, event: Event) -> None:
            super().update(event)
            if isinstance(event, NodeStarted):
                seen.setdefault("begin", time.perf_counter())
            if isinstance(event, NodeFinished):
                seen["end"] = time.perf_counter()
                seen["own_s"] += float(event.outputs["own_s"])

    with tempfile.TemporaryDirectory() as folder:
        info = RunInfo(run_id="chain", command=["bench"], started=time.time())
        view = Watch(stream=io.StringIO())
        outcome = execute(_chain(), store=open_store(f"file://{folder}"), info=info, view=view)
    assert outcome.exit_code == 0, outcome.message
    return float(seen["end"] - seen["begin"] - seen["own_s"]) / NUM_STEPS


def _chain() -> dict[str, Any]:
    tasks = [{"name": f"t{i}", "template": "step", **({"depends": f"t{i - 1}"} if i else {})} for i in range(NUM_STEPS)]
    step = {
        "name": "step",
        "outputs": {"parameters": [{"name": "own_s", "valueFrom": {"path": "/tmp/tripod/outputs/own_s"}}]},
        "container": {
            "image": "any",
            "command": ["python", "-c"],
            "args": [_CODE],
            "env": [{"name": "TRIPOD_OUTPUTS", "value": "/tmp/tripod/outputs"}],
        },
    }
    spec = {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}, step]}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "chain"}, "spec": spec}
