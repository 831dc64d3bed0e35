"""`adaptive-smoothing models`: list the models and mixtures that can be loaded by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from adaptive_smoothing.cli.console import screen
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.mixers import MIXERS
from adaptive_smoothing.mixing.mixture_card import base_name
from adaptive_smoothing.models import download, zoo, zoo_index
from adaptive_smoothing.models.zoo import parameters
from adaptive_smoothing.models.zoo_index import ZooEntry
from adaptive_smoothing.report.tables import Table, rich_table

COLUMNS = ("name", "from", "architecture", "weights", "clean", "PGD-20")
NOTE = "Accuracy on test images; PGD-20 at the threat the model was trained for, or at Linf 8/255."
MIXTURE_COLUMNS = ("name", "from", "g and h", "alpha", "clean", "adaptive")
MIXTURE_NOTE = (
    "clean: accuracy on test images, or on validation images if the test images were not measured. adaptive: accuracy "
    "under the attacks of that preset, on some of the test images. `evaluate NAME` attacks a mixture."
)
NOT_HERE = "not here"
Figures = Mapping[str, dict[str, Any]]
# On a screen with fewer columns, these columns of the tables are left out.
NARROW, WIDE_COLUMNS = 80, ("architecture", "g and h", "alpha")


def models() -> None:
    """List the models and mixtures of the package and of the zoo, with the accuracies on their cards."""
    cards, mixtures, console = zoo.names(), zoo.mixtures(), screen()
    rows = {name: _row_to_fetch(name, entry, _accuracies) for name, entry in zoo_index.models().items()}
    rows |= {name: _row(card) for name, card in cards.items()}
    _print(console, Table("Models", COLUMNS, _sorted(rows), NOTE))
    rows = {name: _row_to_fetch(name, entry, _mixture_accuracies) for name, entry in zoo_index.mixtures().items()}
    rows |= {name: _mixture_row(name, folder) for name, folder in mixtures.items()}
    _print(console, Table("Mixtures", MIXTURE_COLUMNS, _sorted(rows), MIXTURE_NOTE))
    sources = ", ".join(f"{source}:NAME" for source in zoo.SOURCES)
    console.print(f"Other models are named {sources}, or by the path of a .safetensors file with a .json next to it.")
    print_result(
        {
            "models": _with_missing({name: _facts(card) for name, card in cards.items()}, zoo_index.models()),
            "mixtures": _with_missing(
                {name: _mixture_facts(name, folder) for name, folder in mixtures.items()}, zoo_index.mixtures()
            ),
        }
    )


def _with_missing(facts: Figures, index: Mapping[str, ZooEntry]) -> list[dict[str, Any]]:
    """Return facts about models or mixtures, sorted by name, with those of the index that are not on this machine."""
    missing = {
        name: {"name": name, "from": NOT_HERE, "bytes": _bytes_to_fetch(entry), "figures": entry.figures}
        for name, entry in index.items()
    }
    return [each for _, each in sorted((missing | {**facts}).items())]


def _bytes_to_fetch(entry: ZooEntry) -> int:
    return sum(file.bytes for file in entry.needed)


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


def _print(console: Console, table: Table) -> None:
    """Print a table and what its rows that are not here need, without some columns on a narrow screen."""
    shown = [at for at, name in enumerate(table.columns) if console.width >= NARROW or name not in WIDE_COLUMNS]
    columns, *rows = (tuple(row[at] for at in shown) for row in (table.columns, *table.rows))
    note = table.note
    if any(NOT_HERE in row for row in rows):
        note += f" {NOT_HERE}: fetched when used, from ${download.URL_VARIABLE}"
        note += f" ({url})." if (url := download.zoo_url()) else ", which is not set."
    console.print(rich_table(Table(table.title, columns, tuple(rows), note)), "")


def _sorted(rows: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(rows[name] for name in sorted(rows))


def _row(card: zoo.Card) -> tuple[str, ...]:
    size = f"{parameters(card) / 1e6:.1f} M"
    return card.name, _source(card.path), card.architecture, size, *_accuracies(card.card.get("figures", {}))


def _mixture_row(name: str, folder: Path) -> tuple[str, ...]:
    try:
        described = pretrained.read(folder)
    except ValueError:
        return name, _source(folder), "cannot be read", "–", "–", "–"
    bases = "\n".join(base_name(described[role]) for role in pretrained.ROLES)
    measured = _mixture_accuracies(described["card"].get("figures", {}))
    return name, _source(folder), bases, _alpha_title(described["alpha"]), *measured


def _row_to_fetch(name: str, entry: ZooEntry, accuracies: Callable[[Figures], tuple[str, str]]) -> tuple[str, ...]:
    """Return the row of a model or a mixture that is not on this machine."""
    return name, NOT_HERE, f"{_bytes_to_fetch(entry) / 1e6:.1f} MB to fetch", "–", *accuracies(entry.figures)


def _accuracies(figures: Figures) -> tuple[str, str]:
    measured = figures.get("test", {})
    return _percent(measured.get("clean")), _percent(measured.get("pgd20"))


def _mixture_accuracies(figures: Figures) -> tuple[str, str]:
    measured = figures.get("val", {}) | figures.get("test", {})
    return _percent(measured.get("clean")), _percent(measured.get("adaptive"))


def _alpha_title(alpha: float | dict[str, Any]) -> str:
    if not isinstance(alpha, dict):
        return f"{alpha:g}"
    kind = alpha["kind"]
    return MIXERS[kind].title if kind in MIXERS else kind


def _source(path: Path) -> str:
    if zoo.is_builtin(path):
        return "package"
    return "cache" if path.parent == download.zoo_cache() else "zoo"


def _percent(value: object) -> str:
    return f"{100 * value:.2f} %" if isinstance(value, int | float) else "–"
