"""The cost of a layer is known."""

import pytest
import torch
from torch import nn

from adaptive_smoothing.evaluation import cost
from adaptive_smoothing.evaluation.cost import measure_cost


def test_parameters_and_flops_of_a_linear_layer(linear):
    found = measure_cost(linear, (3, 8, 8), "cpu")
    assert found.parameters == 192 * 4 + 4
    # A multiplication and an addition for each weight.
    assert found.flops == 2 * 192 * 4


def test_speed_is_that_of_the_fastest_batch(monkeypatch):
    """Batches have as many pixels as 16 images of CIFAR's size."""
    seen = []

    class Recording(nn.Module):
        def forward(self, images):
            seen.append(len(images))
            return images.flatten(1)

    starts_and_ends = iter([0, 0.5, 1, 1.25, 2, 3, 4, 5, 6, 7])
    monkeypatch.setattr(cost.time, "perf_counter", lambda: next(starts_and_ends))
    found = measure_cost(Recording(), (3, 64, 64), torch.device("cpu"))
    assert seen == [1] + [4] * 5 and found.images_per_second == pytest.approx(4 / 0.25)
    assert found.summary() == {"parameters": 0, "flops": 0, "images_per_second": 16.0}
