"""Run folders: new, finished, unfinished."""

import pytest

from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import JOURNAL, RESULT, ROWS, make_folder, read_result, resumable_folder
from adaptive_smoothing.runs.journal import Journal


def test_a_finished_run_is_replaced_only_on_request(tmp_path):
    folder = make_folder(tmp_path / "runs" / "one", overwrite=False)
    (folder / RESULT).write_text("{}")
    with pytest.raises(FileExistsError, match="which holds one: choose another --out, or replace it with --overwrite"):
        make_folder(folder, overwrite=False)
    assert make_folder(folder, overwrite=True) == folder and not (folder / RESULT).exists()


def test_the_folders_of_the_radii_of_an_old_run_are_removed_with_it(tmp_path):
    """Only those that its result names: other folders may belong to the user."""
    for name in ("eps-0.01", "eps-0.02", "eps-mine", "other"):
        (tmp_path / "run" / name).mkdir(parents=True)
    listed = [{"folder": name} for name in ("eps-0.01", "eps-0.02", "../run/other", "other", None)]
    write_json(tmp_path / "run" / RESULT, {"radii": listed})
    make_folder(tmp_path / "run", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["eps-mine", "other"]
    (tmp_path / "run" / RESULT).write_text("[damaged")
    assert not list(make_folder(tmp_path / "run", overwrite=True).glob(RESULT))


def test_the_files_of_an_old_run_are_removed_with_its_result(tmp_path):
    """Also figures that the new run does not write. Without a result, they may belong to the user."""
    names = ("radii.png", "waterfall.png", "adversarial.npz", ROWS, "mine.png")
    for name in names:
        (tmp_path / name).touch()
    assert all((make_folder(tmp_path, overwrite=True) / name).exists() for name in names)
    (tmp_path / RESULT).write_text("{}")
    make_folder(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


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


def test_a_folder_of_runs_names_the_runs_inside(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`adaptive-smoothing evaluate`, `certify` and `sweep` write one$"):
        read_result(tmp_path)
    for name in ("alpha-0.8", "alpha-0.9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RESULT).write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"found no .*: load one of the runs inside: alpha-0\.8, alpha-0\.9$"):
        read_result(tmp_path)
