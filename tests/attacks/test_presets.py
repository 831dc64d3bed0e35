"""Which stages each preset has for a model, their budgets, and the attacks designed for mixed classifiers."""

import pickle
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from toys import CPU, Brightness, Constant, Planes, make_images, make_input, mixed

from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, Stage, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.presets import (
    PRESETS,
    adaptive_attack,
    adaptive_auto_attack,
    as_preset,
    auto_attack,
    fast_attack,
    find_preset,
    preset,
    user_function,
)
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.attacks.views import SmoothedSurrogate
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.threat import L2, Linf

LINF = Linf(8 / 255)
FULL = "full-precision"
TRANSFERS = ["transfer-g", "transfer-h", "transfer-alpha-0.5", "transfer-alpha-0.9"]
LOWER_ALPHA = [f"apgd-{kind}-alpha-{weight}" for weight in (0.1, 0.5, 0.9) for kind in ("ce", "t")]


def keys(cascade, model):
    return [stage.key for stage in cascade.for_model(model).stages]


def budgets(cascade, classes=10):
    """Return the attempts and the steps of each stage."""
    logits, labels = torch.randn(1, classes, generator=torch.Generator().manual_seed(0)), torch.tensor([0])
    return {
        stage.key: (stage.attack.targets(logits, labels).shape[1], stage.attack.evaluations)
        for stage in (*cascade.stages, *cascade.audit)
    }


def fooled(model, stage, inputs, steps, engine=None):
    """Return which images a stage with fewer steps fools."""
    state = CascadeState.before(inputs)
    short = replace(stage, attack=replace(stage.attack, steps=steps))
    run_stage(engine or Engine(model, CPU), 0, short, inputs, state)
    return state.fooled_by == 0


def transformed():
    return Nonlinear(Planes(seed=1), scale=5.0, power=4.0, shift=-0.5)


def test_the_budgets_of_autoattack_are_those_of_the_reference():
    expected = {"apgd-ce": (1, 101), "apgd-t": (9, 101), "fab-t": (9, 101), "square": (1, 5001), FULL: (1, 101)}
    assert budgets(auto_attack(LINF)) == budgets(preset("standard", LINF)) == budgets(preset("C", LINF)) == expected
    assert budgets(auto_attack(LINF), classes=5)["apgd-t"] == (4, 101)


def test_the_fast_preset_is_audited_with_fab_and_square():
    fast = fast_attack(LINF)
    assert fast.audit == auto_attack(LINF).stages[2:4]
    for model, rest in ((Planes(), 9 * 23 + 3 * 31), (mixed(), 13 * 23)):
        cost = budgets(replace(fast.for_model(model), audit=()))
        assert cost.pop(FULL) == (1, 51)
        assert sum(attempts * steps for attempts, steps in cost.values()) == 17 + 2 * 51 + rest


def test_the_fast_preset_flips_g_if_the_model_has_one():
    fast, last = fast_attack(LINF), ["apgd-t", "fab-short", FULL]
    assert keys(fast, Planes()) == ["margin-pgd", "diverse-pgd", *last]
    hard = ["margin-pgd", "smooth-hostile-pgd", "diverse-pgd-p", *last]
    assert keys(fast, mixed(0.5, Hardmax(Planes()))) == hard
    flip = ["margin-pgd", "turning-pgd", "diverse-pgd-p", "apgd-t", FULL]
    assert keys(fast, mixed()) == flip
    assert keys(fast, mixed(Brightness())) == [*flip[:2], "hostile-pgd", "smooth-hostile-pgd", *flip[2:]]


def test_the_adaptive_preset_has_the_stages_that_apply_to_the_model():
    adaptive = adaptive_attack(LINF)
    before, after = ["apgd-ce", "apgd-t", "apgd-margin-t"], ["fab-t", "square"]
    assert keys(adaptive, Planes()) == [*before, *after, FULL]
    assert keys(adaptive, mixed(0.5)) == [*before, "turning-t", *after, *TRANSFERS, FULL]
    clipped = ["smooth-apgd-ce-alpha-0.5", "smooth-apgd-t-alpha-0.5"]
    learned = ["turning-t", "hostile-t", *LOWER_ALPHA, "smooth-hostile-t", *clipped, "gray-ce", "gray-t"]
    assert keys(adaptive, mixed(Brightness())) == [*before, *learned, *after, *TRANSFERS, FULL]
    smooth = ["smooth-margin-t", "smooth-turning-t", "smooth-hostile-t"]
    assert keys(adaptive, mixed(0.5, standard=Hardmax(Planes()))) == [*before, *smooth, *after, *TRANSFERS, FULL]
    plain = ["plain-turning-t", "plain-h-t"]
    assert keys(adaptive, mixed(0.5, robust=transformed())) == [
        *(*before, "turning-t", *plain),
        *(*after, *TRANSFERS, FULL),
    ]
    both = ["plain-turning-t", "plain-hostile-t", "plain-h-t", "plain-apgd-ce-alpha-0.5", "plain-apgd-t-alpha-0.5"]
    assert [key for key in keys(adaptive, mixed(Brightness(), robust=transformed())) if "plain" in key] == both
    gradient = GradientMixedClassifier(Planes(seed=0), Planes(seed=1), 0.5)
    assert keys(adaptive, gradient) == [*before, *after, "transfer-g", "transfer-h", FULL]


def test_setting_d_lowers_alpha_only_if_it_is_learned():
    cascade = adaptive_auto_attack(LINF)
    learned = ["apgd-ce-alpha-0.5", "apgd-t-alpha-0.5", "fab-t", "square", FULL]
    assert keys(cascade, mixed(Brightness())) == learned
    assert keys(cascade, mixed(0.5)) == keys(cascade, Planes()) == ["apgd-ce", "apgd-t", "fab-t", "square", FULL]


def test_an_alpha_range_without_width_has_the_stages_of_a_fixed_alpha():
    learned = mixed(Brightness())
    shared = learned.with_alpha_range(0.8, 0.8)
    fixed = keys(adaptive_attack(LINF), mixed(0.8))
    assert keys(adaptive_attack(LINF), shared) == fixed
    assert set(keys(adaptive_attack(LINF), learned)) > set(fixed)
    images = make_images(3).requires_grad_()
    alpha = SmoothedSurrogate()(shared).mix(images).alpha
    (slopes,) = torch.autograd.grad(alpha.sum(), images, allow_unused=True)
    assert slopes is None or not slopes.any()


@pytest.mark.parametrize("threat", [LINF, L2(0.5)])
@pytest.mark.parametrize("name", PRESETS)
def test_all_stages_of_a_preset_have_its_threat_and_distinct_keys(name, threat):
    cascade = preset(name, threat, seed=3)
    assert cascade.threat == threat and cascade.stages
    assert all(stage.attack.threat == threat for stage in (*cascade.stages, *cascade.audit))
    assert len(set(cascade.stage_keys)) == len(cascade.stage_keys)


@pytest.mark.parametrize("name", PRESETS)
def test_a_cascade_can_be_sent_to_another_process(name):
    models = [mixed(0.5), mixed(0.5, standard=Hardmax(Planes())), mixed(Brightness(), robust=transformed())]
    models += [] if name in ("STD", "ROB") else [Planes()]
    for model in models:
        cascade = preset(name, LINF).for_model(model)
        assert pickle.loads(pickle.dumps(cascade)) == cascade


@pytest.mark.parametrize("name", ["fast", "standard", "adaptive", "margin", "D"])
def test_the_seed_reaches_every_random_stage(name):
    cascade = preset(name, LINF, seed=3)
    assert {stage.attack.seed for stage in (*cascade.stages, *cascade.audit)} == {3}


def test_an_unknown_preset_is_an_error():
    with pytest.raises(ValueError, match=r"expected preset to be one of fast, standard, .*, got 'autoattack': choose"):
        preset("autoattack", LINF)


def test_a_cascade_without_a_stage_for_a_model_is_an_error():
    adaptive = adaptive_attack(LINF)
    only = replace(adaptive, stages=tuple(stage for stage in adaptive.stages if "alpha-0.1" in stage.key))
    assert len(only.for_model(mixed(Brightness())).stages) == 2
    with pytest.raises(ValueError, match="expected a model that adaptive has an attack for, got a Planes"):
        only.for_model(Planes())


def test_every_adaptive_stage_runs_on_a_mixture_with_all_features():
    model = mixed(Brightness(), standard=Hardmax(Planes(seed=0)), robust=transformed())
    inputs = make_input(model, make_images(4), Linf(0.005))
    engine = Engine(model, CPU, 16)
    for number, stage in enumerate(adaptive_attack(inputs.threat).for_model(model).stages[:-1]):
        short = {"queries": 3} if isinstance(stage.attack, Square) else {"steps": 2}
        if getattr(stage.attack, "target_classes", 0):
            short["target_classes"] = 2
        state = CascadeState.before(inputs)
        run_stage(engine, number, replace(stage, attack=replace(stage.attack, **short)), inputs, state)
        assert state.margin.isfinite().all() and (state.queries > 0).all()


def test_lowering_alpha_fools_a_model_whose_alpha_is_its_only_weakness():
    """g is always wrong and h always right, so that only alpha can be attacked."""
    model = MixedClassifier(Constant(1), Constant(0), Brightness())
    inputs = make_input(model, torch.full((3, 3, 4, 4), 0.505), Linf(0.02))  # alpha is 0.6; g wins below 0.5
    assert (inputs.labels == 0).all()
    stages = {stage.key: stage for stage in adaptive_attack(inputs.threat).stages}
    assert fooled(model, stages["apgd-ce-alpha-0.5"], inputs, 10).all()
    assert not fooled(model, stages["gray-ce"], inputs, 10).any()


class Leaning(nn.Module):
    """Predicts class 0, with a margin that depends weakly on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.training = Planes(seed=1), False

    def forward(self, images):
        return torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]) + 0.01 * self.slopes(images)


def test_a_confident_g_has_no_gradient_and_is_flipped_nevertheless():
    """Flipping g fools the mixture, but attacks on the mixture follow h, because g has no gradient."""
    g, images = Planes(seed=0), make_images(150, low=0.35, high=0.65)
    with torch.no_grad():
        g.weight *= 200
        g.bias *= 200
    images = images[g(images).argmax(1) == 0]
    model, threat = MixedClassifier(g, Leaning(), 0.6), Linf(0.02)
    inputs = make_input(model, images, threat)
    assert len(inputs) > 20 and (inputs.labels == 0).all()
    stages = {stage.key: stage for stage in adaptive_attack(threat).for_model(model).stages}
    shares = {
        key: fooled(model, stages[key], inputs, 10, Engine(model, CPU, 64, precise=True)).float().mean().item()
        for key in ("apgd-ce", "apgd-t", "apgd-margin-t", "turning-t")
    }
    possible = (g.distance(images, inputs.labels, threat) < 0.95 * 0.02).float().mean().item()
    assert shares.pop("turning-t") >= possible > 0.9
    assert max(shares.values()) < 0.75


class Pattern(nn.Module):
    """Returns the amount of a fine pattern in an image."""

    def __init__(self) -> None:
        super().__init__()
        self.pattern = make_images(9)[8].sub(0.5).sign()

    def forward(self, images):
        return 3 + 400 * ((images - 0.5) * self.pattern).mean((1, 2, 3))[:, None]


class ConstantWithPattern(Constant):
    """A constant classifier with a layer that a mixer can read."""

    def __init__(self, label) -> None:
        super().__init__(label)
        self.pattern = Pattern()

    def forward(self, images):
        return super().forward(images) + 0 * self.pattern(images)


class PatternMixer(Mixer):
    standard_taps = ("pattern",)

    def forward(self, base_outputs):
        return MixerOutput(base_outputs.g_features[0].squeeze(1), base_outputs.h)


def test_a_saturated_alpha_is_lowered_by_an_attack_on_the_smoothed_surrogate():
    """g is always wrong and h always right, so that only alpha can be attacked, and it has no gradient."""
    g, h = ConstantWithPattern(1), ConstantWithPattern(0)
    model = MixedClassifier(g, h, PatternMixer().eval(), alpha_scale=60.0)
    inputs = make_input(model, torch.full_like(make_images(2), 0.5), Linf(0.02))
    assert (model(inputs.images - 0.02 * g.pattern.pattern).argmax(1) == 1).all()
    stages = {
        stage.key: stage
        for name in ("adaptive", "fast")
        for stage in preset(name, inputs.threat).for_model(model).stages
    }
    for key in ("apgd-ce-alpha-0.5", "hostile-t", "hostile-pgd"):
        assert not fooled(model, stages[key], inputs, 10).any(), key
        assert fooled(model, stages[f"smooth-{key}"], inputs, 10).all(), key
    surrogate = SmoothedSurrogate()(model)
    torch.testing.assert_close(surrogate.mix(inputs.images).alpha, model.mix(inputs.images).alpha)


# --- attacks of one's own and of other packages ---------------------------------------------------------

OTHER_PACKAGE = """
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.pgd import PGD

def by_hand(model, images, labels):
    return images

def short_pgd(threat, seed=0):
    return Cascade("short", threat, (Stage("short-pgd", PGD(threat, steps=2, seed=seed)),))
"""
ENTRY_POINTS = """[adaptive_smoothing.attacks]
by-hand = other_package:by_hand
short = other_package:short_pgd
fast = other_package:by_hand
broken = other_module:attack
"""


def test_presets_of_other_packages_are_found_by_name(other_package):
    other_package(ENTRY_POINTS, OTHER_PACKAGE)
    cascade = preset("short", LINF, seed=3)
    assert [stage.key for stage in cascade.stages] == ["short-pgd"] and cascade.stages[0].attack.seed == 3
    (stage,) = preset("by-hand", LINF).stages
    assert stage.key == "by-hand" and stage.attack.__name__ == "by_hand"


def test_a_built_in_preset_is_not_replaced_and_imports_nothing(other_package):
    other_package(ENTRY_POINTS, OTHER_PACKAGE)
    assert find_preset("fast") is fast_attack and "other_package" not in sys.modules
    with pytest.raises(ValueError, match=r"one of fast, .*short.*, got 'shortt': did you mean 'short'?"):
        find_preset("shortt")
    assert "other_package" not in sys.modules
    with pytest.raises(ImportError, match=r"'broken', which the package .* registers as other_module:attack, got"):
        find_preset("broken")


def test_the_function_of_an_attack_of_another_package(other_package):
    other_package(ENTRY_POINTS, OTHER_PACKAGE)
    found = [user_function(name) for name in ("fast", "by-hand", "mine:attack", "unknown")]
    assert found == [None, "other_package:by_hand", "mine:attack", None]
    with pytest.raises(ValueError) as error:
        find_preset("fasst")
    assert str(error.value).count("fast,") == 1


def test_a_function_becomes_a_cascade():
    def attack(model, images, labels):
        return images

    def with_threat(threat):
        return lambda model, images, labels: (images + threat.eps).clamp(max=1)

    cascade = as_preset("mine:attack", attack)(LINF, seed=1)
    assert cascade == Cascade("mine:attack", LINF, (Stage("mine:attack", attack),))
    (stage,) = as_preset("mine", with_threat)(LINF).stages
    assert torch.equal(stage.attack(None, torch.zeros(1), None), torch.full((1,), LINF.eps))


def test_a_preset_that_makes_no_attack_or_another_threat_is_refused():
    with pytest.raises(TypeError, match="expected an attack in the stage 'mine', got 3"):
        as_preset("mine", lambda threat: 3)(LINF)
    with pytest.raises(TypeError, match="expected an attack in the stage 'mine', got <class"):
        as_preset("mine", Planes)(LINF)
    with pytest.raises(ValueError, match=r"expected a cascade for Linf\(eps=0.03.*\) from mine, got one for L2"):
        as_preset("mine", lambda threat: auto_attack(L2(0.5)))(LINF)
