"""What the slider shows is what the mixture and the certificates give at each setting."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.report.page.dials import RADIUS, Correct, dials
from adaptive_smoothing.report.page.runs import PageRun


def correct_at(mixed, images, labels):
    """Return which images the mixture classifies correctly."""
    with torch.no_grad():
        return (mixed(images).argmax(1) == labels).numpy()


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_counts_at_every_setting_are_those_of_the_mixture(kind, toys, data, verdicts, learned):
    made, found = (toys.mixture, verdicts) if kind == "fixed" else (toys.learned, learned)
    runs = [toys.run(verdict, name=str(value)) for value, verdict in found.items()]
    (dial,) = dials(runs)
    assert dial.parameter == ("alpha" if kind == "fixed" else "shift") and len(dial.grid) > 100
    counts = set()
    for at, setting in enumerate(dial.grid):
        mixed = made(float(setting))
        clean = correct_at(mixed, data.floats(), data.labels)
        transferred = clean.copy()
        for verdict in found.values():
            transferred &= correct_at(mixed, verdict.adversarial, data.labels)
        assert np.array_equal(dial.clean.at(at), clean), setting
        assert np.array_equal(dial.transferred(at), transferred), setting
        counts.add((clean.sum(), transferred.sum()))
    assert len(counts) > 10


def test_at_attacked_settings_all_attacks_count(toys, data, verdicts):
    runs = [toys.run(verdict, name=str(alpha)) for alpha, verdict in verdicts.items()]
    (dial,) = dials(runs)
    assert [number for _, number in dial.runs] == [0, 1]
    assert np.allclose(dial.grid[[at for at, _ in dial.runs]], [0.4, 0.763], atol=1e-6)
    assert len(dial.grid) == 202  # 0.4 is in it once, although stored alphas are rounded to float32
    assert dial.start == dial.runs[0][0]
    for (at, number), (alpha, verdict) in zip(dial.runs, verdicts.items(), strict=True):
        other = verdicts[0.763 if number == 0 else 0.4].adversarial
        survives = correct_at(toys.mixture(alpha), other, data.labels)
        assert np.array_equal(dial.robust(at), verdict.robust_correct.numpy() & survives)
        assert np.array_equal(dial.clean.at(at), verdict.clean_correct.numpy())
    (alone,) = dials(runs[1:])
    assert alone.robust(alone.start).sum() == verdicts[0.763].robust_correct.sum()


def test_two_attacks_at_one_setting_share_it(toys, verdicts):
    verdict = verdicts[0.4]
    fooled = verdict.fooled_by.clone()
    first = int(verdict.robust_correct.nonzero()[0])
    fooled[first] = 0
    runs = [toys.run(verdict, name="short"), toys.run(replace(verdict, fooled_by=fooled), name="long")]
    (dial,) = dials(runs)
    (at,) = {setting for setting, _ in dial.runs}
    assert [number for _, number in dial.runs] == [0, 1] and dial.start == at
    assert np.array_equal(dial.robust(at), (fooled == -1).numpy())


def test_runs_of_other_models_data_or_threats_have_dials_of_their_own(toys, verdicts):
    verdict = verdicts[0.4]
    first = toys.run(verdict)
    other_data = replace(verdict, settings={**verdict.settings, "fingerprint": "other"})
    attack = {**verdict.settings["attack"], "threat": "Linf:0.01"}
    other_threat = replace(verdict, settings={**verdict.settings, "attack": attack})
    others = [toys.run(other_data), toys.run(other_threat), replace(first, models={"g": {"name": "x"}, "alpha": 0.4})]
    assert len(dials([first, *others])) == 4
    unnamed = [replace(first, models={}) for _ in range(2)]  # nothing says that these are one mixture
    assert len(dials(unnamed)) == 2


def test_a_dial_has_the_name_of_its_mixture(toys, verdicts):
    verdict = verdicts[0.4]
    attack = {**verdict.settings["attack"], "threat": "Linf:8/255"}
    other = replace(verdict, settings={**verdict.settings, "attack": attack})
    names = ("g + h at 90 %, α = 0.4 (a)", "g + h, α = 0.763 (b), run 2")
    runs = [replace(toys.run(verdict, name=name), folder=name[-2:].strip(")")) for name in names]
    assert [dial.name for dial in dials(runs)] == ["g + h"]
    assert [dial.name for dial in dials([*runs, toys.run(other, name="g + h, α = 0.4")])] == [
        "g + h, Linf 0.02",
        "g + h, Linf 8/255",
    ]


def test_a_plain_model_has_no_dial(toys, verdicts):
    verdict = verdicts[0.4]
    outputs = {name: column for name, column in verdict.outputs.items() if not name.endswith(("low", "high"))}
    assert not dials([toys.run(replace(verdict, outputs=outputs))])


GRID = np.linspace(0, 1, 11)


def test_ends_of_an_interval_are_open_and_nan_is_never_correct():
    low = np.array([-np.inf, 0.3, 0.31, np.nan, 0.2, np.inf])
    high = np.array([np.inf, 0.5, 0.32, 0.9, np.nan, -np.inf])
    correct = Correct.between(GRID, low, high)
    counts = [sorted(np.flatnonzero([correct.at(at)[image] for at in range(11)])) for image in range(6)]
    assert counts == [list(range(11)), [4] if GRID[3] <= 0.3 else [3, 4], [], [], [], []]


def test_where_finds_the_interval_of_a_table():
    table = np.array([[0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 1]], bool)
    correct = Correct.where(table)
    assert np.array_equal([correct.at(at) for at in range(3)], table)


@pytest.mark.parametrize(
    ("first", "last", "at", "measured", "expected"),
    [
        (2, 5, 3, True, range(2, 6)),  # it agrees
        (2, 5, 6, True, range(2, 7)),  # just above its interval
        (2, 5, 1, True, range(1, 6)),  # just below it
        (2, 5, 5, False, range(2, 5)),  # its last setting
        (2, 5, 2, False, range(3, 6)),  # its first setting
        (4, 4, 4, False, range(0)),
        (1, 0, 7, True, range(7, 8)),  # correct at no other setting
        (0, 10, 0, False, range(1, 11)),
    ],
)
def test_a_measurement_moves_the_nearest_end(first, last, at, measured, expected):
    found = Correct(np.array([first]), np.array([last])).with_known(at, np.array([measured]))
    assert [each for each in range(11) if found.at(each)[0]] == list(expected)


def test_a_dial_of_a_sweep_is_its_curves():
    chance = np.random.default_rng(0)
    alphas, mix_alphas = np.linspace(0, 1, 11).round(2), np.array([0.2, 0.5, 0.9])
    ends = np.sort(chance.integers(-1, 12, (2, 3, 30)), axis=0)
    rows = {
        name: (ends[0, k] <= np.arange(11)[:, None]) & (np.arange(11)[:, None] < ends[1, k])
        for k, name in enumerate(("clean", "std", "rob"))
    }
    rows |= {"mix": rows["clean"][[2, 5, 9]] & (chance.random((3, 30)) < 0.7), "label": np.zeros(30, int)}
    found = Tradeoff(alphas, mix_alphas, rows, {"norm": "Linf", "eps": 8 / 255, "steps": 20})
    (dial,) = dials([PageRun("sweep", found, facts={"choice": {"alpha": 0.85}})])
    assert dial.runs == ((2, 0), (5, 0), (9, 0)) and dial.start == 9
    for at in range(11):
        assert np.array_equal(dial.clean.at(at), rows["clean"][at])
        assert np.array_equal(dial.transferred(at), rows["clean"][at] & rows["std"][at] & rows["rob"][at])
    for number, (at, _) in enumerate(dial.runs):
        assert np.array_equal(dial.robust(at), found.correct("worst")[number])


@pytest.mark.parametrize("radii", [[0, 0.2, 0.5, 0.5, 1.2, 0.7], [0] * 6, [np.inf, 0.3, 0, 0.3, np.inf, 0.1]])
def test_a_dial_of_a_certification_is_its_curve(toys, radii):
    found = toys.certificates(radii, [1, 1, 1, 0, 1, 1])
    (dial,) = dials([PageRun("certified", found)])
    assert dial.parameter == RADIUS and np.isfinite(dial.grid).all()
    for at, radius in enumerate(dial.grid):
        assert dial.clean.at(at).sum() == round(6 * found.accuracy(float(radius)))
