"""One record -> one clean document, or a reject with a reason.

What cleaning does, in this order:

    a leading U+FEFF (byte order mark)      removed
    CR LF and CR                            LF
    NUL characters                          removed
    lone surrogates                         U+FFFD, one each

and nothing else: no Unicode normalisation, no trimming. Then a document is rejected as

    too_short    fewer characters than the limit
    too_long     more characters than the limit
    blank        white space alone

Reading (reading.py) rejects records before that:

    not_utf8       bytes that are no UTF-8 (a UTF-16 text file is one)
    bad_json       a line that is no JSON (a whole number of over 4,300 digits counts as none)
    not_an_object  a line of JSON that is no object
    missing_field  no such field in the object
    not_a_string   the field is null, a number, a list, an object
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_EXAMPLES = 5
_PREVIEW_CHARS = 60
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reject(NamedTuple):
    """A record that is not kept."""

    reason: str
    preview: str
    """Its beginning in printable ASCII, safe in any log, database and terminal."""


class Example(NamedTuple):
    """Where one reject was found; sorted by file and row."""

    file: str
    row: int
    """Line of a text or JSONL file, row of a Parquet file, from 1; 0 for a whole file."""
    preview: str


@dataclass
class Rejects:
    """Rejects counted by reason, with the first few of each."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def add(self, reject: Reject, file: str, row: int) -> None:
        """Count one reject."""
        self.counts[reject.reason] = self.counts.get(reject.reason, 0) + 1
        shown = self.examples.setdefault(reject.reason, [])
        if len(shown) < MAX_EXAMPLES:
            shown.append(Example(file, row, reject.preview))

    def merge(self, others: Iterable["Rejects"]) -> None:
        """Add what others counted; the examples left are the first by file and row."""
        for other in others:
            for reason, count in other.counts.items():
                self.counts[reason] = self.counts.get(reason, 0) + count
                shown = self.examples.setdefault(reason, [])
                shown[:] = sorted(shown + other.examples[reason])[:MAX_EXAMPLES]

    @property
    def total(self) -> int:
        """Rejects of all reasons."""
        return sum(self.counts.values())

    def top(self) -> str:
        """`reason=count` of all reasons, the most frequent first."""
        return ", ".join(f"{r}={n}" for r, n in sorted(self.counts.items(), key=lambda item: (-item[1], item[0])))

    def as_meta(self) -> dict[str, Any]:
        """For a manifest: {reason: {count, examples: [{file, row, preview}]}}."""
        return {
            reason: {"count": count, "examples": [e._asdict() for e in self.examples[reason]]}
            for reason, count in sorted(self.counts.items())
        }


def clean(text: str, *, min_chars: int, max_chars: int) -> bytes | Reject:
    """The clean document as UTF-8, or why it is rejected (module docstring)."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        text = text.replace("\0", "")
    if len(text) < min_chars:
        return Reject("too_short", preview(text))
    if len(text) > max_chars:
        return Reject("too_long", preview(text))
    if text.isspace():
        return Reject("blank", preview(text))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def preview(text: str | bytes) -> str:
    """The beginning of `text` in printable ASCII."""
    if isinstance(text, bytes):
        text = text[: 4 * _PREVIEW_CHARS].decode("utf-8", "backslashreplace")
    return text[:_PREVIEW_CHARS].encode("unicode_escape").decode("ascii")
