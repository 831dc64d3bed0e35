"""Mixers: their outputs, passes of the base classifiers, gradients, and base classifiers of any architecture."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.objectives import cross_entropy, flip_standard
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.attacks.views import AtAlpha, WithoutTransforms
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.formula import mix_logits
from adaptive_smoothing.mixing.mixers import find_mixer
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, nonlinear
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.threat import Linf

IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def network(seed: int, **options) -> nn.Module:
    torch.manual_seed(seed)
    return build("preact_resnet18", width=8, **options).eval().requires_grad_(False)


G, H = network(0), network(1, activation="silu")


def with_random_scores(mixer: Mixer) -> Mixer:
    """Let the score depend on the image, as after training."""
    torch.manual_seed(3)
    for module in mixer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.2)
    return mixer


def mixers() -> list[Mixer]:
    torch.manual_seed(2)
    found = (MixingNetwork.between(G, H, width=8), with_random_scores(FineTunedTail.of(H)))
    return [mixer.requires_grad_(False) for mixer in found]


@pytest.fixture(params=["network", "fine-tuned tail"])
def mixer(request) -> Mixer:
    return mixers()[request.param == "fine-tuned tail"]


def calls_of(model: nn.Module) -> list[int]:
    """The stem runs once in a pass."""
    calls: list[int] = []
    model.stem.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_one_pass_of_each_base_serves_logits_and_features(mixer):
    g, h = copy.deepcopy(G), copy.deepcopy(H)
    calls = [calls_of(model) for model in (g, h)]
    MixedClassifier(g, h, mixer)(IMAGES)
    assert [len(found) for found in calls] == [1, 1]


def test_the_mixture_uses_the_score_and_the_h_of_the_mixer(mixer):
    mixed = MixedClassifier(G, H, mixer, standard_scale=3.0, alpha_scale=2.0, alpha_shift=0.4)
    score, h = mixer(mixed.base_outputs(IMAGES))
    mixture = mixed.mix(IMAGES)
    torch.testing.assert_close(mixture.alpha, torch.sigmoid(2 * score + 0.4))
    torch.testing.assert_close(mixture.h, h)
    torch.testing.assert_close(mixture.g, 3 * G(IMAGES))
    torch.testing.assert_close(mixture.logits, mix_logits(3 * G(IMAGES), h, mixture.alpha))
    assert mixture.alpha.std() > 0


def test_the_shift_changes_alpha_and_nothing_else(mixer):
    mixed = MixedClassifier(G, H, mixer)
    low, high = (mixed.with_sigmoid(2.0, shift).mix(IMAGES) for shift in (-1.0, 1.0))
    assert (high.alpha > low.alpha).all()
    torch.testing.assert_close(high.h, low.h)
    ranged = mixed.with_alpha_range(0.8, 0.9).mix(IMAGES).alpha
    assert ((ranged > 0.8) & (ranged < 0.9)).all()


def test_alpha_has_a_gradient_that_the_gray_box_view_hides(mixer):
    """The values are the same."""
    mixed = MixedClassifier(G, H, mixer)
    images = IMAGES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mixed.mix(images).alpha.sum(), images)
    assert gradient.abs().sum() > 0
    gray = mixed.gray_box()
    assert not gray.mix(images).alpha.requires_grad and torch.equal(gray(IMAGES), mixed(IMAGES))
    labels = torch.arange(6)
    white, without = (
        torch.autograd.grad(cross_entropy(model, images, labels)[0].sum(), images)[0] for model in (mixed, gray)
    )
    assert (white - without).abs().max() > 1e-9


def test_a_saturated_alpha_has_a_gradient_in_the_smooth_view():
    mixed = MixedClassifier(G, H, mixers()[0], alpha_shift=100.0)
    images = IMAGES.clone().requires_grad_()
    hard, smooth = (
        torch.autograd.grad(model.mix(images).alpha.sum(), images)[0].abs().sum() for model in (mixed, mixed.smooth())
    )
    assert hard == 0 and smooth > 0
    assert torch.equal(mixed.smooth().mix(IMAGES).alpha, mixed.mix(IMAGES).alpha)


def test_features_of_a_hardmax_g_have_gradients():
    mixed = MixedClassifier(Hardmax(G), H, mixers()[0])
    images = IMAGES.clone().requires_grad_()
    mixture = mixed.mix(images)
    assert torch.equal(mixture.g.softmax(1).amax(1), torch.ones(6))
    gray = mixed.gray_box().mix(images)
    (through_alpha,) = torch.autograd.grad(mixture.alpha.sum(), images)
    assert through_alpha.abs().sum() > 0 and torch.equal(gray.logits, mixture.logits)
    torch.testing.assert_close(mixture.alpha, MixedClassifier(G, H, mixed.alpha).mix(IMAGES).alpha)


def test_a_fine_tuned_tail_starts_as_h():
    mixture = MixedClassifier(G, H, FineTunedTail.of(H), alpha_shift=1.0).mix(IMAGES)
    torch.testing.assert_close(mixture.h, H(IMAGES))
    torch.testing.assert_close(mixture.alpha, torch.tensor(1.0).sigmoid().expand(6))
    assert FineTunedTail.of(H).robust_taps == ("stage3",) and FineTunedTail.of(H, "stage2").robust_taps == ("stage2",)


def test_a_fine_tuned_tail_does_not_depend_on_g():
    mixer = mixers()[1]
    one, other = (MixedClassifier(g, H, mixer).mix(IMAGES) for g in (G, network(7)))
    assert torch.equal(one.alpha, other.alpha) and torch.equal(one.h, other.h)


def test_scores_are_standardised():
    mixer = mixers()[1]
    base_outputs = MixedClassifier(G, H, mixer).base_outputs(IMAGES)
    before = mixer(base_outputs).score
    mixer.standardize(base_outputs)
    torch.testing.assert_close(mixer(base_outputs).score, (before - before.mean()) / before.std(correction=0))
    same = FineTunedTail.of(H)
    same.standardize(base_outputs)
    assert torch.equal(same(base_outputs).score, torch.zeros(6))


def test_scores_of_a_network_are_normalised_in_training():
    mixer = MixingNetwork.between(G, H, width=8).train().requires_grad_(False)
    score = mixer(MixedClassifier(G, H, mixer).base_outputs(IMAGES)).score
    assert score.mean().abs() < 1e-5 and score.std(correction=0) == pytest.approx(1, abs=0.05)


def test_views_keep_what_is_mixed(mixer):
    mixed = MixedClassifier(G, H, mixer, alpha_scale=2.0, alpha_shift=0.3, standard_scale=3.0)
    assert torch.equal(mixed.with_scales(3.0, 1.0)(IMAGES), mixed(IMAGES))
    assert torch.equal(mixed.gray_box().with_sigmoid(2.0, 0.3)(IMAGES), mixed(IMAGES))
    torch.testing.assert_close(mixed.with_standard(H).mix(IMAGES).g, 3 * H(IMAGES))
    assert "alpha_scale=2, alpha_shift=0.3" in repr(mixed)


def test_numbers_stay_in_float32_under_autocast(mixer):
    mixed = MixedClassifier(copy.deepcopy(G), copy.deepcopy(H), copy.deepcopy(mixer), alpha_shift=0.123456789)
    with torch.autocast("cpu", torch.bfloat16):
        mixture = mixed.mix(IMAGES[:1])
    assert mixture.alpha.dtype == mixture.logits.dtype == torch.float32
    assert mixed.alpha_shift.dtype == torch.float32


def test_the_flip_standard_objective_has_gradients_through_a_mixer(mixer):
    images, labels, targets = IMAGES.clone().requires_grad_(), torch.zeros(6).long(), torch.ones(6).long()
    loss, logits = flip_standard(MixedClassifier(G, H, mixer), images, labels, targets)
    (gradient,) = torch.autograd.grad(loss.sum(), images)
    assert logits.shape == (6, 10) and (gradient.flatten(1).abs().sum(1) > 0).all()


class Constant(nn.Module):
    """Predicts one class for every image, and has a layer that measures brightness."""

    def __init__(self, label):
        super().__init__()
        self.logits, self.brightness = 5 * torch.eye(10)[label], Brightness()
        self.training = False

    def forward(self, images):
        return self.logits + 0 * self.brightness(images)


class Brightness(nn.Module):
    def forward(self, images):
        return images.mean((1, 2, 3), keepdim=True).flatten(1)


class Bright(Mixer):
    """Gives h more weight in bright images."""

    standard_taps = ("brightness",)

    def forward(self, base_outputs):
        return MixerOutput(base_outputs.g_features[0].squeeze(1), base_outputs.h)


@pytest.mark.filterwarnings("ignore:all .* have the label")
@pytest.mark.filterwarnings("ignore:the gradient was zero")
def test_an_attack_that_follows_alpha_fools_a_mixture_that_the_gray_box_does_not():
    """g is always incorrect and h always correct, so that alpha alone can be attacked."""
    mixed = MixedClassifier(Constant(1), Constant(0), Bright(), alpha_scale=100.0, alpha_shift=-49.0)
    data = from_tensors(torch.full((4, 3, 8, 8), 128, dtype=torch.uint8), [0] * 4, classes=[str(i) for i in range(10)])
    threat = Linf(8 / 255)
    stages = {stage.key: stage for stage in preset("adaptive", threat).for_model(mixed).stages}
    robust = {}
    for key in ("apgd-ce", "gray-ce"):
        few = replace(stages[key], attack=replace(stages[key].attack, steps=10))
        robust[key] = evaluate(
            mixed, data, Cascade(key, threat, (few,)), options=EvaluationOptions(alarms=False)
        ).robust
    assert robust == {"apgd-ce": 0, "gray-ce": 1}


def test_a_mixing_network_reads_the_features_of_transformed_networks():
    mixer = MixingNetwork.between(Hardmax(G), Nonlinear(H, scale=5.0, power=3.0, shift=-0.5), width=8)
    mixed = MixedClassifier(Hardmax(G), Nonlinear(H, scale=5.0, power=3.0, shift=-0.5), mixer)
    assert mixer.robust_taps == MixingNetwork.between(G, H, width=8).robust_taps and mixed(IMAGES).shape == (6, 10)
    with pytest.raises(ValueError, match="got a Nonlinear of one"):
        FineTunedTail.of(Nonlinear(H, scale=5.0, power=3.0, shift=-0.5))


def test_the_transform_acts_on_the_h_of_the_mixer():
    how = {"scale": 5.0, "power": 3.0, "shift": -0.5}
    for mixer in mixers():
        plain = MixedClassifier(G, H, mixer, robust_scale=2.0)
        mixture = MixedClassifier(G, Nonlinear(H, **how), mixer, robust_scale=2.0).mix(IMAGES)
        assert torch.equal(mixture.alpha, plain.mix(IMAGES).alpha)
        torch.testing.assert_close(mixture.h, 2 * nonlinear(plain.mix(IMAGES).h / 2, *how.values()))


class Given(nn.Module):
    """Logits that are the first pixels."""

    training = False

    def forward(self, images):
        return images[:, 0, 0, :4] * 10


def test_without_the_transform_every_target_has_another_gradient():
    """The transform gives all unlikely classes nearly the same logit, and so all targets nearly the same gradient."""
    images = torch.tensor([0.9, 0.2, 0.1, 0.0]).expand(1, 3, 1, 4).clone().requires_grad_()
    mixed = MixedClassifier(Hardmax(Given()), Nonlinear(Given(), scale=15.0, power=8.0, shift=-0.75), 0.9)
    apart = []
    for view in (mixed, WithoutTransforms()(mixed), WithoutTransforms(alpha=1.0)(mixed)):
        logits = view(images)
        towards = [
            torch.autograd.grad(logits[0, target] - logits[0, 0], images, retain_graph=True)[0][0, 0, 0]
            for target in (1, 2)
        ]
        apart.append(((towards[0] - towards[1]).norm() / towards[0].norm()).item())
    assert apart[0] < 0.01 and min(apart[1:]) > 0.5
    assert torch.equal(WithoutTransforms(alpha=1.0)(mixed)(images), Given()(images).log_softmax(1))


def test_the_plain_view_has_a_gradient_of_a_saturated_alpha():
    mixed = MixedClassifier(G, Nonlinear(H, scale=15.0, power=8.0, shift=-0.75), mixers()[1], alpha_scale=1e4)
    nn.init.normal_(mixed.alpha.scorer[-1].weight)
    slopes = []
    for view in (mixed, WithoutTransforms()(mixed)):
        images = IMAGES.clone().requires_grad_()
        mixture = view.mix(images)
        slopes.append(torch.autograd.grad(mixture.alpha.sum(), images)[0].abs().amax())
    assert slopes[0] == 0 < slopes[1] and torch.equal(mixture.alpha, mixed.mix(IMAGES).alpha)


class Logits(Mixer):
    """A mixer whose score depends on the logits of g."""

    def forward(self, base_outputs):
        return MixerOutput(base_outputs.g.std(1), base_outputs.h)


def test_alpha_has_a_gradient_through_the_logits_of_a_hardmax_g():
    images = IMAGES.clone().requires_grad_()
    alpha = MixedClassifier(Hardmax(G), H, Logits()).mix(images).alpha
    assert torch.autograd.grad(alpha.sum(), images)[0].any()


def test_an_attack_at_one_alpha_keeps_the_h_of_the_mixer():
    tail = mixers()[1]
    nn.init.normal_(tail.tail.head.weight)
    mixed = MixedClassifier(G, H, tail)
    mixture, at = mixed.mix(IMAGES), AtAlpha(0.8)(mixed).mix(IMAGES)
    assert torch.equal(at.h, mixture.h) and torch.equal(at.alpha, torch.full((6,), 0.8))
    assert not torch.equal(at.h, H(IMAGES))


@pytest.mark.parametrize(("g", "h", "size"), [("convnext_atto", "vit_tiny_patch16_224", 224), ("resnet10t", None, 32)])
def test_networks_of_any_architecture(g, h, size):
    """Feature maps of different sizes, tokens, channels last."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    g, h = (timm.create_model(name, num_classes=10).eval() if name else H for name in (g, h))
    images = torch.rand(2, 3, size, size)
    shape = (3, size, size)
    for mixer in (MixingNetwork.between(g, h, shape=shape, width=8), FineTunedTail.of(h, shape=shape)):
        mixture = MixedClassifier(g, h, mixer).mix(images)
        assert mixture.alpha.shape == (2,) and mixture.logits.isfinite().all()


def test_taps_can_be_named():
    mixer = MixingNetwork.between(G, H, standard_taps=("stem", "stage3"), robust_taps=("stage1", "stage4"), width=8)
    assert MixedClassifier(G, H, mixer)(IMAGES).shape == (6, 10)
    with pytest.raises(ValueError, match="two taps in each classifier, got"):
        MixingNetwork.between(G, H, standard_taps=("stage1",), robust_taps=("stage1", "stage2"))
    with pytest.raises(ValueError, match="two taps in each classifier, got"):
        MixingNetwork((8, 8), standard_taps=("stage1", "stage2"), robust_taps=())
    with pytest.raises(ValueError, match="did you mean 'stage4'"):
        MixingNetwork.between(G, H, standard_taps=("stage1", "stage9"))


def test_an_impossible_sigmoid_is_refused():
    with pytest.raises(ValueError, match="positive, finite alpha_scale, got 0"):
        MixedClassifier(G, H, mixers()[0], alpha_scale=0.0)
    with pytest.raises(ValueError, match="finite alpha_shift, got nan"):
        MixedClassifier(G, H, mixers()[0], alpha_shift=float("nan"))


class OneScore(Mixer):
    """A user's mixer."""

    def forward(self, base_outputs):
        return MixerOutput(torch.full_like(base_outputs.g[:, 0], 0.5), base_outputs.h)


def test_a_users_mixer():
    mixed = MixedClassifier(G, H, OneScore())
    torch.testing.assert_close(mixed(IMAGES), mix_logits(G(IMAGES), H(IMAGES), torch.tensor(0.5).sigmoid()))


def test_nonlinear_as_a_base():
    wide = Nonlinear(H, scale=5.0, power=4.0, shift=-0.3)
    torch.testing.assert_close(wide(IMAGES), nonlinear(H(IMAGES), 5.0, 4.0, -0.3))
    mixed = MixedClassifier(Hardmax(G), wide, mixers()[0])
    assert mixed.mix(IMAGES).h.shape == (6, 10) and "power=4" in repr(wide) and "robust=Nonlinear(" in repr(mixed)


class Vectors(nn.Sequential):
    """A network without feature maps."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 10))


def test_layers_that_return_vectors_can_be_tapped():
    g, h = Vectors().eval(), Vectors().eval()
    network = MixingNetwork.between(g, h, standard_taps=["2", "4"], robust_taps=["1", "3"])
    assert network.channels == (16, 12)
    for mixer in (network, FineTunedTail.of(h, "2")):
        assert MixedClassifier(g, h, mixer)(IMAGES).shape == (len(IMAGES), 10)


def test_a_mixer_of_another_package_is_stored_and_loaded(other_package, tmp_path):
    code = """
import torch
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput

class Largest(Mixer):
    kind, title, summary = "largest", "largest logit", "the largest logit of g"

    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(float(factor)))

    @property
    def options(self):
        return {"factor": 0.0}

    def forward(self, base_outputs):
        return MixerOutput(self.factor * base_outputs.g.amax(1), base_outputs.h)
"""
    other_package("[adaptive_smoothing.mixers]\nlargest = other_package:Largest\n", code)
    mixed = MixedClassifier(G, H, find_mixer("largest")(2.0))
    mixed.save_pretrained(tmp_path / "saved")
    again = MixedClassifier.from_pretrained(tmp_path / "saved", standard=G, robust=H)
    assert torch.equal(again(IMAGES), mixed(IMAGES)) and again.alpha.factor.item() == 2
    assert "chosen by the largest logit of g" in (tmp_path / "saved" / "mixture.md").read_text()


def test_a_mixer_that_no_package_registers_is_not_stored(tmp_path):
    with pytest.raises(ValueError, match="expected the kind of the mixer to be one of network, fine-tuned-tail"):
        find_mixer("largest")
    with pytest.raises(ValueError, match="expected a number or one of MixingNetwork, FineTunedTail as alpha, got a"):
        MixedClassifier(G, H, OneScore()).save_pretrained(tmp_path)
