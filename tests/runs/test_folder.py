"""Run folders: new, finished, unfinished."""

import pytest

from adaptive_smoothing.runs.folder import JOURNAL, RESULT, check_writable, make_folder, resumable_folder
from adaptive_smoothing.runs.journal import Journal


def test_a_finished_run_is_replaced_only_on_request(tmp_path):
    folder = make_folder(tmp_path / "runs" / "one", overwrite=False)
    (folder / RESULT).write_text("{}")
    with pytest.raises(FileExistsError, match="which holds one: choose another --out, or replace it with --overwrite"):
        make_folder(folder, overwrite=False)
    assert make_folder(folder, overwrite=True) == folder and not (folder / RESULT).exists()


def test_an_unfinished_run_is_continued(tmp_path):
    (tmp_path / RESULT).write_text("{}")
    with pytest.raises(FileExistsError):
        resumable_folder(tmp_path, overwrite=False)
    Journal(tmp_path / JOURNAL).bind({"model": "x"})
    assert resumable_folder(tmp_path, overwrite=False) == tmp_path and (tmp_path / RESULT).exists()
    assert resumable_folder(tmp_path, overwrite=True) == tmp_path and not (tmp_path / RESULT).exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"expected a folder that can be written to, got .*file"):
        make_folder(tmp_path / "file", overwrite=False)


def test_a_check_makes_no_folder(tmp_path):
    check_writable(tmp_path / "new" / "one")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"got .*one \(Not a directory\): choose another --out"):
        check_writable(tmp_path / "file" / "one")
