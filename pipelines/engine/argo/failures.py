"""What became of an attempt, in the words and codes that the local engine has for the same thing. Pure."""

import re
import signal

from pipelines.engine.argo.status import Attempt
from pipelines.engine.events import Phase
from pipelines.engine.templates import Template
from pipelines.engine.workflow import Workflow
from steps.lib.errors import Exit

_TERMINATED, _KILLED = 128 + signal.SIGTERM, 128 + signal.SIGKILL
_SHUT_DOWN = "workflow shutdown with strategy"
_POD_TOO_LONG = "Pod was active on the node longer than the specified deadline"
_RUN_TOO_LONG = "Step exceeded its deadline"
_NO_FILE = re.compile(r"open \S*/(?P<file>[^/\s]+): no such file or directory")


def explain(attempt: Attempt, *, workflow: Workflow, template: Template | None, said: str) -> tuple[int | None, str]:
    """Exit code and message of an attempt that has ended; of one that succeeded there is no message.

    A pod that has ended without an exit code was lost with its node, evicted or deleted: it counts as killed.

    Args:
        template: what it ran.
        said: its line `error: ...`, else the last that it wrote.
    """
    argos = attempt.message
    if attempt.phase == Phase.SUCCEEDED:
        return Exit.DONE, ""
    if argos.startswith(_SHUT_DOWN):
        return attempt.exit_code, _join("cancelled", said)
    if argos.startswith((_POD_TOO_LONG, _RUN_TOO_LONG)):
        return attempt.exit_code or _TERMINATED, _join(_time_out(argos, workflow, template), said)
    if attempt.phase == Phase.ERROR:
        return attempt.exit_code, _missing_output(argos, template) or argos
    if attempt.exit_code is None:
        return _KILLED, argos or "the pod is gone"
    if attempt.exit_code >= 128 and attempt.exit_code != Exit.CANCELLED:
        return attempt.exit_code, _join(argos, said)  # `OOMKilled` is Argo's to say
    return attempt.exit_code, said or argos


def _time_out(argos: str, workflow: Workflow, template: Template | None) -> str:
    if argos.startswith(_POD_TOO_LONG) and template and template.deadline_s:
        return f"timed out after {template.deadline_s} s"
    return f"the run timed out after {workflow.deadline_s} s" if workflow.deadline_s else argos


def _missing_output(argos: str, template: Template | None) -> str:
    found = _NO_FILE.search(argos)
    for output in template.outputs if template and found else ():
        if found and output.file == found["file"]:
            return f"output parameter {output.name!r}: the step wrote no file {output.file!r}; it has no default"
    return ""


def _join(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
