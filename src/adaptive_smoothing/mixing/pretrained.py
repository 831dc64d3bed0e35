"""Mixed classifiers as folders: save one, find it by path or name, and load it.

A folder holds `mixture.json`, `mixture.md` (a card for people), `mixer.safetensors` if alpha is a mixer, and the
weights of the base classifiers if it was saved with `hold`. The JSON object has these keys:

- `format`: 1.
- `standard`, `robust`: the base classifiers. Each is described in one of four ways:
    - `{"name": ..., "sha256": ...}`: a model that `zoo.load` finds by name. Those of other libraries have no sha256.
    - `{"held": FILE}`: a model whose weights are in this folder.
    - `{"weights": ...}`: a module without a name, or one that was trained further, with the sha256 of its parameters
      and buffers. The user passes it again when the folder is loaded.
    - `{"transform": ..., "options": ..., "of": ...}`: a `LogitTransform` of one of these.
- `alpha`: a number, or `{"kind": ..., "options": ..., "sha256": ...}` for a mixer.
- `numbers`: the other arguments of `MixedClassifier`.
- `card`: other facts, such as the recipe and the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing import mixture_card
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.mixers import MIXERS, OLD_KINDS, find_mixer, is_storable
from adaptive_smoothing.mixing.transforms import Hardmax, LogitTransform, Nonlinear
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.contract import freeze
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.models.weight_files import read_weights, write_weights
from adaptive_smoothing.results import read_json, write_json, write_text

FILE, WEIGHTS = zoo.MIXTURE, "mixer.safetensors"
FORMAT = 1
ROLES = ("standard", "robust")
# The numbers that mix two classifiers: arguments of `MixedClassifier`.
NUMBERS = ("alpha_range", "alpha_scale", "alpha_shift", "standard_scale", "robust_scale")
TRANSFORMS: dict[str, type[LogitTransform]] = {"hardmax": Hardmax, "nonlinear": Nonlinear}


def save(arguments: Mapping[str, Any], folder: Path | str, *, card: Mapping[str, Any], hold: bool) -> Path:
    """Write the mixture with these arguments of `MixedClassifier`; with `hold`, also its base classifiers."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description: dict[str, Any] = {"format": FORMAT}
    for role in ROLES:
        description[role] = _describe_base(arguments[role], folder / f"{role}.safetensors" if hold else None)
    description["alpha"] = _describe_alpha(arguments["alpha"], folder)
    description["numbers"] = {name: arguments[name].tolist() for name in NUMBERS}
    description["card"] = dict(card)
    text = mixture_card.markdown(folder.resolve().name, description, folder / WEIGHTS)
    write_json(folder / FILE, description)
    write_text((folder / FILE).with_suffix(".md"), text)
    return folder


def load(
    folder: Path | str, given: Mapping[str, nn.Module | None], device: torch.device | str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `MixedClassifier` and the card that `save` wrote.

    Args:
        given: base classifiers that the user passes, by role; the others are found by name or in the folder.
    """
    folder = find(folder)
    description = read(folder)
    g, h = (_restore_base(role, description[role], given[role], folder, device) for role in ROLES)
    alpha = _restore_alpha(description["alpha"], h, folder)
    return {"standard": g, "robust": h, "alpha": alpha, **_tuples(description["numbers"])}, description["card"]


def find(name: Path | str) -> Path:
    """Return the folder of a mixture, given as a path or as the name of one in the package or in the zoo."""
    if (Path(name) / FILE).is_file():
        return Path(name)
    if found := names().get(str(name)):
        return found
    raise FileNotFoundError(f"expected a folder with {FILE}, or the name of one in the zoo, got {str(name)!r}")


def exists(name: Path | str) -> bool:
    """Return whether `find` finds a mixture."""
    return (Path(name) / FILE).is_file() or str(name) in names()


def names() -> dict[str, Path]:
    """Return the folders of the mixtures of the package and of the zoo, sorted by name.

    If both have a mixture of the same name, the folder is that of the package.
    """
    places = [place for place in (zoo.zoo_folder(), zoo.BUILTIN) if place is not None]
    found = {path.parent.name: path.parent for place in places for path in place.glob(f"*/{FILE}")}
    return dict(sorted(found.items()))


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `mixture.json`, with the present name of its kind of mixer."""
    description = read_json(folder / FILE)
    if (found := description.get("format")) != FORMAT:
        hint = "it was written by another version"
        raise ValueError(f"expected a mixture of format {FORMAT} in {folder / FILE}, got format {found!r}: {hint}")
    if isinstance(alpha := description.get("alpha"), dict):
        alpha["kind"] = OLD_KINDS.get(alpha["kind"], alpha["kind"])
    return description


def _describe_base(model: nn.Module, hold_at: Path | None) -> dict[str, Any]:
    """Return the description of a base classifier, whose weights are written to `hold_at` if that is given."""
    if isinstance(model, LogitTransform):
        kind = next(name for name, known in TRANSFORMS.items() if type(model) is known)
        return {"transform": kind, "options": model.options, "of": _describe_base(model.model, hold_at)}
    origin = zoo.origin(model)
    if hold_at is not None:
        if origin is None or "arch" not in origin:
            expected = "expected base classifiers of architectures of this package to hold"
            hint = "save without hold, and pass it again when loading"
            raise ValueError(f"{expected}, got a {type(model).__name__}: {hint}")
        zoo.save(model, hold_at.parent, hold_at.stem, {"arch": origin["arch"], "options": origin["options"]})
        return {"held": hold_at.name}
    if origin is not None and zoo.is_as_stored(model):
        return {key: value for key, value in origin.items() if key in ("name", "sha256")}
    return {"weights": weights_digest(model)}


def _restore_base(
    role: str, description: Mapping[str, Any], given: nn.Module | None, folder: Path, device: torch.device | str
) -> nn.Module:
    if "transform" in description:
        network = _restore_base(role, description["of"], given, folder, device)
        return TRANSFORMS[description["transform"]](network, **description["options"])
    if given is not None:
        if not _is_same(given, description):
            expected = f"expected the {role} classifier this mixture was saved with"
            hint = "mix others with MixedClassifier(g, h, mixed.alpha)"
            raise ValueError(f"{expected}, got one with other weights: {hint}")
        return given.to(device)
    if "held" in description:
        return zoo.load(folder / description["held"], device=device)
    if "name" in description:
        _check_sha256(role, description)
        return zoo.load(description["name"], device=device)
    expected = f"expected the {role} classifier, which this mixture knows by the sha256 of its weights only"
    raise ValueError(f"{expected}: pass {role}=... the module it was saved with")


def _is_same(given: nn.Module, description: Mapping[str, Any]) -> bool:
    """Return whether a module has the described weights, or was loaded from a file with the described sha256.

    A module is accepted if the description has neither.
    """
    if "weights" in description:
        # Older files have a digest without the buffers that a state_dict leaves out.
        return description["weights"] in (weights_digest(given), weights_digest(given, persistent_only=True))
    return "sha256" not in description or _describe_base(given, None).get("sha256") == description["sha256"]


def _check_sha256(role: str, description: Mapping[str, Any]) -> None:
    """Raise an error if the model that now has the described name has another sha256."""
    name, expected, card = description["name"], description.get("sha256"), zoo.find_card(description["name"])
    if expected and card is not None and card.sha256 and card.sha256 != expected:
        wanted = f"{name} with sha256 {expected[:12]} as the {role} classifier"
        hint = "the mixture was made for other weights of that name"
        raise ValueError(f"expected {wanted}, got one with {card.sha256[:12]}: {hint}")


def _describe_alpha(alpha: Tensor | nn.Module, folder: Path) -> float | dict[str, Any]:
    """Return the description of alpha. The weights of a mixer are written to the folder."""
    if isinstance(alpha, Tensor):
        if alpha.dim():
            raise ValueError("expected one alpha for all images, got one per image: that belongs to a batch")
        return alpha.item()
    if not is_storable(alpha):
        expected = f"a number or one of {', '.join(mixer.__name__ for mixer in MIXERS.values())}"
        hint = "save its weights yourself, and mix again"
        raise ValueError(f"expected {expected} as alpha, got a {type(alpha).__name__}: {hint}")
    sha256, _ = write_weights(alpha, folder / WEIGHTS)
    return {"kind": alpha.kind, "options": alpha.options, "sha256": sha256}


def _restore_alpha(description: float | dict[str, Any], robust: nn.Module, folder: Path) -> float | Mixer:
    if not isinstance(description, dict):
        return float(description)
    mixer = find_mixer(description["kind"]).restore(robust, _tuples(description["options"]))
    mixer.load_state_dict(read_weights(folder / WEIGHTS, description["sha256"]))
    return freeze(mixer)


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with tuples in place of lists: JSON has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
