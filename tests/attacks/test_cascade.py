"""Stages one after the other, and which of them a model deserves."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from toys import CPU, Planes, aimed, pictures

from adaptive_smoothing.attacks.adaptive import PRESETS, AdaptiveAttack, AdaptiveAutoAttack, preset
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.autoattack import AutoAttack, FastAttack, in_full_precision
from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, Stage, run_stage
from adaptive_smoothing.attacks.engine.arithmetic import FULL, Arithmetic, FastModel, fast
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.objectives import cross_entropy, targeted_margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.step_attack import StepAttack, keep_worst
from adaptive_smoothing.attacks.views import AtAlpha, Base, GrayBox, Smooth
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.mixer import Mixer, MixerOutput
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.threat import L2, Linf

LINF = Linf(8 / 255)


class Brightness(nn.Module):
    """Alpha grows with the mean of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    def forward(self, images):
        return (images.mean((1, 2, 3)) * 20 - 9.5).clamp(0.01, 0.99)


def mixed(alpha=0.5, standard=None, robust=None):
    return MixedClassifier(standard or Planes(seed=0), robust or Planes(seed=1), alpha)


# --- one stage after the other --------------------------------------------------------------------------


@dataclass(frozen=True)
class Reaches(StepAttack):
    """Fools the images whose first pixel is below a bound, by one question about their last pixel."""

    threat: Linf
    bound: float
    seen: list
    length: int = 5
    seed: int = 0

    evaluations = property(lambda self: self.length)

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


def stairs(*bounds):
    """Images 0.0, 0.1, ..., 0.9, and stages that fool those below a bound."""
    images = (torch.arange(10) / 10).view(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    images[:, 0, -1, -1] = 0.0
    shot = aimed(LastPixel().eval(), images, Linf(1.0))
    stages = [Stage(f"below {bound}", Reaches(shot.threat, bound, [])) for bound in bounds]
    standing, engine = CascadeState.before(shot), Engine(LastPixel().eval(), CPU, 16)
    for number, stage in enumerate(stages):
        run_stage(engine, number, stage, shot, standing)
    return standing, [sorted({pixel for row in stage.attack.seen for pixel in row}) for stage in stages]


def test_stages_see_only_what_is_left():
    standing, seen = stairs(0.25, 0.15, 0.75)
    assert seen[0] == [round(k / 10, 1) for k in range(10)]
    assert seen[1] == seen[2] == [round(k / 10, 1) for k in range(3, 10)]
    assert standing.fooled_by.tolist() == [0, 0, 0, 2, 2, 2, 2, 2, -1, -1]
    assert standing.left().tolist() == [8, 9]


def test_queries_add_up_and_the_worst_margin_stays():
    """Each stage asks five questions; a stage of a lower bound comes less close to what it cannot fool."""
    standing, _ = stairs(0.25, 0.15, 0.75, 0.35)
    assert standing.queries.tolist() == [5] * 3 + [15] * 5 + [20] * 2
    expected = [0.3] * 8 + [0.75 / 2 - 0.5] * 2
    assert standing.margin.tolist() == pytest.approx(expected)
    assert standing.worst[:, 0, -1, -1].tolist() == pytest.approx([0.8] * 8 + [0.375] * 2)


def test_a_stage_after_the_last_image_is_not_run():
    standing, seen = stairs(0.95, 0.5)
    assert (standing.fooled_by == 0).all() and seen[1] == []


def test_a_stage_never_raises_robust_accuracy():
    model, images = Planes(), pictures(30)
    shot = aimed(model, images, Linf(0.008))
    stages = [
        Stage("square", Square(shot.threat, queries=10)),
        Stage("apgd", APGD(shot.threat, steps=3)),
        Stage("pgd", PGD(shot.threat, steps=5)),
        Stage("helps", lambda model, images, labels: images),
    ]
    standing, engine, left = CascadeState.before(shot), Engine(model, CPU, 16), [30]
    for number, stage in enumerate(stages):
        before = standing.fooled_by.clone()
        run_stage(engine, number, stage, shot, standing)
        assert torch.equal(standing.fooled_by[before >= 0], before[before >= 0])
        left.append(len(standing.left()))
    assert left[1:] == sorted(left[1:], reverse=True) and left[0] > left[1] > left[2] and left[3] == left[4]


def test_a_plain_attack_is_judged_like_any_other():
    model, images = Planes(classes=2), pictures(20)
    shot = aimed(model, images, Linf(0.01))
    standing = CascadeState.before(shot)
    run_stage(Engine(model, CPU, 8), 0, Stage("plain", PGD(Linf(0.01), steps=10)), shot, standing)
    assert torch.equal(standing.fooled_by >= 0, model.distance(images, shot.labels, shot.threat) < 0.01)


def test_a_plain_attack_that_leaves_the_ball_fools_nobody_and_is_told_on():
    """Such as one with another radius than that of the evaluation."""
    model = Planes(classes=2)
    shot = aimed(model, pictures(20), Linf(0.01))
    standing = CascadeState.before(shot)
    stage = Stage("plain", lambda model, images, labels: images + 0.0105)
    with pytest.warns(UserWarning, match="left the Linf ball on 20 of 20 images, and went as far as 0.0105"):
        run_stage(Engine(model, CPU, 8), 0, stage, shot, standing)
    assert (standing.fooled_by < 0).all()


def test_an_attack_to_the_end_goes_on_with_what_has_fallen():
    """The widest margin of two stages, whichever had it; who came first is whom the image fell to."""
    model = mixed()
    shot = aimed(model, pictures(30), Linf(0.02))
    stages = [
        Stage(name, APGD(shot.threat, steps=8, climb=climb, target_classes=count, to_the_end=True))
        for name, climb, count in (("ce", cross_entropy, 0), ("t", targeted_margin, 3))
    ]
    both, alone = CascadeState.before(shot), [CascadeState.before(shot) for _ in stages]
    for number, stage in enumerate(stages):
        for standing in (both, alone[number]):
            run_stage(Engine(model, CPU, 16), number, stage, shot, standing)
    margins = torch.stack([standing.margin for standing in alone])
    torch.testing.assert_close(both.margin, margins.amax(0))
    assert (margins[1] > margins[0]).any() and (margins[0] > 0).any()
    assert torch.equal(both.fooled_by == 0, alone[0].fooled_by == 0)


def test_progress_of_an_attack_to_the_end_counts_what_is_new():
    model, told = mixed(), []
    shot = aimed(model, pictures(30), Linf(0.008))
    standing = CascadeState.before(shot)
    for number in range(2):
        left = len(standing.left())
        told.clear()
        stage = Stage("apgd", APGD(shot.threat, steps=8 * (number + 1), to_the_end=True))
        run_stage(Engine(model, CPU, 16), number, stage, shot, standing, lambda share, fallen: told.append(fallen))
        assert min(told) >= 0 and max(told) <= left - len(standing.left()) and 3 < len(standing.left()) < 27


def test_a_plain_attack_gets_smaller_batches_where_memory_is_short_and_weights_that_are_frozen():
    model, sizes, flags = Planes(classes=2), [], []

    def attack(model, images, labels):
        sizes.append(len(images))
        flags.append(model.weight.requires_grad)
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return PGD(Linf(0.01), steps=10)(model, images, labels)

    shot = aimed(model, pictures(10), Linf(0.01))
    standing = CascadeState.before(shot)
    run_stage(Engine(model, CPU, 16), 0, Stage("plain", attack), shot, standing)
    assert sizes == [10, 8, 4, 4, 2] and not any(flags) and model.weight.requires_grad
    assert torch.equal(standing.fooled_by == 0, model.distance(shot.images, shot.labels, shot.threat) < 0.01)


def test_pgd_has_a_radius_for_each_image():
    model, images = Planes(classes=2), pictures(20)
    labels = model(images).argmax(1)
    radii = model.distance(images, labels, Linf(0.0)) * torch.where(torch.arange(20) % 2 == 0, 1.1, 0.9)
    shot = aimed(model, images, Linf(radii))
    standing = CascadeState.before(shot)
    # The first two fall to another stage, so that positions in the batch and in the data differ.
    standing.fooled_by[:2] = 0
    run_stage(Engine(model, CPU, 8), 1, Stage("pgd", PGD(shot.threat, steps=20)), shot, standing)
    assert torch.equal(standing.fooled_by[2:] == 1, (torch.arange(20) % 2 == 0)[2:])
    # 20 steps, and a look at the last iterate.
    assert standing.queries.tolist() == [0, 0] + [21] * 18


# --- full precision -------------------------------------------------------------------------------------


@pytest.fixture
def coarse(monkeypatch):
    """Fast arithmetic that knows logits to the nearest half only."""
    exact = FastModel.__call__

    def rounded(self, images):
        logits = exact(self, images)
        return logits if self.arithmetic == FULL else logits + ((2 * logits).round() / 2 - logits).detach()

    monkeypatch.setattr(FastModel, "__call__", rounded)
    monkeypatch.setattr(Arithmetic, "rounding", lambda self, logits: torch.full(logits.shape[:1], 0.5))
    monkeypatch.setattr(Arithmetic, "strays", lambda *told: False)


def test_what_stands_by_a_rounding_error_is_attacked_in_full_precision(coarse):
    model, images = Planes(classes=2), pictures(20)
    labels = model(images).argmax(1)
    # Just enough to fool the model, by a margin that the nearest half cannot show.
    shot = aimed(model, images, Linf(model.distance(images, labels, LINF) + 0.001))
    engine, standing = Engine(model, CPU, 16), CascadeState.before(shot)
    run_stage(engine, 0, Stage("apgd", APGD(shot.threat, steps=20)), shot, standing)
    assert len(standing.left()) > 5
    again = replace(in_full_precision(shot.threat, 0), attack=APGD(shot.threat, steps=20))
    run_stage(engine, 1, again, shot, standing)
    assert not len(standing.left()) and (standing.margin > 0).all()


def test_full_precision_goes_on_from_the_worst_version_towards_the_class_it_is_close_to():
    """Be it one that was unlikely at first. A small step is enough from there, and from nowhere else."""
    model, images = Planes(classes=10), pictures(300)
    order = model(images).argsort(1, descending=True)
    labels, unlikely = order[:, 0], order[:, 7]
    normal = model.weight[unlikely] - model.weight[labels]
    lead = model(images).gather(1, unlikely[:, None]) - model(images).gather(1, labels[:, None])
    worst = images - (lead * normal / normal.square().sum(1, keepdim=True)).view_as(images).detach()
    close = (model(worst).topk(2).indices.sort().values == torch.stack([labels, unlikely], 1).sort().values).all(1)
    shot = aimed(model, images, Linf((worst - images).abs().amax((1, 2, 3)) + 1e-4)).take(close.nonzero().squeeze(1))
    stage = in_full_precision(shot.threat, 0)
    fell = []
    for first_step in (stage.attack.first_step, 1e-3):
        standing = CascadeState.before(shot)
        standing.worst, standing.margin = worst[close].clone(), torch.full((len(shot),), -1e-7)
        brief = replace(stage.attack, steps=2, first_step=first_step)
        run_stage(Engine(model, CPU, 16), 0, replace(stage, attack=brief), shot, standing)
        fell.append(len(shot) - len(standing.left()))
    assert len(shot) >= 5 and fell == [len(shot)] * 2


def test_what_fell_keeps_the_logits_it_was_judged_by():
    model, images = mixed(), pictures(30)
    shot = aimed(model, images, Linf(0.01))
    for attack in (APGD(shot.threat, steps=8), PGD(shot.threat, steps=8)):
        standing = CascadeState.before(shot)
        run_stage(Engine(model, CPU, 16), 0, Stage("attack", attack), shot, standing)
        fell = standing.fooled_by == 0
        assert 3 < fell.sum() < 30
        torch.testing.assert_close(standing.logits[fell], model(standing.worst[fell]).detach())
        torch.testing.assert_close(standing.margin[fell], logit_margin(standing.logits, shot.labels)[fell])


def test_what_stands_by_more_is_left_alone(coarse):
    model = Planes()
    shot = aimed(model, pictures(6), Linf(0.001))
    standing = CascadeState.before(shot)
    standing.margin[:] = torch.tensor([-1.0, -0.6, -0.4, 0.1, -0.5, -torch.inf])
    was = standing.margin.clone()
    run_stage(Engine(model, CPU, 16), 0, in_full_precision(shot.threat, 0), shot, standing)
    assert (standing.queries > 0).tolist() == [False, False, True, True, False, False]
    # The worst version of an image is never given up for one that is less so.
    assert (standing.margin >= was).all()


def test_fast_arithmetic_is_off_by_less_than_it_is_said_to_be():
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.Flatten(), nn.Linear(2048, 10)
    )
    network.eval().requires_grad_(False)
    images = torch.rand(64, 3, 8, 8)
    exact = network.double()(images.double()).float()
    off = (FastModel(network.float(), CPU)(images) - exact).abs().amax(1)
    assert (off < fast(CPU)[0].rounding(exact)).all()


# --- presets --------------------------------------------------------------------------------------------


def budgets(cascade, classes=10):
    logits, labels = torch.randn(1, classes, generator=torch.Generator().manual_seed(0)), torch.tensor([0])
    return {
        stage.key: (stage.attack.targets(logits, labels).shape[1], stage.attack.evaluations)
        for stage in (*cascade.stages, *cascade.audit)
    }


def test_the_budgets_of_autoattack_are_the_references():
    expected = {"apgd-ce": (1, 101), "apgd-t": (9, 101), "fab-t": (9, 101), "square": (1, 5001)}
    expected["full-precision"] = (1, 101)
    assert budgets(AutoAttack(LINF)) == budgets(preset("standard", LINF)) == budgets(preset("C", LINF)) == expected
    assert budgets(AutoAttack(LINF), classes=5)["apgd-t"] == (4, 101)


def test_the_fast_preset_audits_with_the_other_half_of_autoattack():
    fast, full = FastAttack(LINF), AutoAttack(LINF)
    assert fast.audit == full.stages[2:4]
    for model, rest in ((Planes(), 9 * 23 + 3 * 31), (mixed(), 13 * 23)):
        cascade = replace(fast.for_model(model), audit=())
        spent = budgets(cascade)
        assert spent.pop("full-precision") == (1, 51)  # of a few images
        assert sum(jobs * steps for jobs, steps in spent.values()) == 17 + 2 * 51 + rest


def test_the_fast_preset_turns_g_where_there_is_one():
    after = ["apgd-t", "fab-short", PRECISE]
    assert names(FastAttack(LINF), Planes()) == ["margin-pgd", "diverse-pgd", *after]
    hard = ["margin-pgd", "smooth-hostile-pgd", "diverse-pgd-p", *after]
    assert names(FastAttack(LINF), mixed(0.5, Hardmax(Planes()))) == hard
    at_setting = ["margin-pgd", "turning-pgd", "diverse-pgd-p", "apgd-t", PRECISE]
    assert names(FastAttack(LINF), mixed()) == at_setting
    learned = [*at_setting[:2], "hostile-pgd", "smooth-hostile-pgd", *at_setting[2:]]
    assert names(FastAttack(LINF), mixed(Brightness())) == learned


def test_presets_have_their_names_and_threats():
    for name in PRESETS:
        for threat in (LINF, L2(0.5)):
            cascade = preset(name, threat, seed=3)
            assert cascade.threat == threat and cascade.stages
            assert all(stage.attack.threat == threat for stage in (*cascade.stages, *cascade.audit))
            assert len(set(cascade.stage_keys)) == len(cascade.stage_keys)


def test_the_seed_reaches_every_random_stage():
    for name in ("fast", "standard", "adaptive", "margin", "D"):
        cascade = preset(name, LINF, seed=3)
        assert {stage.attack.seed for stage in (*cascade.stages, *cascade.audit)} == {3}


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"expected a preset among fast, standard, .*, got 'autoattack': see"):
        preset("autoattack", LINF)


def names(cascade, model):
    return [stage.key for stage in cascade.for_model(model).stages]


PRECISE = "full-precision"
STANDARD = ["apgd-ce", "apgd-t", "fab-t", "square"]
TRANSFERS = ["transfer-g", "transfer-h", "transfer-alpha-0.5", "transfer-alpha-0.9"]
LOWERING = [f"apgd-{kind}-alpha-{weight}" for weight in (0.1, 0.5, 0.9) for kind in ("ce", "t")]


def test_the_adaptive_stages_are_those_that_make_sense_for_the_model():
    adaptive = AdaptiveAttack(LINF)
    before, after = ["apgd-ce", "apgd-t", "apgd-margin-t"], ["fab-t", "square"]
    assert names(adaptive, Planes()) == [*before, *after, PRECISE]
    assert names(adaptive, mixed(0.5)) == [*before, "turning-t", *after, *TRANSFERS, PRECISE]
    clipped = ["smooth-apgd-ce-alpha-0.5", "smooth-apgd-t-alpha-0.5"]
    learned = ["turning-t", "hostile-t", *LOWERING, "smooth-hostile-t", *clipped, "gray-ce", "gray-t"]
    assert names(adaptive, mixed(Brightness())) == [*before, *learned, *after, *TRANSFERS, PRECISE]
    smooth = ["smooth-margin-t", "smooth-turning-t", "smooth-hostile-t"]
    assert names(adaptive, mixed(0.5, standard=Hardmax(Planes()))) == [*before, *smooth, *after, *TRANSFERS, PRECISE]
    sharper, plain = Nonlinear(Planes(seed=1), scale=5.0, power=4.0, shift=-0.5), ["plain-turning-t", "plain-h-t"]
    assert names(adaptive, mixed(0.5, robust=sharper)) == [*before, "turning-t", *plain, *after, *TRANSFERS, PRECISE]
    both = ["plain-turning-t", "plain-hostile-t", "plain-h-t", "plain-apgd-ce-alpha-0.5", "plain-apgd-t-alpha-0.5"]
    assert [name for name in names(adaptive, mixed(Brightness(), robust=sharper)) if "plain" in name] == both
    gradient = GradientMixedClassifier(Planes(seed=0), Planes(seed=1), 0.5)
    assert names(adaptive, gradient) == [*before, *after, "transfer-g", "transfer-h", PRECISE]


def test_setting_d_lowers_alpha_where_there_is_one_to_lower():
    cascade = AdaptiveAutoAttack(LINF)
    learned = ["apgd-ce-alpha-0.5", "apgd-t-alpha-0.5", "fab-t", "square", PRECISE]
    assert names(cascade, mixed(Brightness())) == learned
    assert names(cascade, mixed(0.5)) == names(cascade, Planes()) == [*STANDARD, PRECISE]


def test_a_cascade_without_a_stage_for_a_model_is_an_error_and_no_robustness():
    only = replace(AdaptiveAttack(LINF), stages=tuple(s for s in AdaptiveAttack(LINF).stages if "alpha-0.1" in s.name))
    assert len(only.for_model(mixed(Brightness())).stages) == 2
    with pytest.raises(ValueError, match="expected a model that adaptive has an attack for, got a Planes"):
        only.for_model(Planes())


def test_every_adaptive_stage_runs_on_a_mixture_that_has_everything():
    sharper = Nonlinear(Planes(seed=1), scale=5.0, power=4.0, shift=-0.5)
    model = mixed(Brightness(), standard=Hardmax(Planes(seed=0)), robust=sharper)
    shot = aimed(model, pictures(4), Linf(0.005))
    engine = Engine(model, CPU, 16)
    for number, stage in enumerate(AdaptiveAttack(shot.threat).for_model(model).stages[:-1]):
        short = {"queries": 3} if isinstance(stage.attack, Square) else {"steps": 2}
        standing = CascadeState.before(shot)
        run_stage(engine, number, replace(stage, attack=replace(stage.attack, **short)), shot, standing)
        assert standing.margin.isfinite().all() and (standing.queries > 0).all()


def test_lowering_alpha_finds_what_the_plain_attack_does_not_see():
    """g is wrong everywhere and h is right everywhere, whatever the image: all that can be attacked is alpha."""

    class Always(nn.Module):
        def __init__(self, which):
            super().__init__()
            self.logits = 5 * torch.eye(4)[which]
            self.training = False

        def forward(self, images):
            return self.logits + 0 * images.flatten(1)[:, :1]

    model = MixedClassifier(Always(1), Always(0), Brightness())
    images = torch.full((3, 3, 4, 4), 0.505)  # alpha 0.6; below 0.5 the wrong class wins
    shot = aimed(model, images, Linf(0.02))
    assert (shot.labels == 0).all()
    engine, stages = Engine(model, CPU, 8), {stage.key: stage for stage in AdaptiveAttack(shot.threat).stages}
    outcomes = {}
    for name in ("apgd-ce-alpha-0.5", "gray-ce"):
        standing = CascadeState.before(shot)
        run_stage(engine, 0, replace(stages[name], attack=replace(stages[name].attack, steps=10)), shot, standing)
        outcomes[name] = (standing.fooled_by == 0).all().item()
    assert outcomes == {"apgd-ce-alpha-0.5": True, "gray-ce": False}


class Leaning(nn.Module):
    """Always for class 0, by a little more or less."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.training = Planes(seed=1), False

    def forward(self, images):
        return torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]) + 0.01 * self.slopes(images)


def test_a_g_that_is_sure_hides_its_gradient_and_is_turned_all_the_same():
    """The mixture falls when g does, and g is easy to turn; but what can be seen of it from afar is h."""
    g, images = Planes(seed=0), pictures(300, low=0.35, high=0.65)
    with torch.no_grad():
        g.weight *= 200
        g.bias *= 200
    images = images[g(images).argmax(1) == 0]
    model, threat = MixedClassifier(g, Leaning(), 0.6), Linf(0.02)
    shot = aimed(model, images, threat)
    assert len(shot) > 20 and (shot.labels == 0).all()
    stages = {stage.key: stage for stage in AdaptiveAttack(threat).for_model(model).stages}
    fell = {}
    for name in ("apgd-ce", "apgd-t", "apgd-margin-t", "turning-t"):
        standing = CascadeState.before(shot)
        brief = replace(stages[name].attack, steps=10)
        run_stage(Engine(model, CPU, 64, precise=True), 0, replace(stages[name], attack=brief), shot, standing)
        fell[name] = (standing.fooled_by == 0).float().mean().item()
    could = (g.distance(images, shot.labels, threat) < 0.95 * 0.02).float().mean().item()
    assert fell.pop("turning-t") >= could > 0.9
    assert max(fell.values()) < 0.75


# --- views ----------------------------------------------------------------------------------------------


def alpha_gradient(model, images):
    images = images.clone().requires_grad_()
    alpha = model.mix(images).alpha
    return torch.autograd.grad(alpha.sum(), images)[0] if alpha.requires_grad else None


def test_the_gray_box_has_no_gradient_of_alpha_and_the_same_answers():
    model, images = mixed(Brightness()), pictures(5, low=0.48, high=0.52)
    gray = GrayBox()(model)
    assert alpha_gradient(gray, images) is None
    assert (alpha_gradient(model, images) != 0).any()
    assert torch.equal(gray(images), model(images))
    plain = Planes()
    assert GrayBox()(plain) is plain


def one_pgd(name, model):
    (stage,) = preset(name, LINF).for_model(model).stages
    assert (stage.attack.steps, stage.attack.random_start) == (20, False)
    return model if stage.source is None else stage.source(model)


def test_settings_a_and_b_differ_by_the_gradient_of_alpha():
    model, images = mixed(Brightness()), pictures(5, low=0.48, high=0.52)
    assert alpha_gradient(one_pgd("A", model), images) is None
    assert (alpha_gradient(one_pgd("B", model), images) != 0).any()
    assert one_pgd("MIX", model) is model


def test_std_and_rob_attack_g_and_h():
    model = mixed(0.5)
    assert one_pgd("STD", model) is model.standard and one_pgd("ROB", model) is model.robust
    hard = mixed(0.5, standard=Hardmax(model.standard))
    assert Base("standard")(hard) is model.standard  # which has a gradient


@pytest.mark.parametrize(("name", "role"), [("STD", "standard"), ("ROB", "robust")])
def test_a_plain_model_has_no_parts_to_attack(name, role):
    model = Planes()
    shot = aimed(model, pictures(2), LINF)
    (stage,) = preset(name, LINF).stages
    with pytest.raises(ValueError, match=f"expected a mixture, whose {role} .* got Planes: mix two models"):
        run_stage(Engine(model, CPU), 0, stage, shot, CascadeState.before(shot))


def test_the_std_attack_is_made_on_g_and_judged_on_the_mixture():
    """At alpha = 1 the mixture is h, which an attack on g does not fool; at alpha = 0 it is g itself."""
    images = pictures(20)
    (stage,) = preset("STD", Linf(0.03)).stages
    fell = []
    for alpha in (0.0, 1.0):
        model = mixed(alpha)
        shot = aimed(model, images, Linf(0.03))
        standing = CascadeState.before(shot)
        run_stage(Engine(model, CPU), 0, stage, shot, standing)
        fell.append(int((standing.fooled_by == 0).sum()))
    assert fell[0] == 20 and fell[1] < 15


def test_other_alphas_and_smooth_parts():
    model, images = mixed(Brightness(), standard=Hardmax(Planes(seed=0))), pictures(5)
    narrow = model.with_alpha_range(0.2, 0.6)
    assert AtAlpha(0.9)(narrow).mix(images).alpha.tolist() == pytest.approx([0.9] * 5)
    assert isinstance(Smooth()(model).standard, Planes)


def test_a_range_without_width_leaves_no_alpha_to_attack():
    """However it was learned: no stage is after alpha, and no view gives it a gradient that it has not."""
    learned = mixed(Brightness())
    shared = learned.with_alpha_range(0.8, 0.8)
    names = [[stage.key for stage in preset("adaptive", LINF).for_model(model).stages] for model in (learned, shared)]
    fixed = [stage.key for stage in preset("adaptive", LINF).for_model(mixed(0.8)).stages]
    assert names[1] == fixed and set(names[0]) > set(fixed)
    images = pictures(3).requires_grad_()
    (slopes,) = torch.autograd.grad(Smooth()(shared).mix(images).alpha.sum(), images, allow_unused=True)
    assert slopes is None or not slopes.any()


class Pattern(nn.Module):
    """How much an image has of a fine pattern."""

    def __init__(self) -> None:
        super().__init__()
        self.pattern = pictures(9)[8].sub(0.5).sign()

    def forward(self, images):
        return 3 + 400 * ((images - 0.5) * self.pattern).mean((1, 2, 3))[:, None]


class PatternMixer(Mixer):
    standard_taps = ("pattern",)

    def forward(self, base_outputs):
        return MixerOutput(base_outputs.g_features[0].squeeze(1), base_outputs.h)


def test_a_saturated_alpha_is_lowered_by_an_attack_on_the_smooth_view():
    """g is always incorrect and h always correct, so that alpha alone can be attacked, and it has no gradient."""

    class Always(nn.Module):
        def __init__(self, label):
            super().__init__()
            self.logits, self.pattern, self.training = 5 * torch.eye(4)[label], Pattern(), False

        def forward(self, images):
            return self.logits + 0 * self.pattern(images)

    model = MixedClassifier(Always(1), Always(0), PatternMixer().eval(), alpha_scale=60.0)
    shot = aimed(model, torch.full_like(pictures(4), 0.5), Linf(0.02))
    assert (model(shot.images - 0.02 * model.standard.pattern.pattern).argmax(1) == 1).all()
    stages = [stage for name in ("adaptive", "fast") for stage in preset(name, shot.threat).for_model(model).stages]
    for plain in ("apgd-ce-alpha-0.5", "hostile-t", "hostile-pgd"):
        fell = []
        for stage in stages:
            if stage.key in (plain, f"smooth-{plain}"):
                standing = CascadeState.before(shot)
                run_stage(Engine(model, CPU), 0, replace(stage, attack=replace(stage.attack, steps=20)), shot, standing)
                fell.append(int((standing.fooled_by == 0).sum()))
        assert fell == [0, 4], plain
    smooth = Smooth()(model)
    torch.testing.assert_close(smooth.mix(shot.images).alpha, model.mix(shot.images).alpha)


def test_the_audit_takes_an_eighth_of_few_survivors_and_64_of_many():
    cascade = Cascade("x", LINF, ())
    assert cascade.audit_sizes(10_000) == cascade.audit_sizes(512) == (48, 16)
    assert cascade.audit_sizes(256) == (24, 8)
    assert cascade.audit_sizes(0) == (0, 0)
