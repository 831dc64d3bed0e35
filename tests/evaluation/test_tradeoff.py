import numpy as np
import pytest
import torch

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.evaluation.accuracy import evaluate
from adaptive_smoothing.evaluation.tradeoff import attack_count, join, tradeoff, tradeoff_parts
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.results import interval
from adaptive_smoothing.threat import Linf

ATTACK = PGD(Linf(0.02), steps=5)
MIX = (0, 0.33, 0.6, 1)


@pytest.fixture
def pair(linear):
    return linear, type(linear)(seed=1)


@pytest.fixture
def data(pair):
    pixels = torch.randint(0, 256, (80, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    both = sum(model(pixels / 255).softmax(1) for model in pair)
    return from_tensors(pixels, both.argmax(1))


@pytest.fixture
def run(pair, data):
    return tradeoff(*pair, data, ATTACK, mix_alphas=MIX, batch_size=30)


def test_clean_and_mix_agree_with_evaluate(pair, data, run):
    for alpha in MIX:
        result = evaluate(MixedClassifier(*pair, alpha), data, ATTACK)
        where = int(np.flatnonzero(run.alphas == alpha)[0])
        assert run.accuracy("clean")[where] == pytest.approx(result.clean)
        assert run.accuracy("mix")[list(run.mix_alphas).index(alpha)] == pytest.approx(result.robust)


def test_transfers_agree_with_attacks_made_by_hand(pair, data, run):
    images, labels = data.floats(), data.labels
    for curve, model in zip(("std", "rob"), pair, strict=True):
        adversarial = ATTACK(model, images, labels)
        for position in (0, 33, 60, 100):
            mixed = MixedClassifier(*pair, float(run.alphas[position]))
            assert np.array_equal(run.rows[curve][position], (mixed(adversarial).argmax(1) == labels).numpy())


def test_the_worst_case_is_the_union_of_the_attacks(run):
    for position, alpha in enumerate(run.mix_alphas):
        at = int(np.flatnonzero(run.alphas == alpha)[0])
        by_hand = run.rows["mix"][position] & run.rows["std"][at] & run.rows["rob"][at]
        assert np.array_equal(run.right("worst")[position], by_hand)
    assert (run.accuracy("worst") <= run.accuracy("mix")).all()
    assert run.summary()["curves"]["worst"]["alpha"] == list(MIX)


def test_parts_join_to_the_whole(pair, data, run):
    joined = join(list(tradeoff_parts(*pair, data, ATTACK, mix_alphas=MIX, batch_size=7)))
    assert all(np.array_equal(run.rows[name], joined.rows[name]) for name in run.rows if "gap" not in name)
    assert joined.settings == run.settings and joined.images == 80
    with pytest.raises(ValueError, match="at least one image"):
        join([])


def test_the_ends_of_mix_are_the_attacks_on_g_and_h(pair, data):
    done = []
    run = tradeoff(*pair, data, ATTACK, mix_alphas=(0, 1e-12, 1 - 1e-7, 1), progress=done.append)
    # An end-to-end attack next to the ends agrees with the attack on g or h that is used at them.
    assert np.array_equal(run.rows["mix"][0], run.rows["mix"][1])
    assert np.array_equal(run.rows["mix"][3], run.rows["mix"][2])
    assert len(done) == attack_count(80, 1000, run.mix_alphas.tolist()) == 4


def test_intervals_are_clopper_pearson(run):
    run.rows["mix"][0], run.rows["mix"][2] = False, True
    expected = [interval(int(correct.sum()), 80) for correct in run.rows["mix"]]
    assert np.allclose(run.intervals("mix"), expected)
