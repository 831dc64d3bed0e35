"""Averages of weights, and batch-norm statistics."""

import pytest
import torch

from adaptive_smoothing.training.weights import MovingAverage, measure_statistics, restored


def test_moving_average_follows_its_formula():
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
        average = MovingAverage(model, 0.5)
        model.weight.fill_(3.0)
        average.update(step=1000)
        with restored(model):
            average.copy_to_model()
            assert model.weight.item() == pytest.approx(2.0)
    assert model.weight.item() == 3.0


def test_statistics_are_the_mean_over_batches():
    model = torch.nn.BatchNorm1d(3).eval()
    batches = [torch.randn(50, 3) + shift for shift in (0.0, 1.0, 5.0)]
    measure_statistics(model, batches)
    assert torch.allclose(model.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0), atol=1e-5)
    assert torch.allclose(model.running_var, torch.stack([b.var(0) for b in batches]).mean(0), atol=1e-5)
    assert not model.training and model.momentum == 0.1
    kept = model.running_mean.clone()
    with restored(model):
        measure_statistics(model, [torch.randn(50, 3) + 9])
    assert torch.equal(model.running_mean, kept)
