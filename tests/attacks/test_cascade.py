"""Stages one after the other."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from toys import CPU, Planes, make_images, make_input, mixed

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, Stage, run_stage, stage_title
from adaptive_smoothing.attacks.engine.arithmetic import FULL_PRECISION, Arithmetic, FastModel
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.objectives import cross_entropy, logit_margin, targeted_margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import full_precision_stage
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack, keep_worst
from adaptive_smoothing.threat import Linf

LINF = Linf(8 / 255)


@dataclass(frozen=True)
class FoolsBelow(StepAttack):
    """Fools the images whose first pixel is below a bound, by changing the last pixel."""

    threat: Linf
    bound: float
    seen: list
    seed: int = 0
    evaluations = 5

    def query(self, state):
        images = state["clean"].clone()
        low = images[:, 0, 0, 0] < self.bound
        images[:, 0, -1, -1] = torch.where(low, 0.8, self.bound / 2)
        self.seen.append([round(pixel, 2) for pixel in images[:, 0, 0, 0].tolist()])
        return images

    def update(self, state, images, answer):
        return keep_worst(state, images, answer.logits)


class LastPixel(nn.Module):
    def forward(self, images):
        return torch.stack([torch.full_like(images[:, 0, 0, 0], 0.5), images[:, 0, -1, -1]], 1)


def run_bounds(*bounds):
    """Run one stage per bound on images 0.0, 0.1, ..., 0.9; return the state and the images that each stage saw."""
    images = (torch.arange(10) / 10).view(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    images[:, 0, -1, -1] = 0.0
    inputs = make_input(LastPixel().eval(), images, Linf(1.0))
    stages = [Stage(f"below {bound}", FoolsBelow(inputs.threat, bound, [])) for bound in bounds]
    state, engine = CascadeState.before(inputs), Engine(LastPixel().eval(), CPU, 16)
    for number, stage in enumerate(stages):
        run_stage(engine, number, stage, inputs, state)
    return state, [sorted({pixel for row in stage.attack.seen for pixel in row}) for stage in stages]


def run_one(model, stage, inputs, number=0, batch_size=16, state=None):
    state = state or CascadeState.before(inputs)
    run_stage(Engine(model, CPU, batch_size), number, stage, inputs, state)
    return state


def test_stages_attack_only_survivors():
    state, seen = run_bounds(0.25, 0.15, 0.75)
    assert seen[0] == [round(k / 10, 1) for k in range(10)]
    assert seen[1] == seen[2] == [round(k / 10, 1) for k in range(3, 10)]
    assert state.fooled_by.tolist() == [0, 0, 0, 2, 2, 2, 2, 2, -1, -1]
    assert state.left().tolist() == [8, 9]


def test_queries_are_summed_and_the_widest_margin_is_kept():
    """Each stage makes five queries; a stage with a lower bound reaches a smaller margin on survivors."""
    state, _ = run_bounds(0.25, 0.15, 0.75, 0.35)
    assert state.queries.tolist() == [5] * 3 + [15] * 5 + [20] * 2
    assert state.margin.tolist() == pytest.approx([0.3] * 8 + [0.75 / 2 - 0.5] * 2)
    assert state.worst[:, 0, -1, -1].tolist() == pytest.approx([0.8] * 8 + [0.375] * 2)


def test_a_stage_without_survivors_is_not_run():
    state, seen = run_bounds(0.95, 0.5)
    assert (state.fooled_by == 0).all() and seen[1] == []


def test_a_stage_never_raises_robust_accuracy():
    model = Planes()
    inputs = make_input(model, make_images(30), Linf(0.008))
    stages = [
        Stage("square", Square(inputs.threat, queries=10)),
        Stage("apgd", APGD(inputs.threat, steps=3)),
        Stage("pgd", PGD(inputs.threat, steps=5)),
        Stage("no change", lambda model, images, labels: images),
    ]
    state, left = CascadeState.before(inputs), [30]
    for number, stage in enumerate(stages):
        before = state.fooled_by.clone()
        run_one(model, stage, inputs, number, state=state)
        assert torch.equal(state.fooled_by[before >= 0], before[before >= 0])
        left.append(len(state.left()))
    assert left == sorted(left, reverse=True) and left[0] > left[1] > left[2] and left[3] == left[4]


def test_a_plain_attack_that_leaves_the_ball_fools_nothing_there_and_gives_a_warning():
    model = Planes(classes=2)
    inputs = make_input(model, make_images(20), Linf(0.01))
    # Some rows of every batch move too far.
    stage = Stage(
        "plain", lambda model, images, labels: images + 0.0105 * (torch.arange(len(images)) % 2).view(-1, 1, 1, 1)
    )
    with pytest.warns(
        UserWarning, match=r"10 of 20 attacked images are farther than Linf 0.01 from the .*: project them"
    ):
        state = run_one(model, stage, inputs)
    assert (state.fooled_by < 0).all()


def test_a_plain_attack_with_another_radius_is_an_error():
    model = Planes(classes=2)
    inputs = make_input(model, make_images(20), Linf(8 / 255))
    stage = Stage("plain", lambda model, images, labels: images + 9 / 255)
    with pytest.raises(
        ValueError, match=r"expected attacked images within Linf 8/255 and \[0, 1\], got 20 of 20 outside"
    ):
        run_one(model, stage, inputs)


def test_a_plain_attack_that_leaves_the_range_of_images_fools_nothing_there():
    """An attack without clamp: at 0 it leaves [0, 1], elsewhere it is inside the ball and counts."""
    model, images = Planes(classes=2), make_images(20)
    images[:5, 0, 0, 0] = 0.0
    inputs = make_input(model, images, Linf(0.1))
    step = PGD(inputs.threat, steps=10)

    def attack(model, images, labels):
        found = step(model, images, labels)
        found[images[:, 0, 0, 0] == 0, 0, 0, 0] = -0.1
        return found

    with pytest.warns(
        UserWarning, match=r"5 of 20 attacked images are farther than Linf 0.1 from the original or leave \[0, 1\]"
    ):
        state = run_one(model, Stage("plain", attack), inputs)
    inside = run_one(model, Stage("plain", step), inputs)
    assert (state.fooled_by[:5] < 0).all() and (inside.fooled_by[:5] == 0).any()
    assert torch.equal(state.fooled_by[5:], inside.fooled_by[5:]) and (state.fooled_by[5:] == 0).any()


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda model, images, labels: images * torch.nan, "expected finite images from the attack"),
        (lambda model, images, labels: images.double(), "torch.float64"),
        (lambda model, images, labels: (images, labels), "got 2 objects: return the images only"),
        (
            lambda model, images, labels: (model.train(), images)[1],
            "expected an attack that leaves the model in eval mode",
        ),
    ],
)
def test_what_a_plain_attack_returns_is_checked(attack, message):
    model = nn.Sequential(Planes(classes=2), nn.Dropout(0.5)).eval()
    inputs = make_input(model, make_images(6), Linf(0.01))
    with pytest.raises((TypeError, ValueError), match=message):
        run_one(model, Stage("plain", attack), inputs)


def test_a_plain_attack_gets_smaller_batches_if_memory_runs_out_and_frozen_weights():
    model, sizes, flags = Planes(classes=2), [], []

    def attack(model, images, labels):
        sizes.append(len(images))
        flags.append(model.weight.requires_grad)
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return PGD(Linf(0.01), steps=10)(model, images, labels)

    inputs = make_input(model, make_images(10), Linf(0.01))
    state = run_one(model, Stage("plain", attack), inputs)
    assert sizes == [10, 8, 4, 4, 2] and not any(flags) and model.weight.requires_grad
    assert torch.equal(state.fooled_by == 0, model.distance(inputs.images, inputs.labels, inputs.threat) < 0.01)


def test_attacks_for_the_widest_margin_also_attack_fooled_images():
    """The margin is the widest of two stages; an image counts for the stage that fooled it first."""
    model = mixed()
    inputs = make_input(model, make_images(16), Linf(0.02))
    stages = [
        Stage(name, APGD(inputs.threat, steps=6, objective=objective, target_classes=count, widest_margin=True))
        for name, objective, count in (("ce", cross_entropy, 0), ("t", targeted_margin, 2))
    ]
    both, alone = CascadeState.before(inputs), [CascadeState.before(inputs) for _ in stages]
    for number, stage in enumerate(stages):
        for state in (both, alone[number]):
            run_one(model, stage, inputs, number, state=state)
    margins = torch.stack([state.margin for state in alone])
    torch.testing.assert_close(both.margin, margins.amax(0))
    assert (margins[1] > margins[0]).any() and (margins[0] > 0).any()
    assert torch.equal(both.fooled_by == 0, alone[0].fooled_by == 0)


def test_progress_of_an_attack_for_the_widest_margin_counts_newly_fooled_images():
    model, reported = mixed(), []
    inputs = make_input(model, make_images(30), Linf(0.008))
    state = CascadeState.before(inputs)
    for number in range(2):
        left = len(state.left())
        reported.clear()
        stage = Stage("apgd", APGD(inputs.threat, steps=8 * (number + 1), widest_margin=True))
        run_stage(Engine(model, CPU, 32), number, stage, inputs, state, lambda share, fooled: reported.append(fooled))
        assert min(reported) >= 0 and max(reported) <= left - len(state.left()) and 3 < len(state.left()) < 27


def test_pgd_uses_the_radius_of_each_image():
    model, images = Planes(classes=2), make_images(20)
    labels = model(images).argmax(1)
    radii = model.distance(images, labels, Linf(0.0)) * torch.where(torch.arange(20) % 2 == 0, 1.1, 0.9)
    inputs = make_input(model, images, Linf(radii))
    state = CascadeState.before(inputs)
    # Another stage has fooled the first two, so that positions in the batch and in the data differ.
    state.fooled_by[:2] = 0
    run_one(model, Stage("pgd", PGD(inputs.threat, steps=20)), inputs, 1, 8, state)
    assert torch.equal(state.fooled_by[2:] == 1, (torch.arange(20) % 2 == 0)[2:])
    # 20 steps, and an evaluation of the last iterate.
    assert state.queries.tolist() == [0, 0] + [21] * 18


@pytest.mark.parametrize("kind", [APGD, PGD])
def test_fooled_images_keep_the_logits_that_confirmed_them(kind):
    model = mixed()
    inputs = make_input(model, make_images(30), Linf(0.01))
    state = run_one(model, Stage("attack", kind(inputs.threat, steps=8)), inputs)
    fooled = state.fooled_by == 0
    assert 3 < fooled.sum() < 30
    torch.testing.assert_close(state.logits[fooled], model(state.worst[fooled]).detach())
    torch.testing.assert_close(state.margin[fooled], logit_margin(state.logits, inputs.labels)[fooled])


def test_the_audit_takes_an_eighth_of_few_survivors_and_64_of_many():
    cascade = Cascade("x", LINF, ())
    assert cascade.audit_sizes(10_000) == cascade.audit_sizes(512) == (48, 16)
    assert cascade.audit_sizes(256) == (24, 8)
    assert cascade.audit_sizes(0) == (0, 0)


def test_stages_have_titles_and_an_unknown_key_is_its_own_title():
    keys = ("apgd-ce", "smooth-hostile-t", "plain-apgd-t-alpha-0.5", "transfer-alpha-0.9", "mine")
    assert [stage_title(key) for key in keys] == [
        "APGD, cross-entropy",
        "APGD, worst-case g (smoothed surrogate)",
        "APGD, targeted DLR, lower alpha, weight 0.5 (without transforms)",
        "transfer from alpha = 0.9",
        "mine",
    ]


# --- full precision -------------------------------------------------------------------------------------


@pytest.fixture
def coarse(monkeypatch):
    """Fast arithmetic that rounds logits to the nearest half."""
    exact = FastModel.__call__

    def rounded(self, images):
        logits = exact(self, images)
        return logits if self.arithmetic == FULL_PRECISION else logits + ((2 * logits).round() / 2 - logits).detach()

    monkeypatch.setattr(FastModel, "__call__", rounded)
    monkeypatch.setattr(Arithmetic, "rounding", lambda self, logits: torch.full(logits.shape[:1], 0.5))
    monkeypatch.setattr(Arithmetic, "is_accurate", lambda *arguments: True)


def test_images_that_survive_by_a_rounding_error_are_attacked_in_full_precision(coarse):
    model, images = Planes(classes=2), make_images(20)
    labels = model(images).argmax(1)
    # Just enough to fool the model, by a margin that rounding to halves hides.
    inputs = make_input(model, images, Linf(model.distance(images, labels, LINF) + 0.001))
    engine, state = Engine(model, CPU, 32), CascadeState.before(inputs)
    run_stage(engine, 0, Stage("apgd", APGD(inputs.threat, steps=20)), inputs, state)
    assert len(state.left()) > 5
    again = replace(full_precision_stage(inputs.threat, 0), attack=APGD(inputs.threat, steps=20))
    run_stage(engine, 1, again, inputs, state)
    assert not len(state.left()) and (state.margin > 0).all()


def test_images_that_survive_by_more_are_not_attacked_again(coarse):
    model = Planes()
    inputs = make_input(model, make_images(6), Linf(0.001))
    state = CascadeState.before(inputs)
    state.margin[:] = torch.tensor([-1.0, -0.6, -0.4, 0.1, -0.5, -torch.inf])
    before = state.margin.clone()
    run_one(model, full_precision_stage(inputs.threat, 0), inputs, state=state)
    assert (state.queries > 0).tolist() == [False, False, True, True, False, False]
    # The widest margin is never replaced by a smaller one.
    assert (state.margin >= before).all()


def test_full_precision_starts_from_the_worst_version_and_attacks_the_closest_class():
    """Also if that class is unlikely on the clean image. A small step is enough from there, and from nowhere else."""
    model, images = Planes(classes=10), make_images(300)
    order = model(images).argsort(1, descending=True)
    labels, unlikely = order[:, 0], order[:, 7]
    normal = model.weight[unlikely] - model.weight[labels]
    lead = model(images).gather(1, unlikely[:, None]) - model(images).gather(1, labels[:, None])
    worst = images - (lead * normal / normal.square().sum(1, keepdim=True)).view_as(images).detach()
    close = (model(worst).topk(2).indices.sort().values == torch.stack([labels, unlikely], 1).sort().values).all(1)
    radii = Linf((worst - images).abs().amax((1, 2, 3)) + 1e-4)
    inputs = make_input(model, images, radii).take(close.nonzero().squeeze(1))
    stage = full_precision_stage(inputs.threat, 0)
    fooled = []
    for first_step in (stage.attack.first_step, 1e-3):
        state = CascadeState.before(inputs)
        state.worst, state.margin = worst[close].clone(), torch.full((len(inputs),), -1e-7)
        short = replace(stage.attack, steps=2, first_step=first_step)
        run_one(model, replace(stage, attack=short), inputs, state=state)
        fooled.append(len(inputs) - len(state.left()))
    assert len(inputs) >= 5 and fooled == [len(inputs)] * 2
