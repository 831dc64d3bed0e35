"""Training of mixing networks: the base classifiers stay as they are, alpha(x) learns to choose between them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.accuracy import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.mixer import BaseOutputs, Mixer
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Claiming
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.training.averaging import learns_statistics, measure_statistics, statistics_kept
from adaptive_smoothing.training.batch import TrainingBatch
from adaptive_smoothing.training.loop import Loop
from adaptive_smoothing.training.mixing.attacks import Attacked, attack_through_robust, make_attack
from adaptive_smoothing.training.mixing.loss import composite_loss
from adaptive_smoothing.training.mixing.operating_point import AttackedWeight, OperatingPoint
from adaptive_smoothing.training.mixing.recipe import MixerSettings, MixingRecipe
from adaptive_smoothing.training.weight_perturbation import WeightPerturbation

# Validation images that the dial is turned by: their features stay on the device.
HELD_OUT = 5000
# Batches of lessons for batch-norm statistics: each has to be attacked, and twenty say what a whole epoch would.
STATISTICS = 20


class MixerBatch(NamedTuple):
    """What one step learns from: evidence of images, their labels, what alpha should be, and how much each counts."""

    images: Tensor
    base_outputs: BaseOutputs
    labels: Tensor
    pseudo: Tensor
    weights: Tensor


class MixingTrainer(Loop):
    """`MixingTrainer(recipe, mixed, train, val, folder).run()` -> the mixer of `mixed`, trained.

    In training alpha has all of the range (low, 1) that the recipe gives it, so that attacks can make the most of it.
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
        **options: Any,
    ) -> None:
        _check_fits(recipe, mixed)
        layout = torch.channels_last if torch.device(device).type == "cuda" else torch.contiguous_format
        for base in (mixed.standard, mixed.robust):
            base.eval().requires_grad_(False).to(memory_format=layout)  # type: ignore[call-overload]
        dial = recipe.dial
        # One that was trained before has standard scores; alpha is as steep as ever in what it computes.
        steepness = dial.scale * (mixed.alpha.spread if isinstance(mixed.alpha, FineTunedTail) else 1.0)
        self.mixed = mixed.to(device).with_alpha_range(dial.low, 1).with_sigmoid(steepness, dial.shift)
        super().__init__(recipe, cast(Mixer, mixed.alpha), train, val, folder, device=device, **options)
        self.adversary = WeightPerturbation(self.model, recipe.optimizer.weight_perturbation)
        compiled = self.cuda if compiled is None else compiled
        self.attack = make_attack(self.mixed, recipe.attack, self.device, compiled=compiled)
        self.through_robust = attack_through_robust(self.mixed, recipe.attack, self.device)
        self.price = AttackedWeight(self.device)
        self.dial: OperatingPoint | None = None
        if recipe.dial.turns:
            self.dial = OperatingPoint(self.mixed, recipe.dial, self._held_out(), self.val_data.labels[:HELD_OUT])

    def parameter_groups(self) -> list[dict[str, Any]]:
        if not isinstance(self.model, FineTunedTail):
            return super().parameter_groups()
        learned = {id(parameter) for parameter in self.model.tail.parameters()}
        groups: list[dict[str, Any]] = [
            {"params": [], "pace": 1.0},
            {"params": [], "pace": self.recipe.mixer.tail_pace},
        ]
        for parameter in self.model.parameters():
            groups[id(parameter) in learned]["params"].append(parameter)
        return groups

    def state(self) -> dict[str, Tensor]:
        return {"scale": self.mixed.alpha_scale, "shift": self.mixed.alpha_shift, "slopes": self.price.slopes}

    def _identity(self) -> dict[str, Any]:
        sums = [weights_digest(base) for base in (self.mixed.standard, self.mixed.robust)]
        held_out = {"validation set": self.val_data.fingerprint()}  # which sets the dial
        return {**super()._identity(), **held_out, "pair of base classifiers": sums}

    # -- steps ---------------------------------------------------------------------------------------------------

    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """On the images of the batch as they are, and attacked."""
        if self.step % self.recipe.dial.every == 0:
            self.turn_dial()
        lesson = self.lesson(batch)
        self.model.train()
        loss, logits = self.descend(lambda: self._loss(lesson))
        self.model.eval()
        return loss, (logits.argmax(1) == lesson.labels).float().mean()

    def _loss(self, lesson: MixerBatch) -> tuple[Tensor, Tensor]:
        with self._arithmetic():
            mixture = self.mixed.combine(lesson.base_outputs, lesson.images)
        losses = composite_loss(self.recipe.loss, mixture.logits, mixture.alpha, lesson.labels, lesson.pseudo)
        weights = lesson.weights
        if self.recipe.loss.dialled:
            clean, attacked = weights.chunk(2)
            price = self.price(weights * losses, mixture.alpha, self.mixed.alpha_range)
            weights = torch.cat([clean, price * attacked])
        return (weights * losses).sum() / weights.sum(), mixture.logits

    def lesson(self, batch: TrainingBatch) -> MixerBatch:
        """Attack the batch with the network as it is, and ask the base classifiers about all of it."""
        self.model.eval()
        self.model.requires_grad_(False)
        try:
            attacked, pseudo = self._attacked(batch)
            with torch.no_grad(), self._arithmetic():
                base_outputs = together(self.mixed.base_outputs(batch.images), self._base_outputs(attacked))
                weights = torch.cat([torch.ones_like(pseudo), self._weights(base_outputs, attacked, pseudo, batch)])
        finally:
            self.model.requires_grad_(True)
        images = torch.cat([batch.images, attacked.images])
        return MixerBatch(
            images, base_outputs, batch.labels.repeat(2), torch.cat([torch.zeros_like(pseudo), pseudo]), weights
        )

    def _attacked(self, batch: TrainingBatch) -> tuple[Attacked, Tensor]:
        """The attacked images and their pseudo labels: 1, but 0 for those attacked through h, which g withstands."""
        pseudo = torch.ones(len(batch.labels), device=self.device)
        few = round(self.recipe.attack.through_robust * len(batch.labels))
        if not few:
            return self.attack(batch), pseudo
        pseudo[:few] = 0
        first, rest = (
            batch._replace(images=batch.images[part], labels=batch.labels[part], positions=batch.positions[part])
            for part in (slice(few), slice(few, None))
        )
        return Attacked(torch.cat([self.through_robust(first).images, self.attack(rest).images])), pseudo

    def _base_outputs(self, attacked: Attacked) -> BaseOutputs:
        """What the base classifiers say of attacked images; a hostile g says what it claims."""
        base_outputs = self.mixed.base_outputs(attacked.images)
        if attacked.claims is None:
            return base_outputs
        g = Claiming(base_outputs.g.shape[1])
        g.tell(attacked.claims)
        return base_outputs._replace(g=g(attacked.images).to(base_outputs.g))

    def _weights(self, base_outputs: BaseOutputs, attacked: Attacked, pseudo: Tensor, batch: TrainingBatch) -> Tensor:
        weights = torch.full_like(pseudo, self.recipe.loss.attacked)
        if self.recipe.attack.unfooled == "drop":
            both = torch.cat([batch.images, attacked.images])
            answered = self.mixed.combine(base_outputs, both).logits[len(pseudo) :].argmax(1)
            weights = weights.masked_fill((answered == batch.labels) & (pseudo == 1), 0.0)
        return weights

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda)

    def _held_out(self) -> BaseOutputs:
        """Evidence of validation images, which does not change."""
        with torch.no_grad(), self._arithmetic():
            parts = batches(self.val_data.take(slice(HELD_OUT)), 500)
            return together(*(self.mixed.base_outputs(self._laid_out(part.images)) for part in parts))

    def turn_dial(self) -> None:
        """Where there is one to turn."""
        if self.dial is not None:
            with torch.no_grad(), self._arithmetic():
                self.dial.turn()

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=self.layout)

    # -- watching ------------------------------------------------------------------------------------------------

    def validate(self, images: int = 1000) -> dict[str, float]:
        """Clean accuracy and PGD-10 of the averaged weights on validation images."""
        with statistics_kept(self.model), self.average.swapped_in():
            self.measure(batches=10)
            self.model.eval()
            self.turn_dial()
            attack = PGD(self.recipe.attack.threat, steps=10, stop_when_fooled=True)
            found = evaluate(self.mixed, self.val_data.take(slice(images)), attack)
        self.turn_dial()  # back to where it belongs with the weights as they are
        return {"val_clean": found.clean, "val_pgd10": found.robust}

    def measure(self, batches: int) -> None:
        if not learns_statistics(self.model):
            return
        later = islice(self.batches(self.recipe.optimizer.epochs), min(batches, STATISTICS))
        lessons = (self.lesson(batch).base_outputs for batch in later)
        measure_statistics(self.model, lessons, self._arithmetic())

    def finish(self) -> nn.Module:
        mixer = super().finish()
        # What is measured and tuned is what will be stored: half precision.
        mixer.load_state_dict(zoo.compact_weights(mixer))
        if isinstance(mixer, FineTunedTail) and self.dial is None:
            self._standardize(mixer)
        self.turn_dial()
        return mixer

    def _standardize(self, mixer: FineTunedTail) -> None:
        """What the dial does where there is one, with the alpha of every image as it was."""
        with torch.no_grad(), self._arithmetic():
            before, steepness = mixer.centre.clone(), self.recipe.dial.scale
            mixer.standardize(self._held_out())
        self.mixed.alpha_scale.copy_(steepness * mixer.spread)
        self.mixed.alpha_shift.add_(steepness * (mixer.centre - before))


def _check_fits(recipe: MixingRecipe, mixed: MixedClassifier) -> None:
    if not isinstance(mixed.alpha, Mixer):
        raise TypeError(
            f"expected a mixture whose alpha is a Mixer, got {type(mixed.alpha).__name__}: "
            "make one with ads.MixingNetwork.between(g, h) or ads.FineTunedTail.of(h)"
        )
    if recipe.attack.setting == "hostile" and mixed.alpha.standard_taps:
        raise ValueError(
            f"expected a mixer that taps nothing of g for the hostile setting, got a {type(mixed.alpha).__name__}: "
            "train it in setting A, B or C, or take ads.FineTunedTail.of(h)"
        )


def together(*parts: BaseOutputs) -> BaseOutputs:
    """Evidence of several batches as that of one."""
    g, h = (torch.cat([getattr(part, name) for part in parts]) for name in ("g", "h"))
    features = [
        tuple(torch.cat(layer) for layer in zip(*(getattr(part, name) for part in parts), strict=True))
        for name in ("g_features", "h_features")
    ]
    return BaseOutputs(g, h, *features)


def make_mixer(settings: MixerSettings, standard: nn.Module, robust: nn.Module, shape: tuple[int, int, int]) -> Mixer:
    """The network that a recipe names, for these two classifiers."""
    if settings.kind == "second-ending":
        tap = settings.robust_taps[0] if settings.robust_taps else None
        return FineTunedTail.of(robust, tap, shape=shape, hidden=settings.hidden)
    return MixingNetwork.between(
        standard,
        robust,
        standard_taps=settings.standard_taps,
        robust_taps=settings.robust_taps,
        shape=shape,
        width=settings.width,
        depth=settings.depth,
    )


def untrained_mixture(
    recipe: MixingRecipe, standard: nn.Module, robust: nn.Module, shape: tuple[int, int, int] = (3, 32, 32)
) -> MixedClassifier:
    """The mixture that a recipe starts from."""
    torch.manual_seed(recipe.seed)
    mixer = make_mixer(recipe.mixer, standard, robust, shape)
    mixed = MixedClassifier(standard, robust, mixer, standard_scale=recipe.standard_scale)
    return mixed.with_sigmoid(recipe.dial.scale, recipe.dial.shift)
