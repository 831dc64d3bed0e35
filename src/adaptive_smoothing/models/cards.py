"""The card of a stored model: JSON for programs, Markdown for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adaptive_smoothing.results import read_json
from adaptive_smoothing.settings.checks import suggestion

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Card:
    """Facts about a stored model, without its weights.

    Args:
        path: the weights file.
        arch, options: the arguments of `architectures.build`.
        sha256: the checksum of the weights file, or None if it is not known.
        key: the entry of a `.pt` or `.pth` file that holds the weights, if several do.
        card: other facts, such as the recipe and the figures.
    """

    name: str
    path: Path
    arch: str
    options: dict[str, Any] = field(default_factory=dict)
    num_classes: int | None = None
    sha256: str | None = None
    key: str | None = None
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """Return the architecture and its options: `preact_resnet18 (width 40, silu)`."""
        chosen = {key: value for key, value in self.options.items() if key != "num_classes"}
        words = ", ".join(str(value) if isinstance(value, str) else f"{key} {value}" for key, value in chosen.items())
        return f"{self.arch} ({words})" if words else self.arch


def read_card(weights: Path) -> Card:
    """Return the card in the JSON file next to a weights file."""
    path = weights.with_suffix(".json")
    if not path.is_file() and not weights.is_file():
        raise FileNotFoundError(f"expected weights at {weights} and a card at {path}, got no file: correct the path")
    if not path.is_file():
        hint = 'write {"arch": ..., "options": {}} to it'
        raise FileNotFoundError(f"expected {path} next to the weights, got no file: {hint}")
    content = read_json(path)
    if "arch" not in content:
        raise ValueError(f'expected "arch" in {path}, got {list(content)}: name the architecture')
    known = ("arch", "options", "num_classes", "sha256", "key", "card")
    if unknown := sorted(set(content) - set(known)):
        raise ValueError(f"unknown key {unknown[0]!r} in {path}: {suggestion(unknown[0], known)}")
    if not isinstance(options := content.get("options", {}), dict):
        raise ValueError(f'expected "options" in {path} to be a table, got {options!r}: write {{"width": 64}} or {{}}')
    return Card(name=weights.stem, path=weights, **content)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the entries of the manifest in a folder, by model name."""
    models = read_json(folder / MANIFEST).get("models")
    if not isinstance(models, dict):
        raise ValueError(f'expected {{"models": {{NAME: {{"sha256": ...}}}}}} in {folder / MANIFEST}')
    return models


def manifest_card(folder: Path, name: str, entry: object) -> Card:
    """Return the card of a model in a folder, with the sha256 in its entry of the manifest."""
    card = read_card(folder / f"{name}.safetensors")
    if not isinstance(entry, Mapping) or "sha256" not in entry:
        raise ValueError(f'expected {{"sha256": ...}} for {name} in {folder / MANIFEST}, got {entry!r}')
    return replace(card, sha256=entry["sha256"])


def base_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the network inside any transforms; {} if there is none."""
    while "transform" in description:
        description = description.get("of", {})
    return dict(description)


def markdown(card: Card, parameters: int, size: int) -> str:
    """Return the Markdown card of a model with this number of parameters, in a weights file of `size` bytes."""
    facts, recipe = card.card, card.card.get("recipe", {})
    rows = {
        "architecture": f"`{card.arch}` ({', '.join(f'{key} {value}' for key, value in card.options.items())})",
        "parameters": f"{parameters:,}",
        "file": f"`{card.path.name}`, {size / 1e6:.1f} MB, weights in fp16",
        "sha256": f"`{card.sha256}`",
        "input": "NCHW images in [0, 1]; normalisation is inside",
        "trained on": trained_on(facts, recipe),
        "recipe": recipe_line(recipe),
        "training": training_line(facts),
    }
    return card_text(card.name, _purpose(recipe), rows, facts.get("figures", {}))


def card_text(name: str, purpose: str, rows: Mapping[str, str], figures: Mapping[str, Any]) -> str:
    """Return a Markdown card: a title, a sentence, a table of the rows that are not empty, and a table of figures."""
    lines = [f"# {name}", "", purpose, "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in rows.items() if value]
    return "\n".join(lines + _figures_table(figures)) + "\n"


def _purpose(recipe: Mapping[str, Any]) -> str:
    method = recipe.get("method", {})
    name = method.get("name")
    if recipe.get("model", {}).get("arch") == "lipschitz_net":
        return "A robust classifier h with a proven L2 Lipschitz constant, whose certificates need no samples."
    if name == "standard":
        return "An accurate standard classifier g, trained on clean images. It is not robust."
    if name == "gaussian":
        return f"A base classifier for randomized smoothing, trained with Gaussian noise of sigma {method['sigma']:g}."
    if name:
        return f"A robust classifier h, trained with {name.upper()} against {method['norm']} attacks."
    return "A classifier."


def trained_on(facts: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """Return the number and the source of the training images, or "" if they are not known."""
    if "train_images" not in facts:
        return ""
    name = recipe.get("data", {}).get("name", "?")
    if name == "builtin":
        return f"{facts['train_images']:,} of the validation images in the package; the others held out"
    return f"{facts['train_images']:,} images of {name}; validation images held out"


def recipe_line(recipe: Mapping[str, Any]) -> str:
    """Return the recipe in one line, or "" if there is none."""
    if not recipe:
        return ""
    optimizer = recipe["optimizer"]
    schedule = f"batch size {optimizer['batch_size']}, lr {optimizer['lr']:g} {optimizer['schedule']}"
    epochs = f"`{recipe['name']}` (complete in the JSON file): {optimizer['epochs']} epochs"
    return f"{epochs}, {schedule}, seed {recipe['seed']}"


def training_line(facts: Mapping[str, Any]) -> str:
    """Return the duration of training, the device and the version of the code, or "" if they are not known."""
    if "seconds" not in facts:
        return ""
    code = facts.get("code", facts.get("adaptive-smoothing", "?"))
    return f"{facts['seconds'] / 60:.1f} minutes on {facts.get('device', '?')}, code {code}"


def _figures_table(figures: Mapping[str, Any]) -> list[str]:
    """Return the lines of a Markdown table with one row per split, or no lines if there are no figures."""
    if not figures:
        return []
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    rows = {split: " | ".join(_figure(row.get(column)) for column in columns) for split, row in figures.items()}
    head = ["", f"| split | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    return head + [f"| {split} | {row} |" for split, row in rows.items()]


def _figure(value: Any) -> str:
    """Return a share (a float) in percent, and a count unchanged."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{100 * value:.2f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)
