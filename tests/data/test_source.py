"""What a source lists, and when its fingerprint changes."""

import os
import time

import pytest

from steps import ingest
from steps.lib.data.source import FolderSource, StoreSource, check_unchanged, fingerprint_of, matching, resolve
from steps.lib.errors import TemporaryError, UserError
from tests.data.making import write
from tests.steps.calling import context


def fingerprint(store, folder, **params):
    return ingest.fingerprint(ingest.Params(source=str(folder), **params), context(store))


def test_touching_a_file_keeps_the_fingerprint_and_changing_it_does_not(store, tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"one", "b/c.txt": b"two"})
    first = fingerprint(store, folder)
    os.utime(folder / "a.txt", ns=(1, 1))
    assert fingerprint(store, folder) == first
    (folder / "a.txt").write_bytes(b"ONE")
    changed = fingerprint(store, folder)
    assert changed != first
    (folder / "a.txt").write_bytes(b"one")
    assert fingerprint(store, folder) == first
    (folder / "a.txt").rename(folder / "d.txt")
    assert fingerprint(store, folder) not in (first, changed)


def test_only_files_that_match_count(store, tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"one"})
    first = fingerprint(store, folder, include=("*.txt",))
    write(folder, {"b.md": b"two"})
    assert fingerprint(store, folder, include=("*.txt",)) == first
    assert fingerprint(store, folder) != first


def test_known_digests_are_not_computed_again(store, tmp_path, monkeypatch):
    folder = write(tmp_path / "in", {"a.txt": b"one", "b.txt": b"two"})
    source = FolderSource(root=str(folder))
    files = source.files()
    later = time.time_ns() + 10**10
    monkeypatch.setattr("steps.lib.data.source.time.time_ns", lambda: later)  # as if the files were old
    first = fingerprint_of(source, files, store, 1)
    hashed = []
    monkeypatch.setattr("steps.lib.data.source.sha256_file", lambda path: hashed.append(path.name) or "0" * 64)
    assert fingerprint_of(source, source.files(), store, 1) == first
    assert hashed == []
    (folder / "b.txt").write_bytes(b"2")
    assert fingerprint_of(source, source.files(), store, 1) != first
    assert hashed == ["b.txt"]


def test_a_change_within_the_tick_of_the_clock_is_seen(store, tmp_path):
    """Same size, same mtime, written right after: a young file's digest is not kept."""
    folder = write(tmp_path / "in", {"a.txt": b"one"})
    status = os.stat(folder / "a.txt")
    first = fingerprint(store, folder)
    with (folder / "a.txt").open("r+b") as f:
        f.write(b"two")
    os.utime(folder / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fingerprint(store, folder) != first


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"one"})
    source = FolderSource(root=str(folder))
    [file] = source.files()
    check_unchanged(source, file)
    (folder / "a.txt").write_bytes(b"one and more")
    with pytest.raises(TemporaryError, match=r"a\.txt: changed while it was read"):
        check_unchanged(source, file)


def test_names_and_patterns(tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"1", "sub dir/b.txt": b"2", "sub dir/c.md": b"3"})
    (folder / os.fsdecode(b"\xff.txt")).write_bytes(b"4")
    files = FolderSource(root=str(folder)).files()
    assert [f.name for f in files] == ["\\xff.txt", "a.txt", "sub dir/b.txt", "sub dir/c.md"]
    assert [f.name for f in matching(files, ["*.txt"])] == ["\\xff.txt", "a.txt", "sub dir/b.txt"]
    assert [f.name for f in matching(files, ["sub*/c*", "a.*"])] == ["a.txt", "sub dir/c.md"]
    assert [f.name for f in FolderSource(root=str(folder / "a.txt")).files()] == ["a.txt"]


def test_links_are_followed(tmp_path):
    """Large corpora are linked together: what lies behind a link counts, and a link upwards ends."""
    write(tmp_path / "far", {"c.txt": b"3", "deep/d.txt": b"4"})
    folder = write(tmp_path / "in", {"a.txt": b"1", "sub/e.txt": b"5"})
    (folder / "b.txt").symlink_to("a.txt")
    (folder / "linked").symlink_to(tmp_path / "far")
    (folder / "sub" / "up").symlink_to(folder)
    (tmp_path / "far" / "back").symlink_to(folder)
    names = [f.name for f in FolderSource(root=str(folder)).files()]
    assert names == ["a.txt", "b.txt", "linked/c.txt", "linked/deep/d.txt", "sub/e.txt"]


@pytest.mark.parametrize("kind", ["dangling", "circle", "pipe", "below a file"])
def test_what_is_no_file_is_refused_and_not_passed_over(kind, store, tmp_path):
    folder = write(tmp_path / "in", {"a.txt": b"one", "b.md": b"two"})
    odd = folder / "odd.md"
    os.mkfifo(odd) if kind == "pipe" else odd.symlink_to(
        {"circle": odd, "below a file": folder / "a.txt/x"}.get(kind, "/gone")
    )
    with pytest.raises(UserError, match=r"in/odd\.md is no file and leads to none; remove it, or set data\.include"):
        fingerprint(store, folder)
    assert fingerprint(store, folder, include=("*.txt",))


def test_what_a_source_may_be(store):
    assert resolve("/data/x/", store) == resolve("file:///data/x", store) == FolderSource(root="/data/x")
    assert resolve("s3://bucket/some/prefix/", store) == StoreSource("s3://bucket/some/prefix", "")
    assert resolve("raw/x", store) == FolderSource(root=f"{store.uri[7:]}/raw/x", keys_only=True)
    for wrong in ("data/x", "http://host/x", "", "python:math"):
        with pytest.raises(UserError, match="allowed are python:stdlib"):
            resolve(wrong, store)


def test_the_standard_librarys_own_odd_links_stop_nothing(store, tmp_path, monkeypatch):
    folder = write(tmp_path / "lib", {"a.py": b"one"})
    (folder / "gone.py").symlink_to("nowhere.py")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(folder)})
    params = ingest.Params(source="python:stdlib", include=("*.py",))
    assert [file.name for file in ingest._files(params, context(store))[1]] == ["a.py"]
