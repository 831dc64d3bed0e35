"""Eq. lbrs against closed forms: linear and quadratic classifiers, and points that 1-NN brings back."""

import pytest
import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.locally_biased import LocallyBiasedSmoothing, NearestNeighbors
from adaptive_smoothing.threat import L2, Linf


class Score(nn.Module):
    """A binary classifier from a score function of flat images."""

    def __init__(self, score) -> None:
        super().__init__()
        self.score = score

    def forward(self, batch: Tensor) -> Tensor:
        score = self.score(batch.flatten(1))
        return torch.stack([1 - score / 2, 1 + score / 2], 1)


class Direction(nn.Module):
    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        self.directions = directions

    def forward(self, batch: Tensor) -> Tensor:
        return self.directions


def images(count: int = 4) -> Tensor:
    return torch.rand(count, 1, 2, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


WEIGHT = torch.tensor([0.5, -2.0, 1.0, 0.0, 3.0, -1.0], dtype=torch.float64)
DIRECTIONS = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)


@pytest.mark.parametrize(("norm", "dual"), [(Linf, WEIGHT.abs().sum()), (L2, WEIGHT.norm())])
def test_a_linear_classifier_is_shifted_by_the_dual_norm_of_its_weight(norm, dual):
    linear = Score(lambda x: x @ WEIGHT - 0.7)
    smooth = LocallyBiasedSmoothing(linear, Direction(DIRECTIONS), 0.3, norm=norm)
    expected = images().flatten(1) @ WEIGHT - 0.7 + 0.3 * DIRECTIONS * dual
    torch.testing.assert_close(smooth.score(images()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", [Linf, L2])
def test_a_quadratic_classifier(norm):
    """g = |x - c|^2 / 2 has gradient x - c."""
    centre = 0.3
    quadratic = Score(lambda x: (x - centre).square().sum(1) / 2)
    smooth = LocallyBiasedSmoothing(quadratic, Direction(DIRECTIONS), 0.5, norm=norm)
    x = images().flatten(1) - centre
    dual = x.abs().sum(1) if norm is Linf else x.norm(dim=1)
    expected = x.square().sum(1) / 2 + 0.5 * DIRECTIONS * dual
    torch.testing.assert_close(smooth.score(images()), expected)
    batch = images().requires_grad_()
    slope = x.sign() if norm is Linf else x / dual[:, None]
    gradient = torch.autograd.grad(smooth.score(batch).sum(), batch)[0].flatten(1)
    torch.testing.assert_close(gradient, x + 0.5 * DIRECTIONS[:, None] * slope)


def test_the_logits_are_half_the_score_each_way():
    smooth = LocallyBiasedSmoothing(Score(lambda x: x @ WEIGHT), Direction(DIRECTIONS), 0.2)
    logits, score = smooth(images()), smooth.score(images())
    torch.testing.assert_close(logits[:, 1] - logits[:, 0], score)
    torch.testing.assert_close(logits.sum(1), torch.zeros(4, dtype=torch.float64))
    assert torch.equal(logits.argmax(1) == 1, score > 0)


def test_one_nearest_neighbour_brings_an_attacked_point_back():
    """Classes lie apart along the first pixel; g reads the second, which an attacker may move by 0.3."""
    low, high = torch.tensor([[[[0.1, 0.45]]]]), torch.tensor([[[[0.9, 0.55]]]])
    g = Score(lambda x: x[:, 1] - 0.5)
    data = torch.cat([low, high])
    labels = torch.tensor([0, 1])
    attacked = data + torch.tensor([0.3, -0.3]).view(2, 1, 1, 1) * torch.tensor([0.0, 1.0])
    smooth = LocallyBiasedSmoothing(g, NearestNeighbors(data, labels), gamma=0.3)
    assert g(data).argmax(1).tolist() == [0, 1]
    assert g(attacked).argmax(1).tolist() == [1, 0]
    assert smooth(attacked).argmax(1).tolist() == [0, 1] == smooth(data).argmax(1).tolist()


@pytest.mark.parametrize("norm", [1, 2, float("inf")])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_nearest_neighbours_against_a_full_sort(norm, k):
    generator = torch.Generator().manual_seed(5)
    data, queries = (torch.rand(n, 1, 3, 3, generator=generator) for n in (40, 25))
    labels = torch.randint(2, (40,), generator=generator)
    directions = NearestNeighbors(data, labels, k, norm, images_at_once=10)(queries)
    for query, direction in zip(queries, directions, strict=True):
        distance = torch.linalg.vector_norm((data - query).flatten(1), ord=norm, dim=1)
        votes = labels[distance.argsort()[:k]].float().mean()
        assert direction == (1 if votes > 0.5 else -1)


def test_an_image_is_its_own_nearest_neighbour():
    data = 0.5 + 1e-4 * torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(6))
    labels = torch.arange(20) % 2
    assert torch.equal(NearestNeighbors(data, labels)(data), 2.0 * labels - 1)


@pytest.mark.parametrize("k", [0, 2, 5])
def test_an_even_or_too_large_k_is_refused(k):
    with pytest.raises(ValueError, match="odd k from 1 to 4"):
        NearestNeighbors(images(), torch.tensor([0, 1, 0, 1]), k)


def test_labels_other_than_0_and_1_are_refused():
    with pytest.raises(ValueError, match=r"label 0 or 1.*values \[-1, 1\]"):
        NearestNeighbors(images(), torch.tensor([-1, 1, -1, 1]))


def test_more_than_two_classes_are_refused():
    three = nn.Sequential(nn.Flatten(), nn.Linear(6, 3).double()).eval()
    with pytest.raises(ValueError, match=r"2 logits, got 3; .*GradientMixedClassifier"):
        LocallyBiasedSmoothing(three, Direction(DIRECTIONS), 0.1)(images())


def test_an_impossible_gamma_is_refused():
    with pytest.raises(ValueError, match="gamma"):
        LocallyBiasedSmoothing(Score(lambda x: x @ WEIGHT), Direction(DIRECTIONS), -0.1)
