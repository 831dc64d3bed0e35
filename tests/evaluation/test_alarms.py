"""Planted defences raise their alarm; networks without a defence raise none."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.views import SmoothedSurrogate
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.alarms import ADVICE, ATTACKED, STEPS, check_model, check_stages, more_steps
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.gradient_probe import GradientProbe
from adaptive_smoothing.mixing.base_classifiers import MixerOutput
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.wrap import wrap
from adaptive_smoothing.threat import L2, Linf

LINF = Linf(8 / 255)


class Around(nn.Module):
    """A function of images as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.training = False

    def forward(self, images):
        return self.function(images)


class StraightThrough(torch.autograd.Function):
    """Rounds to 16 levels, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, images):
        return (images * 15).round() / 15

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def trained(activation, images, labels, eps, seed=0, steps=60):
    """Return a small network after seconds of training, adversarial unless eps is 0."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        convolutions = nn.Conv2d(3, 16, 3, 2, 1), activation(), nn.Conv2d(16, 32, 3, 2, 1), activation()
        model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 10))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(steps):
            which = torch.randint(len(images), (64,))
            delta = torch.empty(64, 3, 16, 16).uniform_(-eps, eps).requires_grad_()
            loss = F.cross_entropy(model(images[which] + delta), labels[which])
            (gradient,) = torch.autograd.grad(loss, delta)
            attacked = (images[which] + (delta + eps * gradient.sign()).clamp(-eps, eps)).clamp(0, 1).detach()
            optimizer.zero_grad()
            F.cross_entropy(model(attacked), labels[which]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def small():
    """Every other pixel of 32 images, and a robust (h) and a standard (g) network."""
    data = datasets.load("builtin", "val")
    images, labels = data.floats()[:500, :, ::2, ::2], data.labels[:500]
    h = trained(nn.SiLU, images, labels, 8 / 255)
    g = trained(nn.ReLU, images, labels, 0.0, seed=1)
    return SimpleNamespace(x=images[:32], g=g, h=h)


def names(model, images, threat=LINF, labels=None):
    """Return the names of a model's alarms; by default the labels are its own predictions."""
    labels = model(images).argmax(1) if labels is None else labels
    return {alarm.name for alarm in check_model(model, images, labels, threat)}


def alpha(images):
    """Depends smoothly on the image."""
    return 0.5 + 0.4 * torch.sin(40 * images.mean((1, 2, 3)))


# --- plain networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", [LINF, L2(0.5), Linf(torch.full((32,), 4 / 255))], ids=["linf", "l2", "per image"])
@pytest.mark.parametrize("which", ["g", "h"])
def test_a_plain_small_network_raises_no_alarm(small, which, threat):
    assert names(getattr(small, which), small.x, threat) == set()


@pytest.mark.parametrize("name", ["compact-robust", "compact-standard"])
def test_packaged_models_raise_no_alarm(name):
    data = datasets.load("builtin", "val").take(2)
    assert names(zoo.load(name), data.floats(), labels=data.labels) == set()


@pytest.mark.parametrize("mixing", [0.85, Around(alpha)], ids=["number", "module"])
def test_mixtures_that_let_gradients_through_raise_no_alarm(small, mixing):
    assert names(MixedClassifier(small.g, small.h, mixing), small.x) == set()


def test_a_linear_model_for_which_one_step_is_enough_raises_no_alarm(linear, images):
    assert names(linear, images) == set()


# --- planted defences ---------------------------------------------------------------------------------

PLANTED = {
    "random-output": lambda model: lambda x: model(x + 0.03 * torch.randn_like(x)),
    "probabilities": lambda model: lambda x: model(x).softmax(1),
    "saturated-logits": lambda model: lambda x: 1e4 * model(x),
    "zero-gradient": lambda model: lambda x: model((x * 15).round() / 15),
    "flat-steps": lambda model: lambda x: model((x * 15).round() / 15),
    "unbounded-attack": lambda model: lambda x: model((x * 15).round() / 15),
    "more-steps-do-not-help": lambda model: lambda x: model(x + 0.02 * torch.sin(5000 * x)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defence_raises_its_alarm(small, name):
    assert name in names(Around(PLANTED[name](small.h)), small.x)


def test_a_detached_alpha_raises_an_alarm(small):
    """So does one with jumps, whose gradient is zero."""
    jumps = Around(lambda x: (x.mean((1, 2, 3)) > 0.5).float() + 0 * x.sum((1, 2, 3)))
    detached = Around(lambda x: alpha(x).detach())
    for module in (detached, jumps):
        assert "detached-alpha" in names(MixedClassifier(small.g, small.h, module), small.x)
    assert names(MixedClassifier(small.g, small.h, detached), small.x) == {"detached-alpha"}


class DetachedScore(MixingNetwork):
    """A mixing network whose score has no gradient."""

    def forward(self, base_outputs):
        score, h = super().forward(base_outputs)
        return MixerOutput(score.detach(), h)


@pytest.mark.parametrize("kind", [MixingNetwork, DetachedScore])
def test_only_a_detached_mixing_network_raises_an_alarm(small, kind):
    torch.manual_seed(0)
    mixer = kind.between(small.g, small.h, standard_taps=("0", "2"), robust_taps=("0", "2"), shape=(3, 16, 16), width=4)
    mixed = MixedClassifier(small.g, small.h, mixer.requires_grad_(False))
    assert names(mixed, small.x) == ({"detached-alpha"} if kind is DetachedScore else set())
    assert "detached-alpha" in names(MixedClassifier(small.g, small.h, mixer).gray_box(), small.x)


def test_a_saturated_alpha_is_flat_and_not_detached(small):
    """A cascade with an attack on the smooth mixture handles it, so that it raises no alarm there."""
    torch.manual_seed(0)
    taps = {"standard_taps": ("0", "2"), "robust_taps": ("0", "2"), "shape": (3, 16, 16)}
    mixer = MixingNetwork.between(small.g, small.h, width=4, **taps).requires_grad_(False)
    switch = MixedClassifier(small.g, small.h, mixer, alpha_scale=1e6)
    assert names(switch, small.x) == {"flat-alpha"}
    assert "detached-alpha" in names(switch.gray_box(), small.x)
    data = from_tensors((small.x * 255).round().byte(), switch(small.x).argmax(1))
    for source, handled in {None: False, SmoothedSurrogate(): True}.items():
        attack = Cascade("one step", LINF, (Stage("pgd-1", PGD(LINF, steps=1), source),))
        assert ("flat-alpha" in {alarm.name for alarm in evaluate(switch, data, attack).alarms}) != handled


def test_a_mixture_inside_another_module_raises_an_alarm(small):
    mixture = MixedClassifier(small.g, small.h, 0.85)
    assert names(nn.Sequential(mixture).eval(), small.x) == {"hidden-mixture"}
    (alarm,) = check_model(wrap(mixture, shape=(3, 16, 16)), small.x, mixture(small.x).argmax(1), LINF)
    assert alarm.observation == "the model is a Classifier with a MixedClassifier inside"


@pytest.mark.parametrize(
    "defence",
    [
        lambda g, h: lambda x: h(StraightThrough.apply(x)),
        lambda g, h: lambda x: h(StraightThrough.apply(x + 0.011)),
        lambda g, h: lambda x: h(x) + g(x.detach()),
        lambda g, h: lambda x: h(x + ((x * 255).floor() / 255 - x).detach()),
    ],
    ids=["straight through", "off the levels", "half detached", "floor of 256 levels"],
)
def test_a_replaced_gradient_raises_an_alarm(small, defence):
    assert names(Around(defence(small.g, small.h)), small.x) == {"flat-steps"}


def test_an_output_without_a_gradient_is_an_alarm_and_not_an_error(small):
    (alarm,) = check_model(Around(lambda x: small.h(x.detach())), small.x, small.h(small.x).argmax(1), LINF)
    assert alarm.name == "zero-gradient" and "100%" in alarm.observation and "not connected" in alarm.observation


def test_an_alarm_has_an_observation_and_advice(small):
    alarm = check_model(Around(lambda x: 1e4 * small.h(x)), small.x, small.h(small.x).argmax(1), LINF)[0]
    lead = (1e4 * small.h(small.x)).topk(2).values.diff().abs().median().item()
    assert (
        alarm.name == "saturated-logits" and f"{lead:.3g}" in alarm.observation and alarm.advice == ADVICE[alarm.name]
    )


# --- cost and side effects ---------------------------------------------------------------------------


def passes(model, images, labels, threat=LINF):
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    check_model(model, images, labels, threat)
    return sum(seen) / len(images)


def test_the_cost_is_below_150_passes(small):
    labels = small.h(small.x).argmax(1)
    assert passes(Around(small.h), small.x, labels) < 50
    assert passes(Around(PLANTED["flat-steps"](small.h)), small.x, labels) < 150


def test_misclassified_images_are_left_out(small):
    wrong = (small.h(small.x).argmax(1) + 1) % 10
    assert names(Around(PLANTED["flat-steps"](small.h)), small.x, labels=wrong) == set()
    assert more_steps(GradientProbe(small.h, small.x, wrong, LINF)) is None


def test_a_radius_of_zero_raises_no_alarm(small):
    assert names(small.h, small.x, Linf(0.0)) == set()


def test_weights_and_the_random_state_are_unchanged(small):
    layer = nn.Linear(10, 10).eval()
    before = torch.get_rng_state()
    names(nn.Sequential(small.h, layer).eval(), small.x)
    assert layer.weight.requires_grad and layer.weight.grad is None
    assert torch.equal(torch.get_rng_state(), before)


def test_more_steps_are_tried_on_few_images(small):
    seen = []
    model = Around(lambda x: (seen.append(len(x)), small.h(x))[1])
    more_steps(GradientProbe(model, small.x, small.h(small.x).argmax(1), LINF))
    assert sum(seen) <= len(small.x) + ATTACKED * (sum(STEPS) + 2 * len(STEPS))


# --- a finished evaluation ----------------------------------------------------------------------------


def waterfall(*counts):
    """Return `fooled_by` for 900 images, of which stage i fooled `counts[i]`."""
    fooled = np.repeat(np.arange(len(counts)), counts)
    return np.concatenate([fooled, np.full(900 - len(fooled), -1)])


@pytest.mark.parametrize(
    ("stages", "counts", "expected"),
    [
        (["apgd-ce", "apgd-t", "fab-t", "square"], (300, 50, 0, 2), []),
        (["apgd-ce", "apgd-t", "fab-t", "square"], (300, 50, 0, 3), ["square-breaks"]),
        (["apgd-ce", "apgd-t", "fab-t", "square"], (300, 50, 3, 0), ["fab-breaks"]),
        (["apgd-ce", "apgd-t", "fab-t", "square"], (300, 50, 2, 0), []),
        (["cascade", "fab-t", "square"], (0, 3, 0), ["fab-breaks"]),
        (["fab-t", "apgd-ce"], (300, 50), []),
        (["square", "apgd-ce"], (300, 50), []),
        (["apgd-ce", "transfer-standard", "transfer-robust"], (300, 2, 1), ["transfer-breaks"]),
        (["transfer-standard", "apgd-ce", "square"], (300, 50, 2), []),
        (["apgd-ce", "transfer-standard", "square"], (300, 3, 4), ["square-breaks", "transfer-breaks"]),
        (["square", "transfer-standard"], (30, 30), []),
        (["apgd-ce", "smooth-hostile-t", "plain-h-t"], (300, 6, 4), []),
        (["apgd-ce", "smooth-hostile-t", "plain-h-t"], (300, 6, 5), ["surrogate-breaks"]),
    ],
)
def test_late_stages_raise_an_alarm_above_0_2_percent_and_surrogates_above_1_percent(stages, counts, expected):
    found = check_stages(stages, waterfall(*counts), 1000)
    assert [alarm.name for alarm in found] == expected
    assert all("of 1000 images" in alarm.observation for alarm in found)
