"""Train a base classifier from a recipe: load the data, train, evaluate, store the model with its card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.arithmetic import frozen
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.models import architectures, zoo
from adaptive_smoothing.models.cards import read_card
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.results import write_json
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.averaging import WeightPerturbation, measure_statistics, restored
from adaptive_smoothing.training.base_methods import Network, make_base_method
from adaptive_smoothing.training.loop import CHECKPOINT, Loop, TrainingBatch
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.version import code_version

# Samples of the smoothed classifier for the accuracy on a card. Certified accuracy is measured by `certify`.
SMOOTHING_SAMPLES = 16


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
    ) -> None:
        torch.manual_seed(recipe.seed)
        model = architectures.build(recipe.model.arch, **recipe.model.options_for(train.num_classes))
        super().__init__(recipe, model, train, val, folder, device=device, monitor=monitor)
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
        with frozen(self.model):
            return self.method.examples(self.network, batch)

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
        with restored(self.model):
            self.average.copy_to_model()
            self.measure(batches=40)
            self.model.eval()
            data, method = self.val_data.take(slice(images)), self.recipe.method
            found = {"val_clean": evaluate(self.model, self.val_data).clean}
            if method.name == "gaussian":
                smooth = SmoothedClassifier(self.model, method.sigma, samples=8, batch=4096)
                found["val_smoothed"] = evaluate(smooth, data).clean
            elif method.name != "standard":
                attack = PGD(method.threat, steps=10, stop_when_fooled=True)
                found["val_pgd10"] = evaluate(self.model, data, attack).robust
            return found

    def measure(self, batches: int) -> None:
        epoch = self.recipe.optimizer.epochs  # an order that training does not use
        # The attack on the first batch needs statistics that are roughly correct.
        measure_statistics(self.model, (batch.images for batch in islice(self.batches(epoch), 4)))
        state = {key: value.clone() for key, value in self.method.state().items()}
        chosen = islice(self.batches(epoch), batches)
        measure_statistics(self.model, (self.method.inputs(b, self.examples(b)) for b in chosen))
        for key, value in self.method.state().items():
            value.copy_(state[key])


def train_base(
    recipe: Recipe,
    folder: Path,
    *,
    device: str = "cpu",
    root: str | Path | None = None,
    download: bool = False,
    resume: bool = False,
    compiled: bool | None = None,
    quiet: bool = False,
    test_images: int | None = None,
) -> dict[str, Any]:
    """Train `recipe` into `folder`; return the card that is stored with the weights.

    The final evaluation has `test_images` test images, or all. Pass 0 for a candidate that will be compared with others
    on validation images first.
    """
    train, val = (datasets.load(recipe.data.name, split, root=root, download=download) for split in ("train", "val"))
    if (folder / CHECKPOINT).exists() and not resume:
        raise FileExistsError(
            f"expected a folder without a run, got {folder}: continue with --resume, choose another --out, or delete it"
        )
    monitor = TrainingMonitor(folder, title=recipe.name, quiet=quiet)
    trainer = Trainer(recipe, train, val, folder, device=device, compiled=compiled, monitor=monitor)
    resumed = resume and trainer.resume()
    weights = folder / f"{recipe.name}.safetensors"
    if trainer.finished and weights.exists():
        # A trained candidate was chosen and is evaluated on the test split now.
        stored_card = read_card(weights)
        card = {"arch": stored_card.arch, "options": dict(stored_card.options), **stored_card.card}
    else:
        write_json(folder / "recipe.json", asdict(recipe))
        model = trainer.run()
        card = {
            "arch": recipe.model.arch,
            "options": recipe.model.options_for(train.num_classes),
            "recipe": asdict(recipe),
            "train_images": len(train),
            "data": train.fingerprint(),
            "seconds": round(trainer.seconds, 1),
            "resumed": resumed,
            "device": torch.cuda.get_device_name(device) if trainer.cuda else trainer.device.type,
            "code": code_version(),
        }
        zoo.save(model, folder, recipe.name, card)
    # Evaluate the stored model, which is in half precision.
    stored = zoo.load(str(weights), device=device)
    held_out = {"val": val}
    if test_images != 0:
        held_out["test"] = datasets.load(recipe.data.name, "test", root=root).take(slice(test_images))
    with monitor.show_evaluation(sum(map(len, held_out.values()))) as progress:
        card["figures"] = figures(stored, recipe, held_out, progress)
    zoo.save(stored, folder, recipe.name, card)
    return card


def figures(
    model: nn.Module, recipe: Recipe, splits: dict[str, ImageData], progress: Callable[[int], None]
) -> dict[str, dict[str, float]]:
    """Return clean and PGD-20 accuracy on held-out splits, and that of the smoothed classifier for `gaussian`.

    PGD has the threat model of the recipe, or Linf 8/255.
    """
    threat = Linf(8 / 255) if recipe.method.name in ("standard", "gaussian") else recipe.method.threat
    attack = PGD(threat, steps=20, stop_when_fooled=True)
    size = 1000 if next(model.parameters()).is_cuda else 100
    options = EvaluationOptions(batch_size=size)
    found: dict[str, dict[str, float]] = {}
    for split, data in splits.items():
        done = sum(len(splits[earlier]) for earlier in found)
        result = evaluate(model, data, attack, options=options, progress=lambda run: progress(done + run.seen))  # noqa: B023
        found[split] = {"images": len(data), "clean": result.clean, "pgd20": result.robust}
        if recipe.method.name == "gaussian":
            smooth = SmoothedClassifier(model, recipe.method.sigma, samples=SMOOTHING_SAMPLES, batch=4 * size)
            found[split]["smoothed"] = evaluate(smooth, data, options=options).clean
    return found
