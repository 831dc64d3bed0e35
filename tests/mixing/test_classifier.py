"""MixedClassifier: known values at the ends of alpha, gradients, views, and errors."""

import copy

import pytest
import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.classifier import MixedClassifier, MixedOutput
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models.contract import check_eval, check_logits


def network(seed: int, classes: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(180, classes)]
    return nn.Sequential(*layers).eval()


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Brightness(nn.Module):
    """An alpha that depends on the image and has a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(4.0))

    def forward(self, batch: Tensor) -> Tensor:
        return torch.sigmoid(self.weight * (batch.mean((1, 2, 3)) - 0.5))


class Returns(nn.Module):
    """Ignores the images."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, batch: Tensor) -> object:
        return self.output


def plain(g: nn.Module, h: nn.Module, batch: Tensor, alpha: float | Tensor) -> Tensor:
    return ((1 - alpha) * g(batch).softmax(1) + alpha * h(batch).softmax(1)).log()


G, H = network(0), network(1)


def test_is_the_convex_combination_of_probabilities():
    torch.testing.assert_close(MixedClassifier(G, H, 0.3)(images()), plain(G, H, images(), 0.3))


def test_alpha_0_and_1_are_the_bases_exactly():
    assert torch.equal(MixedClassifier(G, H, 0)(images()), G(images()).log_softmax(1))
    assert torch.equal(MixedClassifier(G, H, 1)(images()), H(images()).log_softmax(1))


def test_forward_returns_logits_and_mix_also_alpha_and_base_logits():
    mixed = MixedClassifier(G, H, 0.25, standard_scale=2.0, robust_scale=0.5)
    mixture = mixed.mix(images())
    assert isinstance(mixture, MixedOutput) and torch.equal(mixture.logits, mixed(images()))
    assert torch.equal(mixture.alpha, torch.full((6,), 0.25))
    assert torch.equal(mixture.g, 2 * G(images()))


def test_alpha_per_image_and_by_a_module():
    alpha = torch.linspace(0, 1, 6)
    mixture = MixedClassifier(G, H, alpha).mix(images())
    assert torch.equal(mixture.alpha, alpha)
    torch.testing.assert_close(mixture.logits, plain(G, H, images(), alpha[:, None]))
    network_alpha = Brightness()
    expected = plain(G, H, images(), network_alpha(images())[:, None])
    torch.testing.assert_close(MixedClassifier(G, H, network_alpha)(images()), expected)


def test_scales():
    mixed = MixedClassifier(G, H, 0.5, standard_scale=3.0, robust_scale=0.5)
    expected = (0.5 * (3 * G(images())).softmax(1) + 0.5 * (0.5 * H(images())).softmax(1)).log()
    torch.testing.assert_close(mixed(images()), expected)
    torch.testing.assert_close(MixedClassifier(G, H, 0.5).with_scales(3.0, 0.5)(images()), expected)


@pytest.mark.parametrize("alpha_range", [(0.84, 0.99), (0.34, 0.91), (0.5, 0.5)])
def test_alpha_range_is_kept_to_the_last_bit(alpha_range):
    """low + (high - low) * alpha, computed as written, leaves (0.34, 0.91) in float32."""
    low, high = torch.tensor(alpha_range)
    alpha = torch.linspace(0, 1, 1001)
    ranged = MixedClassifier(G, H, alpha, alpha_range=alpha_range).mix(images(1).expand(1001, 3, 8, 8)).alpha
    torch.testing.assert_close(ranged, low + (high - low) * alpha)
    assert ranged[0] == low and ranged[-1] == high and ranged.min() >= low and ranged.max() <= high


def test_the_whole_range_leaves_alpha_alone():
    alpha = torch.linspace(0, 1, 1001)
    assert torch.equal(MixedClassifier(G, H, alpha).mix(images(1).expand(1001, 3, 8, 8)).alpha, alpha)


def test_the_gradient_reaches_images_alpha_and_bases():
    batch, alpha = images().requires_grad_(), Brightness()
    MixedClassifier(G, H, alpha, alpha_range=(0.2, 0.9))(batch)[:, 0].sum().backward()
    leaves = [batch, alpha.weight, G[0].weight, H[0].weight]
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in leaves)
    G.zero_grad(), H.zero_grad()


def test_the_gray_box_view_has_the_same_logits_without_the_gradient_of_alpha():
    alpha = Brightness()
    mixed = MixedClassifier(G, H, alpha)
    gray = mixed.gray_box()
    assert torch.equal(gray(images()), mixed(images()))
    batch = images().requires_grad_()
    seen = torch.autograd.grad(gray(batch)[:, 0].sum(), batch)[0]
    constant = mixed.with_alpha(alpha(batch).detach())
    torch.testing.assert_close(seen, torch.autograd.grad(constant(batch)[:, 0].sum(), batch)[0])
    white = torch.autograd.grad(mixed(batch)[:, 0].sum(), batch)[0]
    assert not torch.allclose(seen, white)


def test_a_parameter_stays_one_and_gray_box_detaches_it():
    alpha = nn.Parameter(torch.tensor(0.5))
    mixed = MixedClassifier(G, H, alpha)
    assert dict(mixed.named_parameters())["alpha"] is alpha
    torch.autograd.grad(mixed(images()).sum(), alpha)
    assert not mixed.gray_box().mix(images()).alpha.requires_grad


def test_views_share_networks_and_leave_the_original_alone():
    mixed = MixedClassifier(G, H, 0.5, standard_scale=2.0, alpha_range=(0.1, 0.9))
    before = mixed(images())
    view = mixed.with_alpha(0.25).with_alpha_range(0.0, 0.8).with_scales(standard=5.0)
    assert view.standard is G and view.robust is H
    assert view.mix(images()).alpha[0] == pytest.approx(0.2) and view.standard_scale == 5
    assert torch.equal(mixed(images()), before)


def test_numbers_are_part_of_the_state():
    mixed = MixedClassifier(G, H, 0.7, standard_scale=2.0, alpha_range=(0.2, 0.8))
    other = MixedClassifier(copy.deepcopy(G), copy.deepcopy(H), 0.1)
    other.load_state_dict(mixed.state_dict())
    assert torch.equal(other(images()), mixed(images()))


def test_numbers_take_the_precision_of_double_networks():
    mixed = MixedClassifier(copy.deepcopy(G).double(), copy.deepcopy(H).double(), 0.9)
    assert mixed.alpha.item() == 0.9 and mixed(images().double()).dtype == torch.float64


def test_a_cast_to_bfloat16_does_not_round_alpha():
    mixed = MixedClassifier(copy.deepcopy(G), copy.deepcopy(H), 0.999).to(torch.bfloat16)
    assert mixed.standard[0].weight.dtype == torch.bfloat16
    mixture = mixed.mix(images().bfloat16())
    assert mixture.alpha[0] == torch.tensor(0.999) and mixture.logits.dtype == torch.float32


def test_train_leaves_the_bases_in_eval_mode():
    mixed = MixedClassifier(G, H, nn.Sequential(Brightness(), nn.Dropout(0.5)))
    mixed.train()
    assert mixed.alpha.training and not any(module.training for module in (*G.modules(), *H.modules()))
    assert not mixed.eval().alpha.training
    check_eval(mixed)


def test_compiles():
    mixed = MixedClassifier(G, H, Brightness())
    compiled = torch.compile(mixed, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images()), mixed(images()))


def test_a_base_in_train_mode_is_refused():
    with pytest.raises(ValueError, match="train mode"):
        MixedClassifier(network(0).train(), H, 0.5)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan"), torch.tensor([0.5, float("nan")])])
def test_an_alpha_outside_the_unit_interval_is_refused(alpha):
    with pytest.raises(ValueError, match=r"expected alpha in \[0, 1\].*got"):
        MixedClassifier(G, H, alpha)


def test_an_alpha_module_outside_the_unit_interval_gives_nan():
    outside = MixedClassifier(G, H, Returns(torch.tensor([0.5, 1.05])), alpha_range=(0.84, 0.99))
    assert outside(images(2)).isnan().all(1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        (torch.full((5,), 0.5), r"shape \[6\], got \[5\]; .*with_alpha"),
        (Returns(torch.full((6, 1), 0.5)), r"shape \[6\], got \[6, 1\]; .*squeeze"),
    ],
)
def test_alphas_of_another_batch_are_refused(alpha, message):
    with pytest.raises(ValueError, match=message):
        MixedClassifier(G, H, alpha)(images())


@pytest.mark.parametrize("output", [0.5, torch.tensor(0.5), (torch.full((6,), 0.5),)])
def test_an_alpha_module_must_give_one_number_per_image(output):
    with pytest.raises(TypeError, match="one alpha per image"):
        MixedClassifier(G, H, Returns(output))(images())


def test_different_numbers_of_classes_are_named():
    with pytest.raises(ValueError, match="got 4 from the standard and 7 from the robust"):
        MixedClassifier(G, network(1, classes=7), 0.5)(images())


def test_a_tuple_is_not_logits():
    with pytest.raises(TypeError, match="got tuple"):
        MixedClassifier(G, Returns((torch.zeros(6, 4), torch.zeros(6))), 0.5)(images())


def test_probabilities_are_not_logits():
    soft = nn.Sequential(network(1), nn.Softmax(1)).eval()
    with pytest.raises(ValueError, match="expected logits, got probabilities"):
        MixedClassifier(G, soft, 0.5)(images())
    # Values are not read inside an attack, which must not wait for the device at every step.
    assert MixedClassifier(G, soft, 0.5)(images().requires_grad_()).shape == (6, 4)


@pytest.mark.parametrize("model", ["compact-standard", lambda x: x, None])
def test_a_classifier_that_is_not_a_module_is_refused(model):
    with pytest.raises(TypeError, match=r"expected a torch module, got .*ads.load_model"):
        MixedClassifier(G, model, 0.5)


def test_images_outside_the_box_are_refused():
    with pytest.raises(ValueError, match=r"expected images in \[0, 1\]"):
        MixedClassifier(G, H, 0.5)(images() * 5 - 2)


@pytest.mark.parametrize("alpha_range", [(-0.1, 0.5), (0.6, 0.5), (0.5, 1.5)])
def test_an_impossible_range_is_refused(alpha_range):
    with pytest.raises(ValueError, match="0 <= low <= high <= 1"):
        MixedClassifier(G, H, 0.5, alpha_range=alpha_range)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_scale_is_refused(scale):
    with pytest.raises(ValueError, match="positive, finite robust_scale"):
        MixedClassifier(G, H, 0.5, robust_scale=scale)


def test_repr_is_one_line():
    mixed = MixedClassifier(Hardmax(G), H, 0.5, standard_scale=2.0, alpha_range=(0.1, 0.9))
    numbers = "alpha=0.5, alpha_range=(0.1, 0.9), standard_scale=2, robust_scale=1"
    assert repr(mixed) == f"MixedClassifier(standard=Hardmax(Sequential), robust=Sequential, {numbers})"
    assert "alpha=Brightness()" in repr(MixedClassifier(G, H, Brightness()))


def test_hardmax_mixes():
    mixed = MixedClassifier(Hardmax(G), H, 0.6)
    one_hot = nn.functional.one_hot(G(images()).argmax(1), 4)
    torch.testing.assert_close(mixed(images()).exp(), 0.4 * one_hot + 0.6 * H(images()).softmax(1))
    batch = images().requires_grad_()
    assert torch.autograd.grad(mixed(batch)[:, 0].sum(), batch)[0].isfinite().all()


def test_declared_classes_must_agree():
    g, h = network(0, 4), network(1, 5)
    MixedClassifier(g, h, 0.5)  # without a declaration only a batch shows it
    g.num_classes, h.num_classes = 4, 5
    with pytest.raises(ValueError, match="got 4 from the standard and 5 from the robust one"):
        MixedClassifier(g, h, 0.5)


@pytest.mark.parametrize("alpha", [None, "0.5"])
def test_an_alpha_that_is_not_a_number_is_refused(alpha):
    with pytest.raises(TypeError, match=f"expected alpha as numbers or a tensor, got {alpha!r}"):
        MixedClassifier(G, H, alpha)


@pytest.mark.parametrize("alpha_range", [0.5, (0.1, 0.2, 0.3), ((0.0, 1.0),)])
def test_an_alpha_range_that_is_not_a_pair_is_refused(alpha_range):
    with pytest.raises(ValueError, match=r"expected alpha_range as \(low, high\), got"):
        MixedClassifier(G, H, 0.5, alpha_range=alpha_range)
    with pytest.raises(TypeError, match="expected alpha_range as numbers or a tensor, got None"):
        MixedClassifier(G, H, 0.5, alpha_range=None)


def test_an_alpha_module_outside_the_range_is_named():
    mixed = MixedClassifier(G, H, Returns(torch.full((6,), 1.5)))
    with pytest.raises(ValueError, match=r"an alpha module that leaves \[0, 1\]"):
        check_logits(mixed(images()), images())
