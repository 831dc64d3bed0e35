"""Batch norm fused with the activation after it: the same logits and gradients, whoever wrote the network."""

import random
import sys
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from adaptive_smoothing.attacks.engine import batch_norm
from adaptive_smoothing.attacks.engine.arithmetic import BFLOAT16, DEFAULT_FLOAT32, FastModel
from adaptive_smoothing.attacks.engine.batch_norm import (
    FusedBatchNorm,
    WrongPlanError,
    activations_after_norms,
    has_kernels,
    prepare_kernels,
)
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.features import FeatureTaps
from adaptive_smoothing.models.inference import full_precision

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
CUDA = torch.device("cuda")


class Sequence(nn.Module):
    """Convolution, norm, and what `after` makes of it."""

    def __init__(self, after, channels=5):
        super().__init__()
        self.convolution, self.norm, self.after = nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), after

    def forward(self, images):
        return self.after(self.norm(self.convolution(images))).flatten(1)


class Square(torch.autograd.Function):
    """A function of a user's own, whose call no mode can see."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def in_place_without_result(x):
    F.relu(x, inplace=True)
    return x


# What follows the norm, and how many norms are planned with an activation.
AFTER = {
    "relu": (F.relu, 1),
    "relu in place": (lambda x: F.relu(x, inplace=True), 1),
    "relu in place, used twice afterwards": (lambda x: (y := F.relu(x, inplace=True)) + 2 * y, 1),
    "method": (lambda x: x.relu(), 1),
    "silu": (nn.SiLU(), 1),
    "nothing": (lambda x: x, 0),
    "tanh": (torch.tanh, 0),
    "relu and the norm itself": (lambda x: F.relu(x) + x, 0),
    "the norm itself and relu": (lambda x: x.sum() + F.relu(x), 0),
    "two activations": (lambda x: F.relu(x) + F.silu(x), 0),
    "shape": (lambda x: F.relu(x) * x.shape[0], 1),
    "relu in place, whose result is not used": (in_place_without_result, 1),
    "a change of the activation in place": (lambda x: F.silu(x).add_(1).mul_(2), 1),
    "a named argument": (lambda x: torch.relu(input=x), 1),
    "twice the same activation": (lambda x: F.silu(x) * F.silu(x), 0),
    "clipped relu": (F.relu6, 0),
    "leaky relu": (F.leaky_relu, 0),
    "relu and the data": (lambda x: F.relu(x) + x.data, 0),
    "relu and a transposed view": (lambda x: F.relu(x) + x.mT.mT, 0),
    "relu and a detached copy": (lambda x: F.relu(x) * x.detach().sigmoid(), 0),
    "a view before relu in place": (lambda x: (x.view_as(x), F.relu(x, inplace=True))[0] * 2, 0),
    "chunks": (lambda x: F.relu(x.chunk(5, 1)[0]), 0),
    "a residual in place": (lambda x: F.relu(x.add_(1)), 0),
    "a list": (lambda x: torch.cat([x, F.silu(x)], 1), 0),
    "a user's function": (Square.apply, 0),
    "relu and a user's function": (lambda x: F.relu(x) + Square.apply(x), 0),
    "a hook on the gradient": (lambda x: (x.requires_grad and x.register_hook(lambda g: 2 * g), F.relu(x))[1], 0),
}


def prepared(model, device):
    """Return a frozen model with batch-norm statistics and weights that are not 0 and 1."""
    noise = torch.Generator().manual_seed(0)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.BatchNorm1d):
            for tensor in filter(torch.is_tensor, (norm.running_mean, norm.bias)):
                tensor.data.normal_(generator=noise)
            for tensor in filter(torch.is_tensor, (norm.running_var, norm.weight)):
                tensor.data.uniform_(0.5, 2, generator=noise)
    return model.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)


def images_on(device, count=3, size=8):
    images = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))
    return images.to(device).contiguous(memory_format=torch.channels_last)


def logits_and_gradient(model, images):
    images = images.clone().requires_grad_()
    with full_precision():  # TF32 would enlarge differences in the last bit
        logits = model(images)
        return logits.detach(), torch.autograd.grad(logits.square().sum(), images)[0]


def fused(model, images, arithmetic=DEFAULT_FLOAT32):
    """Return logits and gradient with fused norms, on any device, and how many norms are planned with an activation."""
    fast = FastModel(model, images.device, arithmetic)
    fast.fuses = True
    return logits_and_gradient(fast, images), len(fast._plan)


def assert_close(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * other.abs().max().item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", AFTER)
def test_fused_norms_give_the_same_logits_and_gradients(name, device):
    after, planned = AFTER[name]
    model = prepared(Sequence(after), device)
    found, count = fused(model, images_on(device))
    assert count == planned
    assert_close(found, logits_and_gradient(model, images_on(device)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels", [1, 3, 64, 100])
def test_any_number_of_channels_is_right(channels, device):
    model = prepared(Sequence(F.relu, channels), device)
    assert_close(fused(model, images_on(device, 5, 11))[0], logits_and_gradient(model, images_on(device, 5, 11)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_every_norm_of_a_residual_network_is_fused(activation, device):
    model = prepared(build("wide_resnet", depth=10, width=1, activation=activation), device)
    found, count = fused(model, images_on(device, size=32))
    assert count == sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert_close(found, logits_and_gradient(model, images_on(device, size=32)), 1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_norm_of_vectors_is_fused(device):
    layers = nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(6), nn.ReLU()
    model = prepared(nn.Sequential(*layers, nn.Linear(6, 4)), device)
    found, count = fused(model, images_on(device))
    assert count == 1
    assert_close(found, logits_and_gradient(model, images_on(device)))


def test_a_norm_that_is_shared_by_two_places_is_fused_only_if_both_have_the_same_activation():
    norm = nn.BatchNorm2d(3)
    for second, planned in ((F.relu, 1), (F.silu, 0), (torch.tanh, 0)):
        model = prepared(Sequence(lambda x, second=second: second(norm(F.relu(norm(x)))), 3), "cpu")
        model.norm = nn.Identity()
        prepared(norm, "cpu")
        found, count = fused(model, images_on("cpu"))
        assert count == planned
        assert_close(found, logits_and_gradient(model, images_on("cpu")))


def test_a_norm_in_training_or_with_weights_that_learn_is_left_alone():
    model = prepared(Sequence(F.relu), "cpu").train()
    plan = activations_after_norms(model, images_on("cpu"))
    assert not plan
    model.eval().norm.weight.requires_grad_()
    with FusedBatchNorm(plan):
        gradient = torch.autograd.grad(model(images_on("cpu")).sum(), model.norm.weight)[0]
    assert gradient.abs().sum() > 0


def test_nan_is_passed_on():
    model = prepared(Sequence(F.relu), "cpu")
    with FusedBatchNorm(activations_after_norms(model, images_on("cpu"))):
        assert model(images_on("cpu") * torch.nan).isnan().all()


def test_the_inside_of_a_functional_transform_is_left_alone():
    model, images = prepared(Sequence(F.relu), "cpu"), images_on("cpu")
    expected = torch.func.grad(lambda x: model(x).square().sum())(images)
    with FusedBatchNorm(activations_after_norms(model, images[:1])):
        found = torch.func.grad(lambda x: model(x).square().sum())(images)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("after", "expected"), [(F.relu, 1), (lambda x: x, 0)])
def test_only_what_is_needed_is_kept_for_the_backward_pass(after, expected):
    """The output of a norm is not kept, and without an activation neither is its input."""
    model, kept = prepared(Sequence(after), "cpu"), []
    inputs = model.convolution(images_on("cpu").requires_grad_())
    plan = activations_after_norms(model, images_on("cpu")[:1])
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x), FusedBatchNorm(plan):
        model.after(model.norm(inputs))
    assert sum(tensor.shape == inputs.shape for tensor in kept) == expected


class TwoNorms(nn.Module):
    """Two norms, both of which are called before their activations."""

    def __init__(self, activation):
        super().__init__()
        self.convolution, self.one, self.two = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.BatchNorm2d(5)
        self.activation = activation

    def forward(self, images):
        features = self.convolution(images)
        one, two = self.one(features), self.two(features)
        return (self.activation(one) + 2 * self.activation(two)).flatten(1)


class ReturnsNorm(nn.Module):
    """Returns the output of a norm, whose activation is used for something else."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm1d(5)

    def forward(self, images):
        logits = self.norm(self.convolution(images).mean((2, 3)))
        self.active = F.relu(logits).sum()
        return logits


class StoresNorm(Sequence):
    """Stores the output of a norm. Whoever reads it must not get the activation."""

    def forward(self, images):
        self.stored = self.norm(self.convolution(images))
        return F.relu(self.stored).flatten(1)


class Checkpointed(nn.Module):
    """A residual block that is computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, 5, 3, padding=1) for channels in (3, 5, 5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(5) for _ in range(2))

    def block(self, x):
        return F.silu(x + self.norms[1](self.convolutions[2](F.silu(self.norms[0](self.convolutions[1](x))))))

    def forward(self, images):
        return checkpoint(self.block, self.convolutions[0](images), use_reentrant=False).flatten(1)


class InputGradient(Sequence):
    """Returns the gradient of its features, so that its own gradient is a second derivative."""

    def forward(self, images):
        with torch.enable_grad():
            images = images if images.requires_grad else images.clone().requires_grad_()
            features = super().forward(images).square().sum()
            gradient = torch.autograd.grad(features, images, create_graph=True)[0].flatten(1)
        return gradient if torch.is_grad_enabled() else gradient.detach()


class ByBatchSize(Sequence):
    """Another activation for one image than for several."""

    def forward(self, images):
        features = self.norm(self.convolution(images))
        return (F.silu(features) if len(images) == 1 else torch.tanh(features)).flatten(1)


class Tapped(nn.Module):
    """Returns the output of the network and of its norm, which a forward hook has copied."""

    def __init__(self):
        super().__init__()
        self.network = Sequence(nn.ReLU(inplace=True))

    def forward(self, images):
        output, features = FeatureTaps(self.network, ["norm"])(images)
        return torch.cat([output, features["norm"].flatten(1)], 1)


def classifier():
    return nn.Sequential(Sequence(nn.SiLU()), nn.Linear(180, 4)).eval()


def mixture_with_itself():
    network = classifier()
    return MixedClassifier(network, network, 0.3)


def gradient_mixture():
    """Computes gradients of g with torch.func."""
    return GradientMixedClassifier(classifier(), classifier(), 1.0, r="predicted_gradient")


def with_backward_hook():
    """The hook wraps the output of the norm, but only where a gradient is computed."""
    model = Sequence(nn.SiLU())
    model.norm.register_full_backward_hook(lambda *unused: None)
    return model


UNUSUAL = {
    "two norms before relu": (lambda: TwoNorms(F.relu), 2),
    "two norms before silu": (lambda: TwoNorms(F.silu), 2),
    "a norm that is returned": (ReturnsNorm, 0),
    "a norm that is stored": (lambda: StoresNorm(F.relu), 0),
    "checkpointing": (Checkpointed, 1),
    "a second derivative": (lambda: InputGradient(F.silu), 1),
    "a hook on the norm": (Tapped, 0),
    "g and h are the same": (mixture_with_itself, 1),
    "a mixture with gradients inside": (gradient_mixture, 2),
    "a backward hook": (with_backward_hook, 0),
    "a norm without weights": (lambda: nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.ReLU(), nn.Flatten()), 0),
    "a norm without statistics": (
        lambda: nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.ReLU(), nn.Flatten()),
        0,
    ),
    "weights in double precision": (lambda: Sequence(F.relu).double(), 0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_model_has_the_same_logits_and_gradients(name, device):
    make, planned = UNUSUAL[name]
    torch.manual_seed(0)
    model, images = prepared(make(), device), images_on(device)
    images = images.to(next(model.parameters(), images).dtype)
    expected, (found, count) = logits_and_gradient(model, images), fused(model, images)
    assert count == planned
    # A second derivative enlarges the rounding of convolutions on a GPU.
    found, expected = ([tensor.double() for tensor in tensors] for tensors in (found, expected))
    assert_close(found, expected, 1e-4 if name == "a second derivative" else 1e-5)


def test_a_model_that_leaves_the_plan_is_computed_without_it():
    model, images = prepared(ByBatchSize(F.relu), "cpu"), images_on("cpu")
    plan = activations_after_norms(model, images[:1])
    assert len(plan) == 1
    with pytest.raises(WrongPlanError), FusedBatchNorm(plan):
        model(images)
    with FusedBatchNorm(plan):  # the exception left nothing behind
        found = model(images[:1])
    torch.testing.assert_close(found, model(images[:1]))
    fast = FastModel(model, torch.device("cpu"), DEFAULT_FLOAT32)
    fast.fuses = True
    for part in (images[:1], images, images[:1]):
        assert_close(logits_and_gradient(fast, part), logits_and_gradient(model, part))


def test_an_error_of_the_model_is_not_hidden():
    def fails(images):
        raise KeyError("mine")

    model = prepared(Sequence(fails), "cpu")
    plan = activations_after_norms(prepared(Sequence(F.relu), "cpu"), images_on("cpu"))
    with pytest.raises(KeyError, match="mine"), FusedBatchNorm(plan):
        model(images_on("cpu"))


class RandomNetwork(nn.Module):
    """A network whose wiring is drawn at random: each step takes earlier features, some of them in place."""

    STEPS = (*["norm"] * 4, *["silu"] * 3, "shared norm", "convolution", "relu", "relu_", "silu_", "add", "add_", "cat")

    def __init__(self, seed, steps=14):
        super().__init__()
        self.seed, self.steps = seed, steps
        self.stem, self.shared = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(steps))
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(steps))

    def forward(self, images):
        chance, stem = random.Random(self.seed), self.stem(images)
        features, unused = [stem], [stem, stem, stem]
        for number in range(self.steps):
            # Most features are used once, in any order, so that activations follow norms sooner or later.
            once = unused and chance.random() < 0.9
            x = unused.pop(chance.randrange(len(unused))) if once else chance.choice(features)
            new = self.step(chance.choice(self.STEPS), x, chance.choice(features[:3]), number)
            features.append(new)
            unused.append(new)
        return torch.stack([feature.mean((2, 3)) for feature in unused]).sum(0)

    def step(self, name, x, other, number):
        match name:
            case "norm":
                return self.norms[number](x)
            case "shared norm":
                return self.shared(x)
            case "convolution":
                return self.convolutions[number](x)
            case "relu" | "silu":
                return getattr(F, name)(x)
            case "relu_" | "silu_":
                # The clone is a use of its own, without which most networks would spoil their own gradients.
                return getattr(F, name[:-1])(x if number % 2 else x.clone(), inplace=True)
            case "add":
                return x + other
            case "add_":
                return x.clone().add_(other)
        return torch.cat([x[:, :2], other[:, 2:]], 1).contiguous(memory_format=torch.channels_last)


def test_networks_with_random_wiring_have_the_same_logits_and_gradients():
    planned, compared = 0, 0
    for seed in range(150):
        torch.manual_seed(seed)
        model, images = prepared(RandomNetwork(seed), "cpu"), images_on("cpu", 2)
        try:
            expected = logits_and_gradient(model, images)
        except RuntimeError:  # an operation in place has destroyed what the gradient needs
            continue
        found, count = fused(model, images)
        assert_close(found, expected, 1e-4)
        planned, compared = planned + count, compared + 1
    assert compared > 75 and planned > 75


@pytest.mark.parametrize("activation", [F.relu, F.silu])
def test_in_bfloat16_the_norms_give_what_autocast_gives(activation):
    """The fused operation rounds once, where autocast rounds twice."""
    model, images = prepared(Sequence(activation), "cpu"), images_on("cpu")
    exact, (found, count) = logits_and_gradient(model, images), fused(model, images, BFLOAT16)
    assert count == 1 and all(tensor.dtype == torch.float32 for tensor in found)
    assert_close(found, exact, 2.0**-6)


def test_images_in_another_memory_format_are_left_alone():
    model, images = prepared(Sequence(F.relu), "cpu").to(memory_format=torch.contiguous_format), images_on("cpu")
    found, count = fused(model, images.contiguous())
    assert count == 0
    assert_close(found, logits_and_gradient(model, images))


def test_a_compiled_model_is_left_alone(monkeypatch):
    monkeypatch.setattr("adaptive_smoothing.attacks.engine.arithmetic.has_kernels", lambda device: True)
    inner, outer, scripted, plain = (prepared(Sequence(F.relu), "cpu") for _ in range(4))
    inner.norm.compile(backend="eager")
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
        scripted.norm = torch.jit.script(scripted.norm)
    models = inner, torch.compile(outer, backend="eager"), scripted, plain
    assert [FastModel(model, torch.device("cpu")).fuses for model in models] == [False, False, False, True]


@pytest.fixture
def triton(monkeypatch):
    """A module in place of the kernels. It counts compilations and raises `error`, if there is one."""
    module = SimpleNamespace(error=None, compiled=0)

    def compile_one():
        module.compiled += 1
        if module.error:
            raise module.error

    module.compile_one = compile_one
    name = "adaptive_smoothing.attacks.engine.batch_norm_triton"
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("adaptive_smoothing.attacks.engine.batch_norm_triton", module, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    batch_norm._can_compile.cache_clear()
    yield module
    batch_norm._can_compile.cache_clear()


def test_without_a_compiler_the_norms_are_not_fused_and_a_warning_says_so(triton):
    triton.error = RuntimeError("Failed to find C compiler")
    with pytest.warns(UserWarning, match="Triton does not work here, so attacks take longer: Failed to find C") as seen:
        assert not has_kernels(CUDA)
    assert not has_kernels(CUDA) and len(seen) == triton.compiled == 1
    assert not FastModel(Sequence(F.relu), CUDA, DEFAULT_FLOAT32).fuses


def test_a_kernel_is_compiled_once_whichever_thread_asks_for_it_first(triton):
    prepare_kernels(CUDA)
    assert has_kernels(CUDA) and triton.compiled == 1
    assert FastModel(Sequence(F.relu), CUDA, DEFAULT_FLOAT32).fuses


def test_other_devices_have_no_kernels(triton):
    prepare_kernels(torch.device("cpu"))
    assert not has_kernels(torch.device("cpu")) and not triton.compiled
