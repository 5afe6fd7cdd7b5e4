"""Text with references in it, `--docs={{tasks.ingest.outputs.parameters.docs}}`.

Parsed once; values are put in byte for byte and never looked at again, so that a value may hold
quotes, newlines and braces. Allowed references, and where, are checked when the workflow is parsed.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pipelines.engine.document import Place
from steps.lib.errors import UserError

_NAME = r"[A-Za-z0-9_-]+"
_REFERENCE = re.compile(
    rf"item|workflow\.(?:name|status)|(?:workflow|inputs)\.parameters\.{_NAME}|tasks\.{_NAME}\.outputs\.parameters\.{_NAME}"
)
FORMS = {
    "item": "{{item}}",
    "workflow.name": "{{workflow.name}}",
    "workflow.status": "{{workflow.status}}",
    "workflow.parameters": "{{workflow.parameters.NAME}}",
    "inputs.parameters": "{{inputs.parameters.NAME}}",
    "tasks": "{{tasks.TASK.outputs.parameters.NAME}}",
}
"""Kind of a reference -> how it is written."""


@dataclass(frozen=True)
class Ref:
    """One reference, without its braces."""

    name: str

    @property
    def kind(self) -> str:
        """A key of FORMS."""
        parts = self.name.split(".")
        return self.name if self.name in FORMS else parts[0] if parts[0] == "tasks" else ".".join(parts[:2])

    @property
    def task(self) -> str:
        """The task that a reference of kind `tasks` names."""
        return self.name.split(".")[1]

    @property
    def parameter(self) -> str:
        """The parameter's name, for the kinds that have one."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Text:
    """Literal pieces and references, in order."""

    parts: tuple[str | Ref, ...]

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The references in it."""
        return tuple(part for part in self.parts if isinstance(part, Ref))

    @property
    def only_ref(self) -> Ref | None:
        """The reference, when the text is nothing but one."""
        return self.refs[0] if len(self.parts) == 1 and self.refs else None

    def fill(self, value_of: Callable[[Ref], str]) -> str:
        """The text with every reference replaced by its value."""
        return "".join(part if isinstance(part, str) else value_of(part) for part in self.parts)


def parse_text(text: str, place: str, allowed: Collection[str]) -> Text:
    """Split `text` into literals and references.

    Args:
        place: where it is in the document, for the error.
        allowed: kinds of references that may stand there.

    Raises:
        UserError: a reference is malformed, of a kind that is not allowed here, or not closed.
    """
    parts: list[str | Ref] = []
    rest = text
    while "{{" in rest:
        literal, _, rest = rest.partition("{{")
        inside, closed, rest = rest.partition("}}")
        ref = Ref(inside.strip())
        if not closed or not _REFERENCE.fullmatch(ref.name) or ref.kind not in allowed:
            forms = ", ".join(FORMS[kind] for kind in FORMS if kind in allowed)
            shown = "{{" + inside[:80] + closed
            raise UserError(f"workflow {place}: got {shown!r}, allowed here is {forms or 'plain text'}")
        parts += [literal, ref] if literal else [ref]
    return Text(tuple([*parts, rest] if rest else parts))


def literal(place: Place) -> str:
    """The value, a string without references. Raises UserError."""
    parse_text(place.text(), place.path, ())
    return place.text()
