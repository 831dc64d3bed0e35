"""Training of mixing networks. The base classifiers are not changed (sec. train_mixing_network of the paper)."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.arithmetic import frozen
from adaptive_smoothing.attacks.objectives import cross_entropy_loss, logit_margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.models.weight_files import compact_weights
from adaptive_smoothing.training.averaging import WeightPerturbation, learns_statistics, measure_statistics, restored
from adaptive_smoothing.training.loop import Loop, TrainingBatch
from adaptive_smoothing.training.mixing.attacks import attack_through_robust, make_attack
from adaptive_smoothing.training.mixing.recipe import LossSettings, MixingRecipe, OperatingPointSettings
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, correct_alphas, shift_curve

# Limits of the weight of attacked images relative to clean ones, and the rate of the moving average behind it.
WEIGHTS, RATE = (0.05, 2.0), 0.05
# Validation images for the operating point. Their features stay on the device.
HELD_OUT = 5000
# Most batches for batch-norm statistics. Each must be attacked, and twenty are as good as an epoch.
STATISTICS = 20


def composite_loss(c: LossSettings, logits: Tensor, alpha: Tensor, labels: Tensor, pseudo_labels: Tensor) -> Tensor:
    """Return c_CE l_CE + c_BCE l_BCE + c_prod l_CE l_BCE (eq. comp_loss) + c_error l_error for each image.

    `pseudo_labels` are the paper's labels of alpha: 1 where h should decide, 0 where g should.
    """
    l_ce = cross_entropy_loss(logits, labels)
    # A sigmoid that rounds to 0 or 1 has an infinite logarithm.
    l_bce = F.binary_cross_entropy(alpha.float().clamp(1e-6, 1 - 1e-6), pseudo_labels, reduction="none")
    l_error = torch.sigmoid(logit_margin(logits, labels))  # a smooth count of errors
    return c.ce * l_ce + c.bce * l_bce + c.product * l_ce * l_bce + c.error * l_error


class OperatingPoint:
    """Keeps the clean accuracy of a mixture at a target, on images whose base outputs are known.

    Alpha is at least `settings.low`, or less for a pair that needs more of g. A confident g decides at an alpha of 1/2.
    Below, the loss of an image is flat, so that nothing is learned from it.
    """

    def __init__(
        self, mixed: MixedClassifier, settings: OperatingPointSettings, base_outputs: BaseOutputs, labels: Tensor
    ) -> None:
        self.mixed, self.base_outputs, self.labels, self.scale = mixed, base_outputs, labels, settings.scale
        h, g = ((logits.argmax(1) == labels).float().mean().item() for logits in (base_outputs.h, base_outputs.g))
        self.target = settings.clean_accuracy or h + settings.recover * (g - h)
        # The largest alpha whose clean accuracy is halfway between the target and the best one.
        low, high = correct_alphas(mixed, base_outputs.g, base_outputs.h, labels)
        curve = CleanAccuracyCurve(low.cpu().numpy(), high.cpu().numpy())
        needed = curve.largest_setting((self.target + max(self.target, curve.best())) / 2)
        mixed.alpha_range[0] = min(settings.low, needed)

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


class MixerBatch(NamedTuple):
    """A training batch of the mixer: clean images followed by their attacked versions."""

    images: Tensor
    base_outputs: BaseOutputs
    labels: Tensor
    pseudo_labels: Tensor  # of alpha
    weights: Tensor  # of the loss


class MixingTrainer(Loop):
    """Trains the `Mixer` of a mixture: `MixingTrainer(recipe, mixed, train, val, folder).run()`.

    In training, alpha has the whole range (low, 1) of the recipe, so that attacks can use all of it.
    """

    recipe: MixingRecipe

    def __init__(
        self,
        recipe: MixingRecipe,
        mixed: MixedClassifier,
        train: ImageData,
        val: ImageData,
        folder: Path,
        *,
        device: str = "cpu",
        compiled: bool | None = None,
        monitor: TrainingMonitor | None = None,
    ) -> None:
        if not isinstance(mixed.alpha, Mixer):
            raise TypeError(
                f"expected a mixture whose alpha is a Mixer, got {type(mixed.alpha).__name__}: "
                "make one with ads.MixingNetwork.between(g, h) or ads.FineTunedTail.of(h)"
            )
        super().__init__(recipe, mixed.alpha, train, val, folder, device=device, monitor=monitor)
        for base in (mixed.standard, mixed.robust):
            base.eval().requires_grad_(False).to(memory_format=self.layout)  # type: ignore[call-overload]
        point = recipe.operating_point
        # The scores of a mixer that was trained before are standardized. This keeps the slope of alpha in the raw ones.
        scale = point.scale * (mixed.alpha.spread if isinstance(mixed.alpha, FineTunedTail) else 1.0)
        self.mixed = mixed.to(device).with_alpha_range(point.low, 1).with_sigmoid(scale, point.shift)
        self.weight_perturbation = WeightPerturbation(self.model, recipe.optimizer.weight_perturbation)
        compiled = self.cuda if compiled is None else compiled
        self.attack = make_attack(self.mixed, recipe.attack, self.device, compiled=compiled)
        self.attack_through_robust = attack_through_robust(self.mixed, recipe.attack, self.device)
        self.attacked_weight = AttackedWeight(self.device)
        self.operating_point: OperatingPoint | None = None
        if point.has_target:
            labels = self.val_data.labels[:HELD_OUT]
            self.operating_point = OperatingPoint(self.mixed, point, self._held_out(), labels)

    def parameter_groups(self) -> list[dict[str, Any]]:
        if not isinstance(self.model, FineTunedTail):
            return super().parameter_groups()
        tail = set(self.model.tail.parameters())
        groups: list[dict[str, Any]] = [{"params": [], "lr_factor": 1.0}]
        groups.append({"params": [], "lr_factor": self.recipe.mixer.tail_lr_factor})
        for parameter in self.model.parameters():
            groups[parameter in tail]["params"].append(parameter)
        return groups

    def state(self) -> dict[str, Tensor]:
        return {"scale": self.mixed.alpha_scale, "shift": self.mixed.alpha_shift, "slopes": self.attacked_weight.slopes}

    def _identity(self) -> dict[str, Any]:
        digests = [weights_digest(base) for base in (self.mixed.standard, self.mixed.robust)]
        validation = {"validation set": self.val_data.fingerprint()}  # which determines the operating point
        return {**super()._identity(), **validation, "pair of base classifiers": digests}

    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        if self.step % self.recipe.operating_point.every == 0:
            self.update_operating_point()
        examples = self.examples(batch)
        self.model.train()
        loss, logits = self.descend(lambda: self._loss(examples))
        self.model.eval()
        return loss, (logits.argmax(1) == examples.labels).float().mean()

    def _loss(self, examples: MixerBatch) -> tuple[Tensor, Tensor]:
        with self._arithmetic():
            mixed = self.mixed.combine(examples.base_outputs, examples.images)
        losses = composite_loss(self.recipe.loss, mixed.logits, mixed.alpha, examples.labels, examples.pseudo_labels)
        weights = examples.weights
        if self.recipe.loss.balanced:
            clean, attacked = weights.chunk(2)
            factor = self.attacked_weight(weights * losses, mixed.alpha, self.mixed.alpha_range)
            weights = torch.cat([clean, factor * attacked])
        return (weights * losses).sum() / weights.sum(), mixed.logits

    def examples(self, batch: TrainingBatch) -> MixerBatch:
        """Return a batch with its attacked versions, made with the current mixer, and the base outputs of both."""
        self.model.eval()
        with frozen(self.model):
            attacked, pseudo_labels = self._attacked(batch)
        with torch.no_grad(), self._arithmetic():
            base_outputs = concatenate(*map(self.mixed.base_outputs, (batch.images, attacked)))
        images, clean = torch.cat([batch.images, attacked]), torch.zeros_like(pseudo_labels)
        weights = torch.cat([torch.ones_like(clean), torch.full_like(clean, self.recipe.loss.attacked)])
        return MixerBatch(images, base_outputs, batch.labels.repeat(2), torch.cat([clean, pseudo_labels]), weights)

    def _attacked(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the attacked images and their pseudo labels: 0 for those attacked through h, 1 for the others."""
        pseudo_labels = torch.ones(len(batch.labels), device=self.device)
        count = round(self.recipe.attack.through_robust * len(batch.labels))
        if not count:
            return self.attack(batch), pseudo_labels
        pseudo_labels[:count] = 0
        first, rest = (
            batch._replace(images=batch.images[part], labels=batch.labels[part], positions=batch.positions[part])
            for part in (slice(count), slice(count, None))
        )
        return torch.cat([self.attack_through_robust(first), self.attack(rest)]), pseudo_labels

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda)

    def _held_out(self) -> BaseOutputs:
        """Return the base outputs of validation images."""
        with torch.no_grad(), self._arithmetic():
            parts = (part.images for part in batches(self.val_data.take(slice(HELD_OUT)), 500))
            return concatenate(*(self.mixed.base_outputs(i.contiguous(memory_format=self.layout)) for i in parts))

    def update_operating_point(self) -> None:
        """Choose the shift for the target accuracy, if the recipe has one."""
        if self.operating_point is not None:
            with torch.no_grad(), self._arithmetic():
                self.operating_point.update()

    def validate(self, images: int = 1000) -> dict[str, float]:
        """Return clean and PGD-10 accuracy of the averaged weights on validation images."""
        with restored(self.model):
            self.average.copy_to_model()
            self.measure(batches=10)
            self.model.eval()
            self.update_operating_point()
            attack = PGD(self.recipe.attack.threat, steps=10, stop_when_fooled=True)
            found = evaluate(self.mixed, self.val_data.take(slice(images)), attack)
        self.update_operating_point()  # that of the current weights again
        return {"val_clean": found.clean, "val_pgd10": found.robust}

    def measure(self, batches: int) -> None:
        if learns_statistics(self.model):
            later = islice(self.batches(self.recipe.optimizer.epochs), min(batches, STATISTICS))
            measure_statistics(self.model, (self.examples(batch).base_outputs for batch in later), self._arithmetic())

    def finish(self) -> nn.Module:
        mixer = super().finish()
        # Weights are stored in half precision. Evaluation and tuning must use the stored weights.
        mixer.load_state_dict(compact_weights(mixer))
        if isinstance(mixer, FineTunedTail) and self.operating_point is None:
            self._standardize(mixer)
        self.update_operating_point()
        return mixer

    def _standardize(self, mixer: FineTunedTail) -> None:
        """Standardize the scores without changing alpha."""
        with torch.no_grad(), self._arithmetic():
            before, scale = mixer.centre.clone(), self.recipe.operating_point.scale
            mixer.standardize(self._held_out())
        self.mixed.alpha_scale.copy_(scale * mixer.spread)
        self.mixed.alpha_shift.add_(scale * (mixer.centre - before))


def concatenate(*parts: BaseOutputs) -> BaseOutputs:
    """Return the base outputs of several batches as those of one."""
    g, h = (torch.cat([getattr(part, name) for part in parts]) for name in ("g", "h"))
    features = [
        tuple(torch.cat(layer) for layer in zip(*(getattr(part, name) for part in parts), strict=True))
        for name in ("g_features", "h_features")
    ]
    return BaseOutputs(g, h, *features)


def untrained_mixture(
    recipe: MixingRecipe, standard: nn.Module, robust: nn.Module, shape: tuple[int, int, int] = (3, 32, 32)
) -> MixedClassifier:
    """Return the mixture of two classifiers of images of this shape that the training of a recipe starts from."""
    torch.manual_seed(recipe.seed)
    settings, point = recipe.mixer, recipe.operating_point
    mixer: Mixer
    if settings.kind == "fine-tuned-tail":
        tap = settings.robust_taps[0] if settings.robust_taps else None
        mixer = FineTunedTail.of(robust, tap, shape=shape, hidden=settings.hidden)
    else:
        named = partial(MixingNetwork.between, standard_taps=settings.standard_taps, robust_taps=settings.robust_taps)
        mixer = named(standard, robust, shape=shape, width=settings.width, depth=settings.depth)
    mixed = MixedClassifier(standard, robust, mixer, standard_scale=recipe.standard_scale)
    return mixed.with_sigmoid(point.scale, point.shift)
