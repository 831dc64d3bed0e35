"""The operating point in training: the range of alpha, and the scale and shift of its sigmoid.

The mixture is changed in place, because the views of it that attacks use share its numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.operating_point import correct_alphas
from adaptive_smoothing.training.mixing.recipe import OperatingPointSettings
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, shift_curve


def at_start(mixed: MixedClassifier, mixer: Mixer, settings: OperatingPointSettings) -> MixedClassifier:
    """Return the view of a mixture that training starts from.

    Alpha has the range (low, 1) of the settings, whatever the range of `mixed`, so that attacks can use all of it.
    """
    scale = _alpha_scale(mixer, settings) if isinstance(mixer, FineTunedTail) else settings.scale
    return mixed.with_alpha_range(settings.low, 1).with_sigmoid(scale, settings.shift)


class OperatingPoint:
    """Keeps the clean accuracy of a mixture at the target of the settings.

    `base_outputs` and `labels` are those of validation images.
    """

    def __init__(
        self, mixed: MixedClassifier, settings: OperatingPointSettings, base_outputs: BaseOutputs, labels: Tensor
    ) -> None:
        self.mixed, self.settings, self.base_outputs, self.labels = mixed, settings, base_outputs, labels
        h, g = ((logits.argmax(1) == labels).float().mean().item() for logits in (base_outputs.h, base_outputs.g))
        self.target = settings.clean_accuracy or h + settings.recover * (g - h)
        mixed.alpha_range[0] = self._lowest_alpha()

    def _lowest_alpha(self) -> float:
        """Return `settings.low`, or less for a pair that needs more of g.

        A fixed alpha that is this low has a clean accuracy halfway between the target and the best one, or more.
        """
        low, high = correct_alphas(self.mixed, self.base_outputs.g, self.base_outputs.h, self.labels)
        curve = CleanAccuracyCurve(low.cpu().numpy(), high.cpu().numpy())
        needed = curve.largest_setting((self.target + max(self.target, curve.best())) / 2)
        return min(self.settings.low, needed)

    @torch.no_grad()
    def update(self) -> None:
        """Set the shift to the largest one with the target accuracy, or with the best accuracy if that is lower.

        The scores of a fine-tuned tail are standardized first.
        """
        mixer = self.mixed.alpha
        assert isinstance(mixer, Mixer)
        if isinstance(mixer, FineTunedTail):
            mixer.standardize(self.base_outputs)
            self.mixed.alpha_scale.copy_(_alpha_scale(mixer, self.settings))
        curve = shift_curve(self.mixed, self.base_outputs, mixer(self.base_outputs), self.labels)
        self.mixed.alpha_shift.fill_(curve.largest_setting(min(self.target, curve.best())))


@torch.no_grad()
def standardize_scores(
    mixed: MixedClassifier, tail: FineTunedTail, settings: OperatingPointSettings, base_outputs: BaseOutputs
) -> None:
    """Standardize the scores of a fine-tuned tail on these images without changing alpha."""
    before = tail.centre.clone()
    tail.standardize(base_outputs)
    mixed.alpha_scale.copy_(_alpha_scale(tail, settings))
    mixed.alpha_shift.add_(settings.scale * (tail.centre - before))


def _alpha_scale(tail: FineTunedTail, settings: OperatingPointSettings) -> Tensor:
    """Return the scale of the sigmoid for which alpha has the slope `settings.scale` in the raw scores.

    A fine-tuned tail divides its raw scores by their `spread` to standardize them.
    """
    return settings.scale * tail.spread
