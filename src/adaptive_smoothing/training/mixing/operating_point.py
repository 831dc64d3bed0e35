"""The shift of alpha while a mixing network is trained, and the weight of attacked images that goes with it."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer
from adaptive_smoothing.training.mixing.recipe import OperatingPointSettings
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import correct_alphas, shift_curve

# Limits of the weight of attacked images relative to clean ones, and the rate of the moving average behind it.
WEIGHTS, RATE = (0.05, 2.0), 0.05


class OperatingPoint:
    """Keeps the clean accuracy of a mixture at a target, on images whose base outputs are known.

    Alpha is at least `settings.low`, or less for a pair that needs more of g. An alpha of 1/2 is all that a confident g
    needs to decide. Below, the loss of an image is flat, so that nothing is learned from it.
    """

    def __init__(
        self, mixed: MixedClassifier, settings: OperatingPointSettings, base_outputs: BaseOutputs, labels: Tensor
    ) -> None:
        self.mixed, self.base_outputs, self.labels, self.scale = mixed, base_outputs, labels, settings.scale
        h, g = ((logits.argmax(1) == labels).float().mean().item() for logits in (base_outputs.h, base_outputs.g))
        self.target = settings.clean_accuracy or h + settings.recover * (g - h)
        mixed.alpha_range[0] = min(settings.low, self._lowest_alpha())

    def update(self) -> None:
        """Set the shift to the largest one with the target accuracy, or with the best one if that is lower.

        The scores of a fine-tuned tail are standardized first, and alpha_scale is adapted to keep the slope of alpha.
        """
        mixer = self.mixed.alpha
        assert isinstance(mixer, Mixer)
        if isinstance(mixer, FineTunedTail):
            mixer.standardize(self.base_outputs)
            self.mixed.alpha_scale.copy_(self.scale * mixer.spread)
        curve = shift_curve(self.base_outputs, mixer(self.base_outputs), self.labels, self.mixed)
        self.mixed.alpha_shift.fill_(curve.largest_setting(min(self.target, curve.best())))

    def _lowest_alpha(self) -> float:
        """Return the largest alpha whose clean accuracy is halfway between the target and the best one."""
        low, high = correct_alphas(self.mixed, self.base_outputs.g, self.base_outputs.h, self.labels)
        curve = CleanAccuracyCurve(low.cpu().numpy(), high.cpu().numpy())
        return curve.largest_setting((self.target + max(self.target, curve.best())) / 2)


class AttackedWeight:
    """The weight of attacked images, relative to clean ones, for which the loss does not change with alpha_shift.

    The operating point sets alpha_shift. A loss that prefers another shift would move all scores towards it, and the
    operating point would move alpha_shift back, without end.
    """

    def __init__(self, device: torch.device) -> None:
        self.slopes = torch.zeros(2, device=device)  # of the loss of clean and of attacked images, by alpha_shift

    def __call__(self, losses: Tensor, alpha: Tensor, alpha_range: Tensor) -> Tensor:
        """Return the weight, from the losses of clean images followed by those of as many attacked ones."""
        (slopes,) = torch.autograd.grad(losses.sum(), alpha, retain_graph=True)
        low, high = alpha_range
        # The derivative of alpha by the shift is that of a sigmoid.
        by_shift = slopes * (alpha.detach() - low) * (high - alpha.detach()) / (high - low)
        found = torch.stack([half.mean() for half in by_shift.chunk(2)])
        self.slopes.copy_(torch.where(self.slopes == 0, found, torch.lerp(self.slopes, found, RATE)))
        # A larger alpha raises the loss of clean images and lowers that of attacked ones, except by chance early on.
        clean, attacked = self.slopes
        return (clean.clamp_min(0) / (-attacked).clamp_min(1e-12)).clamp(*WEIGHTS)
