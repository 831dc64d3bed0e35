"""A mixed classifier as a folder: `mixture.json` says what is mixed and how, safetensors hold what was trained for it.

The base classifiers are named, with the sha256 sums of their weights, or held in the folder, too. A base that has no
name (a module of one's own, or one that was trained on) is known by the sum of its weights and has to be given again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing import mixture_card
from adaptive_smoothing.mixing.classifier import NUMBERS, MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.mixer import Mixer
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, LogitTransform, Nonlinear, inner
from adaptive_smoothing.models import zoo
from adaptive_smoothing.results import write_json

FILE, WEIGHTS = zoo.MIXTURE, "mixer.safetensors"
FORMAT = 1
ROLES = ("standard", "robust")
TRANSFORMS: dict[str, type[LogitTransform]] = {"hardmax": Hardmax, "nonlinear": Nonlinear}


def save(
    mixed: MixedClassifier, folder: Path | str, *, hold: bool = False, card: Mapping[str, Any] | None = None
) -> Path:
    """Write `mixed`; with `hold` the base classifiers as well, so that the folder needs nothing else.

    `card` is kept as it is: how it was trained, what it was measured to be. By default it is that of the folder which
    the mixture was read from, without figures if its dial was turned.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description: dict[str, Any] = {"format": FORMAT}
    for role in ROLES:
        description[role] = _describe_base(getattr(mixed, role), folder / f"{role}.safetensors" if hold else None)
    description["alpha"] = _describe_alpha(mixed.alpha, folder)
    description["numbers"] = {name: getattr(mixed, name).tolist() for name in NUMBERS}
    description["card"] = dict(mixed.card if card is None else card)
    text = mixture_card.markdown(folder.resolve().name, description, folder / WEIGHTS)
    write_json(folder / FILE, description)
    (folder / FILE).with_suffix(".md").write_text(text)
    return folder


def load(
    folder: Path | str,
    *,
    standard: nn.Module | None = None,
    robust: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> MixedClassifier:
    """What `save` wrote. `standard` and `robust` are for base classifiers that the folder cannot name."""
    folder = find(folder)
    description = read(folder)
    given = {"standard": standard, "robust": robust}
    bases = {role: _restore_base(role, description[role], given[role], folder, device) for role in ROLES}
    alpha = _restore_alpha(description["alpha"], bases["robust"], folder)
    numbers = _tuples(description["numbers"])
    mixed = MixedClassifier(bases["standard"], bases["robust"], alpha, **numbers).to(device)
    mixed.card = description["card"]
    return mixed


def find(name: Path | str) -> Path:
    """The folder of a mixture: a path, or the name of one in the package or in the zoo."""
    if (Path(name) / FILE).is_file():
        return Path(name)
    if found := names().get(str(name)):
        return found
    raise FileNotFoundError(f"expected a folder with {FILE}, or the name of one in the zoo, got {str(name)!r}")


def exists(name: Path | str) -> bool:
    try:
        find(name)
    except FileNotFoundError:
        return False
    return True


def names() -> dict[str, Path]:
    """The mixtures of the package and of the zoo, by name; the package's win."""
    places = [place for place in (zoo.zoo_folder(), zoo.BUILTIN) if place is not None]
    found = {path.parent.name: path.parent for place in places for path in place.glob(f"*/{FILE}")}
    return dict(sorted(found.items()))


def read(folder: Path) -> dict[str, Any]:
    try:
        description = json.loads((folder / FILE).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON in {folder / FILE}, got something else: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(
            f"expected a mixture of format {FORMAT} in {folder / FILE}, got another: it was written by another version"
        )
    return description


# --- base classifiers ---------------------------------------------------------------------------------------------


def _describe_base(model: nn.Module, hold_at: Path | None) -> dict[str, Any]:
    if isinstance(model, LogitTransform):
        kind = next(name for name, known in TRANSFORMS.items() if type(model) is known)
        return {"transform": kind, "options": model.options, "of": _describe_base(model.model, hold_at)}
    origin = zoo.origin(model)
    if hold_at is not None:
        if origin is None or "arch" not in origin:
            raise ValueError(
                f"expected base classifiers of architectures of this package to hold, got a {type(model).__name__}: "
                "save without hold, and give it again when loading"
            )
        zoo.save(model, hold_at.parent, hold_at.stem, {"arch": origin["arch"], "options": origin["options"]})
        return {"held": hold_at.name}
    if zoo.is_as_stored(model):
        assert origin is not None
        return {key: value for key, value in origin.items() if key in ("name", "sha256")}
    return {"weights": weights_digest(model)}


def _restore_base(
    role: str, description: Mapping[str, Any], given: nn.Module | None, folder: Path, device: torch.device | str
) -> nn.Module:
    if "transform" in description:
        network = _restore_base(role, description["of"], given, folder, device)
        return TRANSFORMS[description["transform"]](network, **description["options"])
    if "held" in description and given is None:
        return zoo.load(folder / description["held"], device=device)
    if "name" in description and given is None:
        return _by_name(role, description, device)
    if given is None:
        raise ValueError(
            f"expected the {role} classifier, which this mixture knows by the sum of its weights only: "
            f"pass {role}=... the module it was saved with"
        )
    _check_given(role, description, given)
    return given.to(device)


def _check_given(role: str, description: Mapping[str, Any], given: nn.Module) -> None:
    """By the sum of the weights, or that of the file they came from. A base without either is taken as it is."""
    if "weights" in description:
        same = weights_digest(given) == description["weights"]
    else:
        same = "sha256" not in description or _describe_base(given, None) == description
    if not same:
        raise ValueError(
            f"expected the {role} classifier this mixture was saved with, got one with other weights: "
            "mix others with MixedClassifier(g, h, mixed.alpha)"
        )


def _by_name(role: str, description: Mapping[str, Any], device: torch.device | str) -> nn.Module:
    name, wanted = description["name"], description.get("sha256")
    card = zoo.find_card(name)
    found = card.sha256 if card is not None else None
    if wanted and found and wanted != found:
        raise ValueError(
            f"expected {name} with sha256 {wanted[:12]} as the {role} classifier, got one with {found[:12]}: "
            "the mixture was made for other weights of that name"
        )
    return zoo.load(name, device=device)


def weights_digest(model: nn.Module) -> str:
    """sha256 over all weights and statistics, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# --- alpha --------------------------------------------------------------------------------------------------------


def _describe_alpha(alpha: Tensor | nn.Module, folder: Path) -> Any:
    if isinstance(alpha, Tensor):
        if alpha.dim():
            raise ValueError("expected one alpha for all images, got one per image: that belongs to a batch")
        return alpha.item()
    if not isinstance(alpha, MixingNetwork | FineTunedTail):
        raise ValueError(
            f"expected a number, a MixingNetwork or a FineTunedTail as alpha, got a {type(alpha).__name__}: "
            "save its weights yourself, and mix again"
        )
    sha256, _ = zoo.write_weights(alpha, folder / WEIGHTS)
    kind = "second-ending" if isinstance(alpha, FineTunedTail) else "network"
    return {"kind": kind, "options": alpha.options, "sha256": sha256}


def _restore_alpha(description: Any, robust: nn.Module, folder: Path) -> float | Mixer:
    if not isinstance(description, Mapping):
        return float(description)
    mixer: Mixer
    if description["kind"] == "second-ending":
        mixer = FineTunedTail.of(inner(robust), **_tuples(description["options"]))
    else:
        mixer = MixingNetwork(**_tuples(description["options"]))
    mixer.load_state_dict(zoo.read_weights(folder / WEIGHTS, description["sha256"]))
    return mixer.eval().requires_grad_(False)


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
