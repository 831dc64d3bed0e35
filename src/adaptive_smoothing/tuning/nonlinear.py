"""MixedNUTS: search for the transform of h, and for the alpha, of the most robust mixture. Nothing is trained.

The search needs logits only, so that hundreds of settings take seconds. The clean accuracy of each setting is exact.
Its robust accuracy is an estimate from an attack on h. Therefore the mixtures of the best few settings are attacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from operator import itemgetter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_smoothing.attacks.attack_input import AttackInput
from adaptive_smoothing.attacks.cascade import Cascade, CascadeState, run_stage
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.attacks.presets import margin_attack
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.operating_point import correct_interval
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, nonlinear
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.models.memory import memory_given_back
from adaptive_smoothing.runs.progress import ignore_progress
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve
from adaptive_smoothing.tuning.tune import Log, robust_accuracy_under

# With a thousand classes one logit can be far above the others, which needs the small scales.
SCALES = (0.02, 0.1, 0.3, 1.0, 2.0, 5.0, 15.0, 50.0)
POWERS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
SHIFTS = (-1.5, -1.25, -1.0, -0.75, -0.5, 0.0, 0.5)
# At alpha = 1/2 a certain g and a certain h tie, and a lead of h that is 1 to the last bit would count as robust. Close
# to 1 the differences of probabilities that decide are below the precision of float32 (about 3e-8), which is less than
# a thousandth of (1 - alpha) / alpha here.
ALPHAS = (0.55, 0.9999)
# The attack on h minimises the lead in h's logits, not in the transformed ones. An image counts as robust only if it
# is still correct with the logits of its class and of the runner-up worse by this share of their standard deviation.
PUSH = 0.1
# Default numbers of validation images that are attacked, and of settings whose mixtures are attacked.
ATTACKED, TRIED = 1000, 3


@dataclass(frozen=True)
class NonlinearSetting:
    """A transform of h (`Nonlinear`), an alpha, its clean accuracy and an estimate of its robust accuracy."""

    scale: float
    power: float
    shift: float
    alpha: float
    clean: float
    estimated_robust: float

    def mix(self, standard: nn.Module, robust: nn.Module) -> MixedClassifier:
        """Return the mixture of a certain g and the transformed h. Its card holds this setting as "transform"."""
        transformed = Nonlinear(robust, scale=self.scale, power=self.power, shift=self.shift)
        mixed = MixedClassifier(Hardmax(standard), transformed, self.alpha)
        mixed.card = {"transform": asdict(self)}
        return mixed


@memory_given_back()
def fit_nonlinear(
    standard: nn.Module,
    robust: nn.Module,
    val: ImageData,
    threat: Threat,
    *,
    clean_accuracy: float,
    attacked: int = ATTACKED,
    tried: int = TRIED,
    log: Log = ignore_progress,
) -> MixedClassifier:
    """Return the most robust MixedNUTS mixture with this clean accuracy or more on the images `val`.

    The mixtures of the `tried` best settings by estimate are attacked on the first `attacked` images. The setting of
    the result is in its `card["transform"]`.

    Args:
        standard, robust: g and h.
        val: validation images.
        threat: the norm and the radius of the attacks.
        clean_accuracy: what the mixture has at least on `val`.
        attacked: the number of images to attack.
        tried: the number of settings whose mixtures are attacked.
        log: called with a line of text for each attack (`log=print`).

    Examples:
        >>> nonlinear = ads.fit_nonlinear(g, h, val, threat, clean_accuracy=0.5, attacked=2, tried=1)
        >>> type(nonlinear.standard).__name__, type(nonlinear.robust).__name__
        ('Hardmax', 'Nonlinear')
    """
    data = val.to(next(robust.parameters()).device)
    few = data.take(slice(attacked))
    robust_accuracy = robust_accuracy_under(few, threat)
    log(f"attacking h on {len(few):,} validation images")
    worst = worst_logits(robust, few, margin_attack(threat))
    g, h = (fp32_logits_chunked(model, data.floats()) for model in (standard, robust))
    # Settings that differ in scale alone are similar: the best one of each power and shift is tried.
    distinct: dict[tuple[float, float], NonlinearSetting] = {}
    for setting in search_nonlinear(g, h, data.labels, worst, few.labels, clean_accuracy=clean_accuracy):
        distinct.setdefault((setting.power, setting.shift), setting)
    found = []
    for setting in [*distinct.values()][:tried]:
        log(f"attacking the mixture with scale {setting.scale:g}, power {setting.power:g}, shift {setting.shift:g}")
        mixed = setting.mix(standard, robust).to(data.images.device)
        found.append((robust_accuracy(mixed), mixed))
    return max(found, key=itemgetter(0))[1]


def worst_logits(model: nn.Module, data: ImageData, cascade: Cascade) -> Tensor:
    """Return the logits of a model for the worst version of each image that the attacks find."""
    images = data.floats()
    index = torch.arange(len(images), device=images.device)
    attack_input = AttackInput(images, data.labels, index, fp32_logits_chunked(model, images), cascade.threat)
    state, engine = CascadeState.before(attack_input), Engine(model, images.device)
    for number, stage in enumerate(cascade.for_model(model).stages):
        run_stage(engine, number, stage, attack_input, state)
    return fp32_logits_chunked(model, state.worst)


def search_nonlinear(
    g: Tensor,
    h: Tensor,
    labels: Tensor,
    attacked: Tensor,
    attacked_labels: Tensor,
    *,
    clean_accuracy: float,
    scales: Sequence[float] = SCALES,
    powers: Sequence[float] = POWERS,
    shifts: Sequence[float] = SHIFTS,
    alphas: tuple[float, float] = ALPHAS,
    push: float = PUSH,
) -> list[NonlinearSetting]:
    """Return all settings with the clean accuracy, each with its largest alpha, the most robust by estimate first.

    An image counts as robust if h alone outvotes any g: its class leads in transformed probabilities by more than
    (1 - alpha) / alpha, even with logits that are worse by `push`. Without `push` and the limits of alpha (see `PUSH`,
    `ALPHAS`), the settings with the best estimates are not robust. Steep transforms hide their gradient, so equal
    estimates are sorted by scale and power. `g` and `h` are logits on clean images. `attacked` are logits of h on the
    worst version that the preset `margin` finds, of all or random images, also those that h classifies incorrectly.
    """
    _check(g, h, labels, attacked, attacked_labels)
    certain_g = F.one_hot(g.argmax(1), g.shape[1]).double()
    worse = _worse_logits(attacked.double(), attacked_labels, push)
    found = []
    for transform in product(scales, powers, shifts):
        low, high = correct_interval(certain_g, nonlinear(h.double(), *transform).softmax(1), labels)
        curve = CleanAccuracyCurve(low.cpu().numpy(), high.cpu().numpy(), limits=alphas)
        if curve.reaches(clean_accuracy):
            alpha = curve.largest_setting(clean_accuracy)
            robust = _robust_share(nonlinear(worse, *transform), attacked_labels, alpha)
            found.append(NonlinearSetting(*transform, alpha, curve(alpha), robust))
    if not found:
        alone = (g.argmax(1) == labels).double().mean().item()
        none = f"none of the settings has it at an alpha from {alphas[0]:g} to {alphas[1]:g}"
        hint = f"{none}, and g alone has {alone:.4g}; ask for less"
        raise ValueError(f"expected a clean accuracy that a mixture can have, got {clean_accuracy:.4g}: {hint}")
    return sorted(found, key=lambda setting: (-setting.estimated_robust, setting.scale, setting.power))


def _worse_logits(logits: Tensor, labels: Tensor, push: float) -> Tensor:
    """Return logits with the label lower and the best other class higher by a share of their standard deviation."""
    by = push * logits.std(1, keepdim=True)
    label = labels[:, None]
    other = logits.scatter(1, label, -torch.inf).argmax(1, keepdim=True)
    return logits.scatter_add(1, label, -by).scatter_add(1, other, by)


def _robust_share(logits: Tensor, labels: Tensor, alpha: float) -> float:
    """Return the share of images whose label leads in h by more than the whole weight of g."""
    lead = -logit_margin(logits.softmax(1), labels)
    return (lead > (1 - alpha) / alpha).double().mean().item()


def _check(g: Tensor, h: Tensor, labels: Tensor, attacked: Tensor, attacked_labels: Tensor) -> None:
    images, rows, classes = len(g), len(attacked), g.shape[1]
    clean = ("g", g, (images, classes)), ("h", h, (images, classes)), ("labels", labels, (images,))
    worst = ("attacked", attacked, (rows, classes)), ("attacked_labels", attacked_labels, (rows,))
    for name, tensor, shape in (*clean, *worst):
        if tensor.shape != shape or not tensor.isfinite().all():
            expected = f"expected {name} as finite numbers of shape {list(shape)}"
            hint = "pass a row of logits for each image, and a label for each row"
            raise ValueError(f"{expected}, got shape {list(tensor.shape)} or a NaN: {hint}")
