"""`adaptive-smoothing models`: what `zoo.load` finds by name on this machine."""

from __future__ import annotations

from typing import Any

from adaptive_smoothing.cli.printing import screen
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import parameters
from adaptive_smoothing.report.tables import Table, rich_table

COLUMNS = ("name", "from", "architecture", "weights", "clean", "PGD-20")


def models() -> None:
    """List the models of the package and of the zoo, with what their cards say of them."""
    cards = zoo.names()
    console = screen()
    if not cards:
        console.print("No models are stored here: neither inside the package nor in a zoo/ folder.")
    else:
        note = "Measured on test images after training; PGD-20 at the model's own threat, or Linf 8/255."
        table = Table("Models", COLUMNS, tuple(_row(card) for card in cards.values()), note)
        console.print(rich_table(table))
    sources = ", ".join(f"{source}:NAME" for source in zoo.SOURCES)
    console.print(f"Other forms that load: {sources}, and a path to .safetensors with a .json beside it.")


def _row(card: zoo.Card) -> tuple[str, ...]:
    figures = card.card.get("figures", {}).get("test", {})
    source = "package" if zoo.is_builtin(card) else "zoo"
    size = f"{parameters(card) / 1e6:.1f} M"
    return card.name, source, card.architecture, size, _percent(figures.get("clean")), _percent(figures.get("pgd20"))


def _percent(value: Any) -> str:
    return f"{100 * value:.2f} %" if isinstance(value, int | float) else "–"
