"""Training of a mixer (sec. train_mixing_network of the paper). The base classifiers are not changed."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models.contract import frozen
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.models.weight_files import compact_weights
from adaptive_smoothing.training.loop import Loop, TrainingBatch
from adaptive_smoothing.training.mixing.attacks import MixtureAttacks
from adaptive_smoothing.training.mixing.loss import AttackedWeight, composite_loss
from adaptive_smoothing.training.mixing.operating_point import OperatingPoint, at_start, standardize_scores
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.weights import learns_statistics, measure_statistics

# Validation images for the operating point. Their features stay on the device.
OPERATING_POINT_IMAGES = 5000
# A validation during training: images that are attacked, and batches for batch-norm statistics.
VALIDATION_IMAGES, VALIDATION_BATCHES = 1000, 10
# Most batches for batch-norm statistics. Each must be attacked, and twenty are as good as an epoch.
STATISTICS_BATCHES = 20


class MixerBatch(NamedTuple):
    """A training batch of the mixer: clean images followed by their attacked versions."""

    images: Tensor
    base_outputs: BaseOutputs
    labels: Tensor
    pseudo_labels: Tensor  # of alpha: 1 where h should decide, 0 where g should
    weights: Tensor  # of the loss


class MixingTrainer(Loop):
    """Trains the `Mixer` of a mixture: `MixingTrainer(recipe, mixed, train, val, options).run()`.

    The mixer is trained in place. `self.mixed` is the mixture with the operating point of the training.
    """

    recipe: MixingRecipe

    def __init__(
        self, recipe: MixingRecipe, mixed: MixedClassifier, train: ImageData, val: ImageData, options: TrainingOptions
    ) -> None:
        mixer, point = mixed.alpha, recipe.operating_point
        if not isinstance(mixer, Mixer):
            hint = "make one with ads.MixingNetwork.between(g, h) or ads.FineTunedTail.of(h)"
            raise TypeError(f"expected a mixture whose alpha is a Mixer, got {type(mixer).__name__}: {hint}")
        super().__init__(recipe, mixer, train, val, options, weight_perturbation=recipe.optimizer.weight_perturbation)
        for base in (mixed.standard, mixed.robust):
            base.eval().requires_grad_(False).to(memory_format=self.layout)  # type: ignore[call-overload]
        self.mixed = at_start(mixed.to(self.device), mixer, point)
        self.attacks = MixtureAttacks(self.mixed, recipe.attack, self.device, compiled=self.compiled)
        self.attacked_weight = AttackedWeight(self.device)
        self.operating_point: OperatingPoint | None = None
        if point.has_target:
            labels = self.val_data.labels[:OPERATING_POINT_IMAGES]
            self.operating_point = OperatingPoint(self.mixed, point, self.validation_outputs(), labels)

    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        if self.step % self.recipe.operating_point.every == 0:
            self.update_operating_point()
        examples = self.examples(batch)
        self.model.train()
        loss, logits = self.descend(lambda: self.loss(examples))
        self.model.eval()
        return loss, (logits.argmax(1) == examples.labels).float().mean()

    def update_operating_point(self) -> None:
        """Choose the shift for the target accuracy, if the recipe has one."""
        if self.operating_point is not None:
            with self._arithmetic():
                self.operating_point.update()

    def examples(self, batch: TrainingBatch) -> MixerBatch:
        """Return a batch with its attacked versions, made with the current mixer, and the base outputs of both."""
        self.model.eval()
        with frozen(self.model):
            attacked, pseudo_labels = self.attacks(batch)
        with torch.no_grad(), self._arithmetic():
            base_outputs = concatenate(*map(self.mixed.base_outputs, (batch.images, attacked)))
        clean_weight = torch.ones_like(pseudo_labels)
        return MixerBatch(
            images=torch.cat([batch.images, attacked]),
            base_outputs=base_outputs,
            labels=batch.labels.repeat(2),
            pseudo_labels=torch.cat([torch.zeros_like(pseudo_labels), pseudo_labels]),  # g decides on clean images
            weights=torch.cat([clean_weight, self.recipe.loss.attacked * clean_weight]),
        )

    def loss(self, examples: MixerBatch) -> tuple[Tensor, Tensor]:
        """Return the weighted mean of the composite loss, and the logits of the mixture."""
        with self._arithmetic():
            mixed = self.mixed.combine(examples.base_outputs, examples.images)
        losses = composite_loss(self.recipe.loss, mixed.logits, mixed.alpha, examples.labels, examples.pseudo_labels)
        weights = examples.weights
        if self.recipe.loss.balanced:
            clean, attacked = weights.chunk(2)
            factor = self.attacked_weight(weights * losses, mixed.alpha, self.mixed.alpha_range)
            weights = torch.cat([clean, factor * attacked])
        return (weights * losses).sum() / weights.sum(), mixed.logits

    def validate(self) -> dict[str, float]:
        """Return clean and PGD-10 accuracy of the averaged weights on validation images."""
        attack = PGD(self.recipe.attack.threat, steps=10, stop_when_fooled=True)
        with self.averaged_weights(VALIDATION_BATCHES):
            self.update_operating_point()
            found = evaluate(self.mixed, self.val_data.take(slice(VALIDATION_IMAGES)), attack)
        self.update_operating_point()  # for the weights that are not averaged
        return {"val_clean": found.clean, "val_pgd10": found.robust}

    def measure_batch_norm(self, batches: int) -> None:
        if learns_statistics(self.model):
            later = islice(self.batches(self.recipe.optimizer.epochs), min(batches, STATISTICS_BATCHES))
            measure_statistics(self.model, (self.examples(batch).base_outputs for batch in later), self._arithmetic())

    def finish(self) -> nn.Module:
        mixer = super().finish()
        # Weights are stored in half precision. Evaluation and tuning must use the stored weights.
        mixer.load_state_dict(compact_weights(mixer))
        if isinstance(mixer, FineTunedTail) and self.operating_point is None:
            with self._arithmetic():
                standardize_scores(self.mixed, mixer, self.recipe.operating_point, self.validation_outputs())
        self.update_operating_point()
        return mixer

    def validation_outputs(self) -> BaseOutputs:
        """Return the base outputs of the validation images for the operating point."""
        with torch.no_grad(), self._arithmetic():
            parts = (part.images for part in batches(self.val_data.take(slice(OPERATING_POINT_IMAGES)), 500))
            return concatenate(*(self.mixed.base_outputs(i.contiguous(memory_format=self.layout)) for i in parts))

    def _arithmetic(self) -> torch.autocast:
        """Return the context in which networks are computed: bfloat16 on CUDA, full precision elsewhere."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda)

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


def concatenate(*parts: BaseOutputs) -> BaseOutputs:
    """Return the base outputs of several batches as those of one."""
    g, h = (torch.cat([getattr(part, name) for part in parts]) for name in ("g", "h"))
    features = [
        tuple(torch.cat(layer) for layer in zip(*(getattr(part, name) for part in parts), strict=True))
        for name in ("g_features", "h_features")
    ]
    return BaseOutputs(g, h, *features)
