"""Noisy samples: which noise an image gets, and how outputs are counted."""

import numpy as np
import pytest
import torch
from half_spaces import HalfSpaces
from torch import nn

from adaptive_smoothing.certification.sampling import BLOCK, Sampler, Tally

SIGMA = 0.5
INDEX = torch.arange(5)


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=10.0)


@pytest.fixture(scope="module")
def images(plane):
    return plane.at(torch.tensor([0.05, 0.2, 0.5, 0.9, -0.4]))


def test_samples_do_not_depend_on_batches_other_images_or_their_number(plane, images):
    def drawn(sampler, which, *spans):
        found = {int(i): [] for i in INDEX[which]}
        for first, last in spans:
            for rows, outputs in sampler.draw(images[which], INDEX[which], "estimation", first, last):
                for row, output in zip(rows.tolist(), outputs, strict=True):
                    found[int(INDEX[which][row])].append(output)
        return {image: torch.stack(outputs) for image, outputs in found.items()}

    everything = slice(None)
    once = drawn(Sampler(plane, SIGMA), everything, (0, 300))
    for other in (
        drawn(Sampler(plane, SIGMA, batch_size=77), everything, (0, 300)),
        drawn(Sampler(plane, SIGMA, batch_size=1000), slice(2, 4), (0, 300)),
        drawn(Sampler(plane, SIGMA), everything, (0, 130), (130, 131), (131, 300)),
    ):
        for image, outputs in other.items():
            assert outputs.shape == (300, 2)
            assert torch.allclose(outputs, once[image], atol=1e-6)


def test_noise_differs_between_images_streams_blocks_and_seeds_and_has_the_right_size(plane):
    image = torch.full((1, 3, 4, 4), 0.5)

    def noise(index=0, stream="estimation", start=0, seed=0):
        return Sampler(plane, SIGMA, seed=seed)._noise(image, index, stream, start, start + BLOCK)

    first = noise()
    for other in (noise(index=1), noise(stream="selection"), noise(start=BLOCK), noise(seed=1)):
        assert (first - other).abs().min() > 0
    assert first.std().item() == pytest.approx(1, abs=0.05) and abs(first.mean().item()) < 0.05


def test_a_tally_rounds_errors_up_and_resolves_small_ones():
    values = Sampler(nn.Identity(), 1.0).values
    tally = Tally(torch.tensor([[0, 1]]), 3, values)
    outputs = torch.tensor([[1 - 3e-6, 1e-6, 2e-6], [0.5, 0.25, 0.25]])
    tally.add(torch.zeros(2, dtype=torch.long), outputs)
    top, second = (values[np.flatnonzero(tally.counts(which)[0])] for which in (0, 1))
    for found, exact in ((top, [3e-6, 0.5]), (second, [1e-6, 0.25])):
        assert (found >= exact).all() and found == pytest.approx(exact, rel=0.01)
    assert tally.mean() == pytest.approx(outputs.double().mean(0, keepdim=True).numpy(), abs=1e-7)


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_sigma_is_positive(plane, sigma):
    with pytest.raises(ValueError, match="sigma > 0"):
        Sampler(plane, sigma)
