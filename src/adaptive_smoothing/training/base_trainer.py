"""Training of base classifiers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.models import architectures
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.training.averaging import measure_statistics, statistics_kept
from adaptive_smoothing.training.base_methods import Network, make_base_method
from adaptive_smoothing.training.batch import TrainingBatch
from adaptive_smoothing.training.loop import Loop
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.weight_perturbation import WeightPerturbation


class Trainer(Loop):
    """Trains a base classifier: `Trainer(recipe, train, val, folder).run()` returns it with averaged weights."""

    recipe: Recipe

    def __init__(
        self,
        recipe: Recipe,
        train: ImageData,
        val: ImageData,
        folder: Path,
        *,
        device: str = "cpu",
        compiled: bool | None = None,
        monitor: TrainingMonitor | None = None,
        save_every: float = 30.0,
    ) -> None:
        torch.manual_seed(recipe.seed)
        model = architectures.build(recipe.model.arch, **recipe.model.options_for(train.num_classes))
        super().__init__(recipe, model, train, val, folder, device=device, monitor=monitor, save_every=save_every)
        self.network = self._network(self.cuda if compiled is None else compiled)
        self.method = make_base_method(recipe.method, len(train), self.device)
        self.weight_perturbation = WeightPerturbation(self.model, recipe.method.weight_perturbation)

    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        examples = self.examples(batch)
        self.model.train()
        warm = self.step >= self.recipe.method.perturbation_warmup * self.total_steps
        loss, logits = self.descend(lambda: self.method.loss(self.network, batch, examples), perturb=warm)
        return loss, (logits.argmax(1) == batch.labels).float().mean()

    def examples(self, batch: TrainingBatch) -> Tensor:
        """Return the training examples of a batch, made with the network frozen and in evaluation mode."""
        self.model.eval()
        self.model.requires_grad_(False)
        try:
            return self.method.examples(self.network, batch)
        finally:
            self.model.requires_grad_(True)

    def _network(self, compiled: bool) -> Network:
        """Return the model for training steps: in bfloat16 on CUDA, and compiled on request.

        CUDA graphs ("reduce-overhead") save the launches of a batch of 512 small images: 4.46 s instead of 5.8 s per
        epoch of adversarial training of a ResNet-18 (docs/log.md). The next call overwrites their output, so a method
        clones the outputs that it keeps.
        """
        inner: Network = torch.compile(self.model, dynamic=False, mode="reduce-overhead") if compiled else self.model
        if not self.cuda:
            return inner

        def network(images: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return inner(images)

        return network

    def state(self) -> dict[str, Tensor]:
        return self.method.state()

    def validate(self, images: int = 1000) -> dict[str, float]:
        """Return accuracies of the averaged weights on validation images: clean, and under PGD-10 or noise."""
        with statistics_kept(self.model), self.average.swapped_in():
            self.measure(batches=40)
            self.model.eval()
            data = self.val_data.take(slice(images))
            clean = evaluate(self.model, self.val_data).clean
            if self.recipe.method.name == "gaussian":
                smooth = SmoothedClassifier(self.model, self.recipe.method.sigma, samples=8, batch=4096)
                return {"val_clean": clean, "val_smoothed": evaluate(smooth, data).clean}
            if self.recipe.method.name == "standard":
                return {"val_clean": clean}
            robust = evaluate(self.model, data, PGD(self.recipe.method.threat, steps=10, stop_when_fooled=True))
            return {"val_clean": clean, "val_pgd10": robust.robust}

    def measure(self, batches: int) -> None:
        """Set the batch-norm statistics of the current weights, on training examples of so many batches."""
        epoch = self.recipe.optimizer.epochs  # an order that training does not use
        # The attack on the first batch needs statistics that are roughly correct.
        measure_statistics(self.model, (batch.images for batch in islice(self.batches(epoch), 4)))
        state = {key: value.clone() for key, value in self.method.state().items()}
        chosen = islice(self.batches(epoch), batches)
        measure_statistics(self.model, (self.method.inputs(b, self.examples(b)) for b in chosen))
        for key, value in self.method.state().items():
            value.copy_(state[key])
