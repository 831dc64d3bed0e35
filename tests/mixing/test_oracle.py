"""THM:ADA: with the oracle's alpha the mixture is correct exactly where one of its base classifiers is."""

import pytest
import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.oracle import OracleAlpha, oracle_mixture


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


def batch(seed: int = 3, count: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 4, 4, generator=generator), torch.randint(3, (count,), generator=generator)


G, H = network(0), network(1)


def test_the_mixture_is_correct_exactly_where_a_base_classifier_is():
    images, labels = batch()
    g_correct, h_correct = (model(images).argmax(1) == labels for model in (G, H))
    correct = oracle_mixture(G, H, labels)(images).argmax(1) == labels
    assert torch.equal(correct, g_correct | h_correct)
    assert correct.sum() > max(g_correct.sum(), h_correct.sum())


def test_alpha_is_zero_where_the_standard_classifier_is_correct():
    images, labels = batch()
    assert torch.equal(OracleAlpha(G, labels)(images), (G(images).argmax(1) != labels).float())


def test_another_batch_needs_its_own_labels():
    images, labels = batch()
    oracle = OracleAlpha(G, labels)
    with pytest.raises(ValueError, match=r"expected 300 images.*got 10.*OracleAlpha for each batch"):
        oracle(images[:10])
    assert torch.equal(OracleAlpha(G, labels[:10])(images[:10]), oracle(images)[:10])


def test_train_leaves_the_standard_classifier_in_eval_mode():
    assert not oracle_mixture(G, H, batch()[1]).train().alpha.standard.training


def test_labels_are_integers_one_per_image():
    with pytest.raises(ValueError, match="one integer label per image"):
        OracleAlpha(G, torch.zeros(4, 3))
