"""`adaptive-smoothing models`: list the models and mixtures that this machine can load by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptive_smoothing.cli.console import screen
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.mixers import MIXERS
from adaptive_smoothing.mixing.mixture_card import base_name
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import parameters
from adaptive_smoothing.report.tables import Table, rich_table

COLUMNS = ("name", "from", "architecture", "weights", "clean", "PGD-20")
NOTE = "Accuracy on test images; PGD-20 at the threat the model was trained for, or at Linf 8/255."
MIXTURE_COLUMNS = ("name", "from", "g and h", "alpha", "clean", "adaptive")
MIXTURE_NOTE = (
    "clean: accuracy on test images, or on validation images if the test images were not measured. adaptive: accuracy "
    "under the attacks of that preset, on some of the test images. `evaluate NAME` attacks a mixture."
)


def models() -> None:
    """List the models and mixtures of the package and of the zoo, with the accuracies on their cards."""
    cards, mixtures, console = zoo.names(), pretrained.names(), screen()
    if not cards:
        console.print("There are no models in the package or in a zoo/ folder.")
    else:
        console.print(rich_table(Table("Models", COLUMNS, tuple(_row(card) for card in cards.values()), NOTE)), "")
    if mixtures:
        rows = tuple(_mixture_row(name, folder) for name, folder in mixtures.items())
        console.print(rich_table(Table("Mixtures", MIXTURE_COLUMNS, rows, MIXTURE_NOTE)), "")
    sources = ", ".join(f"{source}:NAME" for source in zoo.SOURCES)
    console.print(f"Other models are named {sources}, or by the path of a .safetensors file with a .json next to it.")
    print_result(
        {
            "models": [_facts(card) for card in cards.values()],
            "mixtures": [_mixture_facts(name, folder) for name, folder in mixtures.items()],
        }
    )


def _facts(card: zoo.Card) -> dict[str, Any]:
    """Return a model as a table of facts, for --json."""
    where = {"name": card.name, "from": _source(card.path), "path": str(card.path), "sha256": card.sha256}
    made = {"arch": card.arch, "options": card.options, "parameters": parameters(card)}
    return where | made | {"figures": card.card.get("figures", {})}


def _mixture_facts(name: str, folder: Path) -> dict[str, Any]:
    """Return a mixture as a table of facts, for --json."""
    where: dict[str, Any] = {"name": name, "from": _source(folder), "path": str(folder)}
    try:
        described = pretrained.read(folder)
    except ValueError as error:
        return where | {"error": str(error)}
    bases = {role: base_name(described[role]) for role in pretrained.ROLES}
    alpha = described["alpha"]
    kind = alpha["kind"] if isinstance(alpha, dict) else alpha
    return where | bases | {"alpha": kind, "figures": described["card"].get("figures", {})}


def _row(card: zoo.Card) -> tuple[str, ...]:
    figures = card.card.get("figures", {}).get("test", {})
    measured = (_percent(figures.get(name)) for name in ("clean", "pgd20"))
    return card.name, _source(card.path), card.architecture, f"{parameters(card) / 1e6:.1f} M", *measured


def _mixture_row(name: str, folder: Path) -> tuple[str, ...]:
    try:
        described = pretrained.read(folder)
    except ValueError:
        return name, _source(folder), "cannot be read", "–", "–", "–"
    alpha, figures = described["alpha"], described["card"].get("figures", {})
    measured = figures.get("val", {}) | figures.get("test", {})
    bases = "\n".join(base_name(described[role]) for role in pretrained.ROLES)
    accuracies = (_percent(measured.get(name)) for name in ("clean", "adaptive"))
    return name, _source(folder), bases, _alpha_title(alpha), *accuracies


def _alpha_title(alpha: float | dict[str, Any]) -> str:
    if not isinstance(alpha, dict):
        return f"{alpha:g}"
    kind = alpha["kind"]
    return MIXERS[kind].title if kind in MIXERS else kind


def _source(path: Path) -> str:
    return "package" if zoo.is_builtin(path) else "zoo"


def _percent(value: object) -> str:
    return f"{100 * value:.2f} %" if isinstance(value, int | float) else "–"
