"""Tables of base classifiers, of their training, and of their mixtures with a fixed alpha."""

from __future__ import annotations

from places import BENCHMARKS, percent, sweep

from adaptive_smoothing.evaluation.tradeoff import load_facts, load_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import parameters
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.tradeoff.report import PAPER_GAPS, Choice, accuracy_at
from adaptive_smoothing.report.tradeoff.tables import alpha_table, choice_table, gap_table
from adaptive_smoothing.results import read_json


def models() -> Table:
    """Return every stored model and the paper's two."""
    rows = []
    for card in zoo.names().values():
        facts, test = card.card, card.card["figures"]["test"]
        rows.append(
            (
                card.name,
                card.architecture,
                f"{parameters(card) / 1e6:.2f} M",
                f"`recipes/{card.name}.toml`",
                f"{facts['seconds'] / 60:.1f}",
                percent(test["clean"]),
                percent(test["pgd20"]),
            )
        )
    for name, key in (("*the paper's g*", "g"), ("*the paper's h*", "h")):
        clean, attacked = PAPER_GAPS[f"{key} clean"][0], PAPER_GAPS[f"{key} pgd"][0]
        rows.append((name, "ResNet-18", "", "", "", percent(clean), percent(attacked)))
    columns = ("model", "architecture", "parameters", "recipe", "GPU minutes", "clean, %", "PGD-20, %")
    return Table("Models on the 10,000 test images", columns, tuple(rows))


def training() -> Table:
    """Return the seconds of an epoch, a checkpoint and a validation (benchmarks/train.py)."""
    measured = read_json(BENCHMARKS / "train.json")
    columns = ("recipe", "mode", "first epoch, s", "an epoch, s", "a checkpoint, s", "a validation, s")
    keys = ("first", "epoch", "checkpoint", "validation")
    rows = tuple((row["recipe"], row["mode"], *(f"{row[key]:.2f}" for key in keys)) for row in measured["rows"])
    return Table(f"Training on one {measured['device']}, torch {measured['torch']}", columns, rows)


def curve(pair: str) -> Table:
    """Return accuracy as a function of alpha."""
    return alpha_table(load_tradeoff(sweep(pair)), chosen_alpha(pair).alpha, every=True)


def chosen(pair: str) -> Table:
    """Return the alpha for a target clean accuracy, and its cost."""
    return choice_table(load_tradeoff(sweep(pair)), chosen_alpha(pair))


def held(*pairs: str) -> Table:
    """Compare the share of images that h decides by its confidence alone with the share that survives all attacks."""
    runs = [load_tradeoff(sweep(pair)) for pair in pairs]
    columns = ["α", "(1 − α) / α"]
    for pair in pairs:
        columns += [f"{pair}: h correct, gap above", "survives all three"]
    rows = []
    for alpha in (0.5, 0.55, 0.6, 0.7, 0.8, 0.9):
        line = (1 - alpha) / alpha
        row = [f"{alpha:g}", f"{line:.2f}"]
        for run in runs:
            confident = run.rows["clean_h"] & run.rows["rob_h"] & (run.rows["rob_h_gap"] > line)
            row += [f"{100 * confident.mean():.1f} %", f"{100 * accuracy_at(run, 'worst', alpha).value:.1f} %"]
        rows.append(tuple(row))
    return Table("How much of the robustness the confidence of h explains", tuple(columns), tuple(rows))


def gaps(*pairs: str) -> Table:
    """Return the paper's tab:confidence, followed by our pairs."""
    rows = [_paper_gaps(key, *PAPER_GAPS[key]) for key in PAPER_GAPS]
    for pair in pairs:
        table = gap_table(load_tradeoff(sweep(pair)))
        rows += [(f"{pair} {name}", *cells) for name, *cells in table.rows]
    return Table("Confidence gaps", table.columns, tuple(rows))


def _paper_gaps(key: str, accuracy: float, right: float, wrong: float) -> tuple[str, ...]:
    """Return a row of the paper. Its text gives medians for h alone."""
    medians = {"h pgd": ("0.933", "–"), "h clean": ("–", "0.378")}.get(key, ("–", "–"))
    model, images = key.split()
    name = f"*the paper's {model}, {images.replace('pgd', 'PGD-20')}*"
    return name, f"{100 * accuracy:.1f} %", f"{right:.3f}", medians[0], f"{wrong:.3f}", medians[1]


def chosen_alpha(pair: str) -> Choice:
    found = load_facts(sweep(pair)).get("choice")
    if found is None:
        raise ValueError(f"expected the run of {pair} to have a chosen alpha, got none: sweep with --clean-accuracy")
    return Choice(**found)
