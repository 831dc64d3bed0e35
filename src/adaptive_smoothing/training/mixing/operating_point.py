"""Where the dial of a mixture stands while its mixing network learns, and what that says about the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer
from adaptive_smoothing.training.mixing.recipe import OperatingPointSettings
from adaptive_smoothing.tuning.clean_accuracy import CleanAccuracyCurve
from adaptive_smoothing.tuning.curves import correct_alphas, shift_curve

# What attacked images may weigh against clean ones, and how fast that follows the last batches.
PRICES, FOLLOW = (0.05, 2.0), 0.05


class OperatingPoint:
    """Keeps the clean accuracy of a mixture where it is wanted, on images whose evidence does not change.

    Alpha goes down to `low`, or further for a pair in which g would not win back enough with that. Where g is sure, an
    alpha of 1/2 is all it needs to decide. Below, the loss of an image is flat, and nothing is left to learn from it.
    """

    def __init__(
        self, mixed: MixedClassifier, settings: OperatingPointSettings, base_outputs: BaseOutputs, labels: Tensor
    ) -> None:
        self.mixed, self.base_outputs, self.labels, self.steepness = mixed, base_outputs, labels, settings.scale
        h, g = ((logits.argmax(1) == labels).float().mean().item() for logits in (base_outputs.h, base_outputs.g))
        self.target = settings.clean_accuracy or h + settings.recover * (g - h)
        mixed.alpha_range[0] = min(settings.low, self._alpha_with_room())

    def turn(self) -> None:
        """To where the mixture has the clean accuracy that is wanted in training, or comes closest to it.

        The scores of a second ending are made standard, and alpha is as steep in what it computes as the recipe has it.
        """
        mixer = self.mixed.alpha
        assert isinstance(mixer, Mixer)
        if isinstance(mixer, FineTunedTail):
            mixer.standardize(self.base_outputs)
            self.mixed.alpha_scale.copy_(self.steepness * mixer.spread)
        accuracy = shift_curve(self.base_outputs, mixer(self.base_outputs), self.labels, self.mixed)
        self.mixed.alpha_shift.fill_(accuracy.largest(min(self.target, accuracy.best())))

    def _alpha_with_room(self) -> float:
        """The largest alpha for all images with more clean accuracy than is wanted: half of what g has beyond."""
        low, high = correct_alphas(self.mixed, self.base_outputs.g, self.base_outputs.h, self.labels)
        accuracy = CleanAccuracyCurve(low.cpu().numpy(), high.cpu().numpy())
        return accuracy.largest((self.target + max(self.target, accuracy.best())) / 2)


class AttackedWeight:
    """What an attacked image weighs for each clean one, so that turning the dial changes nothing.

    Where the dial stands is decided already. A loss that would rather have it elsewhere pushes all scores that way, and
    the dial pushes back, for ever.
    """

    def __init__(self, device: torch.device) -> None:
        self.slopes = torch.zeros(2, device=device)  # of the losses of clean and attacked images along the dial

    def __call__(self, losses: Tensor, alpha: Tensor, alpha_range: Tensor) -> Tensor:
        """From the losses of as many clean images as attacked ones, in this order."""
        (slopes,) = torch.autograd.grad(losses.sum(), alpha, retain_graph=True)
        low, high = alpha_range
        # Along the dial alpha has the slope of the sigmoid that it comes from.
        turning = slopes * (alpha.detach() - low) * (high - alpha.detach()) / (high - low)
        found = torch.stack([half.mean() for half in turning.chunk(2)])
        self.slopes.copy_(torch.where(self.slopes == 0, found, torch.lerp(self.slopes, found, FOLLOW)))
        # Larger alphas cost clean images and help attacked ones; early on chance may have it otherwise.
        clean, attacked = self.slopes
        return (clean.clamp_min(0) / (-attacked).clamp_min(1e-12)).clamp(*PRICES)
