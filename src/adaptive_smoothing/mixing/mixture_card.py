"""The card of a stored mixture in Markdown, made from the description in `mixture.json` (see `pretrained`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_smoothing.mixing.mixers import find_mixer
from adaptive_smoothing.models import cards


def markdown(name: str, description: Mapping[str, Any], weights: Path) -> str:
    """Return the card of the mixture `name`. `weights` is the file of its mixer, which exists if it has one."""
    alpha, numbers, facts = description["alpha"], description["numbers"], _known_facts(description["card"])
    held = "held" in cards.base_description(description["robust"])
    recipe, (low, high) = facts.get("recipe", {}), numbers["alpha_range"]
    others = (f"{key} {value:g}" for key, value in numbers.items() if key != "alpha_range")
    rows = {
        "standard classifier": _base_line(description["standard"]),
        "robust classifier": _base_line(description["robust"]),
        "alpha": _alpha_line(alpha, low, high),
        **_file_rows(alpha, weights, "full precision" if held else "fp16"),
        "numbers": ", ".join([f"alpha_range ({low:g}, {high:g})", *others]),
        "trained on": cards.trained_on(facts, recipe),
        "recipe": cards.recipe_line(recipe),
        "training": cards.training_line(facts),
    }
    own = isinstance(alpha, Mapping) and low < high
    alphas = "each image has its own alpha" if own else "all images share one alpha"
    transformed = ", and the robust one is transformed" if "transform" in description["robust"] else ""
    purpose = f"A mixture of an accurate and a robust classifier in which {alphas}{transformed}."
    return cards.card_text(name, purpose, rows, facts.get("figures", {}))


def base_name(description: Mapping[str, Any]) -> str:
    """Return the name of a base classifier."""
    if "transform" in description:
        return f"{description['transform']} of {base_name(description['of'])}"
    return description.get("name") or description.get("held") or f"a {description.get('type', 'module')} without a name"


def _known_facts(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that `mix` writes. A card written by others may hold anything under the same names."""
    known = {"seconds": int | float, "train_images": int, "device": str, "adaptive-smoothing": str}
    facts = {name: card[name] for name, kind in known.items() if isinstance(card.get(name), kind)}
    recipe, figures = card.get("recipe"), card.get("figures")
    if isinstance(recipe, Mapping) and {"name", "seed", "data", "optimizer"} <= set(recipe):
        facts["recipe"] = recipe
    if isinstance(figures, Mapping) and all(isinstance(row, Mapping) and row for row in figures.values()):
        facts["figures"] = figures
    return facts


def _base_line(description: Mapping[str, Any]) -> str:
    stored = cards.base_description(description)
    line = base_name(description) + (", in this folder" if "held" in stored else "")
    if "sha256" in stored:
        return f"{line}, sha256 `{stored['sha256']}`"
    digest = stored.get("weights") or stored.get("identity", {}).get("weights")
    return f"{line}, digest of its weights `{digest}`" if digest else line


def _alpha_line(alpha: float | Mapping[str, Any], low: float, high: float) -> str:
    if not isinstance(alpha, Mapping):
        return f"{alpha:g}"
    mixer = find_mixer(alpha["kind"]).summary
    return f"chosen by {mixer}" if low < high else f"{low:g}, with {mixer}"


def _file_rows(alpha: float | Mapping[str, Any], weights: Path, precision: str) -> dict[str, str]:
    if not isinstance(alpha, Mapping):
        return {}
    size = weights.stat().st_size / 1e6
    return {"file": f"`{weights.name}`, {size:.1f} MB, weights in {precision}", "sha256": f"`{alpha['sha256']}`"}
