"""What a person reads first in the folder of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_smoothing.models import cards

KINDS = {
    "network": "a mixing network on features of both classifiers",
    "second-ending": "read off a second ending of the robust classifier, whose logits count as well",
}


def markdown(name: str, description: Mapping[str, Any], weights: Path) -> str:
    """The card of a mixture. Everything in it comes from its JSON."""
    facts, alpha, numbers = _known(description["card"]), description["alpha"], description["numbers"]
    learned = isinstance(alpha, Mapping)
    lines = [f"# {name}", "", _purpose(description["robust"], learned), "", "| | |", "|---|---|"]
    rows = {
        "standard classifier": _base(description["standard"]),
        "robust classifier": _base(description["robust"]),
        "alpha": KINDS[alpha["kind"]] if learned else f"{alpha:g}",
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
    """What `mix` writes into a card. Somebody else's may hold anything, under the same names, too."""
    known = {"seconds": int | float, "train_images": int, "device": str, "adaptive-smoothing": str}
    facts = {name: card[name] for name, kind in known.items() if isinstance(card.get(name), kind)}
    recipe, figures = card.get("recipe"), card.get("figures")
    if isinstance(recipe, Mapping) and {"name", "seed", "data", "optimizer"} <= set(recipe):
        facts["recipe"] = recipe
    if isinstance(figures, Mapping) and all(isinstance(row, Mapping) and row for row in figures.values()):
        facts["figures"] = figures
    return facts


def _purpose(robust: Mapping[str, Any], learned: bool) -> str:
    if learned:
        return "A mixture of an accurate and a robust classifier in which each image has its own alpha."
    transformed = ", and the robust one is transformed" if "transform" in robust else ""
    return f"A mixture of an accurate and a robust classifier: one alpha for all images{transformed}."


def base_name(description: Mapping[str, Any]) -> str:
    """What a base classifier is called, in a few words."""
    if "transform" in description:
        return f"{description['transform']} of {base_name(description['of'])}"
    return description.get("name") or description.get("held") or "a module of one's own"


def _base(description: Mapping[str, Any]) -> str:
    inner = description.get("of", description)
    known = inner.get("sha256") or inner.get("weights")
    return f"{base_name(description)}, sha256 `{known}`" if known else f"{base_name(description)}, in this folder"


def _number(value: Any) -> str:
    return f"({', '.join(f'{part:g}' for part in value)})" if isinstance(value, list) else f"{value:g}"
