"""Attacks on models with a known boundary fool all images within eps of it, and no others."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from toys import BAND, Planes, assert_inside, make_images, make_input, median_threat, run, within

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import cross_entropy, dlr, margin, targeted_dlr, targeted_margin
from adaptive_smoothing.attacks.presets import auto_attack, fast_attack
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import most_likely_targets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.threat import L2, Linf

NORMS = [Linf, L2]
ATTACKS = {
    "dlr": partial(APGD, objective=dlr, steps=30),
    "targeted dlr": partial(APGD, objective=targeted_dlr, target_classes=9, steps=30),
    "margin": partial(APGD, objective=margin, steps=30),
    "targeted margin": partial(APGD, objective=targeted_margin, target_classes=9, steps=30),
    "margin pgd": partial(DiversifiedPGD, steps=20),
    "diverse pgd": partial(DiversifiedPGD, objective=targeted_margin, target_classes=9, diversify=2),
    "fab": partial(FAB, steps=25),
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_images_within_eps_of_the_boundary_are_fooled_and_no_others(kind, name):
    model, images = Planes(), make_images()
    threat, distance = median_threat(model, kind, images)
    inputs = make_input(model, images, threat)
    outcome = run(model, ATTACKS[name](threat), inputs)
    expected, undecided = within(distance, threat.eps)
    assert torch.equal(outcome.fooled[~undecided], expected[~undecided]) and undecided.sum() <= 4
    assert_inside(outcome, inputs)
    assert torch.equal(outcome.fooled, model(outcome.worst).argmax(1) != inputs.labels)


@pytest.mark.parametrize("kind", NORMS)
def test_cross_entropy_is_optimal_between_two_classes(kind):
    """There it is a function of the margin. With more classes it has another optimum."""
    model, images = Planes(classes=2), make_images()
    threat, distance = median_threat(model, kind, images)
    outcome = run(model, APGD(threat, objective=cross_entropy, steps=50), make_input(model, images, threat))
    expected, undecided = within(distance, threat.eps)
    assert torch.equal(outcome.fooled[~undecided], expected[~undecided])


@pytest.mark.parametrize(("kind", "queries", "share"), [(Linf, 300, 0.7), (L2, 200, 0.6)])
def test_square_fools_most_images_without_a_gradient(kind, queries, share):
    model, images = Planes(shape=(3, 6, 6)), make_images(shape=(3, 6, 6))
    threat, distance = median_threat(model, kind, images)
    inputs = make_input(model, images, threat)
    outcome = run(model, Square(threat, queries=queries), inputs)
    possible, undecided = within(distance, threat.eps)
    assert not (outcome.fooled & ~possible & ~undecided).any()
    assert outcome.fooled.sum() >= share * possible.sum()
    assert_inside(outcome, inputs)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ["targeted dlr", "diverse pgd", "fab"])
def test_every_image_has_its_own_radius(kind, name):
    model, images = Planes(), make_images(32)
    _, distance = median_threat(model, kind, images)
    larger = torch.arange(32) % 3 == 0
    inputs = make_input(model, images, kind(distance * torch.where(larger, 1.05, 0.95)))
    outcome = run(model, ATTACKS[name](inputs.threat), inputs, batch_size=50)
    assert torch.equal(outcome.fooled, larger)
    assert_inside(outcome, inputs)


@pytest.mark.parametrize("name", [*ATTACKS, "square"])
def test_a_radius_of_0_fools_nothing_and_a_radius_of_1_everything(name):
    model, images = Planes(), make_images(16)
    build = ATTACKS.get(name, partial(Square, queries=100))
    nothing = run(model, build(Linf(0.0)), make_input(model, images, Linf(0.0)))
    assert not nothing.fooled.any() and torch.allclose(nothing.worst, images)
    inputs = make_input(model, images, Linf(1.0))
    outcome = run(model, build(Linf(1.0)), inputs)
    assert outcome.fooled.all()
    assert_inside(outcome, inputs)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_box_limits_attacks_on_black_and_white_pixels(name):
    """Between two classes the optimal perturbation inside the box is known."""
    model = Planes(classes=2)
    images = make_images(40, low=0.0, high=1.0)
    images = torch.where(images < 0.3, 0.0, torch.where(images > 0.7, 1.0, images))
    logits = model(images).detach()
    normal = (model.weight[1] - model.weight[0]).detach() * torch.where(logits.argmax(1) == 0, 1.0, -1.0)[:, None]
    room = torch.where(normal > 0, 1 - images.flatten(1), images.flatten(1))
    reach = [(normal.abs() * room.clamp(max=eps)).sum(1) for eps in (0.08 * (1 - BAND), 0.08 * (1 + BAND))]
    certainly, possibly = (far > (logits[:, 0] - logits[:, 1]).abs() for far in reach)
    outcome = run(model, ATTACKS[name](Linf(0.08)), make_input(model, images, Linf(0.08)))
    assert (outcome.fooled | ~certainly).all() and (~outcome.fooled | possibly).all()
    assert 10 < certainly.sum() <= possibly.sum() < 30


# --- budgets --------------------------------------------------------------------------------------------


class Wavy(nn.Module):
    """Planes with waves, in whose local maxima an attack can stop."""

    def __init__(self) -> None:
        super().__init__()
        self.planes, self.waves = Planes(), Planes(seed=1)
        self.training = False

    def forward(self, images):
        return self.planes(images) + 0.6 * torch.sin(12 * self.waves(images))


SHORT = {
    "apgd": partial(APGD, objective=targeted_dlr, target_classes=2, steps=12),
    "pgd": partial(DiversifiedPGD, steps=12),
    "fab": partial(FAB, target_classes=2, steps=12),
}


def count_fooled(model, attack):
    return int(run(model, attack, make_input(model, make_images(12, (3, 8, 8), 0, 1), attack.threat)).fooled.sum())


@pytest.mark.parametrize(("kind", "radii"), [(Linf, (0.002, 0.02, 1.0)), (L2, (0.01, 0.1, 14.0))])
@pytest.mark.parametrize("name", SHORT)
def test_a_larger_radius_fools_more(network, kind, radii, name):
    """The last radius reaches every image."""
    counts = [count_fooled(network, SHORT[name](kind(eps))) for eps in radii]
    assert counts == sorted(counts) and counts[0] < counts[-1] == 12


@pytest.mark.parametrize("name", SHORT)
def test_more_steps_fool_more(name):
    inputs = make_input(Wavy(), make_images(32), Linf(0.008))
    counts = [int(run(Wavy(), SHORT[name](inputs.threat, steps=steps), inputs).fooled.sum()) for steps in (1, 4, 20)]
    assert counts == sorted(counts) and counts[0] < counts[1]


def test_more_queries_of_square_fool_more(network):
    counts = [count_fooled(network, Square(Linf(0.05), queries=queries)) for queries in (2, 20, 100)]
    assert counts[0] < counts[1] < counts[2]


def test_more_restarts_fool_more():
    """The first attempt is the same, so that the images it fools stay fooled."""
    inputs = make_input(Wavy(), make_images(32), Linf(0.008))
    one, four = (run(Wavy(), APGD(inputs.threat, steps=2, restarts=count), inputs).fooled for count in (1, 4))
    assert (four | ~one).all() and four.sum() > one.sum()


@pytest.mark.parametrize("build", [partial(APGD, steps=5), partial(Square, queries=20), DiversifiedPGD])
def test_the_seed_decides_the_result(build):
    inputs = make_input(Wavy(), make_images(6), Linf(0.004))
    one, same, other = (run(Wavy(), build(inputs.threat, seed=seed), inputs).worst for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("kind", NORMS)
def test_any_number_of_classes(classes, kind):
    g, h = (Planes(classes, (3, 5, 5), seed) for seed in range(2))
    for model, cascade in ((g, auto_attack), (g, fast_attack), (MixedClassifier(g, h, 0.5), fast_attack)):
        inputs = make_input(model, make_images(3, (3, 5, 5)), kind(0.02))
        for stage in cascade(inputs.threat).for_model(model).stages:
            short = {"queries": 5} if isinstance(stage.attack, Square) else {"steps": 2}
            outcome = run(model, replace(stage.attack, **short), inputs)
            assert outcome.margin.isfinite().all()
            asked = getattr(stage.attack, "target_classes", 0)
            targets = stage.attack.targets(inputs.logits, inputs.labels)
            assert targets.shape == (3, min(asked, classes - 1) or 1)
            assert asked == 0 or (targets != inputs.labels[:, None]).all()


def test_targets_are_the_most_likely_wrong_classes_and_restarts_repeat_them():
    logits, labels = torch.tensor([[1.0, 4.0, 3.0, 2.0]]), torch.tensor([1])
    assert most_likely_targets(logits, labels, 9).tolist() == [[2, 3, 0]]
    targeted, untargeted = (APGD(Linf(0.1), target_classes=count, restarts=2) for count in (2, 0))
    assert targeted.targets(logits, labels).tolist() == [[2, 3, 2, 3]]
    assert untargeted.targets(logits, labels).tolist() == [[1, 1]]
