"""SmoothedClassifier: closed forms for linear models; deterministic, differentiable, bounded memory."""

import math

import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import wrap
from adaptive_smoothing.noise import generator


class Halfspace(nn.Module):
    """Class 1 where w.x > 0, with logits so large that softmax is a hard vote."""

    num_classes = 2

    def __init__(self, sharpness: float = 1e4) -> None:
        super().__init__()
        self.weight = torch.linspace(-1, 1, 3 * 4 * 4).view(3, 4, 4)
        self.sharpness = sharpness

    def score(self, images: Tensor) -> Tensor:
        return (images * self.weight).sum((1, 2, 3))

    def forward(self, images: Tensor) -> Tensor:
        score = self.sharpness * self.score(images)
        return torch.stack([-score / 2, score / 2], 1)


@pytest.fixture
def points() -> Tensor:
    return torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("hard", [False, True])
def test_halfspace_has_the_closed_form(points, hard):
    base = Halfspace()
    sigma, samples = 0.5, 20_000
    smooth = SmoothedClassifier(base, sigma, samples=samples, hard=hard, batch=10_000)
    expected = norm.cdf(base.score(points) / (sigma * base.weight.norm()))
    assert smooth(points).softmax(1)[:, 1].numpy() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(samples))


def test_logits_are_the_log_of_the_mean(linear, images):
    smooth = SmoothedClassifier(linear, 0.25, samples=7, seed=5, batch=12)
    noise = torch.randn(7, 3, 8, 8, generator=generator(5, "smoothing"))
    votes = torch.stack([linear(images + 0.25 * draw).softmax(1) for draw in noise])
    assert torch.allclose(smooth(images), votes.mean(0).log(), atol=1e-5)
    hard = SmoothedClassifier(linear, 0.25, samples=7, seed=5, batch=12, hard=True)
    hard_votes = nn.functional.one_hot(votes.argmax(2), 4).float().mean(0)
    assert torch.allclose(hard(images).exp(), hard_votes, atol=1e-6)
    assert hard(images).isfinite().all()


def test_sigma_as_a_tensor_is_a_number_of_python(linear, images):
    smooth = SmoothedClassifier(linear, torch.tensor(0.25), samples=3)
    assert type(smooth.sigma) is float
    assert torch.equal(smooth(images), SmoothedClassifier(linear, 0.25, samples=3)(images))


def test_no_noise_is_the_base(linear, images):
    assert torch.allclose(SmoothedClassifier(linear, 0.0, samples=3)(images), linear(images).log_softmax(1), atol=1e-5)


def test_confident_models_keep_finite_logits_and_gradients():
    base = Halfspace(1e3)
    x = (base.weight > 0).float()[None].requires_grad_()
    logits = SmoothedClassifier(base, 0.01, samples=4)(x)
    assert logits.isfinite().all() and logits.min() < -100
    logits[:, 0].sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and (x.grad != 0).any()


def test_output_depends_on_seed_and_nothing_else(linear, images):
    smooth = SmoothedClassifier(linear, 0.5, samples=9, batch=4)
    whole = smooth(images)
    assert torch.equal(whole, smooth(images))
    torch.manual_seed(123)
    assert torch.allclose(whole, torch.cat([smooth(image[None]) for image in images]), atol=1e-5)
    assert torch.allclose(whole, SmoothedClassifier(linear, 0.5, samples=9, batch=500)(images), atol=1e-5)
    assert not torch.allclose(whole, SmoothedClassifier(linear, 0.5, samples=9, seed=1)(images), atol=1e-3)


def test_a_change_of_seed_draws_other_noise(linear, images):
    smooth = SmoothedClassifier(linear, 0.5, samples=9)
    first = smooth(images)
    smooth.seed = 1
    assert not torch.allclose(first, smooth(images), atol=1e-3)


def test_gradient_in_chunks_is_the_gradient(linear, images):
    double = linear.double()
    x = images.double().requires_grad_()
    whole = torch.autograd.grad(SmoothedClassifier(double, 0.3, samples=6)(x)[:, 0].sum(), x)[0]
    chunks = torch.autograd.grad(SmoothedClassifier(double, 0.3, samples=6, batch=6)(x)[:, 0].sum(), x)[0]
    assert torch.allclose(whole, chunks)
    smooth = SmoothedClassifier(double, 0.3, samples=6, batch=2)
    assert torch.autograd.gradcheck(smooth, (images[:1].double().requires_grad_(),), fast_mode=True)


def test_gradient_memory_does_not_grow_with_samples(linear, images):
    """Between forward and backward, autograd keeps no noisy image: it recomputes each chunk."""
    base = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4)).requires_grad_(False)

    def kept(samples: int) -> int:
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            SmoothedClassifier(base, 0.3, samples=samples, batch=6)(images.clone().requires_grad_())
        return max(sizes)

    assert kept(20) == kept(5) <= images.numel()


def test_function_transforms(linear, images):
    smooth = SmoothedClassifier(linear, 0.3, samples=4, batch=6)
    one = torch.vmap(lambda x: smooth(x[None])[0])(images)
    assert torch.allclose(one, smooth(images), atol=1e-5)
    x = images.clone().requires_grad_()
    expected = torch.autograd.grad(smooth(x).sum(), x)[0]
    assert torch.allclose(torch.func.grad(lambda x: smooth(x).sum())(images), expected, atol=1e-5)


def test_noise_cached_in_inference_mode_works_with_gradients(linear, images):
    smooth = SmoothedClassifier(linear, 0.3, samples=4)
    with torch.inference_mode():
        smooth(images)
    x = images.clone().requires_grad_()
    smooth(x).sum().backward()
    assert x.grad is not None


def test_values_are_checked_of_given_images_but_not_of_noisy_ones(linear, images):
    smooth = SmoothedClassifier(wrap(linear, shape=(3, 8, 8)), 1.0, samples=3)
    assert smooth(images).isfinite().all()
    with pytest.raises(ValueError, match=r"see ads.wrap"):
        smooth(images + 1)
    with pytest.raises(ValueError, match=r"see ads.wrap"):
        smooth.base(images + 1)


def test_wraps_and_counts_classes(linear, images):
    smooth = SmoothedClassifier(linear, 0.5, samples=3)
    assert smooth.num_classes == 4
    assert torch.equal(wrap(smooth, shape=(3, 8, 8))(images), smooth(images))
    assert "sigma=0.5" in repr(smooth)


def test_compiles(linear, images):
    smooth = SmoothedClassifier(linear, 0.3, samples=4)
    expected = smooth(images)
    assert torch.allclose(torch.compile(smooth, backend="eager", fullgraph=True)(images), expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma": -0.1}, "expected sigma >= 0, got -0.1"),
        ({"sigma": math.nan}, "expected sigma >= 0, got nan"),
        ({"sigma": 0.5, "samples": 0}, "expected samples of at least 1, got 0"),
        ({"sigma": 0.5, "batch": 0}, "expected batch of at least 1, got 0"),
    ],
)
def test_wrong_settings(linear, options, words):
    with pytest.raises(ValueError, match=words):
        SmoothedClassifier(linear, **options)


def test_a_base_in_train_mode_is_refused():
    with pytest.raises(ValueError, match=r"expected a model in eval mode, got its layer '0' \(BatchNorm2d\)"):
        SmoothedClassifier(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()), 0.5)


def test_votes_have_a_gradient_of_zero(linear, images):
    x = images.clone().requires_grad_()
    logits = SmoothedClassifier(linear, 0.3, samples=4, hard=True)(x)
    assert torch.equal(torch.autograd.grad(logits[:, 0].sum(), x)[0], torch.zeros_like(x))


def test_draws_inside_a_graph_are_those_outside(linear, images):
    compiled = torch.compile(SmoothedClassifier(linear, 0.3, samples=4), backend="eager")
    assert torch.equal(compiled(images), SmoothedClassifier(linear, 0.3, samples=4)(images))
