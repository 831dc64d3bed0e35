"""Curves over alpha agree with mixtures that are evaluated one by one."""

import numpy as np
import pytest
import torch

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.sweep import attack_count, tradeoff
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


def test_transfers_agree_with_separate_attacks(pair, data, run):
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
        assert np.array_equal(run.correct("worst")[position], by_hand)
    assert (run.accuracy("worst") <= run.accuracy("mix")).all()
    assert run.intervals("mix")[1].tolist() == list(interval(int(run.rows["mix"][1].sum()), 80))
    assert run.summary()["curves"]["worst"]["alpha"] == list(MIX)


def test_batches_join_to_the_whole(pair, data, run):
    whole = tradeoff(*pair, data, ATTACK, mix_alphas=MIX)
    assert run.images == whole.images == 80 and run.settings == whole.settings
    for name, column in whole.rows.items():
        assert np.allclose(run.rows[name], column, rtol=0, atol=1e-6 if column.dtype.kind == "f" else 0)


def test_every_attack_on_a_batch_is_counted(pair, data):
    counts = []
    tradeoff(*pair, data, ATTACK, mix_alphas=MIX, batch_size=30, progress=counts.append)
    assert sum(counts) == len(counts) == attack_count(80, 30, MIX) == 3 * 4


def test_after_ctrl_c_the_finished_batches_are_kept_on_request(pair, data, run):
    def stop_at(attack):
        counts = []

        def progress(more):
            counts.append(more)
            if len(counts) == attack:
                raise KeyboardInterrupt

        return progress

    arguments = {"mix_alphas": MIX, "batch_size": 30}
    part = tradeoff(*pair, data, ATTACK, **arguments, progress=stop_at(10), keep_on_interrupt=True)
    assert part.images == 60 and part.settings == run.settings
    assert all(np.array_equal(part.rows[name], column[..., :60]) for name, column in run.rows.items())
    with pytest.raises(KeyboardInterrupt):  # nothing is finished
        tradeoff(*pair, data, ATTACK, **arguments, progress=stop_at(3), keep_on_interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        tradeoff(*pair, data, ATTACK, **arguments, progress=stop_at(10))


def test_gaps_are_those_of_g_and_h_clean_and_attacked(pair, data, run):
    gaps = run.gaps()
    assert list(gaps) == ["g clean", "g pgd", "h clean", "h pgd"]
    correct, gap = run.rows["rob_h"], run.rows["rob_h_gap"]
    assert gaps["h pgd"]["accuracy"] == correct.mean()
    assert gaps["h pgd"]["wrong_median"] == pytest.approx(np.median(gap[~correct]))
    first, second = pair[0](data.floats()).softmax(1).topk(2).values.unbind(1)
    assert np.allclose(run.rows["clean_g_gap"], (first - second).numpy(), atol=1e-6)


def test_alphas_of_a_generator_or_a_tensor(pair, data):
    for alphas in ((quarters / 4 for quarters in range(5)), torch.linspace(0, 1, 5)):
        run = tradeoff(*pair, data.take(slice(30)), ATTACK, alphas=alphas, mix_alphas=iter([0.5]))
        assert run.alphas.tolist() == [0, 0.25, 0.5, 0.75, 1] and run.mix_alphas.tolist() == [0.5]
        assert len(run.rows["mix"]) == 1


def test_alphas_outside_the_unit_interval_and_empty_data_are_refused(pair, data):
    with pytest.raises(ValueError, match=r"expected alphas in \[0, 1\], got -0.1 to 1"):
        tradeoff(*pair, data, ATTACK, mix_alphas=(-0.1, 0.5))
    with pytest.raises(ValueError, match="expected at least one image, got an empty"):
        tradeoff(*pair, data.take(0), ATTACK)
