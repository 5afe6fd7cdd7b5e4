"""Reading a parsed YAML document: every value is asked for by key and type, every key must be known."""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from steps.lib.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Place:
    """A value in the document and the path that leads to it."""

    path: str
    """As in `spec.templates[2].container.args`."""
    value: Any

    def wrong(self, allowed: str) -> UserError:
        """The error that says what was got here and what is allowed."""
        return UserError(f"workflow {self.path}: got {_short(self.value)}, allowed is {allowed}")

    def only(self, honoured: Collection[str], ignored: Collection[str] = ()) -> "Place":
        """This mapping, once all its keys are known.

        Raises:
            UserError: not a mapping, or a key that is neither honoured nor ignored.
        """
        for key in self._mapping():
            if key not in honoured and key not in ignored:
                close = difflib.get_close_matches(str(key), [*honoured, *ignored], n=1)
                meant = f" (did you mean {close[0]!r}?)" if close else ""
                raise UserError(
                    f"workflow {self._join(str(key))}: the local engine does not run this{meant}; "
                    f"allowed here are {', '.join(sorted(honoured))}"
                )
        return self

    def has(self, key: str) -> bool:
        """Whether the mapping holds a value under `key`."""
        return self._mapping().get(key) is not None

    def at(self, key: str) -> "Place":
        """The value under `key`. Raises UserError when it is missing."""
        if not self.has(key):
            raise UserError(f"workflow {self._join(key)}: missing")
        return Place(self._join(key), self._mapping()[key])

    def items(self, key: str) -> Iterator["Place"]:
        """The entries of the list under `key`; none when it is missing."""
        entries = self.at(key).list() if self.has(key) else []
        return (Place(f"{self._join(key)}[{index}]", entry) for index, entry in enumerate(entries))

    def list(self) -> list[Any]:
        """The value, a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return self.value

    def text(self) -> str:
        """The value as Argo reads it: strings, whole numbers and booleans.

        A float is refused, since its digits may change on the way; quote it.
        """
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, str | int):
            return str(self.value)
        raise self.wrong("a string (quote it)")

    def positive(self) -> int:
        """The value, a whole number from 1, also as a string."""
        text = self.text()
        if not text.isdecimal() or int(text) < 1:
            raise self.wrong("a whole number from 1")
        return int(text)

    def _mapping(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("a mapping")
        return self.value

    def _join(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def by_name(entries: Iterable[Place]) -> dict[str, Place]:
    """The entries of a list of mappings, by their `name`. Raises UserError for one given twice."""
    places: dict[str, Place] = {}
    for entry in entries:
        name = name_at(entry.at("name"))
        if name in places:
            raise UserError(f"workflow {entry.path}.name: {name!r} is given twice")
        places[name] = entry
    return places


def name_at(place: Place) -> str:
    """The value, a name."""
    text = place.text()
    if not _NAME.fullmatch(text):
        raise place.wrong("letters, digits, - and _")
    return text
