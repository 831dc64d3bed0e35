"""Fast arithmetic: its accuracy, float16 convolutions and their gradients, and what is done if it is not accurate."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from toys import CPU, Planes, make_images, make_input

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.engine import engine as engine_module
from adaptive_smoothing.attacks.engine.arithmetic import (
    DEFAULT_FLOAT32,
    FLOAT16,
    FULL_PRECISION,
    HAS_FLOAT16,
    TF32,
    Arithmetic,
    FastModel,
    fast_arithmetics,
)
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.float16 import Float16Convolutions, with_scaled_gradients
from adaptive_smoothing.attacks.engine.job_batch import Victim
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.attacks.objectives import cross_entropy
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.threat import Linf

needs_float16 = pytest.mark.skipif(not HAS_FLOAT16, reason="this CPU does not compute in float16")


@contextmanager
def float16():
    with torch.autocast("cpu", torch.float16), Float16Convolutions():
        yield


# Contexts with the error that each may have.
CONTEXTS = {"float32": (nullcontext, 1e-4), **({"float16": (float16, 0.02)} if HAS_FLOAT16 else {})}


def wide_resnet(width=1):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # The gradient of a ReLU at its kink depends on the precision; that of SiLU is smooth.
        return build("wide_resnet", depth=10, width=width, activation="silu").eval().requires_grad_(False)


def logits_and_gradient(model, images):
    images = images.clone().requires_grad_()
    logits = model(images)
    return logits.detach(), torch.autograd.grad(logits[:, 0].sum(), images)[0]


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("width", [1, 2])
def test_logits_and_gradients_are_those_of_double_precision(name, width):
    context, error = CONTEXTS[name]
    model, images = wide_resnet(width), make_images(5, (3, 32, 32), 0, 1)
    with context():
        found = logits_and_gradient(model, images)
    exact = logits_and_gradient(model.double(), images.double())
    for one, other in zip(found, exact, strict=True):
        assert torch.allclose(one, other.float(), atol=error * other.abs().max().item())


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 24, 3, padding=1),
        nn.Conv2d(16, 24, 3, padding=1, bias=False),
        nn.Conv2d(16, 24, 3, padding=1, stride=2),
        nn.Conv2d(16, 24, 3, padding=(1, 0), stride=(3, 2)),
        nn.Conv2d(16, 24, 1, stride=2),
        nn.Conv2d(16, 24, (1, 3), padding=2),
        nn.Conv2d(16, 24, 3),
        nn.Conv2d(16, 24, 3, padding="same"),
        nn.Conv2d(32, 32, 3, padding=1, groups=2),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2),
        nn.Conv2d(16, 24, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(16, 24, 1),
    ],
    ids=str,
)
def test_any_convolution_has_the_output_and_the_gradient_of_double_precision(name, layer):
    context, error = CONTEXTS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer.reset_parameters()
    layer.requires_grad_(False)
    images = torch.randn(2, layer.in_channels, 9, 7, generator=torch.Generator().manual_seed(0))

    def output_and_gradient(images):
        images = images.clone().requires_grad_()
        output = layer(images)
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        return output.detach(), torch.autograd.grad((output * weight).sum(), images)[0]

    with context():
        found = output_and_gradient(images)
    layer.double()
    exact = output_and_gradient(images.double())
    layer.float()
    for one, other in zip(found, exact, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=error)


@needs_float16
def test_float16_gives_an_image_the_same_logits_and_gradient_in_any_batch():
    model, images = FastModel(wide_resnet(2), CPU), make_images(17, (3, 32, 32), 0, 1)
    logits, gradient = logits_and_gradient(model, images)
    for count in (1, 2, 7):
        alone = logits_and_gradient(model, images[:count])
        assert torch.allclose(alone[0], logits[:count], atol=1e-5) and torch.equal(alone[1], gradient[:count])


def test_matrix_products_are_computed_in_float32():
    """Torch computes them slowly in float16. The values of float16 tensors are exact in float32, so no bit differs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer, images = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8).half()
    expected = layer(*[images.float()] * 3)[0] @ images.float().mT
    with float16():
        found = layer(*[images.float()] * 3)[0] @ images.mT
    assert found.dtype == torch.float32 and torch.equal(found, expected)


def test_a_fast_model_returns_float32_logits_whose_error_is_within_the_tolerance():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        convolutions = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)
        model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(2048, 10)).eval().requires_grad_(False)
    images = make_images(64, (3, 8, 8), 0, 1)
    exact = model.double()(images.double()).float()
    found = FastModel(model.float(), CPU)(images)
    assert found.dtype == torch.float32
    assert ((found - exact).abs().amax(1) < fast_arithmetics(CPU)[0].rounding(exact)).all()


@pytest.mark.parametrize(
    ("arithmetic", "expected"), [(FULL_PRECISION, "ieee"), (TF32, "tf32"), (DEFAULT_FLOAT32, "tf32")]
)
def test_the_precision_of_float32_holds_for_the_gradient_as_well(arithmetic, expected):
    convolutions, seen = torch.backends.cudnn.conv, []
    before = convolutions.fp32_precision

    class RecordsPrecision(Planes):
        def forward(self, images):
            seen.append(convolutions.fp32_precision)
            images.register_hook(lambda gradient: seen.append(convolutions.fp32_precision))
            return super().forward(images)

    victim = Victim(FastModel(RecordsPrecision(), CPU, arithmetic), arithmetic=arithmetic)
    labels = torch.zeros(4, dtype=torch.long)
    convolutions.fp32_precision = "ieee" if arithmetic == TF32 else "tf32"
    try:
        victim.answer(cross_entropy, make_images(4), {"label": labels, "target": labels})
    finally:
        convolutions.fp32_precision = before
    assert seen == [expected] * 2


# --- models for which fast arithmetic is not accurate ---------------------------------------------------


class LargeValues(nn.Module):
    """Has intermediate values that overflow in float16."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).requires_grad_(False)
        self.training = False

    def forward(self, images):
        return self.layers[1:](1e6 * self.layers[0](images)) / 1e6


class SmallDifferences(LargeValues):
    """Depends on small differences of large numbers, which float16 rounds away."""

    def forward(self, images):
        return self.layers(images + 256) - self.layers(torch.full_like(images, 256))


class LargeGradients(LargeValues):
    """Has logits that float16 can represent, and gradients that it cannot."""

    def forward(self, images):
        found = self.layers[0](images)
        if found.requires_grad:
            found.register_hook(lambda gradient: 1e6 * gradient)
        return self.layers[1:](found)


def attack_fast_and_precisely(model, expected_warning=None):
    """Return the engine after an attack with fast arithmetic, which must end where full precision ends."""
    inputs = make_input(model, make_images(6, (3, 8, 8)), Linf(0.02))
    attack, engine = APGD(inputs.threat, steps=5), Engine(model, CPU, 8)
    with pytest.warns(UserWarning, match=expected_warning) if expected_warning else nullcontext():
        found = run_attack(engine, "test", attack, inputs)
    expected = run_attack(Engine(model, CPU, 8, precise=True), "test", attack, inputs)
    assert torch.equal(found.worst, expected.worst) and found.fooled.any()
    return engine.arithmetic(inputs)


@needs_float16
def test_a_model_that_overflows_in_float16_is_attacked_in_full_precision():
    warning = "float16 logits differ by more than 1/64 of their spread; using float32"
    assert attack_fast_and_precisely(LargeValues(), warning) == FULL_PRECISION


@needs_float16
@pytest.mark.filterwarnings("error")
def test_if_one_arithmetic_is_not_accurate_the_next_one_is_tried(monkeypatch):
    monkeypatch.setattr(engine_module, "fast_arithmetics", lambda device: (FLOAT16, DEFAULT_FLOAT32))
    assert attack_fast_and_precisely(SmallDifferences()) == DEFAULT_FLOAT32


@needs_float16
def test_after_an_overflow_of_the_gradient_the_attack_is_repeated_in_full_precision():
    warning = "the gradient overflows in float16; test uses float32"
    assert attack_fast_and_precisely(LargeGradients(), warning) == FLOAT16  # other attacks still use it


def test_the_warning_names_every_arithmetic_that_was_tried(monkeypatch):
    coarse = [Arithmetic(name, tolerance=2.0**-6) for name in ("bfloat16", "TF32")]
    monkeypatch.setattr(engine_module, "fast_arithmetics", lambda device: coarse)
    monkeypatch.setattr(Arithmetic, "error", lambda self, model, images, logits: torch.full(logits.shape[:1], 1e9))
    warning = "bfloat16 and TF32 logits differ by more than 1/64 of their spread; using float32"
    assert attack_fast_and_precisely(LargeValues(), warning) == FULL_PRECISION


def test_a_small_gradient_does_not_vanish_in_float16():
    """The gradients of three images: far below the range of float16, in the middle of it, and zero."""
    images, size = make_images(3, (3, 8, 8), 0, 1).requires_grad_(), torch.tensor([1e-12, 3.0, 0.0])

    def function(images):
        images = images.half()
        return images.mean((1, 2, 3)), images.square().sum((2, 3))

    def gradient(values):
        return torch.autograd.grad((size * values[0].float()).sum() + (size[:, None] * values[1]).sum(), images)[0]

    exact = size.view(3, 1, 1, 1) * (1 / 192 + 2 * images.detach())
    assert (gradient(function(images))[0] == 0).all()
    found = gradient(with_scaled_gradients(function, images))
    for one, other in zip(found, exact, strict=True):
        assert torch.allclose(one, other, rtol=1e-2, atol=0)


@needs_float16
def test_a_confident_model_has_the_gradient_of_full_precision():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("wide_resnet", depth=10, width=1, activation="silu").eval().requires_grad_(False)
        nn.init.normal_(model.head.weight)
    images = make_images(6, (3, 32, 32), 0, 1)
    model.head.weight *= 25 / (model(images).topk(2).values @ torch.tensor([1.0, -1.0])).max()
    labels, found = model(images).argmax(1), []
    for arithmetic in (fast_arithmetics(CPU)[0], FULL_PRECISION):
        inputs = images.clone().requires_grad_()
        loss, _ = cross_entropy(FastModel(model, CPU, arithmetic), inputs, labels)
        found.append(torch.autograd.grad(loss.sum(), inputs)[0])
    assert (found[1].abs().amax((1, 2, 3)) < 1e-7).any()
    assert (found[0].sign() == found[1].sign()).float().mean((1, 2, 3)).min() > 0.9
