"""Read a source into runs: pieces planned by bytes, read by all processes, every record counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from steps.lib.data.clean import Example, Reject, Rejects, clean
from steps.lib.data.pool import map_processes
from steps.lib.data.reading import Piece, read, split
from steps.lib.data.runs import WORD_VALUES, RunWriter, held_out_word
from steps.lib.data.source import Source, SourceFile, check_unchanged

PIECE_BYTES = 32 << 20
RANGE_BYTES = 8 << 20
"""Text of one range of digests, about: what merging holds in memory."""
_MAX_RUN_BITS = 12
ONE_PROCESS_BYTES = 48 << 20
"""Less than this is read sooner than a second process has started."""


class Rules(NamedTuple):
    """How records become documents."""

    format: str
    text_field: str
    min_chars: int
    max_chars: int


@dataclass
class Counts:
    """What was read."""

    num_records: int = 0
    rejects: Rejects = field(default_factory=Rejects)
    text_bytes: int = 0
    """Of the documents, duplicates included."""
    held_out_words: tuple[int, int] = (WORD_VALUES, -1)
    """Smallest and largest word that decides about holding out (runs.py), over all documents."""

    def take(self, text: bytes, digest: bytes) -> None:
        """Count one document."""
        word = held_out_word(digest)
        self.text_bytes += len(text)
        self.held_out_words = min(self.held_out_words[0], word), max(self.held_out_words[1], word)


@dataclass(frozen=True)
class _Task:
    source: Source
    pieces: tuple[Piece, ...]
    rules: Rules
    folder: Path
    run_bits: int


class _PieceCount(NamedTuple):
    piece: Piece
    num_rows: int
    counts: Counts


def gather(
    source: Source, files: Sequence[SourceFile], rules: Rules, folder: Path, *, workers: int
) -> tuple[Counts, list[Path]]:
    """Read, clean and count every record of `files`; the documents go into runs below `folder`.

    Returns:
        The counts, the same whatever the workers; and the paths of the runs.

    Raises:
        UserError: a file cannot be read to its end.
        TemporaryError: a file changed meanwhile.
    """
    pieces = [piece for file in files for piece in split(source, file, rules.format, PIECE_BYTES)]
    run_bits = min(bits_for(sum(file.size for file in files), RANGE_BYTES), _MAX_RUN_BITS)
    tasks = [_Task(source, group, rules, folder, run_bits) for group in _groups(pieces)]
    answers = map_processes(_gather_group, tasks, workers=workers)
    counted = {done.piece: done for answer, _ in answers for done in answer}
    return _add_up([counted[piece] for piece in pieces]), [path for _, paths in answers for path in paths]


def bits_for(total: int, most: int) -> int:
    """Smallest b with total / 2**b <= most."""
    return (max(-(-total // most), 1) - 1).bit_length()


def _groups(pieces: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """Pieces for one task each: the largest first, so that all processes end together."""
    if sum(map(_size, pieces)) <= ONE_PROCESS_BYTES:
        return [tuple(pieces)]
    groups: list[tuple[Piece, ...]] = []
    held: list[Piece] = []
    held_bytes = 0
    for piece in sorted(pieces, key=_size, reverse=True):
        held.append(piece)
        held_bytes += _size(piece)
        if held_bytes >= PIECE_BYTES or len(held) >= 4096:
            groups.append(tuple(held))
            held, held_bytes = [], 0
    return [*groups, tuple(held)] if held else groups


def _size(piece: Piece) -> int:
    if piece.format == "jsonl" and piece.stop is not None:
        return piece.stop - piece.start
    return min(piece.file.size, PIECE_BYTES) if piece.stop is not None else piece.file.size


def _gather_group(task: _Task) -> tuple[list[_PieceCount], list[Path]]:
    writer = RunWriter(task.folder, task.run_bits)
    done = [_gather_piece(task, piece, writer) for piece in task.pieces]
    writer.flush()
    return done, writer.paths


def _gather_piece(task: _Task, piece: Piece, writer: RunWriter) -> _PieceCount:
    counts, row, name = Counts(), 0, piece.file.name
    for row, content in read(task.source, piece, task.rules.text_field):
        if content is None:
            continue
        counts.num_records += 1
        document = _clean(content, task.rules) if isinstance(content, str) else content
        if isinstance(document, Reject):
            counts.rejects.add(document, name, row)
        else:
            counts.take(document, writer.add(document, name))
    check_unchanged(task.source, piece.file)
    return _PieceCount(piece, row, counts)


def _clean(text: str, rules: Rules) -> bytes | Reject:
    return clean(text, min_chars=rules.min_chars, max_chars=rules.max_chars)


def _add_up(done: Sequence[_PieceCount]) -> Counts:
    """The sum over pieces in file order; rows of a later piece count on from the earlier ones."""
    total, rows_before = Counts(), 0
    rejects = []
    previous = None
    for piece, num_rows, counts in done:
        rows_before = rows_before if piece.file == previous else 0
        previous = piece.file
        rejects.append(_moved(counts.rejects, rows_before))
        rows_before += num_rows
        total.num_records += counts.num_records
        total.text_bytes += counts.text_bytes
        low, high = total.held_out_words
        total.held_out_words = min(low, counts.held_out_words[0]), max(high, counts.held_out_words[1])
    total.rejects.merge(rejects)
    return total


def _moved(rejects: Rejects, rows: int) -> Rejects:
    examples = {
        reason: [Example(e.file, e.row + rows, e.preview) for e in shown] for reason, shown in rejects.examples.items()
    }
    return Rejects(rejects.counts, examples)
