"""Result files are written whole or not at all; intervals have known values."""

import os
import stat

import numpy as np
import pytest

from adaptive_smoothing.results import (
    atomic,
    check_new_file,
    check_writable,
    difference,
    interval,
    intervals,
    percent,
    percent_with_interval,
    read_json,
    read_rows,
    signed_points,
    write_json,
    write_rows,
)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "deep" / "file"
    with atomic(target) as partial:
        partial.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic(target) as partial:
        partial.write_bytes(b"ne")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"old"
    assert [file.name for file in target.parent.iterdir()] == ["file"]


def test_two_processes_can_write_one_file(tmp_path):
    with atomic(tmp_path / "file") as mine:
        mine.write_bytes(b"mine")
        with atomic(tmp_path / "file") as theirs:
            theirs.write_bytes(b"theirs")
        assert (tmp_path / "file").read_bytes() == b"theirs"
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_check_makes_no_folder(tmp_path):
    check_writable(tmp_path / "new" / "one", "choose another")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"got .*one \(Not a directory\): choose another$"):
        check_writable(tmp_path / "file" / "one", "choose another")


def test_only_a_regular_file_is_replaced(tmp_path):
    """A rename would replace a device such as /dev/full by a file, or fail with the name of the partial file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, what in (("pipe", "a device or a pipe"), ("folder", "a folder")):
        with pytest.raises(FileExistsError, match=rf"expected a file to write, got .*{name}, which is {what}: choose"):
            write_json(tmp_path / name, {})
        with pytest.raises(FileExistsError, match=f"which is {what}"):
            check_new_file(tmp_path / name, overwrite=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and len([*tmp_path.iterdir()]) == 2


def test_a_new_file_is_checked_before_it_is_written(tmp_path):
    check_new_file(tmp_path / "new" / "a", overwrite=False)
    (tmp_path / "a").write_text("")
    check_new_file(tmp_path / "a", overwrite=True)
    with pytest.raises(FileExistsError, match=r"expected a new file, got .*a, which exists: .*--overwrite"):
        check_new_file(tmp_path / "a", overwrite=False)
    with pytest.raises(
        OSError, match=r"expected a folder that can be written to, got .*a \(Not a directory\): choose another path"
    ):
        check_new_file(tmp_path / "a" / "b", overwrite=True)


def test_the_difference_is_over_the_same_images():
    mine, theirs = np.array([1, 1, 1, 0] * 100, bool), np.array([1, 0, 1, 0] * 100, bool)
    mean, half = difference(mine, theirs)
    # Agresti and Min: only the first classifies 100 images correctly, only the second none; half an image more each.
    first, second, images = 100.5, 0.5, 402
    error = ((first + second - (first - second) ** 2 / images) ** 0.5) / images
    assert mean == 0.25 and half == pytest.approx(1.96 * error + abs(0.25 - (first - second) / images))
    # It is hardly wider than the normal interval, with a variance of 1/4 * 3/4.
    assert 1.96 * (3 / 16 / 400) ** 0.5 < half < 1.04 * 1.96 * (3 / 16 / 400) ** 0.5


def test_the_interval_of_a_difference_has_a_width_where_all_images_agree():
    # Half an image is added to each case, so one of n + 2 differs.
    for images in (1, 6, 1000):
        same = np.ones(images, bool)
        mean, half = difference(same, same)
        assert mean == 0 and half == pytest.approx(1.96 * (1 / (images + 2)))


def test_the_interval_of_a_difference_contains_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    for both, one, other in ((0.5, 0.1, 0.04), (0.7, 0.02, 0.02), (0.3, 0.3, 0.05)):
        cases = random.choice(4, (4000, 100), p=(both, one, other, 1 - both - one - other))
        found = [difference(row <= 1, (row == 0) | (row == 2)) for row in cases]
        assert np.mean([abs(mean - (one - other)) <= half for mean, half in found]) > 0.94


def test_nan_is_refused_and_the_old_file_stays(tmp_path):
    write_json(tmp_path / "a.json", {"x": [1.5, None]})
    assert read_json(tmp_path / "a.json") == {"x": [1.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": [1.5, None]}


def test_numbers_of_numpy_are_written_and_other_objects_explained(tmp_path):
    write_json(tmp_path / "a.json", {"x": [np.float32(1.5), np.int64(2), np.bool_(True)]})
    assert read_json(tmp_path / "a.json") == {"x": [1.5, 2, True]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": np.float32("nan")})
    with pytest.raises(TypeError, match=r"got \{1\}: convert it"):
        write_json(tmp_path / "a.json", {"x": {1}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "expected JSON in .*a.json"),
        (b"\xff\xfe", "expected JSON in .*a.json"),
        (b"[" * 100_000, "expected JSON in .*a.json"),
        (b"[1]", "JSON object in .*, got list"),
    ],
)
def test_a_file_that_is_no_json_object_is_explained(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")


def test_rows_are_read_as_written(tmp_path):
    rows = {"correct": np.array([True, False]), "gap": np.array([0.5, 0.25], dtype=np.float16)}
    write_rows(tmp_path / "rows.npz", rows)
    back = read_rows(tmp_path / "rows.npz")
    assert back.keys() == rows.keys() and all((back[key] == rows[key]).all() for key in rows)


def test_clopper_pearson_known_values():
    low, high = interval(50, 100)
    assert (low, high) == (pytest.approx(0.3983, abs=1e-4), pytest.approx(0.6017, abs=1e-4))
    assert interval(0, 10) == (0.0, pytest.approx(1 - 0.025 ** (1 / 10)))


def test_clopper_pearson_has_the_numbers_of_scipy_stats():
    from scipy.stats import beta

    for trials in (1, 10, 1000, 10_000):
        counts = np.unique(np.linspace(0, trials, 101).astype(int))
        inner = counts[(counts > 0) & (counts < trials)]
        low, high = intervals(inner, trials, 0.99).T
        assert np.allclose(low, beta.ppf(0.005, inner, trials - inner + 1), rtol=1e-12, atol=0)
        assert np.allclose(high, beta.ppf(0.995, inner + 1, trials - inner), rtol=1e-12, atol=0)
        assert intervals(counts, trials)[0, 0] == 0 and intervals(counts, trials)[-1, 1] == 1


def test_shares_in_words():
    assert percent(0.9012) == "90.1 %" and percent(0.9012, 2) == "90.12 %"
    assert percent_with_interval(0.9012, (0.895, 0.9071), 2) == "90.12 % (89.5 to 90.7)"
    assert signed_points(0.0034) == "+0.3" and signed_points(-0.01234, 2) == "−1.23"
