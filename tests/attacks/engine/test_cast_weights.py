import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adaptive_smoothing.attacks.engine.arithmetic import BFLOAT16, FastModel
from adaptive_smoothing.attacks.engine.cast_weights import CastWeights
from adaptive_smoothing.models.contract import frozen


class Casts(TorchDispatchMode):
    """Counts the tensors of a shape that are cast."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False), nn.Flatten(), nn.Linear(144, 5)
    return nn.Sequential(*layers).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)


def logits(model: nn.Module, images: Tensor, mode: CastWeights | None = None) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        if mode is None:
            return model(images)
        with mode:
            return model(images)


def test_logits_and_gradients_are_those_of_autocast(model, images):
    images.requires_grad_()
    mode, found = CastWeights(torch.bfloat16), []
    with frozen(model):
        for given in (None, mode, mode):
            answer = logits(model, images, given)
            found.append((answer, torch.autograd.grad(answer.float().square().sum(), images)[0]))
    for answer, gradient in found[1:]:
        assert torch.equal(answer, found[0][0]) and torch.allclose(gradient, found[0][1], rtol=1e-2, atol=1e-4)


def test_weights_are_cast_in_the_first_pass_only(model, images):
    mode, shape = CastWeights(torch.bfloat16), model[2].weight.shape
    counts = []
    with frozen(model):
        for given in (None, None, mode, mode):
            with Casts(shape) as casts:
                logits(model, images, given)
            counts.append(casts.count)
    assert counts == [1, 1, 1, 0]
    assert mode.kept[id(model[2].weight), torch.channels_last][2].is_contiguous(memory_format=torch.channels_last)


def test_a_weight_that_has_changed_is_cast_again(model, images):
    mode = CastWeights(torch.bfloat16)
    with frozen(model), torch.no_grad():
        before = logits(model, images, mode)
        model[4].weight.mul_(2)
        after = logits(model, images, mode)
        assert not torch.equal(before, after) and torch.equal(after, logits(model, images))


def test_weights_that_are_trained_keep_their_gradient(model, images):
    logits(model, images, CastWeights(torch.bfloat16)).float().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_a_fast_model_keeps_its_weights_in_bfloat16(model, images):
    fast = FastModel(model, torch.device("cpu"), BFLOAT16, fixed_weights=True)
    with frozen(model), torch.no_grad():
        first = fast(images)
        with Casts(model[2].weight.shape) as casts:
            assert torch.equal(fast(images), first)
    assert casts.count == 0 and first.dtype == torch.float32


def test_a_part_of_the_model_without_autocast_stays_in_float32(model, images):
    class Precise(nn.Linear):
        def forward(self, features):
            with torch.autocast("cpu", enabled=False):
                return super().forward(features.float())

    model[4].__class__ = Precise
    with frozen(model), torch.no_grad():
        found = logits(model, images, mode := CastWeights(torch.bfloat16))
        assert torch.equal(found, logits(model, images)) and found.dtype == torch.float32
    assert len(mode.kept) == 3  # two weights and a bias of the convolutions


def test_without_fixed_weights_a_change_reaches_every_pass(model, images):
    """Graphs of the training attacks read the weights where they are, so nothing may be kept."""
    fast = FastModel(model, torch.device("cpu"), BFLOAT16)
    with frozen(model), torch.no_grad(), Casts(model[2].weight.shape) as casts:
        fast(images)
        fast(images)
    assert casts.count == 2


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_another_layout_keep_it(channels):
    """Otherwise `view` in the model would fail."""
    model = nn.Conv2d(channels, 4, 3, bias=False).eval()
    with frozen(model), torch.no_grad():
        features = logits(model, torch.rand(2, channels, 8, 8), CastWeights(torch.bfloat16))
    assert features.view(2, -1).shape == (2, 144)


def test_vmap_inference_mode_and_another_autocast_are_left_alone(model, images):
    mode = CastWeights(torch.bfloat16)
    with frozen(model), torch.no_grad():
        for function in (
            lambda images: torch.func.vmap(model)(images[:, None]).squeeze(1),
            torch.inference_mode()(model),
            torch.autocast("cpu", torch.float16)(model),
        ):
            assert torch.equal(logits(function, images, mode), logits(function, images)) and not mode.kept
