"""Bad input: what is read, what is rejected and counted, what is refused by name (cases D01 to D08, D10, D11)."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steps.lib.data import reading
from steps.lib.data.source import FolderSource
from steps.lib.errors import UserError
from tests.data.making import documents, gz, lines, reject_counts, take, texts, write, zst

BOM = b"\xef\xbb\xbf"
THREE = [{"text": "first"}, {"text": "second"}, {"text": "third"}]


def test_a_byte_order_mark_changes_nothing(store, tmp_path):
    plain = write(tmp_path / "a", {"0.jsonl": lines(*THREE[:2]), "1.jsonl": lines(THREE[2]), "x.txt": b"fourth"})
    marked = write(tmp_path / "b", {p.name: BOM + p.read_bytes() for p in plain.iterdir()})
    (result, one), (marked_result, other) = take(store, plain), take(store, marked)
    assert texts(store, other) == ["first", "fourth", "second", "third"]
    assert one.meta["documents"] == other.meta["documents"]
    assert result == marked_result


@pytest.mark.parametrize("pack", [gz, zst])
def test_compression_is_told_by_content(store, tmp_path, pack):
    folder = write(
        tmp_path / "in",
        {"0.jsonl": pack(lines(*THREE[:1])), "1.jsonl.gz": lines(THREE[1]), "2.jsonl.zst": pack(lines(THREE[2]))},
    )
    folder = write(folder, {"3.txt": pack(b"packed text"), "4.txt.gz": b"plain text"})
    _, manifest = take(store, folder)
    assert texts(store, manifest) == ["first", "packed text", "plain text", "second", "third"]
    assert manifest.meta["num_rejected"] == 0


def test_gzip_of_several_members_is_read_to_its_end(store, tmp_path):
    folder = write(tmp_path / "in", {"0.jsonl.gz": gz(lines(*THREE[:2])) + gz(lines(THREE[2]))})
    assert texts(store, take(store, folder)[1]) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("part2.jsonl", lines(*THREE).decode().encode("utf-16"), "UTF-16"),
        ("part2.jsonl", lines(*THREE).decode().encode("utf-16-le"), "UTF-16"),
        ("part3.jsonl.gz", gz(gz(lines(*THREE))), "gzip"),
        ("part4.jsonl", b"PK\x03\x04" + b"x" * 50, "zip"),
        ("part5.jsonl", b"PAR1" + b"x" * 50, "Parquet"),
        ("part6.parquet", lines(*THREE), "no whole Parquet file"),
    ],
)
def test_other_content_than_the_name_says_is_refused_by_name(store, tmp_path, name, data, what):
    folder = write(tmp_path / "in", {"a.jsonl": lines(*THREE), name: data})
    with pytest.raises(UserError, match=what) as e:
        take(store, folder)
    assert name in str(e.value)
    assert list(store.list("docs")) == []


def test_utf16_text_is_a_counted_reject(store, tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"ok", "b.txt": "not".encode("utf-16"), "c.txt": b"\xff\xff"})
    _, manifest = take(store, folder, clean={"max_reject_rate": 0.9})
    assert reject_counts(manifest) == {"not_utf8": 2}
    assert [e["file"] for e in manifest.meta["rejects"]["not_utf8"]["examples"]] == ["b.txt", "c.txt"]


@pytest.mark.parametrize(("pack", "name"), [(gz, "cut.jsonl.gz"), (zst, "cut.jsonl.zst")])
def test_a_cut_file_fails_by_name_and_records_read(store, tmp_path, pack, name):
    import random

    rng = random.Random(1)
    data = pack(lines(*({"text": f"{i} {rng.random()}"} for i in range(2000))))
    folder = write(tmp_path / "in", {"good.jsonl": lines(*THREE), name: data[:-200]})
    with pytest.raises(UserError, match=rf"{name}: damaged or cut off after \d+ whole records") as e:
        take(store, folder)
    assert 0 <= int(str(e.value).split(" after ")[1].split()[0]) < 2000
    assert list(store.list("docs")) == []


def test_a_cut_parquet_file_fails_by_name(store, tmp_path):
    folder = write(tmp_path / "in", {"good.jsonl": lines(*THREE)})
    pq.write_table(pa.table({"text": ["x" * 100] * 50}), folder / "cut.parquet")
    data = (folder / "cut.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(data[:-20])
    with pytest.raises(UserError, match=r"cut\.parquet: no whole Parquet file, 0 records read"):
        take(store, folder)
    (folder / "cut.parquet").write_bytes(data[:10] + b"\xff" * 60 + data[70:])
    with pytest.raises(UserError, match=r"cut\.parquet: damaged or cut off after 0 whole records"):
        take(store, folder)


def test_lone_surrogates_become_the_replacement_character(store, tmp_path):
    folder = write(tmp_path / "in", {"a.jsonl": lines(rb'{"text":"ok \ud83d bad"}', rb'{"text":"\ud83d\udc4d"}')})
    _, manifest = take(store, folder)
    assert texts(store, manifest) == ["ok \ufffd bad", "👍"]


def test_extra_fields_never_matter_and_other_types_are_counted_with_lines(store, tmp_path):
    good = [{"id": i, "text": f"line {i}", "meta": {"lang": None}} for i in range(1, 5001)]
    late = [
        {"id": "x", "text": "late", "meta": {"lang": "en"}}, {"text": None}, {"text": 7}, {"text": ["a"]},
        {"text": {"x": 1}}, {"other": 1}, [1], "no object",
    ]  # fmt: skip
    _, manifest = take(store, write(tmp_path / "in", {"a.jsonl": lines(*good, *late)}))
    assert len(texts(store, manifest)) == 5001
    assert reject_counts(manifest) == {"missing_field": 1, "not_a_string": 4, "not_an_object": 2}
    assert [e["row"] for e in manifest.meta["rejects"]["not_a_string"]["examples"]] == [5002, 5003, 5004, 5005]
    assert manifest.meta["rejects"]["missing_field"]["examples"][0]["row"] == 5006


def test_poison_lines_are_counted_and_their_neighbours_kept(store, tmp_path):
    data = lines(
        {"text": "good one"},
        b'{"text":"a","n":' + b"9" * 4400 + b"}",
        b"[" * 200_000,
        b'{"text":"b","n":NaN}',  # other fields never matter
        b'{"text":"a","text":"the last one counts"}',
        b'{"text": "cut',
        b'{"text": "\xff"}',
        b"",
        b"   \r",
        {"text": "good two"},
    )
    _, manifest = take(store, write(tmp_path / "in", {"a.jsonl": data}))
    assert texts(store, manifest) == ["b", "good one", "good two", "the last one counts"]
    assert reject_counts(manifest) == {"bad_json": 3, "not_utf8": 1}
    assert [e["row"] for e in manifest.meta["rejects"]["bad_json"]["examples"]] == [2, 3, 6]
    assert manifest.meta["rejects"]["not_utf8"]["examples"][0]["row"] == 7
    json.dumps(manifest.model_dump(), allow_nan=False)


def test_nul_is_removed_and_never_shown(store, tmp_path):
    folder = write(tmp_path / "in", {"a.jsonl": lines({"text": "a\0b"}, {"text": "\0\0\0"}, b'{"t\0":"\x00"}')})
    _, manifest = take(store, folder, clean={"max_reject_rate": 0.9})
    assert texts(store, manifest) == ["ab"]
    assert reject_counts(manifest) == {"bad_json": 1, "too_short": 1}
    shown = json.dumps(manifest.meta["rejects"])
    assert "\\u0000" not in shown
    assert "\0" not in shown
    assert "\\\\x00" in shown


def test_newlines_are_unified(store, tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"one\r\ntwo\rthree\n", "b.jsonl": lines({"text": "x\r\ny"})})
    assert texts(store, take(store, folder)[1]) == ["one\ntwo\nthree\n", "x\ny"]


def test_tiny_documents_are_not_merged_and_one_of_a_pair_goes(store, tmp_path):
    contents = ["", "   ", "hi", "yo", "a real duplicate", "a real duplicate"]
    folder = write(tmp_path / "in", {"a.jsonl": lines(*({"text": t} for t in contents))})
    result, manifest = take(store, folder)
    assert texts(store, manifest) == ["a real duplicate", "hi", "yo"]
    assert reject_counts(manifest) == {"blank": 1, "too_short": 1}
    assert (result.num_documents, result.num_rejected, result.num_duplicates) == (3, 2, 1)


def test_of_copies_the_first_file_by_name_is_the_source(store, tmp_path):
    folder = write(tmp_path / "in", {"b.txt": b"same", "a/z.txt": b"same", "c.txt": b"same"})
    assert documents(store, take(store, folder)[1]) == [("same", "a/z.txt")]


def test_one_giant_line_is_rejected_by_the_documented_limit(store, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_RECORD_BYTES", 3 << 20)
    small = [{"text": f"small {i}"} for i in range(1000)]
    giant = {"text": "g" * (5 << 20)}
    _, manifest = take(store, write(tmp_path / "in", {"a.jsonl": lines(*small[:500], giant, *small[500:])}))
    assert texts(store, manifest) == sorted(r["text"] for r in small)
    assert manifest.meta["rejects"] == {
        "too_long": {"count": 1, "examples": [{"file": "a.jsonl", "row": 501, "preview": '{"text": "' + "g" * 50}]}
    }
    limited = take(store, tmp_path / "in", clean={"max_chars": 100})[1]
    assert reject_counts(limited) == {"too_long": 1}


def test_parquet_rows_of_any_string_type(store, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    values = ["one", None, "two"]
    for name, kind in [("s", pa.string()), ("l", pa.large_string()), ("v", pa.string_view())]:
        pq.write_table(pa.table({"id": [1, 2, 3], "text": pa.array(values, kind)}), folder / f"{name}.parquet")
    dictionary = pa.array(["three", "three", None]).dictionary_encode()
    pq.write_table(pa.table({"text": dictionary}), folder / "d.parquet")
    raw = pa.array([b"four", b"\xff"], pa.binary())
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 2, raw.buffers())}), folder / "u.parquet")
    pq.write_table(pa.table({"text": [1, 2]}), folder / "i.parquet")
    _, manifest = take(store, folder, clean={"max_reject_rate": 0.9})
    assert texts(store, manifest) == ["four", "one", "three", "two"]
    assert reject_counts(manifest) == {"not_a_string": 6, "not_utf8": 1}
    assert {(e["file"], e["row"]) for e in manifest.meta["rejects"]["not_a_string"]["examples"]} >= {
        ("d.parquet", 3), ("i.parquet", 1), ("i.parquet", 2), ("l.parquet", 2),
    }  # fmt: skip


def test_a_missing_column_is_refused_with_those_there(store, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), folder / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: no column 'text', it has body, id; set text_field"):
        take(store, folder)
    assert texts(store, take(store, folder, text_field="body")[1]) == ["x"]


@pytest.mark.parametrize("piece_bytes", [1, 7, 40, 1000])
def test_pieces_of_a_file_are_the_file(store, tmp_path, monkeypatch, piece_bytes):
    """Every line is read once and rejects keep their line, wherever a file is split."""
    from steps.lib.data import gather

    monkeypatch.setattr(gather, "PIECE_BYTES", piece_bytes)
    rows = [{"text": f"document {i} " + "é" * (i % 9)} for i in range(40)]
    data = lines(*rows[:17], b"broken", b"", *rows[17:], b"broken too")[:-1]
    folder = write(tmp_path / "in", {"a.jsonl": data})
    table = pa.table({"text": [f"row {i}" if i != 25 else None for i in range(30)]})
    pq.write_table(table, folder / "b.parquet", row_group_size=4)
    _, manifest = take(store, folder)
    assert texts(store, manifest) == sorted([r["text"] for r in rows] + [f"row {i}" for i in range(30) if i != 25])
    assert [e["row"] for e in manifest.meta["rejects"]["bad_json"]["examples"]] == [18, 43]
    assert [e["row"] for e in manifest.meta["rejects"]["not_a_string"]["examples"]] == [26]
    assert manifest.meta["num_records"] == 72


def test_a_row_group_is_never_in_memory_whole(tmp_path):
    rows = [f"{i:03d}" + "x" * (1 << 20) for i in range(64)]
    pq.write_table(
        pa.table({"text": rows}), tmp_path / "a.parquet", compression="none", use_dictionary=False, write_batch_size=1
    )
    rows.clear()
    source = FolderSource(root=str(tmp_path / "a.parquet"))
    [piece] = reading.split(source, source.files()[0], "auto", 1 << 20)
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for count, (_, content) in enumerate(reading.read(source, piece, "text"), start=1):
        assert content[:3] == f"{count - 1:03d}"
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == 64
    assert most < 40 << 20
