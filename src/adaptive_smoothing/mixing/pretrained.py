"""A mixed classifier as a folder: `mixture.json` describes the mixture, safetensors hold what was trained for it.

The description names the base classifiers with the sha256 of their weights, or the folder holds them. A base classifier
without a name (your own module, or one that was trained further) is identified by the sha256 of its parameters and
buffers, and has to be passed again when the folder is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, LogitTransform, Nonlinear, without_transform
from adaptive_smoothing.models import cards, zoo
from adaptive_smoothing.models.contract import freeze
from adaptive_smoothing.models.digest import weights_digest
from adaptive_smoothing.results import write_json

FILE, WEIGHTS = zoo.MIXTURE, "mixer.safetensors"
FORMAT = 1
ROLES = ("standard", "robust")
# The numbers that mix two classifiers: arguments of `MixedClassifier`.
NUMBERS = ("alpha_range", "alpha_scale", "alpha_shift", "standard_scale", "robust_scale")
TRANSFORMS: dict[str, type[LogitTransform]] = {"hardmax": Hardmax, "nonlinear": Nonlinear}
NETWORK, TAIL = "network", "fine-tuned-tail"
OLD_KINDS = {"second-ending": TAIL}
KINDS = {
    NETWORK: "a mixing network on features of both classifiers",
    TAIL: "a fine-tuned copy of the last stage of the robust classifier, whose logits are averaged in",
}


def save(arguments: Mapping[str, Any], folder: Path | str, *, card: Mapping[str, Any], hold: bool) -> Path:
    """Write the mixture of these arguments of `MixedClassifier`; with `hold` the base classifiers as well."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description: dict[str, Any] = {"format": FORMAT}
    for role in ROLES:
        description[role] = _describe_base(arguments[role], folder / f"{role}.safetensors" if hold else None)
    description["alpha"] = _describe_alpha(arguments["alpha"], folder)
    description["numbers"] = {name: arguments[name].tolist() for name in NUMBERS}
    description["card"] = dict(card)
    text = markdown(folder.resolve().name, description, folder / WEIGHTS)
    write_json(folder / FILE, description)
    (folder / FILE).with_suffix(".md").write_text(text)
    return folder


def load(
    folder: Path | str, given: Mapping[str, nn.Module | None], device: torch.device | str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments and the card that `save` wrote. `given` are base classifiers that the folder cannot name."""
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
    return (Path(name) / FILE).is_file() or str(name) in names()


def names() -> dict[str, Path]:
    """Return the folders of the mixtures in the package and in the zoo, by name; those of the package come first."""
    places = [place for place in (zoo.zoo_folder(), zoo.BUILTIN) if place is not None]
    found = {path.parent.name: path.parent for place in places for path in place.glob(f"*/{FILE}")}
    return dict(sorted(found.items()))


def read(folder: Path) -> dict[str, Any]:
    """Return the description of a mixture, with the present name of its kind of mixer."""
    try:
        description = json.loads((folder / FILE).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON in {folder / FILE}, got something else: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(
            f"expected a mixture of format {FORMAT} in {folder / FILE}, got another: it was written by another version"
        )
    if isinstance(alpha := description.get("alpha"), dict):
        alpha["kind"] = OLD_KINDS.get(alpha["kind"], alpha["kind"])
    return description


def _describe_base(model: nn.Module, hold_at: Path | None) -> dict[str, Any]:
    if isinstance(model, LogitTransform):
        kind = next(name for name, known in TRANSFORMS.items() if type(model) is known)
        return {"transform": kind, "options": model.options, "of": _describe_base(model.model, hold_at)}
    origin = zoo.origin(model)
    if hold_at is not None:
        if origin is None or "arch" not in origin:
            raise ValueError(
                f"expected base classifiers of architectures of this package to hold, got a {type(model).__name__}: "
                "save without hold, and pass it again when loading"
            )
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
            raise ValueError(
                f"expected the {role} classifier this mixture was saved with, got one with other weights: "
                "mix others with MixedClassifier(g, h, mixed.alpha)"
            )
        return given.to(device)
    if "held" in description:
        return zoo.load(folder / description["held"], device=device)
    if "name" not in description:
        raise ValueError(
            f"expected the {role} classifier, which this mixture knows by the sha256 of its weights only: "
            f"pass {role}=... the module it was saved with"
        )
    name, expected, card = description["name"], description.get("sha256"), zoo.find_card(description["name"])
    if expected and card is not None and card.sha256 and card.sha256 != expected:
        raise ValueError(
            f"expected {name} with sha256 {expected[:12]} as the {role} classifier, got one with {card.sha256[:12]}: "
            "the mixture was made for other weights of that name"
        )
    return zoo.load(name, device=device)


def _is_same(given: nn.Module, description: Mapping[str, Any]) -> bool:
    """Compare weights, or the file they came from. A base classifier of which neither is known is accepted."""
    if "weights" in description:
        # Older files have a digest without the buffers that a state_dict leaves out.
        return description["weights"] in (weights_digest(given), weights_digest(given, persistent_only=True))
    return "sha256" not in description or _describe_base(given, None) == description


def _describe_alpha(alpha: Tensor | nn.Module, folder: Path) -> float | dict[str, Any]:
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
    kind = TAIL if isinstance(alpha, FineTunedTail) else NETWORK
    return {"kind": kind, "options": alpha.options, "sha256": sha256}


def _restore_alpha(description: float | dict[str, Any], robust: nn.Module, folder: Path) -> float | Mixer:
    if not isinstance(description, dict):
        return float(description)
    options, tail = _tuples(description["options"]), description["kind"] == TAIL
    mixer = FineTunedTail.of(without_transform(robust), **options) if tail else MixingNetwork(**options)
    mixer.load_state_dict(zoo.read_weights(folder / WEIGHTS, description["sha256"]))
    return freeze(mixer)


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with tuples in place of lists: JSON has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def markdown(name: str, description: Mapping[str, Any], weights: Path) -> str:
    """Return the card of a mixture, made from its JSON description alone."""
    facts, alpha, numbers = _known(description["card"]), description["alpha"], description["numbers"]
    recipe, (low, high) = facts.get("recipe", {}), numbers["alpha_range"]
    alphas, chosen, file = "all images share one alpha", "", {}
    if isinstance(alpha, Mapping):
        size = weights.stat().st_size / 1e6
        file = {"file": f"`{weights.name}`, {size:.1f} MB, weights in fp16", "sha256": f"`{alpha['sha256']}`"}
        mixer = KINDS[alpha["kind"]]
        chosen = f"{low:g}, with {mixer}"
        if low < high:
            alphas, chosen = "each image has its own alpha", f"chosen by {mixer}"
    transformed = ", and the robust one is transformed" if "transform" in description["robust"] else ""
    purpose = f"A mixture of an accurate and a robust classifier in which {alphas}{transformed}."
    rows = {
        "standard classifier": _base_line(description["standard"]),
        "robust classifier": _base_line(description["robust"]),
        "alpha": chosen or f"{alpha:g}",
        **file,
        "numbers": ", ".join([f"alpha_range ({low:g}, {high:g})", *(f"{key} {numbers[key]:g}" for key in NUMBERS[1:])]),
        "trained on": cards.trained_on(facts, recipe),
        "recipe": cards.recipe_line(recipe),
        "training": cards.training_line(facts),
    }
    lines = [f"# {name}", "", purpose, "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows.items() if value]
    return "\n".join([*lines, *cards.figures_table(facts.get("figures", {}))]) + "\n"


def _known(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that `mix` writes. A card written by others may hold anything under the same names."""
    known = {"seconds": int | float, "train_images": int, "device": str, "adaptive-smoothing": str}
    facts = {name: card[name] for name, kind in known.items() if isinstance(card.get(name), kind)}
    recipe, figures = card.get("recipe"), card.get("figures")
    if isinstance(recipe, Mapping) and {"name", "seed", "data", "optimizer"} <= set(recipe):
        facts["recipe"] = recipe
    if isinstance(figures, Mapping) and all(isinstance(row, Mapping) and row for row in figures.values()):
        facts["figures"] = figures
    return facts


def base_name(description: Mapping[str, Any]) -> str:
    """Return the name of a base classifier."""
    if "transform" in description:
        return f"{description['transform']} of {base_name(description['of'])}"
    return description.get("name") or description.get("held") or "a module without a name"


def _base_line(description: Mapping[str, Any]) -> str:
    network = description.get("of", description)
    sha256 = network.get("sha256") or network.get("weights")
    return f"{base_name(description)}, sha256 `{sha256}`" if sha256 else f"{base_name(description)}, in this folder"
