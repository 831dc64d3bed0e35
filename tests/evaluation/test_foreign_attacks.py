"""Attacks of torchattacks, foolbox, ART and AutoAttack on a mixed classifier, and how `evaluate` recognises them."""

import pytest
import torch
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.foreign_attacks import adapted
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.threat import Linf

EPS = 8 / 255


class Linear(nn.Module):
    """Logits are a fixed linear map of the pixels, so that an attack of one step is optimal."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(192, 4).requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(images.flatten(1))


@pytest.fixture
def mixed():
    return MixedClassifier(Linear(0), Linear(1), 0.6)


@pytest.fixture
def data(mixed):
    images = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(1)).mul(255).byte()
    return from_tensors(images, mixed(images / 255).argmax(1))


def torchattacks_pgd(model):
    library = pytest.importorskip("torchattacks")
    return library.PGD(model, eps=EPS, alpha=EPS, steps=3, random_start=False)


def foolbox_pgd(model):
    library = pytest.importorskip("foolbox")
    attack, own = library.attacks.LinfPGD(abs_stepsize=EPS, steps=3, random_start=False), library.PyTorchModel
    return lambda model, images, labels: attack(own(model, bounds=(0, 1)), images, labels, epsilons=EPS)[1]


def art_pgd(model):
    pytest.importorskip("art")
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(model, nn.CrossEntropyLoss(), (3, 8, 8), 4, clip_values=(0, 1), device_type="cpu")
    return ProjectedGradientDescent(classifier, eps=EPS, eps_step=EPS, max_iter=3, verbose=False)


def autoattack(model):
    library = pytest.importorskip("pyautoattack")
    attack = library.AutoAttack(model, norm="Linf", eps=EPS, version="custom", attacks=["apgd-ce"], seed=0)
    attack.apgd.n_iter, attack.apgd.n_restarts = 10, 1
    return attack


@pytest.mark.parametrize(
    ("make", "title"),
    [
        (torchattacks_pgd, "torchattacks PGD"),
        (foolbox_pgd, "<lambda>"),
        (art_pgd, "art ProjectedGradientDescent"),
        (autoattack, "pyautoattack AutoAttack"),
    ],
)
def test_an_attack_of_another_library_finds_what_ours_finds(make, title, mixed, data):
    found = evaluate(mixed, data, make(mixed))
    ours = evaluate(mixed, data, PGD(Linf(EPS), steps=10))
    assert found.attack == title and found.clean == 1
    assert 0.1 < ours.robust < 0.9 and abs(found.robust - ours.robust) <= 0.1


def test_an_attack_on_another_model_is_refused(mixed, data):
    with pytest.raises(ValueError, match="the model that is evaluated, got PGD on another MixedClassifier"):
        evaluate(mixed.with_alpha(0.5), data, torchattacks_pgd(mixed))


def test_an_attack_of_foolbox_needs_a_radius(mixed, data):
    library = pytest.importorskip("foolbox")
    with pytest.raises(TypeError, match=r"LinfProjected.* of foolbox, which has none: pass lambda .*epsilons=8 / 255"):
        evaluate(mixed, data, library.attacks.LinfPGD())


def test_a_function_without_a_model_is_refused(mixed, data):
    with pytest.raises(TypeError, match=r"attack\(model, images, labels\) .* got <lambda> without a model"):
        evaluate(mixed, data, lambda images, labels: images)


@pytest.mark.parametrize("threat", [Linf, Linf(EPS)])
def test_a_threat_in_the_place_of_an_attack_is_explained(mixed, data, threat):
    with pytest.raises(TypeError, match=r"got .*Linf.*, which is a threat: name the attacks first"):
        evaluate(mixed, data, threat)


class Holder:
    """An attack with a model attribute that is still given the model at each call."""

    def __init__(self, model):
        self.model = model

    def __call__(self, model, images, labels):
        return images


class Bound(Holder):
    """An attack in the style of torchattacks."""

    def __call__(self, inputs, labels=None, *args, **kwargs):
        return inputs


def test_other_attacks_are_left_unchanged(mixed):
    holder = Holder(Linear(0))
    functions = (print, lambda model, images, labels: images, lambda model, images, labels=None: images)
    for attack in (holder, None, nn.Identity(), Linf, *functions):
        assert adapted(attack, mixed) is attack
    assert adapted(Bound(mixed), mixed).of.model is mixed
