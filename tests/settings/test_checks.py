"""Arguments of a wrong type are explained, names are suggested, and warnings name the line of the user."""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.settings.checks import (
    as_number,
    check_choice,
    check_number,
    check_numbers,
    check_path,
    check_whole,
    suggestion,
    warn_user,
)


@pytest.mark.parametrize(
    ("value", "hint"),
    [("linaer", "did you mean 'linear'?"), ("step", "choose one of these"), (3, "choose one of these")],
)
def test_a_choice_that_does_not_exist_is_explained(value, hint):
    check_choice("schedule", "linear", ("linear", "cosine"))
    with pytest.raises(ValueError, match="schedule") as caught:
        check_choice("schedule", value, ("linear", "cosine"))
    assert str(caught.value) == f"expected schedule to be one of linear, cosine, got {value!r}: {hint}"


@pytest.mark.parametrize(
    "value", [0.5, torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.array(0.5), Fraction(1, 2)]
)
def test_one_number_of_any_library_is_a_number(value):
    number = as_number("sigma", value)
    assert number == 0.5 and type(number) in (float, Fraction)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("0.5", "write a number such as 0.5, without quotes"),
        (True, "pass a number"),
        (None, "pass a number"),
        (torch.tensor(True), "pass a number"),
        (np.True_, "pass a number"),
        (torch.ones(2), "pass a number"),
        (np.ones(0), "pass a number"),
        (1j, "pass a number"),
    ],
)
def test_what_is_no_number_is_explained(value, hint):
    for check in (lambda: check_number(sigma=value), lambda: as_number("sigma", value)):
        with pytest.raises(TypeError) as caught:
            check()
        assert str(caught.value) == f"expected sigma as a number, got {value!r}: {hint}"


def test_a_setting_is_a_number_of_python_or_numpy():
    check_number(one=1, half=np.float32(0.5))
    with pytest.raises(TypeError, match=r"expected radius as a number, got tensor\(0.5000\): pass a number"):
        check_number(radius=torch.tensor(0.5))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("20", "write a number such as 20, without quotes"),
        (2.5, "pass a whole number such as 20"),
        (True, "pass a whole number such as 20"),
    ],
)
def test_what_is_no_whole_number_is_explained(value, hint):
    check_whole(steps=20, batch_size=None, samples=np.int64(3))
    with pytest.raises(TypeError) as caught:
        check_whole(steps=value)
    assert str(caught.value) == f"expected steps as a whole number, got {value!r}: {hint}"


def test_numbers_are_read_once_and_returned_as_a_list():
    given = ([0, 0.5], (each / 2 for each in range(2)), torch.linspace(0, 0.5, 2), np.array([0, 0.5]))
    assert [check_numbers("alphas", values) for values in given] == [[0, 0.5]] * 4
    assert check_numbers("alphas", [torch.tensor(0.5)]) == [0.5]
    for values, message in (
        ("0.5", "expected alphas as a list of numbers, got '0.5': write"),
        (torch.tensor(0.5), r"expected alphas as a list of numbers, got 0.5: write \[0.5\]"),
        ([0.5, "1"], "expected each of alphas as a number, got '1': write a number such as 0.5, without quotes"),
        (torch.ones(1, 2), r"expected each of alphas as a number, got \[1.0, 1.0\]: pass a number"),
    ):
        with pytest.raises(TypeError, match=message):
            check_numbers("alphas", values)


def test_every_kind_of_path_is_a_path(tmp_path):
    (tmp_path / "run").mkdir()
    with os.scandir(tmp_path) as found:
        check_path(text="run", path=tmp_path, entry=next(found))
    with pytest.raises(TypeError, match=r"expected folder as a path or a name, got 5: pass a string or a pathlib.Path"):
        check_path(folder=5)


def test_a_suggestion_has_the_nearest_names_first():
    known = ("robust", "robust-18", "standard")
    assert suggestion("robus", known) == "did you mean 'robust'?"
    assert suggestion("robus", known, count=3) == "did you mean 'robust', 'robust-18'?"
    assert suggestion("x", known) == "choose one of robust, robust-18, standard"


def test_a_warning_is_reported_at_the_line_of_the_user():
    image = torch.full((3, 8, 8), 0.3)
    with pytest.warns(UserWarning, match="were rounded") as caught:
        ads.from_dataset([(image, 0), (image, 1)], round=True)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="directly") as caught:
        warn_user("directly")
    assert caught[0].filename == __file__
