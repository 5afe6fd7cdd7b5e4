"""`python -m tests.bench [ID]`: measure, print the raw figures, rewrite BENCHMARKS.json.

Each measurement alternates what it compares (A B A B ...) and reports the median; `rounds` is how often.
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench import argo, command, engine, training

REPORT = Path(__file__).resolve().parent.parent.parent / "BENCHMARKS.json"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure and what it should be."""

    run: Callable[[], list[float]]
    """Returns one value a round."""
    goal: float
    better: str
    on_lab: bool = False
    """Whether it needs the lab: `make lab-up`, and what that prints."""


MEASURES = {
    "trainer_vs_bare": Measure(run=training.trainer_vs_bare, goal=0.95, better="higher"),
    "save_blocked": Measure(run=training.save_blocked, goal=0.15, better="lower"),
    "step_overhead_s": Measure(run=engine.step_overhead_s, goal=0.05, better="lower"),
    "argo_overhead": Measure(run=argo.argo_overhead, goal=1.05, better="lower", on_lab=True),
    "edit_to_pod_s": Measure(run=argo.edit_to_pod_s, goal=60, better="lower", on_lab=True),
    "help_s": Measure(run=command.help_s, goal=0.25, better="lower"),
    "dry_run_s": Measure(run=command.dry_run_s, goal=1.2, better="lower"),
    "trivial_step_s": Measure(run=command.trivial_step_s, goal=0.2, better="lower"),
}


def main(only: str = "") -> int:
    """Measure one or all. Returns 2 for an unknown id."""
    if only and only not in MEASURES:
        print(f"ONLY: got {only!r}, allowed are {', '.join(MEASURES)}", file=sys.stderr)
        return 2
    print(f"{platform.platform()}, {platform.processor()}, Python {platform.python_version()}")
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    for name in [only] if only else MEASURES:
        measure = MEASURES[name]
        if measure.on_lab and "TRIPOD_COMPUTE_KUBECONFIG" not in os.environ:
            print(f"{name}: not measured, no lab; `make lab-up` prints what to export", flush=True)
            continue
        values = measure.run()
        value = statistics.median(values)
        met = value >= measure.goal if measure.better == "higher" else value <= measure.goal
        print(f"{name}: {value:.4g} (goal {measure.goal}, {measure.better} is better: {'met' if met else 'MISSED'})")
        print(f"  raw: {', '.join(f'{v:.4g}' for v in values)}", flush=True)
        report[name] = {"value": round(value, 4), "goal": measure.goal, "better": measure.better, "rounds": len(values)}
        REPORT.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
