"""Train a base classifier from a recipe: load the data, train, evaluate, store the model with its card."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.loading import check_classes, facts_of
from adaptive_smoothing.models import architectures, zoo
from adaptive_smoothing.models.cards import read_card
from adaptive_smoothing.models.contract import frozen
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.models.memory import memory_given_back
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.progress import CountCallback
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.base_methods import Network, make_base_method
from adaptive_smoothing.training.loop import Loop, TrainingBatch
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.streams import StreamFunctions, TwoStreams
from adaptive_smoothing.training.weights import measure_statistics
from adaptive_smoothing.version import code_version

# A validation during training: images that are attacked or smoothed, and batches for batch-norm statistics.
VALIDATION_IMAGES, VALIDATION_BATCHES = 1000, 40
# Samples of the smoothed classifier in a validation, and for the accuracy on a card (not certified; see `certify`).
VALIDATION_SAMPLES, CARD_SAMPLES = 8, 16


@memory_given_back(collect=True)
def train_base(
    recipe: Recipe,
    options: TrainingOptions,
    *,
    root: str | Path | None = None,
    download: bool = False,
    test_images: int | None = None,
) -> dict[str, Any]:
    """Train a base classifier and store it in `options.folder`; return the card that is stored with the weights.

    Args:
        root, download: the folder of the data set, and whether to download it.
        test_images: number of test images for the final evaluation; default: all. Pass 0 for a candidate that will be
            compared with others on validation images first. When it is chosen, `resume` evaluates it on test images.
    """
    options.check_folder()
    train, val = (datasets.load(recipe.data.name, split, root=root, download=download) for split in ("train", "val"))
    trainer = Trainer(recipe, train, val, options)
    resumed = options.resume and trainer.resume()
    weights = options.folder / f"{recipe.name}.safetensors"
    if trainer.finished and weights.exists():  # a candidate that was chosen
        stored = read_card(weights)
        card = {"arch": stored.arch, "options": dict(stored.options), **stored.card}
    else:
        write_json(options.folder / "recipe.json", asdict(recipe))
        model = trainer.run()
        if trainer.compiled:
            torch.compiler.reset()  # its CUDA graphs would keep their memory
        card = trainer.card() | {"resumed": resumed}
        zoo.save(model, options.folder, recipe.name, card)
    held_out = {"val": val}
    if test_images != 0:
        held_out["test"] = datasets.load(recipe.data.name, "test", root=root).take(slice(test_images))
    # The stored weights are in half precision, so the stored model is evaluated.
    model = zoo.load(str(weights), device=options.device)
    card["figures"] = {}
    for split, data in held_out.items():
        with trainer.monitor.show_evaluation(split, len(data)) as progress:
            card["figures"][split] = figures(model, recipe, data, progress)
    zoo.save(model, options.folder, recipe.name, card)
    return card


class Trainer(Loop):
    """Trains a base classifier: `Trainer(recipe, train, val, options).run()` returns it with averaged weights."""

    recipe: Recipe

    def __init__(self, recipe: Recipe, train: ImageData, val: ImageData, options: TrainingOptions) -> None:
        torch.manual_seed(recipe.seed)
        model = architectures.build(recipe.model.arch, **recipe.model.options_for(train.num_classes))
        self.classifier = model  # `self.model` also has the second stream, if there is one
        trained = TwoStreams(model) if recipe.data.second_policy else model
        super().__init__(recipe, trained, train, val, options, weight_perturbation=recipe.method.weight_perturbation)
        self.network = self._network()
        self.helper = self._load_helper()
        helper = self.helper and self._for_training(self.helper)
        self.method = make_base_method(recipe.method, len(train), self.device, helper)

    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        examples = self.examples(batch)
        self.model.train()
        warm = self.step >= self.recipe.method.perturbation_warmup * self.total_steps
        loss, logits = self.descend(
            lambda: self.method.loss(self.network, batch, examples),
            perturb=warm,
            perturbation_loss=lambda: self.method.perturbation_loss(self.network, batch, examples),
        )
        return loss, (logits.argmax(1) == batch.labels).float().mean()

    def examples(self, batch: TrainingBatch) -> Tensor:
        """Return the training examples of a batch, made with the network frozen and in evaluation mode."""
        self.model.eval()
        with frozen(self.model):
            return self.method.examples(self.network, batch)

    def finish(self) -> nn.Module:
        super().finish()
        return self.classifier

    def _load_helper(self) -> nn.Module | None:
        """Return the helper of the method, if it has one."""
        name = self.recipe.method.helper
        if not name:
            return None
        model = zoo.load(name, device=self.device)
        # Its predictions are labels: a class that the data do not have would be none of the trained model.
        check_classes({name: model}, replace(self.train_data, classes_known=True))
        return model

    @cached_property
    def _helper_facts(self) -> dict[str, Any]:
        """The facts about the helper, which is frozen; empty without one."""
        return facts_of(self.helper) | {"weights": weights_digest(self.helper)} if self.helper else {}

    def _identity(self) -> dict[str, Any]:
        helper = {"helper": self._helper_facts["weights"]} if self.helper else {}
        return {**super()._identity(), **helper}

    def _network(self) -> Network:
        """Return the model for training steps, with both of its streams if it has two."""
        if isinstance(self.model, TwoStreams):
            return StreamFunctions(self._for_training(self.model.first), self._for_training(self.model.second))
        return self._for_training(self.model)

    def _for_training(self, model: nn.Module) -> Network:
        """Return a model for training steps: in bfloat16 on CUDA, and compiled if `compiled` is set.

        CUDA graphs ("reduce-overhead") save the launches of a batch of 512 small images: 4.46 s instead of 5.8 s per
        epoch of adversarial training of a ResNet-18 (docs/log.md). The next call overwrites their output, so a method
        clones the outputs that it keeps.
        """
        inner: Network = model
        if self.compiled:
            inner = torch.compile(model, dynamic=False, mode="reduce-overhead")
        if not self.cuda:
            return inner

        def network(images: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return inner(images)

        return network

    def state(self) -> dict[str, Tensor]:
        return self.method.state()

    def validate(self) -> dict[str, float]:
        """Return accuracies of the averaged weights on validation images: clean, and under PGD-10 or noise."""
        data, method = self.val_data.take(slice(VALIDATION_IMAGES)), self.recipe.method
        with self.averaged_weights(VALIDATION_BATCHES):
            found = {"val_clean": evaluate(self.classifier, self.val_data).clean}
            if method.name == "gaussian":
                smooth = SmoothedClassifier(self.classifier, method.sigma, samples=VALIDATION_SAMPLES, batch=4096)
                found["val_smoothed"] = evaluate(smooth, data).clean
            elif method.name != "standard":
                attack = PGD(method.threat, steps=10, stop_when_fooled=True)
                found["val_pgd10"] = evaluate(self.classifier, data, attack).robust
        return found

    def measure_batch_norm(self, batches: int) -> None:
        epoch = self.recipe.optimizer.epochs  # whose order of images no training epoch has
        # The attack on the first batch needs statistics that are roughly correct.
        measure_statistics(self.classifier, (batch.images for batch in islice(self.batches(epoch), 4)))
        state = {key: value.clone() for key, value in self.method.state().items()}
        chosen = islice(self.batches(epoch), batches)
        measure_statistics(self.classifier, (self.method.inputs(b, self.examples(b)) for b in chosen))
        for key, value in self.method.state().items():
            value.copy_(state[key])  # which making examples has changed

    def card(self) -> dict[str, Any]:
        """Return the facts about the training that are stored with the weights."""
        return {
            "arch": self.recipe.model.arch,
            "options": self.recipe.model.options_for(self.train_data.num_classes),
            "recipe": asdict(self.recipe),
            **({"helper": self._helper_facts} if self.helper else {}),
            "train_images": len(self.train_data),
            "data": self.train_data.fingerprint(),
            "seconds": round(self.seconds, 1),
            "device": torch.cuda.get_device_name(self.device) if self.cuda else self.device.type,
            "code": code_version(),
        }


def figures(model: nn.Module, recipe: Recipe, data: ImageData, progress: CountCallback) -> dict[str, float]:
    """Return clean and PGD-20 accuracy, and that of the smoothed classifier for `gaussian`.

    PGD has the threat model of the recipe, or Linf 8/255 for methods without attacks. `progress` is called with the
    number of finished images.
    """
    threat = Linf(8 / 255) if recipe.method.name in ("standard", "gaussian") else recipe.method.threat
    attack = PGD(threat, steps=20, stop_when_fooled=True)
    size = 1000 if next(model.parameters()).is_cuda else 100
    options = EvaluationOptions(batch_size=size)
    result = evaluate(model, data, attack, options=options, progress=lambda run: progress(run.seen))
    found = {"images": len(data), "clean": result.clean, "pgd20": result.robust}
    if recipe.method.name == "gaussian":
        smooth = SmoothedClassifier(model, recipe.method.sigma, samples=CARD_SAMPLES, batch=4 * size)
        found["smoothed"] = evaluate(smooth, data, options=options).clean
    return found
