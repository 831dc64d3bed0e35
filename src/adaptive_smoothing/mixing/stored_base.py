"""The base classifiers of a stored mixture: their descriptions, and the checks when they are loaded.

`pretrained` documents the descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.mixing.transforms import TRANSFORMS, LogitTransform, transform_name
from adaptive_smoothing.models import construction, zoo
from adaptive_smoothing.models.construction import Builder
from adaptive_smoothing.models.digest import all_tensors, weights_digest
from adaptive_smoothing.models.identity import SAME_PROCESS, TOLERANCE, Identity
from adaptive_smoothing.models.origin import Origin, loaded_identity, origin, placed
from adaptive_smoothing.models.weight_files import read_weights, write_tensors
from adaptive_smoothing.models.wrap import Classifier
from adaptive_smoothing.settings.checks import warn_user

# A base classifier that the user passes, or a function that returns its network.
Given = nn.Module | Callable[..., nn.Module]


def describe_base(role: str, model: nn.Module, folder: Path, hold: bool, builder: Builder | None) -> dict[str, Any]:
    """Return the description of a base classifier.

    Its weights are written to the folder with `hold`, and if it was loaded from a folder with its weights, unchanged.
    """
    if isinstance(model, LogitTransform) and (kind := transform_name(model)):
        of = describe_base(role, model.model, folder, hold, builder)
        return {"transform": kind, "options": model.options, "of": of}
    identity, found = Identity.of(model), origin(model)
    _warn_without_logits(role, identity)
    same = bool(found and found.get("held")) and zoo.is_as_stored(model, identity)
    if hold or same:
        build = construction.describe(model, builder)
        if builder is not None or not same:  # otherwise it was just built in this way
            _check_build(role, model, build, builder, identity)
        return {**_hold(role, model, folder, build), "identity": identity.to_json()}
    if found is None:
        return {"type": type(model).__name__, "identity": identity.to_json()}
    if not zoo.is_as_stored(model, identity):
        _warn_changed(role, found["name"])
        return {"type": type(model).__name__, "identity": identity.to_json()}
    if "loader" in found or "build" in found:
        return {"name": found["name"], "build": construction.describe(model), "identity": identity.to_json()}
    named = {key: value for key, value in found.items() if key in ("name", "sha256")}
    return {**named, "identity": identity.to_json()}


def base_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description for a result file: without how to build the model, and with the digest of its weights."""
    if "transform" in description:
        return {**description, "of": base_facts(description["of"])}
    facts = {key: value for key, value in description.items() if key not in ("build", "identity")}
    return facts | ({"weights": description["identity"]["weights"]} if "identity" in description else {})


def _hold(role: str, model: nn.Module, folder: Path, build: dict[str, Any]) -> dict[str, Any]:
    """Write the weights of a model, and return the description of it."""
    file = folder / f"{role}.safetensors"
    sha256, _ = write_tensors(all_tensors(model), file)
    return {"held": file.name, "sha256": sha256, "build": build}


def _check_build(
    role: str, model: nn.Module, build: Mapping[str, Any], builder: Builder | None, identity: Identity
) -> None:
    """Raise an error if what `build` describes is not this model once it has its weights."""
    function, found, tensors = builder if callable(builder) else None, origin(model), all_tensors(model)
    # The user named these functions in this process.
    allow = frozenset(name for name in (builder, found and found.get("loader")) if isinstance(name, str))
    again = construction.construct(build, function, allow)
    construction.set_tensors(again, tensors, _what_to_build(model))
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    # Of a model on a GPU, the GPU may compute the logits of one of the two, and the CPU those of the other.
    tolerance = SAME_PROCESS if device.type == "cpu" else TOLERANCE
    if differences := Identity.of(again.to(device), identity.shape).differences(identity, tolerance):
        hint = "pass builders= a function that returns the same network; only its parameters and buffers are stored"
        raise ValueError(f"expected to build the {role} classifier again, got one with {differences}: {hint}")


def _what_to_build(model: nn.Module) -> str:
    """Return what a builder of this model returns, for an error."""
    if isinstance(model, Classifier):
        return "build the network that was saved, without what ads.wrap added"
    return f"build the whole {type(model).__name__} that was saved, with the layers and ads.wrap inside it"


def _warn_changed(role: str, name: str) -> None:
    reason = f"{name} does not give the present weights and preprocessing of the {role} classifier"
    hint = f"save with hold=True (--hold), or pass {role}=... when you load the mixture"
    warn_user(f"{reason}, so the folder has its identity only: {hint}")


def _warn_without_logits(role: str, identity: Identity) -> None:
    """Warn if other code with the same weights would not be noticed."""
    if not identity.logits:
        reason = "it accepts none of the images that were tried (pass shape= to ads.wrap)"
        reason = "it is in half precision, and a float32 copy could not be run" if identity.shape else reason
        found = f"the logits of the {role} classifier cannot be compared when it is loaded, because {reason}"
        warn_user(f"{found}: make sure that you load it with the same code")


@dataclass(frozen=True)
class BaseLoader:
    """Loads the base classifiers that `describe_base` described.

    Args:
        folder: the folder of the mixture.
        allow: names `module:function` that may be imported if the folder names them.
    """

    folder: Path
    device: torch.device | str
    allow: frozenset[str] = frozenset()

    def load(self, role: str, description: Mapping[str, Any], given: Given | None) -> nn.Module:
        """Return a base classifier that the user gives, or that is in the folder, or that has a name."""
        if "transform" in description:
            network = self.load(role, description["of"], given)
            return TRANSFORMS[description["transform"]](network, **description["options"])
        if isinstance(given, nn.Module):
            _check_given(role, given, description)
            return given.to(self.device)
        if "held" in description or "build" in description:
            return self._built(role, description, given)
        if given is not None:
            expected = f"expected the {role} classifier as a module, because this folder does not hold its weights"
            raise ValueError(f"{expected}, got a function: pass the module it was saved with")
        if "name" in description:
            return self._named(role, description)
        expected = f"expected the {role} classifier, of which this mixture has the identity only"
        raise ValueError(f"{expected}: pass {role}=... the module it was saved with")

    def _built(self, role: str, description: Mapping[str, Any], function: Callable[..., nn.Module] | None) -> nn.Module:
        """Return a model that is built again. Its weights are in the folder, or a function of the user loads them."""
        path = self.folder / description.get("held", description.get("name", role))
        if "held" in description and path.parent != self.folder:
            found = f"{description['held']!r}: a folder may not name other files of this machine"
            raise ValueError(f"expected the {role} classifier in {self.folder}, got {found}")
        if "build" not in description:  # written by an older version: a model with a card
            return zoo.load(path, device=self.device)
        model = construction.construct(description["build"], function, self.allow)
        if "held" in description:
            construction.set_tensors(model, read_weights(path, description["sha256"]))
        expected = Identity.from_json(description["identity"])
        identity = Identity.of(model, expected.shape)
        if identity.shape is None:  # the code of some models runs on a GPU only
            identity = Identity.of(model.to(self.device), expected.shape)
        _check_identity(role, identity, expected, "the function or the library that builds it has changed")
        # With these facts it can be saved in the same way.
        facts: Origin = {"name": description.get("name", ""), "build": description["build"]}
        if "held" in description:
            facts |= {"name": str(path), "held": True}
        return placed(model, self.device, facts, identity)

    def _named(self, role: str, description: Mapping[str, Any]) -> nn.Module:
        """Return a model that is found by its name."""
        _check_sha256(role, description)
        model, name = zoo.load(description["name"], device=self.device), description["name"]
        if "identity" in description:
            hint = f"{name} now has other weights or settings; find those that the mixture was saved with"
            expected = Identity.from_json(description["identity"])
            _check_identity(role, loaded_identity(model) or Identity.of(model, expected.shape), expected, hint)
        elif "sha256" not in description:
            found = f"this mixture was stored by an older version, without the identity of {name}"
            warn_user(f"{found}: its weights and preprocessing are not compared; save it again")
        return model


def _check_given(role: str, given: nn.Module, description: Mapping[str, Any]) -> None:
    """Raise an error if the user passes another module than the described one.

    Older versions stored less: a digest of the weights, a sha256 of the file they were loaded from, or nothing.
    """
    hint = "mix others with MixedClassifier(g, h, mixed.alpha)"
    if "identity" in description:
        expected = Identity.from_json(description["identity"])
        _check_identity(role, Identity.of(given, expected.shape), expected, hint)
        return
    if "weights" in description:
        # The oldest files have a digest without the buffers that a state_dict leaves out.
        same = description["weights"] in (weights_digest(given), weights_digest(given, persistent_only=True))
    else:
        sha256, found = description.get("sha256"), origin(given)
        from_file = found is not None and found.get("sha256") == sha256
        same = sha256 is None or (from_file and zoo.is_as_stored(given, Identity.of(given)))
    if not same:
        raise ValueError(f"{_expected(role)}, got one with other weights: {hint}")


def _check_identity(role: str, found: Identity, expected: Identity, hint: str) -> None:
    """Raise an error that names the differences to the expected model."""
    if differences := found.differences(expected):
        raise ValueError(f"{_expected(role)}, got one with {differences}: {hint}")


def _expected(role: str) -> str:
    return f"expected the {role} classifier this mixture was saved with"


def _check_sha256(role: str, description: Mapping[str, Any]) -> None:
    """Raise an error if the model that now has the described name has another sha256."""
    name, expected, card = description["name"], description.get("sha256"), zoo.find_card(description["name"])
    if expected and card is not None and card.sha256 and card.sha256 != expected:
        wanted = f"{name} with sha256 {expected[:12]} as the {role} classifier"
        hint = "the mixture was made for other weights of that name"
        raise ValueError(f"expected {wanted}, got one with {card.sha256[:12]}: {hint}")
