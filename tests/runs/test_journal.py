"""Entries of a journal are complete or ignored, and belong to one run."""

import errno
import warnings

import numpy as np
import pytest

from adaptive_smoothing.runs import journal as journal_file
from adaptive_smoothing.runs.journal import BINDING, Journal, journal_at

COLUMNS = {"a": np.arange(3), "b": np.array(0.5)}


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.bind({"model": "x", "data": "y"})
    journal.write("entry", COLUMNS)
    return journal


def same(columns):
    return columns.keys() == COLUMNS.keys() and all(np.array_equal(columns[name], COLUMNS[name]) for name in COLUMNS)


def test_an_entry_is_read_back(journal):
    assert same(journal.read("entry")) and journal.read("other") is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_entry_is_ignored_with_a_warning(journal, damage):
    path = journal.folder / "entry.entry"
    whole = path.read_bytes()
    flipped = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
    path.write_bytes({"flip": flipped, "cut": whole[:-7], "empty": b""}[damage])
    with pytest.warns(UserWarning, match=r"entry.entry does not match its checksum: its part of the run is repeated"):
        assert journal.read("entry") is None
    path.write_bytes(whole)
    assert same(journal.read("entry"))


def test_an_entry_belongs_to_its_name_and_to_the_binding(journal):
    (journal.folder / "entry.entry").rename(journal.folder / "other.entry")
    with pytest.warns(UserWarning, match="checksum"):
        assert journal.read("other") is None
    journal.write("entry", COLUMNS)
    (journal.folder / BINDING).unlink()
    journal.bind({"model": "x", "data": "z"})
    with pytest.warns(UserWarning, match="checksum"):
        assert journal.read("entry") is None


def test_a_partial_file_is_not_an_entry_and_is_cleared(journal):
    """A process that is killed while it writes leaves one."""
    (journal.folder / "second.entry.tmp").write_bytes(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert journal.read("second") is None
    journal.clear()
    assert not journal.folder.exists()


def test_clearing_keeps_files_of_other_origin(journal):
    (journal.folder / "notes.txt").write_text("mine")
    journal.clear()
    assert [path.name for path in journal.folder.iterdir()] == ["notes.txt"]


def test_a_different_binding_is_an_error_or_overwritten(journal):
    journal.bind({"model": "x", "data": "y"})
    with pytest.raises(ValueError, match=r"got one with another model, data: choose another folder \(--out\)"):
        journal.bind({"model": "u", "data": "v"})
    assert same(journal.read("entry"))
    Journal(journal.folder, overwrite=True).bind({"model": "x", "data": "y"})
    assert same(journal.read("entry"))
    Journal(journal.folder, overwrite=True).bind({"model": "u", "data": "v"})
    assert journal.read("entry") is None


def test_a_damaged_binding_is_an_error_or_overwritten(journal):
    (journal.folder / BINDING).write_text('{"model": ')
    with pytest.raises(ValueError, match=f"got one with a damaged {BINDING}: .* or begin again with --overwrite"):
        journal.bind({"model": "x", "data": "y"})
    Journal(journal.folder, overwrite=True).bind({"model": "x", "data": "y"})
    assert journal.read("entry") is None


def test_a_full_disk_is_explained_and_other_errors_are_kept(journal, monkeypatch):
    def failing(code):
        def fsync(descriptor):
            raise OSError(code, "the system's message")

        return fsync

    for code, message in ((errno.ENOSPC, "no space is left for .*: finished parts"), (errno.EIO, "the system's mess")):
        monkeypatch.setattr(journal_file.os, "fsync", failing(code))
        with pytest.raises(OSError, match=message):
            journal.write("second", COLUMNS)
    assert sorted(path.name for path in journal.folder.iterdir()) == [BINDING, "entry.entry"]


def test_a_disk_that_is_full_from_the_start_is_explained(tmp_path, monkeypatch):
    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_file, "write_json", full)
    with pytest.raises(OSError, match="no space is left"):
        Journal(tmp_path).bind({"model": "x"})


def test_what_is_not_a_folder_is_explained():
    with (
        pytest.raises(TypeError, match=r"expected a folder as the journal, got 5: pass a path such as 'runs/journal'"),
        journal_at(5, False, []),
    ):
        pass


def test_without_a_folder_nothing_is_kept_unless_processes_share_it():
    with journal_at(None, False, ["cpu"]) as journal:
        journal.bind({"model": "x"})
        journal.write("entry", COLUMNS)
        assert journal.read("entry") is None
        journal.clear()
    with journal_at(None, False, ["cpu", "cpu"]) as journal:
        journal.write("entry", COLUMNS)
        assert same(journal.read("entry"))
    assert not journal.folder.exists()
