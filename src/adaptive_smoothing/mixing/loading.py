"""The model of a command: a classifier, a stored mixture, or a mixture of two classifiers with one alpha."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing import hub, pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.fit import class_names
from adaptive_smoothing.models.wrap import num_classes
from adaptive_smoothing.models.zoo import model_facts, short_name


@dataclass(frozen=True)
class LoadedModel:
    """A model to evaluate.

    Args:
        parts: the classifiers in it, by name.
        facts: facts about the classifiers for a result file.
        short: its name in a form that can be part of a folder's name.
    """

    model: nn.Module
    parts: dict[str, nn.Module]
    facts: dict[str, Any]
    short: str

    @classmethod
    def load(cls, model: str, robust: str | None, alpha: float | None, device: str) -> LoadedModel:
        """Return a classifier or a stored mixture by name, or the mixture of two classifiers with `alpha`."""
        if (robust is None) != (alpha is None):
            given = "H without --alpha" if alpha is None else "--alpha without H"
            expected = "G, H and --alpha for a mixture, or one MODEL alone"
            raise ValueError(f"expected {expected}, got {given}: add or remove one")
        if robust is None and (hub.is_repository(model) or pretrained.exists(model)):
            folder = hub.fetch(model) if hub.is_repository(model) else pretrained.find(model)
            mixed, description = MixedClassifier.from_pretrained(folder, device=device), pretrained.read(folder)
            facts = {key: description[key] for key in ("standard", "robust", "alpha", "numbers")}
            short = short_name(model)
            return cls(mixed, {"g": mixed.standard, "h": mixed.robust}, {"mixture": short, **facts}, short)
        loaded = zoo.load(model, device=device)
        if robust is None or alpha is None:
            return cls(loaded, {model: loaded}, {"model": model_facts(model)}, short_name(model))
        other = zoo.load(robust, device=device)
        mixed = MixedClassifier(loaded, other, alpha).to(device)
        facts = {"g": model_facts(model), "h": model_facts(robust), "alpha": alpha}
        return cls(mixed, {model: loaded, robust: other}, facts, f"{short_name(model)}-{short_name(robust)}-{alpha:g}")


def check_classes(models: dict[str, nn.Module], data: ImageData) -> None:
    """Raise an error if a model has a different number of classes than the data."""
    _, channels, height, width = data.images.shape
    for name, model in models.items():
        if (count := num_classes(model, (channels, height, width))) != data.num_classes:
            expected = f"expected a model for the {data.num_classes} classes of {data.name}"
            hint = "choose the data it was trained for with --data, or another model"
            if count > data.num_classes:
                hint += f"; if {class_names(data)} are some of its classes, list all of them in a file, in its order: "
                hint += "--data 'PATH?classes=FILE'"
            raise ValueError(f"{expected}, got {name} with {count}: {hint}")
