"""The models of a command: classifiers by name, also of the user's own, stored mixtures, and mixtures of two names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing import hub, pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.stored_base import base_facts
from adaptive_smoothing.models import third_party, zoo, zoo_index
from adaptive_smoothing.models.fit import class_names
from adaptive_smoothing.models.identity import Identity
from adaptive_smoothing.models.origin import loaded_identity, origin, placed
from adaptive_smoothing.models.third_party import parse_preprocessing
from adaptive_smoothing.models.wrap import Classifier, num_classes, wrap
from adaptive_smoothing.models.zoo import model_facts, short_name
from adaptive_smoothing.settings.checks import similar_paths
from adaptive_smoothing.settings.user_code import check_parameters, errors_in_user_code, import_function


@dataclass(frozen=True)
class OwnModels:
    """How a command gets models that are not those of this package.

    Args:
        loader: `module:function` of the user, which returns a model for each name that nothing else has. A stored
            mixture may name several: with commas between them.
        preprocessing: mean, std and size of these models and of those of other libraries, as text.
    """

    loader: str | None = None
    preprocessing: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_preprocessing(self.preprocessing)  # raises if a value cannot be read
        if not all(self.allow):
            hint = "name a function, or leave the option out"
            raise ValueError(f"expected --loader as module:function, got an empty name in {self.loader!r}: {hint}")

    @property
    def allow(self) -> list[str]:
        """The functions that a stored mixture may name."""
        return [] if self.loader is None else [name.strip() for name in self.loader.split(",")]

    def load(self, names: Sequence[str], device: str) -> list[nn.Module]:
        """Return the models with these names on a device."""
        self.check_used(names)
        if len(self.allow) > 1:
            hint = "name the one that loads your models; several are for a stored mixture"
            raise ValueError(f"expected one function in --loader, got {', '.join(self.allow)}: {hint}")
        return [self._load(name, device) for name in names]

    def check_used(self, names: Sequence[str]) -> None:
        """Raise an error if a preprocessing is given and all models have their own: those of the package, mixtures."""
        if self.preprocessing and not any(third_party.split(name) or self._needs_loader(name) for name in names):
            given, found = " ".join(f"--{key}" for key in self.preprocessing), ", ".join(names) or "a stored mixture"
            hint = "leave it out, because the preprocessing is inside"
            raise ValueError(f"expected {given} with a model of yours or of another library, got {found}: {hint}")

    def repository(self, name: str) -> str | None:
        """Return the repository of the hub that a name stands for; with a loader, only `hf://org/name` is one."""
        return hub.find_repository(name) if self.loader is None or name.startswith(hub.SCHEME) else None

    def _needs_loader(self, name: str) -> bool:
        """Return whether a loader is given and nothing else has a model of this name."""
        stored_file = Path(name).suffix in zoo.WEIGHT_FILES and Path(name).with_suffix(".json").is_file()
        known = third_party.split(name) or stored_file or name in zoo.names() or name in zoo_index.models()
        return self.loader is not None and not known

    def _load(self, name: str, device: str) -> nn.Module:
        if self._needs_loader(name):
            if _is_misspelt(name):  # a loader could return anything
                raise FileNotFoundError(zoo.unknown_name("a mixture, or a name or a file for --loader", name))
            (loader,) = self.allow
            model = self._from_loader(loader, name)
            return placed(model, device, {"name": name, "loader": loader}, Identity.of(model))
        if third_party.split(name):
            for key in self.preprocessing:
                if re.search(rf"[?&]{key}=", name):
                    raise ValueError(f"expected {key} once, got --{key} and {key}= in {name}: leave one of them out")
            options = "&".join(f"{key}={value}" for key, value in self.preprocessing.items())
            name += ("&" if "?" in name else "?") + options if options else ""
        return zoo.load(name, device=device)

    def _from_loader(self, loader: str, name: str) -> Classifier:
        """Return the model that the user's function returns for a name, as a classifier on the CPU."""
        function = import_function(loader, "--loader")
        check_parameters(function, ["name"], loader, "--loader")
        with errors_in_user_code(loader, f"a model for {name!r}"):
            model = function(name)
        if not isinstance(model, nn.Module):
            hint = "return a torch.nn.Module"
            raise ValueError(f"expected a model for {name!r} from {loader}, got {type(model).__name__}: {hint}")
        options = parse_preprocessing(self.preprocessing)
        if isinstance(model, Classifier) and options:
            hint = "leave these options out, or return the network alone"
            raise ValueError(
                f"expected a network without preprocessing for --{', --'.join(options)}, got one that "
                f"{loader} has wrapped: {hint}"
            )
        size = options.get("size", 32)
        shape = (3, size, size) if isinstance(size, int) else (3, *size)
        try:
            with errors_in_user_code(loader, f"a model for {name!r}"):
                return wrap(model.cpu(), **options, shape=shape)
        except TypeError as error:  # its output is not a tensor
            hint = "or return the logits alone from its forward method, as in `return model(x).logits`"
            raise ValueError(f"{error} in {loader}, {hint}") from error


def _is_misspelt(name: str) -> bool:
    """Return whether nothing is at this path, and it is below `runs/` or similar to the path of a stored mixture."""
    path = Path(name).expanduser()
    if "/" not in name or path.exists():
        return False
    return path.parts[0] == hub.RUNS or any(map(pretrained.exists, similar_paths(path)))


def facts_of(model: nn.Module) -> dict[str, Any]:
    """Return facts about a loaded model for a result file: see `model_facts`; of models from elsewhere a digest."""
    found, identity = origin(model) or {"name": type(model).__name__}, loaded_identity(model)
    facts: dict[str, Any] = {**found} if "loader" in found else model_facts(found["name"])
    return facts | ({"weights": identity.weights} if identity else {})


@dataclass(frozen=True)
class LoadedModel:
    """A model to evaluate.

    Args:
        parts: the classifiers in it, by name.
        facts: facts about the classifiers for a result file.
        short: its name in a form that can be part of a folder's name.
        folder: the folder of a stored mixture.
    """

    model: nn.Module
    parts: dict[str, nn.Module]
    facts: dict[str, Any]
    short: str
    folder: Path | None = field(default=None, kw_only=True)

    @classmethod
    def load(
        cls, model: str, robust: str | None, alpha: float | None, device: str, own: OwnModels | None = None
    ) -> LoadedModel:
        """Return a classifier or a stored mixture by name, or the mixture of two classifiers with `alpha`."""
        if (robust is None) != (alpha is None):
            given = "H without --alpha" if alpha is None else "--alpha without H"
            expected = "G, H and --alpha for a mixture, or one MODEL alone"
            raise ValueError(f"expected {expected}, got {given}: add or remove one")
        own = own or OwnModels()
        repository = own.repository(model)
        if robust is None and (repository or pretrained.exists(model)):
            own.check_used([])
            folder = hub.fetch(repository) if repository else pretrained.find(model)
            mixed = MixedClassifier.from_pretrained(folder, device=device, allow=own.allow)
            description = pretrained.read(folder)
            facts: dict[str, Any] = {role: base_facts(description[role]) for role in pretrained.ROLES}
            facts |= {key: description[key] for key in ("alpha", "numbers")}
            short = short_name(model)
            facts = {"mixture": short, "source": model, **facts}
            return cls(mixed, {"g": mixed.standard, "h": mixed.robust}, facts, short, folder=Path(folder))
        if robust is None or alpha is None:
            (loaded,) = own.load([model], device)
            return cls(loaded, {model: loaded}, {"model": facts_of(loaded)}, short_name(model))
        g, h = own.load([model, robust], device)
        mixed = MixedClassifier(g, h, alpha).to(device)
        facts = {"g": facts_of(g), "h": facts_of(h), "alpha": alpha}
        return cls(mixed, {model: g, robust: h}, facts, f"{short_name(model)}-{short_name(robust)}-{alpha:g}")


def check_classes(models: dict[str, nn.Module], data: ImageData) -> None:
    """Raise an error if a model has a different number of classes than the data.

    If the classes were counted from the labels, a model may have more of them: see `models.fit.warn_classes`.
    """
    _, channels, height, width = data.images.shape
    for name, model in models.items():
        count = num_classes(model, (channels, height, width))
        if count < data.num_classes or (data.classes_known and count > data.num_classes):
            expected = f"expected a model for the {data.num_classes} classes of {data.name}"
            hint = "choose the data it was trained for with --data, or another model"
            if count > data.num_classes:
                hint += f"; if {class_names(data)} are some of its classes, list all of them in a file, in its order: "
                hint += "--data 'PATH?classes=FILE'"
            raise ValueError(f"{expected}, got {name} with {count}: {hint}")
