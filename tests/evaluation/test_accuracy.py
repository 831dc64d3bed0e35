import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.datasets import from_tensors
from adaptive_smoothing.evaluation.accuracy import Evaluation, evaluate
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.threat import Linf


@pytest.fixture
def data(linear):
    pixels = torch.randint(0, 256, (50, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = linear(pixels / 255).argmax(1)
    labels[:10] = (labels[:10] + 1) % 4  # ten that the model gets wrong
    return from_tensors(pixels, labels)


def test_clean_accuracy_and_rows(linear, data):
    result = evaluate(linear, data, batch_size=7)
    assert result.clean == pytest.approx(0.8)
    with pytest.raises(ValueError, match="expected an attack"):
        result.robust  # noqa: B018
    assert result.index.tolist() == list(range(50))
    assert result.clean_interval[0] < 0.8 < result.clean_interval[1]


def test_robust_accuracy_falls_with_the_radius_to_zero(linear, data):
    robust = [evaluate(linear, data, PGD(Linf(eps), steps=10)).robust for eps in (0.0, 0.01, 0.03, 1.0)]
    assert robust[0] == pytest.approx(0.8) and robust[-1] == 0
    assert sorted(robust, reverse=True) == robust and robust[1] > robust[2]


def test_an_attack_that_helps_does_not_count(linear, data):
    """Wrong images are not attacked, and an attack that turns a wrong one right proves nothing."""
    result = Evaluation(torch.arange(2), torch.tensor([1, 1]), torch.tensor([0, 1]), torch.tensor([1, 1]))
    assert result.clean == result.robust == 0.5


def test_the_batch_size_does_not_matter(linear, data):
    attack = PGD(Linf(0.02), steps=5, stop_when_fooled=True)
    one, many = (evaluate(linear, data, attack, batch_size=size) for size in (1, 50))
    assert torch.equal(one.attacked_predictions, many.attacked_predictions)


def test_nan_logits_are_an_error_and_never_robust(linear, data):
    class Poisoned(nn.Module):
        def forward(self, images):
            return linear(images) * torch.where(images.flatten(1).mean(1) > 0.5, torch.nan, 1.0)[:, None]

    with pytest.raises(ValueError, match="NaN"):
        evaluate(Poisoned().eval(), data)


def test_progress_counts_images(linear, data):
    done = []
    evaluate(linear, data, batch_size=20, progress=done.append)
    assert done == [20, 20, 10]


def test_verdicts_are_in_full_precision_whatever_was_set(linear, data):
    seen = []

    class Watching(nn.Module):
        def forward(self, images):
            seen.append((torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision))
            return linear(images)

    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with torch.autocast("cpu", torch.bfloat16):
            logits = fp32_logits(Watching().eval(), data.floats())
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert seen == [("ieee", "ieee")] and logits.dtype == torch.float32


def test_an_attack_that_leaves_the_box_is_refused(linear, data):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        evaluate(linear, data, lambda model, images, labels: images + 1)


def test_other_data_is_refused_with_a_way_out(linear, data):
    with pytest.raises(TypeError, match=r"ads\.from_dataset"):
        evaluate(linear, (data.floats(), data.labels))
    with pytest.raises(ValueError, match="empty"):
        evaluate(linear, data.take(0))
