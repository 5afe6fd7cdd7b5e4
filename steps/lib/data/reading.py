"""One file -> records: text (a document a file), JSONL (one a line), Parquet (one a row).

Compression is told by the first bytes, never by the name. What a file is read as, is told by its
name; where the content is plainly something else (UTF-16, Parquet, an archive), the error says so.
A file that ends too early is an error that names it and the records read so far.

A piece is what one call reads: a file, a byte range of a plain JSONL file, row groups of a Parquet
file. A line belongs to the piece that its first byte lies in.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, BinaryIO, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from steps.lib.data.clean import Reject, preview
from steps.lib.data.source import Source, SourceFile
from steps.lib.errors import UserError

Format = Literal["text", "jsonl", "parquet"]
MAX_RECORD_BYTES = 128 << 20
"""A longer line or text file is rejected as too_long without being held in memory."""
_BLOCK_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20
_BOM = b"\xef\xbb\xbf"
_SUFFIXES: dict[str, Format] = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "parquet": "parquet", "pq": "parquet"
}  # fmt: skip
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_COMPRESSED = ("gzip", "zstd")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one call of `read` reads."""

    file: SourceFile
    format: Format
    start: int = 0
    """First byte (JSONL) or first row group (Parquet)."""
    stop: int | None = None
    """One past the last byte or row group; None for the end."""


class Record(NamedTuple):
    """One record of a file."""

    row: int
    """Line or row from 1, counted from the start of the piece; 0 for a whole file."""
    content: str | Reject | None
    """None for an empty line, which is no record."""


def format_of(file: SourceFile, wanted: str) -> Format:
    """The format to read the file as; `auto` goes by its name, less .gz or .zst."""
    if wanted != "auto":
        return wanted  # type: ignore[return-value]
    name = file.name.lower().removesuffix(".gz").removesuffix(".zst")
    return _SUFFIXES.get(name.rpartition(".")[2], "text")


def looks_like(head: bytes) -> str:
    """What the first bytes of a file say that it is; `plain` for everything else."""
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return "UTF-16" if len(head) > 1 and 0 in head[:2] and head[:2] != b"\0\0" else "plain"


def split(source: Source, file: SourceFile, wanted: str, piece_bytes: int) -> list[Piece]:
    """Pieces of about `piece_bytes` that together are the file, in order."""
    format = format_of(file, wanted)
    whole = Piece(file=file, format=format)
    if file.size <= piece_bytes or format == "text":
        return [whole]
    with source.open(file) as handle:
        if format == "parquet":
            return _split_parquet(file, handle, piece_bytes)
        if looks_like(handle.read(8)) != "plain":
            return [whole]
    starts = range(0, file.size, piece_bytes)
    return [Piece(file=file, format=format, start=s, stop=min(s + piece_bytes, file.size)) for s in starts]


def read(source: Source, piece: Piece, text_field: str) -> Iterator[Record]:
    """The records of a piece, in order.

    Raises:
        UserError: the file is cut off, damaged, or not what its name says; names it and the records read.
    """
    readers = {"text": _read_text, "jsonl": _read_jsonl, "parquet": _read_parquet}
    row = 0
    with source.open(piece.file) as handle:
        try:
            for record in readers[piece.format](piece, handle, text_field):
                row = record.row
                yield record
        except (OSError, pa.ArrowException) as e:
            if isinstance(e, OSError) and e.errno:
                raise  # the disk, not the content
            raise UserError(
                f"{piece.file.name}: damaged or cut off after {row} whole records of {piece.format} "
                f"({str(e).splitlines()[0]}); copy the file again or leave it out by `include`"
            ) from e


def _read_text(piece: Piece, handle: BinaryIO, text_field: str) -> Iterator[Record]:
    data = _decompressed(handle).read(MAX_RECORD_BYTES + 1)
    if len(data) > MAX_RECORD_BYTES:
        yield Record(0, Reject("too_long", preview(data[:1000])))
    elif data:  # a file of no bytes holds no document
        yield Record(0, _decoded(data))


def _read_jsonl(piece: Piece, handle: BinaryIO, text_field: str) -> Iterator[Record]:
    for row, line in enumerate(_lines(piece, handle), start=1):
        if isinstance(line, Reject):
            yield Record(row, line)
        else:
            yield Record(row, _field_of(line, text_field) if line and not line.isspace() else None)


def _field_of(line: bytes, text_field: str) -> str | Reject:
    text = _decoded(line.removeprefix(_BOM))
    if isinstance(text, Reject):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # ValueError: bad JSON, and whole numbers of too many digits
        return Reject("bad_json", preview(text))
    if not isinstance(value, dict):
        return Reject("not_an_object", preview(text))
    if text_field not in value:
        return Reject("missing_field", preview(text))
    document = value[text_field]
    return document if isinstance(document, str) else Reject("not_a_string", preview(text))


def _lines(piece: Piece, handle: BinaryIO) -> Iterator[bytes | Reject]:
    """The lines whose first byte lies in the piece."""
    stream: Any = handle
    if piece.start == 0:
        stream = _decompressed(handle)
    at = max(piece.start - 1, 0)  # one back: the line that reaches into the piece is the previous piece's
    if at:
        handle.seek(at)
    for line, size in _raw_lines(stream, piece):
        start, at = at, at + size
        if piece.stop is not None and start >= piece.stop:
            return
        if start >= piece.start:
            yield line


def _raw_lines(stream: Any, piece: Piece) -> Iterator[tuple[bytes | Reject, int]]:
    """Lines without their newline, and the bytes that they take with it."""
    parts: list[bytes] = []  # the line that is still open
    length = 0
    first_block = piece.start == 0
    while block := stream.read(_BLOCK_BYTES):
        if first_block:
            _check_plain(piece, block)
            first_block = False
        head, *rest = block.split(b"\n")
        if length <= MAX_RECORD_BYTES:
            parts.append(head)
        length += len(head)
        if rest:
            yield _joined(parts, length), length + 1
            yield from ((line, len(line) + 1) for line in rest[:-1])
            parts, length = [rest[-1]], len(rest[-1])
    if length:
        yield _joined(parts, length), length


def _joined(parts: list[bytes], length: int) -> bytes | Reject:
    return b"".join(parts) if length <= MAX_RECORD_BYTES else Reject("too_long", preview(parts[0]))


def _check_plain(piece: Piece, block: bytes) -> None:
    what = looks_like(block)
    if what != "plain":
        raise UserError(
            f"{piece.file.name}: read as {piece.format}, but looks like {what}; allowed is UTF-8, plain or in one "
            "layer of gzip or zstd: convert it, rename it, or leave it out by `include`"
        )


def _read_parquet(piece: Piece, handle: BinaryIO, text_field: str) -> Iterator[Record]:
    parquet = _open_parquet(piece.file, handle)
    if text_field not in parquet.schema_arrow.names:
        raise UserError(
            f"{piece.file.name}: no column {text_field!r}, it has {', '.join(parquet.schema_arrow.names)}; "
            "set text_field"
        )
    stop = parquet.num_row_groups if piece.stop is None else piece.stop
    rows = count(1)
    for group in range(piece.start, stop):
        rows_at_once = _rows_at_once(parquet.metadata.row_group(group))
        for batch in parquet.iter_batches(rows_at_once, row_groups=[group], columns=[text_field]):
            yield from (Record(next(rows), content) for content in _contents(batch.column(0)))


def _contents(column: Any) -> Iterator[str | Reject]:
    """The documents of a Parquet column."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        for value in column.cast(pa.large_binary()).to_pylist():  # as bytes: Parquet does not hold to UTF-8
            yield _decoded(value) if value is not None else Reject("not_a_string", "null")
    else:
        yield from (Reject("not_a_string", preview(str(value))) for value in column.to_pylist())


def _split_parquet(file: SourceFile, handle: BinaryIO, piece_bytes: int) -> list[Piece]:
    """Whole row groups, so many that a piece has about its share of the file's bytes."""
    num_groups = _open_parquet(file, handle).num_row_groups
    groups = max(1, num_groups * piece_bytes // file.size)
    starts = range(0, max(num_groups, 1), groups)
    return [Piece(file=file, format="parquet", start=s, stop=min(s + groups, num_groups)) for s in starts]


def _open_parquet(file: SourceFile, handle: BinaryIO) -> pq.ParquetFile:
    try:  # buffered: else a column chunk is in memory whole, and a row group may be the file
        return pq.ParquetFile(handle, buffer_size=_BLOCK_BYTES, pre_buffer=False)
    except pa.ArrowInvalid as e:
        raise UserError(
            f"{file.name}: no whole Parquet file, 0 records read ({str(e).splitlines()[0]}); "
            "copy the file again, rename it, or leave it out by `include`"
        ) from e


def _rows_at_once(group: Any) -> int:
    bytes_a_row: int = group.total_byte_size // max(group.num_rows, 1) + 1
    return max(1, _BATCH_BYTES // bytes_a_row)


def _decompressed(handle: BinaryIO) -> Any:
    """`handle` from its start, decompressed when its first bytes say so."""
    what = looks_like(handle.read(8))
    handle.seek(0)
    return pa.CompressedInputStream(pa.PythonFile(handle, "r"), what) if what in _COMPRESSED else handle


def _decoded(data: bytes) -> str | Reject:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Reject("not_utf8", preview(data))
