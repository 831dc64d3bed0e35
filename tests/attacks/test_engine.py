"""The engine gives the result of running jobs one after the other, in whatever order and company they run."""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from toys import CPU, Planes, aimed, pictures, run

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.attack_input import AttackInput
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.engine import arithmetic
from adaptive_smoothing.attacks.engine import engine as engine_file
from adaptive_smoothing.attacks.engine.arithmetic import (
    DEFAULT_FLOAT32,
    FLOAT16,
    FULL_PRECISION,
    TF32,
    Arithmetic,
    FastModel,
    frozen,
)
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.float16 import Float16Convolutions, with_scaled_gradients
from adaptive_smoothing.attacks.engine.jobs import Jobs, run_attack
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import cross_entropy, targeted_dlr, targeted_margin
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack, Victim, keep_worst
from adaptive_smoothing.attacks.success import confirm
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.threat import L2, Linf

# --- jobs by the book -----------------------------------------------------------------------------------

CODES = 4096


@dataclass(frozen=True)
class Scripted(StepAttack):
    """Asks about an image that says which job and step it comes from; what that does is written in a table."""

    threat: Linf
    jobs: int
    length: int
    looks: int
    widest_margin: bool = False
    seed: int = 0

    evaluations = property(lambda self: self.length)
    check_every = property(lambda self: self.looks)

    def targets(self, logits, labels):
        return torch.arange(self.jobs).repeat(len(labels), 1)

    def query(self, state):
        images = state["clean"].clone()
        images[:, 0, 0, 0] = (state["target"] * 100 + state["step"]) / CODES
        return images

    def update(self, state, images, answer):
        return keep_worst(state, images, answer.logits)


class Table(nn.Module):
    """Looks the margin of an image up: [image, job, step]."""

    def __init__(self, margins):
        super().__init__()
        self.margins = margins
        self.training = False

    def forward(self, images):
        code, image = (CODES * images[:, 0, 0, :2]).round().long().unbind(1)
        margin = self.margins[image, code // 100, code % 100]
        return torch.stack([torch.zeros_like(margin), margin], 1)


def by_the_book(margins, length, looks):
    """One job after the other, each looked at every so many steps: fooled, queries, margin of every image."""
    rows = []
    for image in margins:
        best, jobs = -np.inf, len(image)
        for job, job_margins in enumerate(image):
            own = -np.inf
            for look in range(looks, length + looks, looks):
                own = job_margins[: min(look, length)].max().item()
                if own > 0:
                    break
            best = own if own > 0 else max(best, own)
            if own > 0:
                rows.append((True, job * length + min(look, length), own))
                break
        else:
            rows.append((False, jobs * length, best))
    fooled, queries, margin = zip(*rows, strict=True)
    return list(fooled), list(queries), list(margin)


def scripted(margins, length, looks, batch_size, order=None, *, widest_margin=False):
    count, jobs, _ = margins.shape
    order = torch.arange(count) if order is None else order
    images = torch.zeros(count, 1, 2, 2)
    images[:, 0, 0, 1] = order / CODES
    attack = Scripted(Linf(1.0), jobs, length, looks, widest_margin)
    shot = AttackInput(images, torch.zeros(count).long(), order, torch.zeros(count, 2), attack.threat)
    return run(Table(margins), attack, shot, batch_size)


def told(outcome):
    return outcome.fooled.tolist(), outcome.queries.tolist(), pytest.approx(outcome.margin.tolist())


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
@pytest.mark.parametrize(("length", "looks"), [(12, 4), (13, 5), (1, 1)])
def test_the_outcome_is_that_of_one_job_after_the_other(batch_size, length, looks):
    """Chance decides when which job succeeds, later ones before earlier ones too; some never do."""
    chance = torch.rand(20, 5, 40, generator=torch.Generator().manual_seed(length))
    margins = torch.where(chance > 0.97, chance - 0.9, chance - 1.1)
    expected = by_the_book(margins, length, looks)
    assert told(scripted(margins, length, looks, batch_size)) == expected
    assert 3 < sum(expected[0]) < 20 or length == 1


@pytest.mark.parametrize("batch_size", [3, 64])
def test_an_earlier_job_wins_over_a_later_one_that_succeeds_first(batch_size):
    margins = torch.full((1, 3, 40), -1.0)
    margins[0, 2, 0] = 0.7  # at once, but the third in line
    margins[0, 1, 8] = 0.2
    assert told(scripted(margins, 12, 4, batch_size)) == ([True], [12 + 12], [pytest.approx(0.2)])
    margins[0, 1, 8] = -1.0
    assert told(scripted(margins, 12, 4, batch_size)) == ([True], [24 + 4], [pytest.approx(0.7)])


def test_what_comes_after_the_end_of_a_job_does_not_count():
    """13 steps looked at every 5: the last look comes after 15."""
    margins = torch.full((1, 1, 40), -1.0)
    margins[0, 0, 13:] = 0.5
    assert told(scripted(margins, 13, 5, 4)) == ([False], [13], [-1.0])
    margins[0, 0, 12] = 0.25
    assert told(scripted(margins, 13, 5, 4)) == ([True], [13], [0.25])


@pytest.mark.parametrize("batch_size", [1, 64])
def test_jobs_that_go_on_to_their_end_find_the_widest_margin(batch_size):
    """The second of four succeeds, and again by more; the third by more still, the fourth by less."""
    margins = torch.full((2, 4, 40), -1.0)
    margins[0, 1, 1], margins[0, 1, 10], margins[0, 2, 0], margins[0, 3, 3] = 0.1, 0.4, 0.9, 0.2
    margins[1, 2, 5] = -0.3
    assert told(scripted(margins, 12, 4, batch_size)) == ([True, False], [12 + 4, 48], [0.1, -0.3])
    expected = ([True, False], [48, 48], [0.9, -0.3])
    assert told(scripted(margins, 12, 4, batch_size, widest_margin=True)) == expected


def test_the_worst_of_all_failed_jobs_is_kept():
    margins = -1 - torch.rand(6, 4, 40, generator=torch.Generator().manual_seed(0))
    outcome = scripted(margins, 10, 5, 5)
    assert torch.allclose(outcome.margin, margins[:, :, :10].amax((1, 2)))
    codes = (CODES * outcome.worst[:, 0, 0, 0]).round().long()
    best = margins[:, :, :10].flatten(1).argmax(1)
    assert torch.equal(codes, best // 10 * 100 + best % 10)


def test_a_job_that_an_earlier_one_has_made_idle_is_not_begun():
    """Ten images fall to their first job at its first look, so that the model sees none of the other 90."""
    margins = torch.full((10, 10, 40), 0.5)
    seen = []
    model = Table(margins)
    model.register_forward_hook(lambda module, images, output: seen.extend((CODES * images[0][:, 0, 0, 0]).tolist()))
    images = torch.zeros(10, 1, 2, 2)
    images[:, 0, 0, 1] = torch.arange(10) / CODES
    shot = AttackInput(images, torch.zeros(10).long(), torch.arange(10), torch.zeros(10, 2), Linf(1.0))
    run(model, Scripted(Linf(1.0), 10, 20, 4), shot, 10)
    assert max(seen) < 100


def test_progress_rises_to_the_end():
    chance = torch.rand(20, 5, 40, generator=torch.Generator().manual_seed(0))
    margins = torch.where(chance > 0.98, chance - 0.9, chance - 1.1)
    told = []
    images = torch.zeros(20, 1, 2, 2)
    images[:, 0, 0, 1] = torch.arange(20) / CODES
    shot = AttackInput(images, torch.zeros(20).long(), torch.arange(20), torch.zeros(20, 2), Linf(1.0))
    outcome = run(Table(margins), Scripted(Linf(1.0), 5, 12, 4), shot, 7, progress=lambda *now: told.append(now))
    shares, fallen = zip(*told, strict=True)
    assert list(shares) == sorted(shares) and list(fallen) == sorted(fallen)
    assert 0 < shares[0] < shares[-1] == pytest.approx(1) and fallen[-1] == outcome.fooled.sum()


# --- real attacks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network():
    """Small and far from linear: a climb ends differently from every start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU(), nn.Flatten()
        model = nn.Sequential(*layers, nn.Linear(64, 10))
    for layer in (model[0], model[2], model[5]):
        layer.weight.data *= 5
    return model.eval()


ATTACKS = {
    "apgd": partial(APGD, steps=12, objective=targeted_dlr, target_classes=2, restarts=2),
    "pgd": partial(DiversifiedPGD, steps=8, objective=targeted_margin, target_classes=3, diversify=2),
    "fab": partial(FAB, steps=12, target_classes=3),
    "square": partial(Square, queries=60),
}


@pytest.mark.parametrize("threat", [Linf(0.012), L2(0.12)])
@pytest.mark.parametrize("name", ATTACKS)
def test_batch_size_and_company_do_not_matter(network, name, threat):
    shot = aimed(network, pictures(14, (3, 8, 8), 0, 1), threat)
    attack = ATTACKS[name](threat)
    expected = run(network, attack, shot, 64)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    cases = [(1, order[:2]), (7, order), (64, order[2:])]
    for batch_size, which in cases:
        outcome = run(network, attack, shot.take(which), batch_size)
        assert torch.equal(outcome.fooled, expected.fooled[which])
        assert torch.equal(outcome.queries, expected.queries[which])
        assert torch.allclose(outcome.margin, expected.margin[which], atol=1e-4)
    assert 1 < expected.fooled.sum() < 14


def test_random_numbers_belong_to_the_stage_the_image_and_the_job(network):
    """Not to its place in the data that happens to be attacked."""
    images = pictures(1, (3, 8, 8), 0, 1).repeat(3, 1, 1, 1)
    shot = replace(aimed(network, images, Linf(0.004)), index=torch.tensor([5, 5, 6]))
    engine, attack = Engine(network, CPU, 8), Square(Linf(0.004), queries=4)
    worst = run_attack(engine, "one", attack, shot).worst
    assert torch.equal(worst[0], worst[1]) and not torch.equal(worst[0], worst[2])
    assert not torch.equal(run_attack(engine, "two", attack, shot).worst[0], worst[0])


@dataclass(frozen=True)
class Turned:
    """A view of a network that sees images upside down."""

    model: nn.Module

    def __call__(self, model):
        return Upside(self.model)


class Upside(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        return self.model(images.flip(2))


class InPlace(engine_file.JobBatch):
    """Steps as a recorded graph does, every tensor in its place."""

    def advance(self, steps):
        for _ in range(steps):
            self.step_in_place()


@pytest.mark.parametrize("threat", [Linf(0.012), L2(0.12)])
@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_recorded_is_the_attack_itself(network, name, threat, monkeypatch):
    """An update may hand back tensors of the state under other names."""
    shot = aimed(network, pictures(14, (3, 8, 8), 0, 1), threat)
    expected = run(network, ATTACKS[name](threat), shot, 7)
    monkeypatch.setattr(engine_file, "JobBatch", InPlace)
    outcome = run(network, ATTACKS[name](threat), shot, 7)
    assert torch.equal(outcome.worst, expected.worst) and torch.equal(outcome.margin, expected.margin)


class Kept(engine_file.JobBatch):
    """Kept for the next batch of its size, as those are that were recorded on a GPU."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cuda, self.recordable = True, False


@pytest.mark.parametrize("kind", [engine_file.JobBatch, Kept])
def test_what_an_engine_keeps_of_an_attack_changes_no_other(network, kind, monkeypatch):
    """Stages of one name after one another, and again: the same as on engines of their own."""
    monkeypatch.setattr(engine_file, "JobBatch", kind)
    shot = aimed(network, pictures(6, (3, 8, 8), 0, 1), Linf(0.012))
    engine = Engine(network, CPU, 8)
    attacks = [APGD(Linf(0.012), steps=5), APGD(Linf(0.012), steps=9, objective=targeted_dlr, target_classes=2)]
    for attack in [*attacks, *attacks]:
        for source in (None, Turned(network)):
            one = run_attack(engine, "same name", attack, shot, source=source)
            fresh = run_attack(Engine(network, CPU, 8), "same name", attack, shot, source=source)
            assert torch.equal(one.worst, fresh.worst) and torch.equal(one.queries, fresh.queries)
    assert bool(engine._recorded) == (kind is Kept)


def test_targets_are_those_of_the_view_that_is_attacked():
    model, view = Planes(seed=0), Planes(seed=1)
    shot = aimed(model, pictures(20), Linf(0.01))
    attack = APGD(shot.threat, objective=targeted_margin, target_classes=1)
    engine = Engine(model, CPU, 32)
    for source, logits in ((None, shot.logits), (view, view(shot.images))):
        wrong = logits.scatter(1, shot.labels[:, None], -torch.inf).argmax(1)
        assert torch.equal(Jobs(engine, "apgd", attack, shot, source, FULL_PRECISION, None).targets[:, 0], wrong)
    assert (model(shot.images).argmax(1) != view(shot.images).argmax(1)).any()


def test_images_and_shot_stay_as_they_are(network):
    shot = aimed(network, pictures(4, (3, 8, 8), 0, 1), Linf(0.1))
    before = shot.images.clone()
    for name in ATTACKS:
        run(network, ATTACKS[name](shot.threat), shot)
    assert torch.equal(shot.images, before)


# --- verdicts -------------------------------------------------------------------------------------------


class TwoFaced(nn.Module):
    """What an attack sees of it, with gradients, says the opposite of what it answers without."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        logits = self.model(images)
        return logits.flip(1) if torch.is_grad_enabled() else logits


@pytest.mark.parametrize("build", [partial(APGD, steps=10), partial(FAB, steps=10), DiversifiedPGD])
def test_a_success_that_full_precision_refuses_does_not_count(build):
    model, images = Planes(classes=2), pictures(12)
    shot = aimed(model, images, Linf(0.0001))
    outcome = run(TwoFaced(model), build(shot.threat), shot)
    assert not outcome.fooled.any()
    assert (outcome.queries == build(shot.threat).evaluations).all()


class Fast:
    """In the place of the engine's own fast model: another table."""

    def __init__(self, model):
        self.model = model

    def __call__(self, images):
        return self.model(images)


def two_tables(fast, full, length=12, looks=4, batch_size=8):
    """An attack that sees one table, and verdicts that are read from another."""
    count, jobs, _ = full.shape
    images = torch.zeros(count, 1, 2, 2)
    images[:, 0, 0, 1] = torch.arange(count) / CODES
    attack = Scripted(Linf(1.0), jobs, length, looks)
    shot = AttackInput(images, torch.zeros(count).long(), torch.arange(count), torch.zeros(count, 2), attack.threat)
    engine = Engine(Table(full), CPU, batch_size)
    engine._arithmetic = arithmetic.fast_arithmetics(CPU)[0]
    engine._fast[id(engine.model), engine._arithmetic] = Fast(Table(fast))
    return run_attack(engine, "test", attack, shot)


def test_after_a_refusal_a_wider_margin_is_judged_again():
    fast, full = torch.full((2, 1, 40), -1.0), torch.full((2, 1, 40), -1.0)
    fast[:, 0, 1], fast[:, 0, 6] = 0.2, 0.3
    full[1, 0, 6] = 0.25
    assert told(two_tables(fast, full)) == ([False, True], [12, 8], [-1.0, 0.25])


def test_a_refused_job_does_not_stand_in_the_way_of_the_next():
    fast, full = torch.full((1, 2, 40), -1.0), torch.full((1, 2, 40), -1.0)
    fast[0, 0, 1], fast[0, 1, 1] = 0.9, 0.2
    full[0, 1, 1] = 0.1
    assert told(two_tables(fast, full)) == ([True], [12 + 4], [pytest.approx(0.1)])


def test_what_stands_by_a_rounding_error_is_judged_when_all_jobs_are_done(monkeypatch):
    """Fast arithmetic has both at -0.001; one of them is a success, and the other's margin is not what it seemed."""
    monkeypatch.setattr(Arithmetic, "rounding", lambda self, logits: torch.full(logits.shape[:1], 0.01))
    fast, full = torch.full((3, 2, 40), -1.0), torch.full((3, 2, 40), -1.0)
    fast[:2, 1, 4] = -0.001
    full[0, 1, 4], full[1, 1, 4] = 0.002, -0.005
    assert told(two_tables(fast, full)) == ([True, False, False], [24, 24, 24], [0.002, -0.005, -1.0])


def test_a_level_image_is_one_that_the_model_calls_by_another_name():
    """Of level classes the first is named: 0 beats 1, which the image is."""
    model, images = Table(torch.zeros(1, 1, 40)), torch.zeros(2, 1, 2, 2)
    margin, _ = confirm(model, images, images, torch.tensor([0, 1]), Linf(0.1))
    assert (margin > 0).tolist() == [False, True]


def test_a_model_that_cuts_its_images_off_is_attacked_all_the_same(network):
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.training = False

        def forward(self, images):
            return network(images.detach())

    shot = aimed(network, pictures(8, (3, 8, 8), 0, 1), Linf(0.03))
    for name in ATTACKS:
        outcome = run(Cut(), ATTACKS[name](shot.threat), shot)
        assert outcome.margin.isfinite().all()
    assert outcome.fooled.any()  # Square needs no gradient


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_an_overflow_of_fast_arithmetic_does_not_end_a_job(poison):
    """Otherwise nothing that the job found later could count: the margin of what is no number is infinite."""
    fast, full = torch.full((1, 1, 40), -1.0), torch.full((1, 1, 40), -1.0)
    fast[0, 0, 1], fast[0, 0, 9] = poison, 0.3
    full[0, 0, 9] = 0.25
    assert told(two_tables(fast, full)) == ([True], [12], [0.25])


def test_a_point_outside_the_ball_fools_nobody():
    @dataclass(frozen=True)
    class Jumps(StepAttack):
        threat: Linf
        seed: int = 0
        evaluations = 3

        def query(self, state):
            return 1 - state["clean"]

        def update(self, state, images, answer):
            return keep_worst(state, images, answer.logits)

    model, images = Planes(classes=2), pictures(8, low=0.1, high=0.9)
    shot = aimed(model, images, Linf(1e-4))
    assert (model(1 - images).argmax(1) != shot.labels).all()
    outcome = run(model, Jumps(shot.threat), shot)
    assert not outcome.fooled.any()


@pytest.mark.parametrize("eps", [0.5, 2.0, 10.0])
def test_the_surface_of_the_ball_is_inside_whatever_the_size_of_the_image(eps):
    """The length of 150,000 pixels is off by more than that of one pixel."""
    images, threat = pictures(4, (3, 224, 224)), L2(eps)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    on_surface = threat.project(threat.project(images + noise, images), images)
    model, labels = Planes(2, (3, 224, 224)), torch.zeros(4).long()
    assert confirm(model, on_surface, images, labels, threat)[0].isfinite().all()
    beyond = images + 1.0001 * (on_surface - images)
    assert (confirm(model, beyond, images, labels, threat)[0] == -torch.inf).all()


class Poisoned(nn.Module):
    """NaN in the logits, or only in the gradient, off the images themselves.

    `deaf` has an answer to images that are no numbers: class 0.
    """

    def __init__(self, model, images, where):
        super().__init__()
        self.model, self.images, self.where = model, images, where
        self.training = False

    def forward(self, images):
        logits = self.model(images)
        if self.where == "deaf":
            logits = torch.where(images.flatten(1).isnan().any(1)[:, None], 99 * torch.eye(5)[0], logits)
        if self.where != "logits":
            images = images.nan_to_num(nan=0.5)
            return logits + (images.flatten(1).sum(1, keepdim=True) * 0).abs().sqrt()
        off = (images.flatten(1)[:, None] - self.images.flatten(1)[None]).abs().amax(2).amin(1) > 1e-6
        return logits + torch.where(off, torch.nan, 0.0)[:, None]


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.2)])
@pytest.mark.parametrize("where", ["logits", "gradient", "deaf"])
@pytest.mark.parametrize("name", ATTACKS)
def test_not_a_number_never_passes_for_robustness(name, where, threat):
    model, images = Planes(), pictures(24)
    images = images[model(images).argmax(1) == 0]
    poisoned = Poisoned(model, images, where).eval()
    shot = aimed(model, images, threat)
    if name == "square" and where != "logits":
        assert run(poisoned, ATTACKS[name](threat), shot).fooled.any()  # it never asks for one
        return
    with pytest.raises(ValueError, match="NaN"):
        run(poisoned, ATTACKS[name](threat), shot)


# --- memory, flags, sources -----------------------------------------------------------------------------


class Narrow(nn.Module):
    """Has memory for a few images only."""

    def __init__(self, model, most):
        super().__init__()
        self.model, self.most, self.seen = model, most, []
        self.training = False

    def forward(self, images):
        self.seen.append(len(images))
        if len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.model(images)


def test_without_memory_the_batch_is_halved_and_the_outcome_stays(network):
    shot = aimed(network, pictures(8, (3, 8, 8), 0, 1), Linf(0.012))
    for name in ("apgd", "square"):
        narrow = Narrow(network, 5)
        engine = Engine(narrow, CPU, 64, precise=True)
        outcome = run_attack(engine, "test", ATTACKS[name](shot.threat), shot)
        expected = run(network, ATTACKS[name](shot.threat), shot, 64)
        assert torch.equal(outcome.fooled, expected.fooled) and torch.equal(outcome.queries, expected.queries)
        assert torch.allclose(outcome.margin, expected.margin, atol=1e-4)
        assert engine.size == 4


def test_one_image_too_many_is_an_error(network):
    shot = aimed(network, pictures(3, (3, 8, 8), 0, 1), Linf(0.012))
    with pytest.raises(torch.OutOfMemoryError):
        run(Narrow(network, 0), ATTACKS["apgd"](shot.threat), shot)


def test_large_images_come_in_smaller_batches():
    model, seen = Planes(2, (3, 64, 64)), []
    model.register_forward_hook(lambda module, images, output: seen.append(len(output)))
    shot = aimed(model, pictures(40, (3, 64, 64)), Linf(1e-5))
    seen.clear()
    engine = Engine(model, CPU)
    run_attack(engine, "test", APGD(shot.threat, steps=1), shot)
    assert engine.size == max(seen) == 8  # a quarter of 32


def test_the_weights_keep_their_flags(network):
    """Frozen inside, for half the cost; as they were afterwards, also after an error."""
    model, images = Planes(), pictures(4)
    model.bias.requires_grad_(False)
    inside = []
    model.register_forward_pre_hook(lambda module, images: inside.append(module.weight.requires_grad))
    shot = aimed(model, images, Linf(0.02))
    inside.clear()
    run(model, APGD(shot.threat, steps=3), shot)
    assert inside and not any(inside)
    assert model.weight.requires_grad and not model.bias.requires_grad and model.weight.grad is None
    poisoned = Poisoned(model, images, "logits")
    with pytest.raises(ValueError, match="NaN"):
        run(poisoned, APGD(shot.threat, steps=3), shot)
    assert model.weight.requires_grad and not model.bias.requires_grad


def test_frozen_restores_what_it_found():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.bias.requires_grad_(False)
    both = nn.Sequential(one, two)
    with pytest.raises(KeyError), frozen(both, one):
        assert not any(weight.requires_grad for weight in both.parameters())
        raise KeyError
    assert [weight.requires_grad for weight in both.parameters()] == [True, True, True, False]


def test_the_caller_may_have_switched_gradients_off(network):
    shot = aimed(network, pictures(6, (3, 8, 8), 0, 1), Linf(0.012))
    expected = run(network, APGD(shot.threat, steps=4), shot)
    with torch.no_grad():
        assert torch.equal(run(network, APGD(shot.threat, steps=4), shot).worst, expected.worst)


class Recorded(nn.Module):
    """Counts passes with and without a gradient."""

    def __init__(self, model):
        super().__init__()
        self.model, self.graded, self.plain = model, 0, 0
        self.training = False

    def forward(self, images):
        self.graded += images.requires_grad
        self.plain += not images.requires_grad
        return self.model(images)


def test_a_transfer_takes_gradients_from_its_source_and_verdicts_from_the_model():
    """The planes of the source are others: what it climbs is not what counts."""
    model, images = Recorded(Planes(classes=2)), pictures(20)
    source = Recorded(Planes(classes=2, seed=5))
    shot = aimed(model.model, images, Linf(0.03))
    attack = APGD(shot.threat, steps=10)
    direct = run(model.model, attack, shot)
    outcome = run(model, attack, shot, source=lambda attacked: source)
    assert model.graded == 0 and model.plain > 0 and source.graded > 0 and source.plain == 1  # to pick targets
    assert torch.equal(outcome.fooled, model.model(outcome.worst).argmax(1) != shot.labels)
    # Directions of other planes are nearly orthogonal: fewer fall, some do.
    assert 0 < outcome.fooled.sum() < direct.fooled.sum()


def test_a_transfer_from_the_model_itself_is_the_attack_itself():
    model, images = Planes(), pictures(20)
    shot = aimed(model, images, Linf(0.01))
    attack = APGD(shot.threat, steps=10)
    same = run(model, attack, shot, source=lambda attacked: attacked)
    assert torch.equal(same.worst, run(model, attack, shot).worst)


def test_a_view_is_made_once():
    model, made = Planes(), []

    def view(attacked):
        made.append(attacked)
        return Planes(seed=3)

    engine, shot = Engine(model, CPU, 8), aimed(model, pictures(4), Linf(0.01))
    for _ in range(2):
        run_attack(engine, "test", APGD(shot.threat, steps=2), shot, source=view)
    assert made == [model]


# --- arithmetic -----------------------------------------------------------------------------------------


@contextmanager
def half():
    with torch.autocast("cpu", torch.float16), Float16Convolutions():
        yield


# With the error that each may have.
IMPLEMENTATIONS = {"torch": (nullcontext, 1e-4), **({"half": (half, 0.02)} if arithmetic.HAS_FLOAT16 else {})}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("width", [1, 2])
def test_every_arithmetic_gives_the_logits_and_gradients_of_double_precision(name, width):
    arithmetic, error = IMPLEMENTATIONS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # A ReLU at a kink has another gradient in another precision.
        model = build("wide_resnet", depth=10, width=width, activation="silu").eval().requires_grad_(False)
    images = pictures(5, (3, 32, 32), 0, 1)

    def both(model, images):
        images = images.clone().requires_grad_()
        logits = model(images)
        return logits.detach(), torch.autograd.grad(logits[:, 0].sum(), images)[0]

    with arithmetic():
        logits, gradient = both(model, images)
    for found, exact in zip((logits, gradient), both(model.double(), images.double()), strict=True):
        assert torch.allclose(found, exact.float(), atol=error * exact.abs().max().item())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
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
def test_any_convolution(name, layer):
    arithmetic, error = IMPLEMENTATIONS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer.reset_parameters()
    layer.requires_grad_(False)
    images = torch.randn(2, layer.in_channels, 9, 7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = layer(images)
    inputs = images.clone().requires_grad_()
    with arithmetic():
        found = layer(inputs)
    assert torch.allclose(found.float(), expected, atol=error)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((found * weight).sum(), inputs)
    again = images.clone().requires_grad_()
    (exact,) = torch.autograd.grad((layer(again) * weight).sum(), again)
    assert torch.allclose(gradient, exact, atol=error)


@pytest.mark.skipif(not arithmetic.HAS_FLOAT16, reason="no float16 here")
def test_half_precision_says_the_same_of_an_image_in_any_batch():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("wide_resnet", depth=10, width=2, activation="silu").eval().requires_grad_(False)
    fast, images = FastModel(model, CPU), pictures(17, (3, 32, 32), 0, 1)

    def both(images):
        images = images.clone().requires_grad_()
        logits = fast(images)
        return logits.detach(), torch.autograd.grad(logits[:, 0].sum(), images)[0]

    logits, gradient = both(images)
    for count in (1, 2, 7):
        alone = both(images[:count])
        assert torch.allclose(alone[0], logits[:count], atol=1e-5) and torch.equal(alone[1], gradient[:count])


@pytest.mark.skipif(not arithmetic.HAS_FLOAT16, reason="no float16 here")
def test_products_stay_in_float32():
    """Torch makes them one number at a time in float16; the answer is that of float32 to the last bit."""
    layer, images = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = layer(images, images, images)[0] @ images.mT
        with half():
            found = layer(images, images, images)[0] @ images.half().mT
    assert found.dtype == torch.float32 and torch.allclose(found, expected, atol=1e-2)


class Loud(nn.Module):
    """Logits that no half precision can hold on their way."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).requires_grad_(False)
        self.training = False

    def forward(self, images):
        return self.layers[1:](1e6 * self.layers[0](images)) / 1e6


@pytest.mark.skipif(not arithmetic.HAS_FLOAT16, reason="no float16 here")
def test_a_model_that_fast_arithmetic_cannot_hold_is_attacked_full_precision_stage():
    model = Loud()
    shot = aimed(model, pictures(6, (3, 8, 8)), Linf(0.02))
    engine = Engine(model, CPU, 8)
    with pytest.warns(UserWarning, match="float16 logits differ by more than 1/64 of their spread; using float32"):
        found = run_attack(engine, "test", APGD(shot.threat, steps=5), shot)
    expected = run_attack(Engine(model, CPU, 8, precise=True), "test", APGD(shot.threat, steps=5), shot)
    assert torch.equal(found.worst, expected.worst) and found.fooled.any()


class Sharp(Loud):
    """Small differences of numbers that float16 has few digits for."""

    def forward(self, images):
        return self.layers(images + 256) - self.layers(torch.full_like(images, 256))


@pytest.mark.skipif(not arithmetic.HAS_FLOAT16, reason="no float16 here")
@pytest.mark.filterwarnings("error")
def test_what_one_arithmetic_cannot_tell_apart_the_next_one_may(monkeypatch):
    model = Sharp()
    shot = aimed(model, pictures(6, (3, 8, 8)), Linf(0.02))
    assert not FLOAT16.is_accurate(model, shot.images, shot.logits) and DEFAULT_FLOAT32.is_accurate(
        model, shot.images, shot.logits
    )
    monkeypatch.setattr(engine_file, "fast_arithmetics", lambda device: (FLOAT16, DEFAULT_FLOAT32, FULL_PRECISION))
    engine = Engine(model, CPU, 8)
    found = run_attack(engine, "test", APGD(shot.threat, steps=5), shot)
    expected = run_attack(Engine(model, CPU, 8, precise=True), "test", APGD(shot.threat, steps=5), shot)
    assert (
        engine.arithmetic(shot) == DEFAULT_FLOAT32 and torch.equal(found.worst, expected.worst) and found.fooled.any()
    )


@pytest.mark.parametrize(
    ("computed_in", "expected"), [(FULL_PRECISION, "ieee"), (TF32, "tf32"), (DEFAULT_FLOAT32, "tf32")]
)
def test_what_becomes_of_float32_holds_for_the_gradient_too(computed_in, expected):
    convolutions, seen = torch.backends.cudnn.conv, []
    before = convolutions.fp32_precision

    class Watched(Planes):
        def forward(self, images):
            seen.append(convolutions.fp32_precision)
            images.register_hook(lambda gradient: seen.append(convolutions.fp32_precision))
            return super().forward(images)

    model = Watched()
    victim = Victim(FastModel(model, CPU, computed_in), arithmetic=computed_in)
    labels = torch.zeros(4, dtype=torch.long)
    convolutions.fp32_precision = "ieee" if computed_in == TF32 else "tf32"
    try:
        victim.answer(cross_entropy, pictures(4), {"label": labels, "target": labels})
    finally:
        convolutions.fp32_precision = before
    assert seen == [expected] * 2


class Steep(Loud):
    """Logits that half precision can hold, and gradients that it cannot."""

    def forward(self, images):
        found = self.layers[0](images)
        if found.requires_grad:
            found.register_hook(lambda gradient: 1e6 * gradient)
        return self.layers[1:](found)


@pytest.mark.skipif(not arithmetic.HAS_FLOAT16, reason="no float16 here")
def test_a_gradient_that_fast_arithmetic_cannot_hold_is_followed_full_precision_stage():
    model = Steep()
    shot = aimed(model, pictures(6, (3, 8, 8)), Linf(0.02))
    attack = APGD(shot.threat, steps=5)
    with pytest.warns(UserWarning, match="the gradient overflows in float16; test uses float32"):
        found = run_attack(Engine(model, CPU, 8), "test", attack, shot)
    expected = run_attack(Engine(model, CPU, 8, precise=True), "test", attack, shot)
    assert torch.equal(found.worst, expected.worst) and found.fooled.any()


def test_a_small_gradient_comes_through_float16():
    """Of one image it is far below what float16 can hold, of another in the middle, of the third there is none."""
    images, size = pictures(3, (3, 8, 8), 0, 1).requires_grad_(), torch.tensor([1e-12, 3.0, 0.0])

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


@pytest.mark.skipif(not arithmetic.HAS_FLOAT16, reason="no float16 here")
def test_a_sure_model_has_the_gradient_of_full_precision():
    """Cross-entropy of logits that leave the right class no doubt."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("wide_resnet", depth=10, width=1, activation="silu").eval().requires_grad_(False)
        nn.init.normal_(model.head.weight)
    images = pictures(6, (3, 32, 32), 0, 1)
    logits = model(images)
    model.head.weight *= 25 / (logits.topk(2).values @ torch.tensor([1.0, -1.0])).max()
    labels, found = model(images).argmax(1), []
    for computed_in in (arithmetic.fast_arithmetics(CPU)[0], FULL_PRECISION):
        inputs = images.clone().requires_grad_()
        loss, _ = cross_entropy(FastModel(model, CPU, computed_in), inputs, labels)
        found.append(torch.autograd.grad(loss.sum(), inputs)[0])
    assert (found[1].abs().amax((1, 2, 3)) < 1e-7).any()
    assert (found[0].sign() == found[1].sign()).float().mean((1, 2, 3)).min() > 0.9


def test_a_fast_model_gives_the_models_logits_in_float32(network):
    images = pictures(5, (3, 8, 8), 0, 1)
    logits = FastModel(network, CPU)(images)
    assert logits.dtype == torch.float32 and torch.allclose(logits, network(images), atol=1e-4)
