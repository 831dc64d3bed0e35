"""The Markdown card in the folder of a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive_smoothing.models import cards

KINDS = {
    "network": "a mixing network on features of both classifiers",
    "fine-tuned-tail": "a fine-tuned copy of the last stage of the robust classifier, whose logits are averaged in",
}


def markdown(name: str, description: Mapping[str, Any], weights: Path) -> str:
    """Return the card of a mixture, made from its JSON description alone."""
    facts, alpha, numbers = _known(description["card"]), description["alpha"], description["numbers"]
    learned = isinstance(alpha, Mapping)
    lines = [f"# {name}", "", _purpose(description), "", "| | |", "|---|---|"]
    rows = {
        "standard classifier": _base(description["standard"]),
        "robust classifier": _base(description["robust"]),
        "alpha": _alpha(description),
        "file": f"`{weights.name}`, {weights.stat().st_size / 1e6:.1f} MB, weights in fp16" if learned else "",
        "sha256": f"`{alpha['sha256']}`" if learned else "",
        "numbers": ", ".join(f"{key} {_number(value)}" for key, value in numbers.items()),
        "trained on": cards.trained_on(facts, facts.get("recipe", {})),
        "recipe": cards.recipe_line(facts.get("recipe", {})),
        "training": cards.training_line(facts),
    }
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


def _purpose(description: Mapping[str, Any]) -> str:
    low, high = description["numbers"]["alpha_range"]
    own = isinstance(description["alpha"], Mapping) and low < high
    alphas = "each image has its own alpha" if own else "all images share one alpha"
    transformed = ", and the robust one is transformed" if "transform" in description["robust"] else ""
    return f"A mixture of an accurate and a robust classifier in which {alphas}{transformed}."


def _alpha(description: Mapping[str, Any]) -> str:
    alpha, (low, high) = description["alpha"], description["numbers"]["alpha_range"]
    if not isinstance(alpha, Mapping):
        return f"{alpha:g}"
    mixer = KINDS[alpha["kind"]]
    return f"chosen by {mixer}" if low < high else f"{low:g}, with {mixer}"


def base_name(description: Mapping[str, Any]) -> str:
    """Return the name of a base classifier."""
    if "transform" in description:
        return f"{description['transform']} of {base_name(description['of'])}"
    return description.get("name") or description.get("held") or "a module without a name"


def _base(description: Mapping[str, Any]) -> str:
    network = description.get("of", description)
    sha256 = network.get("sha256") or network.get("weights")
    return f"{base_name(description)}, sha256 `{sha256}`" if sha256 else f"{base_name(description)}, in this folder"


def _number(value: float | Sequence[float]) -> str:
    return f"({', '.join(f'{part:g}' for part in value)})" if isinstance(value, Sequence) else f"{value:g}"
