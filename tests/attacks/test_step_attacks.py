"""Attacks against models whose boundary is known: they fool what lies within eps of it, and nothing else."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import nn
from toys import CPU, Planes, aimed, assert_inside, pictures, run

from adaptive_smoothing.attacks import square as square_file
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import auto_attack, fast_attack
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.engine.arithmetic import fast_arithmetics
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.attacks.fab import FAB, step_to_plane
from adaptive_smoothing.attacks.losses import targeted_margin_loss
from adaptive_smoothing.attacks.objectives import cross_entropy, dlr, margin, targeted_dlr, targeted_margin
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import Answer, most_likely_targets, targets_with_restarts
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
# An image this close to the radius, relatively, may go either way.
BAND = 0.01


def middling(model, kind, images):
    """The radius at which half of the images can be fooled, and the distance of each."""
    labels = model(images).argmax(1)
    distance = model.distance(images, labels, kind(0.0))
    return kind(distance.median().item()), distance


def decided(distance, eps):
    """Which images can be fooled, and which are too close to the radius to say."""
    return distance < eps, ((distance - eps).abs() < BAND * eps)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_within_eps_of_the_boundary_falls_and_nothing_else(kind, name):
    model, images = Planes(), pictures()
    threat, distance = middling(model, kind, images)
    shot = aimed(model, images, threat)
    outcome = run(model, ATTACKS[name](threat), shot)
    can_fall, near = decided(distance, threat.eps)
    assert torch.equal(outcome.fooled[~near], can_fall[~near]) and near.sum() <= 4
    assert_inside(outcome, shot)
    assert torch.equal(outcome.fooled, model(outcome.worst).argmax(1) != shot.labels)


@pytest.mark.parametrize("kind", NORMS)
def test_cross_entropy_between_two_classes(kind):
    """There it is a function of the margin; between more it is not, and its optimum another."""
    model, images = Planes(classes=2), pictures()
    threat, distance = middling(model, kind, images)
    outcome = run(model, APGD(threat, objective=cross_entropy, steps=50), aimed(model, images, threat))
    can_fall, near = decided(distance, threat.eps)
    assert torch.equal(outcome.fooled[~near], can_fall[~near])


@pytest.mark.parametrize(("kind", "queries", "share"), [(Linf, 600, 0.9), (L2, 400, 0.6)])
def test_square_finds_most_without_a_gradient(kind, queries, share):
    model, images = Planes(shape=(3, 6, 6)), pictures(shape=(3, 6, 6))
    threat, distance = middling(model, kind, images)
    shot = aimed(model, images, threat)
    outcome = run(model, Square(threat, queries=queries), shot)
    can_fall, near = decided(distance, threat.eps)
    assert not (outcome.fooled & ~can_fall & ~near).any()
    assert share * can_fall.sum() <= outcome.fooled.sum() <= can_fall.sum() + near.sum()
    assert_inside(outcome, shot)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ["targeted dlr", "diverse pgd", "fab"])
def test_every_image_has_its_own_radius(kind, name):
    model, images = Planes(), pictures()
    _, distance = middling(model, kind, images)
    radii = distance * torch.where(torch.arange(64) % 3 == 0, 1.05, 0.95)
    shot = aimed(model, images, kind(radii))
    outcome = run(model, ATTACKS[name](shot.threat), shot, batch_size=50)
    assert torch.equal(outcome.fooled, torch.arange(64) % 3 == 0)
    assert_inside(outcome, shot)


@pytest.mark.parametrize("name", [*ATTACKS, "square"])
def test_a_radius_of_zero_fools_nobody_and_one_of_1_everybody(name):
    model, images = Planes(), pictures(16)
    build = ATTACKS.get(name, partial(Square, queries=100))
    nothing = run(model, build(Linf(0.0)), aimed(model, images, Linf(0.0)))
    assert not nothing.fooled.any() and torch.allclose(nothing.worst, images)
    everything = aimed(model, images, Linf(1.0))
    outcome = run(model, build(Linf(1.0)), everything)
    assert outcome.fooled.all()
    assert_inside(outcome, everything)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_box_binds_where_images_are_black_or_white(name):
    """Half of the radius is of no use there. Of two classes the best change is known with the box in the way, too."""
    model = Planes(classes=2)
    images = pictures(40, low=0.0, high=1.0)
    images = torch.where(images < 0.3, 0.0, torch.where(images > 0.7, 1.0, images))
    labels = model(images).argmax(1)
    normal = (model.weight[1] - model.weight[0]) * torch.where(labels == 0, 1.0, -1.0)[:, None]
    logits = model(images)
    lead = (logits[:, 0] - logits[:, 1]).abs()
    room = torch.where(normal > 0, 1 - images.flatten(1), images.flatten(1))
    reach = [(normal.abs() * room.clamp(max=eps)).sum(1) for eps in (0.08 * (1 - BAND), 0.08 * (1 + BAND))]
    surely, perhaps = (far.detach() > lead.detach() for far in reach)
    outcome = run(model, ATTACKS[name](Linf(0.08)), aimed(model, images, Linf(0.08)))
    assert (outcome.fooled | ~surely).all() and (~outcome.fooled | perhaps).all()
    assert 10 < surely.sum() <= perhaps.sum() < 30


class Small(nn.Sequential):
    """A network of two layers with nothing linear about it."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            super().__init__(
                nn.Conv2d(3, 8, 3, 2, 1),
                nn.SiLU(),
                nn.Conv2d(8, 16, 3, 2, 1),
                nn.SiLU(),
                nn.Flatten(),
                nn.Linear(64, 10),
            )
        for layer in (self[0], self[2], self[5]):
            layer.weight.data *= 6
        self.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def small():
    return Small()


class Wavy(nn.Module):
    """Planes with waves on them, in whose hollows a climb can be caught."""

    def __init__(self) -> None:
        super().__init__()
        self.planes, self.waves = Planes(), Planes(seed=1)
        self.training = False

    def forward(self, images):
        return self.planes(images) + 0.6 * torch.sin(12 * self.waves(images))


BRIEF = {
    "apgd": partial(APGD, objective=targeted_dlr, target_classes=2, steps=15),
    "pgd": partial(DiversifiedPGD, steps=15),
    "fab": partial(FAB, target_classes=2, steps=15),
}


def fallen(model, attack, count=16):
    shot = aimed(model, pictures(count, (3, 8, 8), 0, 1), attack.threat)
    return run(model, attack, shot).fooled


@pytest.mark.parametrize(("kind", "radii"), [(Linf, (0.002, 0.01, 0.03, 1.0)), (L2, (0.01, 0.05, 0.2, 14.0))])
@pytest.mark.parametrize("name", BRIEF)
def test_more_radius_fools_more(small, kind, radii, name):
    """The last radius holds every image."""
    counts = [int(fallen(small, BRIEF[name](kind(eps))).sum()) for eps in radii]
    assert counts == sorted(counts) and counts[0] < counts[-1] == 16


@pytest.mark.parametrize("name", BRIEF)
def test_more_steps_fool_more(name):
    shot = aimed(Wavy(), pictures(32), Linf(0.008))
    attacks = [BRIEF[name](shot.threat, steps=steps) for steps in (1, 4, 30)]
    counts = [int(run(Wavy(), attack, shot).fooled.sum()) for attack in attacks]
    assert counts == sorted(counts) and counts[0] < counts[1]


def test_more_queries_of_square_fool_more(small):
    counts = [int(fallen(small, Square(Linf(0.05), queries=queries)).sum()) for queries in (2, 20, 200)]
    assert counts[0] < counts[1] < counts[2]


def test_more_restarts_fool_more():
    """The first attempt is the same one, so what it fools stays fooled."""
    shot = aimed(Wavy(), pictures(32), Linf(0.008))
    one, four = (run(Wavy(), APGD(shot.threat, steps=2, restarts=n), shot).fooled for n in (1, 4))
    assert (four | ~one).all() and four.sum() > one.sum()


@pytest.mark.parametrize("build", [partial(APGD, steps=10), partial(Square, queries=30), DiversifiedPGD])
def test_the_seed_decides(small, build):
    images = pictures(6, (3, 8, 8), 0, 1)
    shot = aimed(small, images, Linf(0.004))
    one, same, other = (run(small, build(shot.threat, seed=seed), shot).worst for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("kind", NORMS)
def test_any_number_of_classes(classes, kind):
    g, h = (Planes(classes, (3, 5, 5), seed) for seed in range(2))
    for model, cascade in product((g, MixedClassifier(g, h, 0.5)), (auto_attack, fast_attack)):
        shot = aimed(model, pictures(3, (3, 5, 5)), kind(0.02))
        for stage in cascade(shot.threat).for_model(model).stages:
            short = {"queries": 5} if isinstance(stage.attack, Square) else {"steps": 3}
            outcome = run(model, replace(stage.attack, **short), shot)
            assert outcome.margin.isfinite().all()
            wanted = getattr(stage.attack, "target_classes", 0)
            targets = stage.attack.targets(shot.logits, shot.labels)
            assert targets.shape == (3, min(wanted, classes - 1) or 1)
            assert wanted == 0 or (targets != shot.labels[:, None]).all()


def test_targets_are_the_likeliest_wrong_classes_each_once_and_then_again():
    logits, labels = torch.tensor([[1.0, 4.0, 3.0, 2.0]]), torch.tensor([1])
    assert most_likely_targets(logits, labels, 9).tolist() == [[2, 3, 0]]
    assert targets_with_restarts(logits, labels, 2, 2).tolist() == [[2, 3, 2, 3]]
    assert targets_with_restarts(logits, labels, 0, 3).tolist() == [[1, 1, 1]]


# --- APGD ---------------------------------------------------------------------------------------------


def climb(attack, losses, gradient=None):
    """The states of a job whose losses are given, after each of its steps; the gradient is 1 or as given."""
    clean = torch.full((1, 3, 4, 4), 0.5)
    zero = torch.zeros(1)
    state = {"clean": clean, "label": zero.long(), "target": zero.long(), "eps": zero + 0.1, "key": zero.long()}
    state |= {
        "step": zero.long(),
        "end": zero.long() + attack.evaluations,
        "worst": clean.clone(),
        "margin": zero - torch.inf,
        "threshold": zero.clone(),
    }
    state |= attack.begin(state, 2)
    states = []
    for loss in losses:
        images = attack.query(state)
        slope = torch.ones_like(images) if gradient is None else gradient(images)
        answer = Answer(torch.tensor([[0.0, loss]]), torch.tensor([loss]), slope)
        state = state | {"step": state["step"] + 1} | attack.update(state, images, answer)
        states.append(state | {"asked": images})
    return states


def sizes(states):
    """Step sizes in units of eps, after each evaluation."""
    return [state["step_size"].item() / 0.1 for state in states]


@pytest.mark.parametrize(
    ("steps", "ends"),
    [(100, [22, 41, 57, 70, 80, 87, 93, 99]), (50, [11, 21, 30, 38, 45, 51]), (10, [2, 3, 4, 5, 6, 7, 8, 9, 10])],
)
def test_the_windows_are_the_papers(steps, ends):
    """p_0 = 0, p_1 = 0.22, p_j+1 = p_j + max(p_j - p_j-1 - 0.03, 0.06), as whole steps."""
    states = climb(APGD(Linf(0.1), steps=steps), torch.linspace(0, 1, steps + 1).tolist())
    found = [int(state["window_end"]) for state in states]
    assert list(dict.fromkeys(found))[: len(ends)] == ends
    # A window that ends at step k is over after the evaluation number k, the start being number 0.
    assert found[ends[0] - 1] == ends[0] and found[ends[0]] == ends[1]


def test_a_loss_that_rises_keeps_the_step_and_one_that_oscillates_halves_it():
    rising = sizes(climb(APGD(Linf(0.1)), torch.linspace(0, 1, 101).tolist()))
    assert rising == pytest.approx([2.0] * 101)
    swinging = sizes(climb(APGD(Linf(0.1)), [0.01 * step + step % 2 for step in range(101)]))
    ends = (22, 41, 57, 70, 80, 87, 93, 99)
    assert swinging == pytest.approx([2 * 0.5 ** sum(step >= end for end in ends) for step in range(101)])


@pytest.mark.parametrize(("rises", "halved"), [(16, True), (17, False)])
def test_three_quarters_of_the_steps_must_climb(rises, halved):
    losses = np.cumsum([0, *[1.0] * rises, *[-0.1] * (22 - rises)]).tolist()
    assert sizes(climb(APGD(Linf(0.1)), losses))[-1] == pytest.approx(1.0 if halved else 2.0)


def test_a_window_without_a_new_best_halves_the_step_unless_the_last_one_did():
    """The second window climbs all the way, from far below, and never gets above the first."""
    first = torch.linspace(10, 20, 23).tolist()
    second = torch.linspace(0, 5, 19).tolist()
    assert sizes(climb(APGD(Linf(0.1)), first + second))[-1] == pytest.approx(1.0)
    stalled = [20.0, *[19.0] * 22]
    assert sizes(climb(APGD(Linf(0.1)), stalled + second))[-1] == pytest.approx(1.0)  # halved at 22, spared at 41


def test_after_a_halving_the_climb_goes_on_from_the_best_point():
    noise = torch.Generator().manual_seed(0)
    losses = [float(step == 5) for step in range(23)]
    states = climb(APGD(Linf(0.1)), losses, lambda images: torch.randn(images.shape, generator=noise))
    assert torch.equal(states[-1]["iterate"], states[5]["asked"])
    assert torch.equal(states[-1]["gradient"], states[5]["gradient"])
    assert not torch.equal(states[-2]["iterate"], states[5]["asked"])


def test_apgd_can_go_on_from_the_worst_version_so_far():
    """With steps of nothing it stays there: fooled where that version fools, which a random start does not."""
    model = Planes()
    ball = Linf(0.01)
    shot = aimed(model, pictures(20), ball)
    found = run(model, APGD(ball, steps=20), shot)
    assert 3 < found.fooled.sum() < 20
    again, anew = (APGD(ball, steps=1, first_step=0.0, from_worst=go_on) for go_on in (True, False))
    went_on = run(model, again, replace(shot, worst=found.worst))
    assert torch.equal(went_on.fooled, found.fooled) and torch.allclose(went_on.worst, found.worst, atol=1e-6)
    torch.testing.assert_close(went_on.margin, found.margin)
    assert run(model, anew, replace(shot, worst=found.worst)).fooled.sum() < found.fooled.sum()
    # Without earlier attacks the worst version is the image itself.
    torch.testing.assert_close(run(model, again, shot).worst, shot.images)


def test_the_first_question_is_about_the_start_on_the_surface():
    (state,) = climb(APGD(Linf(0.1)), [0.0])
    assert (state["asked"] - state["clean"]).abs().amax().item() == pytest.approx(0.1, rel=1e-5)


def test_momentum_is_a_quarter_of_the_last_move():
    start, one, two = (state["asked"] for state in climb(APGD(L2(0.1)), [0.0, 1.0, 2.0]))
    ball, clean, unit = L2(0.1), torch.full_like(start, 0.5), torch.ones_like(start) / 48**0.5
    assert torch.allclose(one, ball.project(start + 0.2 * unit, clean), atol=1e-6)
    ahead = ball.project(one + 0.2 * unit, clean)
    assert torch.allclose(two, ball.project(one + 0.75 * (ahead - one) + 0.25 * (one - start), clean), atol=1e-6)


# --- diversified PGD ----------------------------------------------------------------------------------


def test_what_falls_to_the_first_step_costs_two_queries_when_nobody_aims():
    model, images = Planes(), pictures()
    threat = Linf(0.3)  # beyond the distance of every image
    plain, aiming = DiversifiedPGD(threat), DiversifiedPGD(threat, objective=targeted_margin, target_classes=2)
    outcomes = [run(model, attack, aimed(model, images, threat)) for attack in (plain, aiming)]
    assert all(outcome.fooled.all() for outcome in outcomes)
    assert (outcomes[0].queries == 2).all() and (outcomes[1].queries > 2).all()


def test_the_first_steps_climb_a_random_combination_of_logits_and_the_rest_the_loss():
    model, images = Planes(), pictures(3)
    labels, targets = model(images).argmax(1), torch.tensor([0, 1, 2])
    attack = DiversifiedPGD(Linf(0.1), objective=targeted_margin, diversify=2)
    state = {"clean": images, "eps": torch.full((3,), 0.1), "key": torch.arange(3), "step": torch.tensor([1, 2, 3])}
    state |= attack.begin(state, 5)
    loss, logits = attack.current_objective(state)(model, images, labels, targets)
    assert loss[0].item() == pytest.approx((logits[0] * state["direction"][0]).sum().item())
    assert torch.allclose(loss[1:], targeted_margin_loss(logits, labels, targets)[1:])
    assert state["direction"].shape == (3, 5) and state["direction"].abs().max() <= 1
    assert state["direction"].min() < 0 and not torch.equal(state["direction"][0], state["direction"][1])


def test_steps_shrink_to_nothing_on_half_a_cosine():
    attack = DiversifiedPGD(Linf(0.1), steps=4, diversify=2)
    expected = [1, 1, 2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]
    assert attack._step_size(torch.arange(8)).tolist() == pytest.approx(expected, abs=1e-6)


# --- FAB ----------------------------------------------------------------------------------------------


def plane_cases(count, seed=0):
    """Points of which some pixels lie on the faces of the box, and planes that cut it."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, 2, 2, generator=generator) * 1.6 - 0.3
    points = points.clamp(0, 1)
    normal = torch.randn(count, 3, 2, 2, generator=generator)
    normal[:, 0] = torch.where(normal[:, 0] < 0, 0.0, normal[:, 0])
    inner = torch.rand(count, 3, 2, 2, generator=generator)
    # The plane goes through a point of the box, sometimes one near a corner.
    corner = (normal > 0).float() * 0.97 + 0.015
    inner = torch.where(torch.arange(count).view(-1, 1, 1, 1) % 3 == 0, corner, inner)
    return points, normal, (normal * inner).sum((1, 2, 3))


def linf_distance(point, normal, offset):
    """min t subject to |z - x| <= t, 0 <= z <= 1, normal . z = offset."""
    x, n = point.flatten().double().numpy(), normal.flatten().double().numpy()
    size = len(x)
    ones = -np.ones((size, 1))
    result = linprog(
        [0] * size + [1],
        A_ub=np.block([[np.eye(size), ones], [-np.eye(size), ones]]),
        b_ub=np.concatenate([x, -x]),
        A_eq=[[*n, 0]],
        b_eq=[float(offset)],
        bounds=[(0, 1)] * size + [(0, None)],
    )
    assert result.success
    return result.fun


def l2_distance(point, normal, offset):
    x, n = point.flatten().double().numpy(), normal.flatten().double().numpy()
    result = minimize(
        lambda z: ((z - x) ** 2).sum(),
        np.full(len(x), 0.5),
        jac=lambda z: 2 * (z - x),
        bounds=[(0, 1)] * len(x),
        constraints={"type": "eq", "fun": lambda z: n @ z - float(offset), "jac": lambda z: n},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert result.success
    return result.fun**0.5


@pytest.mark.parametrize(("threat", "solve"), [(Linf(0.1), linf_distance), (L2(0.1), l2_distance)])
def test_the_way_to_a_plane_is_the_shortest_inside_the_box(threat, solve):
    points, normal, offset = plane_cases(30)
    way = step_to_plane(threat, points, normal, offset)
    there = points + way
    assert there.min() >= 0 and there.max() <= 1 + 1e-6
    assert torch.allclose((normal * there).sum((1, 2, 3)), offset, atol=2e-5)
    expected = [solve(*case) for case in zip(points, normal, offset, strict=True)]
    assert threat.distance(there, points).tolist() == pytest.approx(expected, abs=2e-5)
    bound = ((there == 0) | (there == 1)) & (way != 0)
    assert bound.flatten(1).any(1).sum() >= 10  # the box binds in many of them


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
def test_without_a_box_in_the_way_the_distance_is_the_excess_over_the_dual_norm(threat):
    points, (_, normal, _) = pictures(10, (3, 2, 2)), plane_cases(10)
    excess = 0.05 * torch.linspace(-1, 1, 10)
    way = step_to_plane(threat, points, normal, (normal * points).sum((1, 2, 3)) - excess)
    expected = excess.abs() / threat.dual_norm(normal)
    assert torch.allclose(threat.distance(way, torch.zeros_like(way)), expected, atol=1e-6)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
@pytest.mark.parametrize("far", [3.0, 1e4])
def test_where_the_plane_misses_the_box_the_way_leads_to_the_nearest_corner(threat, far):
    points, normal, _ = plane_cases(10)
    corner = (normal > 0).float()
    way = step_to_plane(threat, points, normal, (normal * corner).sum((1, 2, 3)) + far)
    assert torch.allclose((points + way)[normal != 0], corner[normal != 0])
    assert (way[normal == 0] == 0).all()


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
def test_the_way_to_a_plane_among_3072_pixels(threat):
    """Bisection in double precision over the one parameter that is left."""
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(8, 3, 32, 32, generator=generator) * 1.4 - 0.2).clamp(0, 1)
    # Gradients of networks span orders of magnitude.
    normal = torch.randn(points.shape, generator=generator) ** 3
    corner = (normal > 0).float()
    share = torch.tensor([0.05, 0.3, 0.6, 0.9, 0.95, 0.98, 0.99, 0.999]).view(-1, 1, 1, 1)
    offset = (normal * (points + share * (corner - points))).double().sum((1, 2, 3)).float()
    way = step_to_plane(threat, points, normal, offset)
    room, pace = (corner - points).abs().double(), threat.pace(normal).double()
    goal = offset.double() - (normal * points).double().sum((1, 2, 3))
    low, high = torch.zeros(8, dtype=torch.double), torch.full((8,), 1e6, dtype=torch.double)
    for _ in range(200):
        time = (low + high) / 2
        enough = (normal.abs().double() * torch.minimum(time.view(-1, 1, 1, 1) * pace, room)).sum((1, 2, 3)) >= goal
        low, high = torch.where(enough, low, time), torch.where(enough, time, high)
    expected = torch.minimum(high.view(-1, 1, 1, 1) * pace, room)
    assert torch.allclose(way.abs().double(), expected, atol=1e-3)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12])
def test_the_scale_of_a_gradient_is_nothing(threat, scale):
    points, normal, offset = plane_cases(6)
    expected = step_to_plane(threat, points, normal, offset)
    way = step_to_plane(threat, points, scale * normal, scale * offset)
    assert torch.allclose(way, expected, atol=1e-4)


def test_no_gradient_is_no_way():
    points, normal, _ = plane_cases(4)
    for threat in (Linf(0.1), L2(0.1)):
        assert (step_to_plane(threat, points, 0 * normal, torch.ones(4)) == 0).all()


def test_fab_comes_back_to_the_nearest_point_of_the_boundary():
    """The best iterates inside a ball that is a little larger than needed lie just beyond the boundary."""
    model, images = Planes(classes=2), pictures(10)
    for kind in NORMS:
        _, distance = middling(model, kind, images)
        shot = aimed(model, images, kind(distance * 1.01))
        outcome = run(model, FAB(shot.threat, steps=30), shot)
        assert outcome.fooled.all() and (shot.threat.distance(outcome.worst, images) >= distance * 0.999).all()


# --- Square -------------------------------------------------------------------------------------------


def test_the_sides_of_the_squares_are_the_references():
    side = square_file._side(torch.arange(5000), 32, 32, odd=False).tolist()
    expected = {0: 29, 11: 20, 51: 14, 201: 10, 501: 7, 1001: 5, 2001: 4, 4001: 3}
    changes = {k: side[k] for k in range(5000) if k == 0 or side[k] != side[k - 1]}
    assert changes == expected
    odd = square_file._side(torch.arange(5000), 32, 32, odd=True)
    assert set(odd.tolist()) == {29, 21, 15, 11, 7, 5, 3} and (odd % 2 == 1).all()


def test_a_side_fits_into_the_image():
    for height, width in ((4, 4), (3, 9), (1, 1)):
        for odd in (False, True):
            side = square_file._side(torch.arange(9000), height, width, odd=odd)
            assert side.min() >= 1 and side.max() <= min(height, width)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (1 - 2**-24, 1 - 2**-24), (0.0, 1 - 2**-24)])
def test_a_square_lies_in_the_image_to_the_last_pixel(ends):
    images = torch.zeros(29, 3, 32, 29)
    size = torch.arange(1, 30)
    top, left = (torch.full((29,), end) for end in ends)
    window = square_file._window(images, size, top, left)
    assert torch.equal(window.sum((1, 2, 3)), size.float() ** 2)
    corner = window[:, 0, 0 if ends[0] == 0 else -1, 0 if ends[1] == 0 else -1]
    assert (corner == 1).all()


@pytest.mark.parametrize(("kind", "lookahead"), [(Linf, 4), (Linf, 8), (L2, 8)])
def test_looking_ahead_changes_nothing(small, kind, lookahead, monkeypatch):
    eps = 0.02 if kind is Linf else 0.3
    shot = aimed(small, pictures(12, (3, 8, 8), 0, 1), kind(eps))
    attack, outcomes = Square(shot.threat, queries=50), []
    for full in (1, 7 * lookahead):
        monkeypatch.setattr(Engine, "_capacity", lambda self, state, full=full: full)
        outcomes.append(run(small, attack, shot, batch_size=7))
    plain, ahead = outcomes
    assert attack.for_rows(7, 1).lookahead == 1 and attack.for_rows(7, 7 * lookahead).lookahead == lookahead
    assert torch.equal(plain.fooled, ahead.fooled) and torch.equal(plain.queries, ahead.queries)
    assert torch.allclose(plain.margin, ahead.margin, atol=1e-4)
    assert 2 < plain.fooled.sum() < 11 and len(plain.queries.unique()) > 3


def test_square_stops_at_the_query_that_fools():
    """One of two classes, told apart by one pixel: the first image of stripes has it at either end."""

    class Pixel(nn.Module):
        def forward(self, images):
            return torch.stack([images[:, 0, 0, 0] - 0.45, 0 * images[:, 0, 0, 0]], 1)

    shot = aimed(Pixel().eval(), torch.full((40, 1, 4, 4), 0.5), Linf(0.1))
    outcome = run(Pixel().eval(), Square(shot.threat, queries=200), shot)
    assert outcome.fooled.all()
    assert 10 < (outcome.queries == 1).sum() < 30 and outcome.queries.max() < 100
    assert torch.allclose(outcome.margin, torch.tensor(0.05), atol=1e-6)


@pytest.mark.parametrize("kind", NORMS)
def test_squares_first_image_and_its_proposals_are_on_the_surface(kind):
    clean = torch.full((5, 3, 11, 9), 0.5)
    attack = Square(kind(0.3))
    state = {"clean": clean, "eps": torch.full((5,), 0.3), "key": torch.arange(5), "step": torch.arange(5)}
    state |= {"worst": clean.clone(), "margin": torch.zeros(5), "label": torch.zeros(5).long()}
    state |= attack.begin(state, 2)
    distance = attack.threat.distance
    assert torch.allclose(distance(state["start"], clean), torch.full((5,), 0.3), rtol=1e-5)
    state["worst"] = state["start"]
    asked = attack.query(state)
    assert torch.equal(asked[0], state["start"][0])
    assert torch.allclose(distance(asked, clean), torch.full((5,), 0.3), rtol=1e-5)
    assert (asked[1:] != state["start"][1:]).flatten(1).any(1).sum() >= 3


def test_mass_moves_from_one_window_to_another():
    """What was in the first is gone, the second has it, the rest is as before up to a factor, and the length is eps."""
    clean = torch.full((2, 3, 9, 9), 0.5)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    threat = L2(0.3)
    state = {"clean": clean, "worst": clean + 0.9 * L2(0.3).steepest(noise) * 0.3, "eps": torch.full((2,), 0.3)}
    chance = torch.tensor([[0.0, 0.0, 0.99, 0.99, 0.2, 0.1, 0.9, 0.1], [0.0, 0.99, 0.99, 0.0, 0.8, 0.9, 0.9, 0.1]])
    moved = square_file._move_mass(state, torch.tensor([3, 3]), chance) - clean
    before = state["worst"] - clean
    assert (moved[0, :, 6:, 6:] == 0).all() and (moved[1, :, 6:, :3] == 0).all()
    assert torch.allclose(threat.distance(moved, torch.zeros_like(moved)), torch.full((2,), 0.3), rtol=1e-5)
    middle = moved[:, :, 3:6, 3:6] / before[:, :, 3:6, 3:6]
    assert torch.allclose(middle, torch.ones_like(middle), rtol=1e-4)
    assert (moved[0, :, :3, :3].norm() > before[0, :, :3, :3].norm()).all()


def test_square_goes_on_after_a_refusal():
    """Fast arithmetic that is off by half a logit sees successes where there are none yet."""

    class Off:
        calls = 0

        def __call__(self, images):
            self.calls += 1
            return model(images) + 0.5 * torch.nn.functional.one_hot(1 - shot.labels[0], 2)

    model, images = Planes(classes=2), pictures(40)
    images = images[model(images).argmax(1) == 0]
    threat, distance = middling(model, Linf, images)
    shot = aimed(model, images, threat)
    engine = Engine(model, CPU, 64)
    engine._arithmetic = fast_arithmetics(CPU)[0]
    off = engine._fast[id(model), engine._arithmetic] = Off()
    outcome = run_attack(engine, "test", Square(threat, queries=250), shot)
    can_fall, near = decided(distance, threat.eps)
    assert off.calls > 100
    assert not (outcome.fooled & ~can_fall & ~near).any() and outcome.fooled.sum() > 0.7 * can_fall.sum()
