"""Jobs give the result of trying attempts one after the other, in whatever order and batches they run."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from toys import ATTACKS, CPU, Planes, make_images, make_input, run

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.attack_input import AttackInput
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.engine import engine as engine_module
from adaptive_smoothing.attacks.engine.arithmetic import FULL_PRECISION, Arithmetic, fast_arithmetics
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import Jobs, run_attack
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import targeted_dlr, targeted_margin
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack, keep_worst
from adaptive_smoothing.threat import L2, Linf

# --- scripted jobs --------------------------------------------------------------------------------------

CODES = 4096


@dataclass(frozen=True)
class Scripted(StepAttack):
    """Queries an image that encodes the attempt and the step; a table holds its margin."""

    threat: Linf
    attempts: int
    length: int
    interval: int
    widest_margin: bool = False
    seed: int = 0

    evaluations = property(lambda self: self.length)
    check_every = property(lambda self: self.interval)

    def targets(self, logits, labels):
        return torch.arange(self.attempts).repeat(len(labels), 1)

    def query(self, state):
        images = state["clean"].clone()
        images[:, 0, 0, 0] = (state["target"] * 100 + state["step"]) / CODES
        return images

    def update(self, state, images, answer):
        return keep_worst(state, images, answer.logits)


class Table(nn.Module):
    """Returns the margin [image, attempt, step] that an image encodes."""

    def __init__(self, margins):
        super().__init__()
        self.margins = margins
        self.training = False

    def forward(self, images):
        code, image = (CODES * images[:, 0, 0, :2]).round().long().unbind(1)
        margin = self.margins[image, code // 100, code % 100]
        return torch.stack([torch.zeros_like(margin), margin], 1)


def coded_input(count):
    images = torch.zeros(count, 1, 2, 2)
    images[:, 0, 0, 1] = torch.arange(count) / CODES
    return AttackInput(images, torch.zeros(count).long(), torch.arange(count), torch.zeros(count, 2), Linf(1.0))


def scripted(margins, length, interval, batch_size, *, widest_margin=False, **options):
    count, attempts, _ = margins.shape
    attack = Scripted(Linf(1.0), attempts, length, interval, widest_margin)
    return run(Table(margins), attack, coded_input(count), batch_size, **options)


def two_tables(fast, full):
    """Run an attack that sees one table, while successes are confirmed with another."""
    count, attempts, _ = full.shape
    engine = Engine(Table(full), CPU, 8)
    engine._arithmetic = fast_arithmetics(CPU)[0]
    engine._fast[id(engine.model), engine._arithmetic] = Table(fast)
    return run_attack(engine, "test", Scripted(Linf(1.0), attempts, 12, 4), coded_input(count))


def one_after_the_other(margins, length, interval):
    """Return fooled, queries and margin of every image, from attempts in order, each checked every few steps."""
    rows = []
    for image in margins:
        best, attempts = -np.inf, len(image)
        for attempt, attempt_margins in enumerate(image):
            own = -np.inf
            for check in range(interval, length + interval, interval):
                own = attempt_margins[: min(check, length)].max().item()
                if own > 0:
                    break
            best = own if own > 0 else max(best, own)
            if own > 0:
                rows.append((True, attempt * length + min(check, length), own))
                break
        else:
            rows.append((False, attempts * length, best))
    fooled, queries, margin = zip(*rows, strict=True)
    return list(fooled), list(queries), list(margin)


def summary(outcome):
    return outcome.fooled.tolist(), outcome.queries.tolist(), pytest.approx(outcome.margin.tolist())


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
@pytest.mark.parametrize(("length", "interval"), [(12, 4), (13, 5), (1, 1)])
def test_the_outcome_is_that_of_one_job_after_the_other(batch_size, length, interval):
    """Attempts succeed at random times, later ones also before earlier ones; some never do."""
    chance = torch.rand(12, 4, 40, generator=torch.Generator().manual_seed(length))
    margins = torch.where(chance > 0.97, chance - 0.9, chance - 1.1)
    expected = one_after_the_other(margins, length, interval)
    assert summary(scripted(margins, length, interval, batch_size)) == expected
    assert 3 < sum(expected[0]) < 12 or length == 1


@pytest.mark.parametrize("batch_size", [3, 64])
def test_an_earlier_attempt_counts_before_a_later_one_that_succeeds_first(batch_size):
    margins = torch.full((1, 3, 40), -1.0)
    margins[0, 2, 0] = 0.7  # at once, but the third attempt
    margins[0, 1, 8] = 0.2
    assert summary(scripted(margins, 12, 4, batch_size)) == ([True], [12 + 12], [pytest.approx(0.2)])
    margins[0, 1, 8] = -1.0
    assert summary(scripted(margins, 12, 4, batch_size)) == ([True], [24 + 4], [pytest.approx(0.7)])


def test_steps_after_the_end_of_a_job_do_not_count():
    """13 steps that are checked every 5: the last check comes after 15."""
    margins = torch.full((1, 1, 40), -1.0)
    margins[0, 0, 13:] = 0.5
    assert summary(scripted(margins, 13, 5, 4)) == ([False], [13], [-1.0])
    margins[0, 0, 12] = 0.25
    assert summary(scripted(margins, 13, 5, 4)) == ([True], [13], [0.25])


@pytest.mark.parametrize("batch_size", [1, 64])
def test_jobs_for_the_widest_margin_run_to_their_end(batch_size):
    """The second of four succeeds, and later with a wider margin; the third with a wider one, the fourth not."""
    margins = torch.full((2, 4, 40), -1.0)
    margins[0, 1, 1], margins[0, 1, 10], margins[0, 2, 0], margins[0, 3, 3] = 0.1, 0.4, 0.9, 0.2
    margins[1, 2, 5] = -0.3
    assert summary(scripted(margins, 12, 4, batch_size)) == ([True, False], [12 + 4, 48], [0.1, -0.3])
    expected = ([True, False], [48, 48], [0.9, -0.3])
    assert summary(scripted(margins, 12, 4, batch_size, widest_margin=True)) == expected


def test_the_widest_margin_of_all_failed_jobs_is_kept():
    margins = -1 - torch.rand(6, 4, 40, generator=torch.Generator().manual_seed(0))
    outcome = scripted(margins, 10, 5, 5)
    assert torch.allclose(outcome.margin, margins[:, :, :10].amax((1, 2)))
    codes = (CODES * outcome.worst[:, 0, 0, 0]).round().long()
    best = margins[:, :, :10].flatten(1).argmax(1)
    assert torch.equal(codes, best // 10 * 100 + best % 10)


def test_later_attempts_on_fooled_images_are_not_begun():
    """Ten images are fooled by their first attempt at its first check; the other 90 jobs query nothing."""
    seen, model = [], Table(torch.full((10, 10, 40), 0.5))
    model.register_forward_hook(lambda module, images, output: seen.extend((CODES * images[0][:, 0, 0, 0]).tolist()))
    run(model, Scripted(Linf(1.0), 10, 20, 4), coded_input(10), 10)
    assert max(seen) < 100


def test_progress_rises_to_the_end():
    chance = torch.rand(20, 5, 40, generator=torch.Generator().manual_seed(0))
    margins, reported = torch.where(chance > 0.98, chance - 0.9, chance - 1.1), []
    outcome = scripted(margins, 12, 4, 7, progress=lambda *arguments: reported.append(arguments))
    shares, fooled = zip(*reported, strict=True)
    assert list(shares) == sorted(shares) and list(fooled) == sorted(fooled)
    assert 0 < shares[0] < shares[-1] == pytest.approx(1) and fooled[-1] == outcome.fooled.sum()


# --- confirmation in full precision ---------------------------------------------------------------------


def test_after_a_refusal_a_wider_margin_is_confirmed():
    fast, full = torch.full((2, 1, 40), -1.0), torch.full((2, 1, 40), -1.0)
    fast[:, 0, 1], fast[:, 0, 6] = 0.2, 0.3
    full[1, 0, 6] = 0.25
    assert summary(two_tables(fast, full)) == ([False, True], [12, 8], [-1.0, 0.25])


def test_a_refused_attempt_does_not_block_the_next():
    fast, full = torch.full((1, 2, 40), -1.0), torch.full((1, 2, 40), -1.0)
    fast[0, 0, 1], fast[0, 1, 1] = 0.9, 0.2
    full[0, 1, 1] = 0.1
    assert summary(two_tables(fast, full)) == ([True], [12 + 4], [pytest.approx(0.1)])


def test_images_that_survive_by_a_rounding_error_are_confirmed_at_the_end(monkeypatch):
    """Fast arithmetic gives both images -0.001; one is fooled, and the other has another margin."""
    monkeypatch.setattr(Arithmetic, "rounding", lambda self, logits: torch.full(logits.shape[:1], 0.01))
    fast, full = torch.full((3, 2, 40), -1.0), torch.full((3, 2, 40), -1.0)
    fast[:2, 1, 4] = -0.001
    full[0, 1, 4], full[1, 1, 4] = 0.002, -0.005
    assert summary(two_tables(fast, full)) == ([True, False, False], [24, 24, 24], [0.002, -0.005, -1.0])


@pytest.mark.parametrize("overflow", [torch.nan, torch.inf])
def test_an_overflow_of_fast_arithmetic_does_not_end_a_job(overflow):
    """An infinite margin would otherwise hide everything that the job finds later."""
    fast, full = torch.full((1, 1, 40), -1.0), torch.full((1, 1, 40), -1.0)
    fast[0, 0, 1], fast[0, 0, 9] = overflow, 0.3
    full[0, 0, 9] = 0.25
    assert summary(two_tables(fast, full)) == ([True], [12], [0.25])


class FlippedWithGradients(nn.Module):
    """Returns other logits while gradients are computed than without them."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        logits = self.model(images)
        return logits.flip(1) if torch.is_grad_enabled() else logits


@pytest.mark.parametrize("build", [partial(APGD, steps=10), partial(FAB, steps=10), DiversifiedPGD])
def test_a_success_that_full_precision_refuses_does_not_count(build):
    model = Planes(classes=2)
    inputs = make_input(model, make_images(12), Linf(0.0001))
    outcome = run(FlippedWithGradients(model), build(inputs.threat), inputs)
    assert not outcome.fooled.any()
    assert (outcome.queries == build(inputs.threat).evaluations).all()


def test_a_point_outside_the_ball_does_not_count():
    @dataclass(frozen=True)
    class Inverts(StepAttack):
        threat: Linf
        seed: int = 0
        evaluations = 3

        def query(self, state):
            return 1 - state["clean"]

        def update(self, state, images, answer):
            return keep_worst(state, images, answer.logits)

    model, images = Planes(classes=2), make_images(8, low=0.1, high=0.9)
    inputs = make_input(model, images, Linf(1e-4))
    assert (model(1 - images).argmax(1) != inputs.labels).all()
    assert not run(model, Inverts(inputs.threat), inputs).fooled.any()


class WithNaN(nn.Module):
    """NaN in the logits, or only in the gradient, of all images but the given ones.

    `ignored`: the gradient is NaN, and NaN images get an ordinary answer, class 0.
    """

    def __init__(self, model, images, where):
        super().__init__()
        self.model, self.images, self.where = model, images, where
        self.training = False

    def forward(self, images):
        logits = self.model(images)
        if self.where == "ignored":
            logits = torch.where(images.flatten(1).isnan().any(1)[:, None], 99 * torch.eye(5)[0], logits)
        if self.where != "logits":
            images = images.nan_to_num(nan=0.5)
            return logits + (images.flatten(1).sum(1, keepdim=True) * 0).abs().sqrt()
        off = (images.flatten(1)[:, None] - self.images.flatten(1)[None]).abs().amax(2).amin(1) > 1e-6
        return logits + torch.where(off, torch.nan, 0.0)[:, None]


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.2)])
@pytest.mark.parametrize("where", ["logits", "gradient", "ignored"])
@pytest.mark.parametrize("name", ATTACKS)
def test_nan_never_counts_as_robust(name, where, threat):
    model, images = Planes(), make_images(24)
    images = images[model(images).argmax(1) == 0]
    inputs, attack = make_input(model, images, threat), ATTACKS[name](threat)
    with_nan = WithNaN(model, images, where).eval()
    if name == "square" and where != "logits":  # Square uses no gradient
        assert run(with_nan, replace(attack, queries=60), inputs).fooled.any()
        return
    with pytest.raises(ValueError, match="NaN"):
        run(with_nan, attack, inputs)


# --- batches --------------------------------------------------------------------------------------------


class InPlace(engine_module.JobBatch):
    """Steps like a recorded graph: every tensor keeps its memory."""

    def advance(self, steps):
        for _ in range(steps):
            self.step_in_place()


@pytest.mark.parametrize("threat", [Linf(0.012), L2(0.12)])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_outcome_depends_on_neither_batches_nor_recording(network, name, threat, monkeypatch):
    """Each image has the same outcome in any batch. An update may return tensors of the state under other names."""
    inputs, attack = make_input(network, make_images(12, (3, 8, 8), 0, 1), threat), ATTACKS[name](threat)
    expected = run(network, attack, inputs, 64)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    for batch_size, which in ((1, order[:1]), (5, order)):
        outcome = run(network, attack, inputs.take(which), batch_size)
        assert torch.equal(outcome.fooled, expected.fooled[which])
        assert torch.equal(outcome.queries, expected.queries[which])
        assert torch.allclose(outcome.margin, expected.margin[which], atol=1e-4)
    monkeypatch.setattr(engine_module, "JobBatch", InPlace)
    recorded = run(network, attack, inputs.take(order), 5)
    assert torch.equal(recorded.worst, outcome.worst) and torch.equal(recorded.margin, outcome.margin)
    assert 1 < expected.fooled.sum() < 12


@pytest.mark.parametrize("threat", [Linf(0.012), L2(0.12)])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_outcome_does_not_depend_on_the_default_dtype(network, name, threat, request):
    inputs, attack = make_input(network, make_images(6, (3, 8, 8), 0, 1), threat), ATTACKS[name](threat)
    expected = run(network, attack, inputs, 4)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    outcome = run(network, attack, inputs, 4)
    assert outcome.worst.dtype == outcome.margin.dtype == torch.float32
    assert torch.equal(outcome.fooled, expected.fooled) and torch.allclose(outcome.worst, expected.worst, atol=1e-5)


def test_random_numbers_depend_on_the_stage_and_the_image(network):
    """They do not depend on the position in the batch."""
    images = make_images(1, (3, 8, 8), 0, 1).repeat(3, 1, 1, 1)
    inputs = replace(make_input(network, images, Linf(0.004)), index=torch.tensor([5, 5, 6]))
    engine, attack = Engine(network, CPU, 8), Square(Linf(0.004), queries=4)
    worst = run_attack(engine, "one", attack, inputs).worst
    assert torch.equal(worst[0], worst[1]) and not torch.equal(worst[0], worst[2])
    assert not torch.equal(run_attack(engine, "two", attack, inputs).worst[0], worst[0])


class UpsideDown(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, images):
        return self.model(images.flip(2))


class Kept(engine_module.JobBatch):
    """Kept for the next batch of its size, like recorded batches on a GPU."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cuda = True


@pytest.mark.parametrize("kind", [engine_module.JobBatch, Kept])
def test_one_engine_gives_the_same_results_as_a_new_one_for_each_attack(network, kind, monkeypatch):
    """Attacks with the same key, one after the other, and again."""
    monkeypatch.setattr(engine_module, "JobBatch", kind)
    inputs = make_input(network, make_images(6, (3, 8, 8), 0, 1), Linf(0.012))
    engine = Engine(network, CPU, 8)
    attacks = [APGD(Linf(0.012), steps=4), APGD(Linf(0.012), steps=6, objective=targeted_dlr, target_classes=2)]
    for source in (None, UpsideDown):
        for attack in attacks:
            expected = run_attack(Engine(network, CPU, 8), "same key", attack, inputs, source=source)
            for _ in range(2):
                found = run_attack(engine, "same key", attack, inputs, source=source)
                assert torch.equal(found.worst, expected.worst) and torch.equal(found.queries, expected.queries)
    assert bool(engine._recorded) == (kind is Kept)


@pytest.mark.parametrize(("kind", "expected"), [(engine_module.JobBatch, list(range(8, 0, -1))), (Kept, [8, 4, 2, 1])])
def test_on_a_gpu_a_batch_shrinks_only_to_half(kind, expected, monkeypatch):
    """Job k succeeds at step k + 1, so that one row after the other becomes idle. A new size must be recorded."""
    made = []

    class Counted(kind):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(len(self.state["label"]))

    monkeypatch.setattr(engine_module, "JobBatch", Counted)
    margins = torch.where(torch.arange(8)[:, None] <= torch.arange(40), 1.0, -1.0)[:, None]
    assert summary(scripted(margins, 8, 1, 8)) == ([True] * 8, list(range(1, 9)), [1.0] * 8)
    assert made == expected


def test_targets_are_those_of_the_attacked_view():
    model, view = Planes(seed=0), Planes(seed=1)
    inputs = make_input(model, make_images(20), Linf(0.01))
    attack, engine = APGD(inputs.threat, objective=targeted_margin, target_classes=1), Engine(model, CPU, 32)
    for source, logits in ((None, inputs.logits), (view, view(inputs.images))):
        likeliest = logits.scatter(1, inputs.labels[:, None], -torch.inf).argmax(1)
        assert torch.equal(Jobs(engine, "apgd", attack, inputs, source, FULL_PRECISION).targets[:, 0], likeliest)
    assert (model(inputs.images).argmax(1) != view(inputs.images).argmax(1)).any()


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_do_not_change_their_input(network, name):
    inputs = make_input(network, make_images(4, (3, 8, 8), 0, 1), Linf(0.1))
    before = inputs.images.clone()
    run(network, ATTACKS[name](inputs.threat), inputs)
    assert torch.equal(inputs.images, before)


def test_a_model_that_detaches_its_images_is_attacked_without_a_gradient(network):
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.training = False

        def forward(self, images):
            return network(images.detach())

    inputs = make_input(network, make_images(8, (3, 8, 8), 0, 1), Linf(0.03))
    for name in ATTACKS:
        outcome = run(Detached(), ATTACKS[name](inputs.threat), inputs)
        assert outcome.margin.isfinite().all()
    assert outcome.fooled.any()  # by Square, which uses no gradient
