"""MixedNUTS's search: the transform of h, and the alpha, that make the most of two classifiers as they are.

It works on logits alone, so that hundreds of settings cost seconds. Each gets the largest alpha that has the wanted
clean accuracy, which is exact; how robust it is there is estimated from an attack on h. That is a proxy, and a proxy is
not a result: attack the first few of what it picks, and keep the one that stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear, nonlinear
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve, correct_interval

# Those for a thousand classes are small: one logit among so many can be far above the others.
SCALES = (0.02, 0.1, 0.3, 1.0, 2.0, 5.0, 15.0, 50.0)
POWERS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
SHIFTS = (-1.5, -1.25, -1.0, -0.75, -0.5, 0.0, 0.5)
# At an alpha of 1/2 a claim of g and a sure h tie, and leads that are 1 to the last bit would count as robust. Close to
# 1 the mixture is decided by differences of probabilities that float32 does not have: it is exact to some 3e-8, less
# than a thousandth of what (1 - alpha) / alpha is here.
ALPHAS = (0.55, 0.9999)
# The attack on h looked for the smallest lead in h's logits, not for what the transform makes of them. An image counts
# when it would stand at logits that are worse by this share of their standard deviation, both for its class and for
# the runner-up: what stands by less is likely to fall to an attack on the mixture.
PUSH = 0.1


@dataclass(frozen=True)
class NonlinearSetting:
    """A transform of h (`Nonlinear`) with an alpha, its clean accuracy, and what robust accuracy can be hoped for."""

    scale: float
    power: float
    shift: float
    alpha: float
    clean: float
    estimated_robust: float

    def mix(self, standard: nn.Module, robust: nn.Module) -> MixedClassifier:
        """The mixture that was searched for: of a g that is certain and an h that is sure where it was sure already."""
        return MixedClassifier(Hardmax(standard), self.transform(robust), self.alpha)

    def transform(self, robust: nn.Module) -> Nonlinear:
        """h alone, transformed."""
        return Nonlinear(robust, scale=self.scale, power=self.power, shift=self.shift)


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
    """All settings that have the wanted clean accuracy, the most robust by estimate first; of equals the gentlest.

    `g` and `h` are the logits of both classifiers on clean validation images. `attacked` are those of h on the worst
    version of each image that an attack on h with the preset `margin` found, of a random part of the images or of all,
    the ones that h gets wrong included. An image counts as robust when h alone carries it against a g that
    says anything: when the lead of its class in transformed probabilities is above (1 - alpha) / alpha, with room. Why
    that room is needed, and what it is, stands beside ALPHAS and PUSH: without it the settings that look best collapse.
    A steep transform also hides its gradient, so that of equals the one of the smallest scale and power comes first.
    """
    _check(g, h, labels, attacked, attacked_labels)
    certain = F.one_hot(g.argmax(1), g.shape[1]).double()
    worse = _pushed(attacked.double(), attacked_labels, push)
    found = []
    for transform in product(scales, powers, shifts):
        sure = nonlinear(h.double(), *transform).softmax(1)
        low, high = correct_interval(certain, sure, labels)
        accuracy = CleanAccuracyCurve(low.cpu().numpy(), high.cpu().numpy(), span=alphas)
        if len(enough := accuracy.reaching(clean_accuracy)):
            alpha = enough[-1].item()
            robust = _stands(nonlinear(worse, *transform), attacked_labels, alpha)
            found.append(NonlinearSetting(*transform, alpha, accuracy(alpha), robust))
    if not found:
        alone = (g.argmax(1) == labels).double().mean().item()
        raise ValueError(
            f"expected a clean accuracy that a mixture can have, got {clean_accuracy:.4g}: none of the settings has it "
            f"at an alpha from {alphas[0]:g} to {alphas[1]:g}, and g alone has {alone:.4g}; ask for less"
        )
    return sorted(found, key=lambda setting: (-setting.estimated_robust, setting.scale, setting.power))


def _pushed(logits: Tensor, labels: Tensor, push: float) -> Tensor:
    """With the right class lowered and the best other one raised by a share of the standard deviation of the logits."""
    by = push * logits.std(1, keepdim=True)
    own = labels[:, None]
    other = logits.scatter(1, own, -torch.inf).argmax(1, keepdim=True)
    return logits.scatter_add(1, own, -by).scatter_add(1, other, by)


def _stands(logits: Tensor, labels: Tensor, alpha: float) -> float:
    """The share of images whose class leads by more than all the weight that g has."""
    lead = -logit_margin(logits.softmax(1), labels)
    return (lead > (1 - alpha) / alpha).double().mean().item()


def _check(g: Tensor, h: Tensor, labels: Tensor, attacked: Tensor, attacked_labels: Tensor) -> None:
    images, classes = g.shape
    forms: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        "g": (g, (images, classes)),
        "h": (h, (images, classes)),
        "labels": (labels, (images,)),
        "attacked": (attacked, (len(attacked), classes)),
        "attacked_labels": (attacked_labels, (len(attacked),)),
    }
    for name, (tensor, form) in forms.items():
        if tensor.shape != form or not tensor.isfinite().all():
            raise ValueError(
                f"expected {name} as finite numbers of shape {list(form)}, got shape {list(tensor.shape)} or a NaN: "
                "pass a row of logits for each image, and a label for each row"
            )
