"""Tables of base classifiers, their training, and their mixtures with one alpha."""

from __future__ import annotations

from places import BENCHMARKS, RESULTS, percent, sweep

from adaptive_smoothing.evaluation.tradeoff_files import load_facts, load_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import parameters
from adaptive_smoothing.report.sentences import Choice, at
from adaptive_smoothing.report.tables import PAPER_GAPS, Table, alpha_table, cost_table, gap_table, models_table
from adaptive_smoothing.results import read_json


def models() -> Table:
    """Every stored model beside the paper's two."""
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
    """Seconds of training, and of what comes between epochs."""
    measured = read_json(BENCHMARKS / "train.json")
    columns = ("recipe", "mode", "first epoch, s", "an epoch, s", "a checkpoint, s", "a validation, s")
    keys = ("first", "epoch", "checkpoint", "validation")
    rows = tuple((row["recipe"], row["mode"], *(f"{row[key]:.2f}" for key in keys)) for row in measured["rows"])
    return Table(f"Training on one {measured['device']}, torch {measured['torch']}", columns, rows)


def candidates(pair: str) -> Table:
    """The robust halves that were compared on validation images."""
    measured = read_json(RESULTS / "candidates" / f"{pair}.json")
    names = {read_json(path)["sha256"]: path.stem for path in (RESULTS / "training").glob("*.json")}
    names |= {card.sha256: f"**{card.name}**" for card in zoo.names().values()}
    rows = tuple(
        (names[row["h"]["sha256"]], percent(row["clean"]), percent(row["pgd"]), *map(_beside_the_first, row["at"]))
        for row in measured["candidates"]
    )
    wanted = (f"mixture at {100 * each['clean accuracy']:.0f} % clean, %" for each in measured["candidates"][0]["at"])
    title = f"Candidates for the robust half of {pair}: {measured['images']:,} validation images"
    note = "mixture: what stands all three attacks; in brackets against the first row, over the same images."
    return Table(title, ("h", "clean, %", "PGD-20, %", *wanted), rows, note)


def _beside_the_first(mixture: dict[str, float]) -> str:
    """What stands all attacks, and how far that is from the first candidate; nothing lies between it and itself."""
    value, ahead, half = (100 * mixture[key] for key in ("stands all", "ahead", "give or take"))
    return f"{value:.2f} ({ahead:+.2f} ± {half:.2f})".replace("-", "−") if half else f"{value:.2f}"


def pair(name: str) -> Table:
    """g, h and their mixture at the chosen alpha."""
    return models_table(load_tradeoff(sweep(name)), chosen_alpha(name).alpha)


def curve(pair: str) -> Table:
    """Accuracy against alpha."""
    return alpha_table(load_tradeoff(sweep(pair)), chosen_alpha(pair).alpha, every=True)


def chosen(pair: str) -> Table:
    """The alpha for a wanted clean accuracy, and what it costs."""
    return cost_table(load_tradeoff(sweep(pair)), chosen_alpha(pair))


def held(*pairs: str) -> Table:
    """What h holds by its confidence alone, beside what stands all three attacks."""
    runs = [load_tradeoff(sweep(pair)) for pair in pairs]
    columns = ["α", "(1 − α) / α"]
    for pair in pairs:
        columns += [f"{pair}: h right, gap above it", "stands all three"]
    rows = []
    for alpha in (0.5, 0.55, 0.6, 0.7, 0.8, 0.9):
        line = (1 - alpha) / alpha
        row = [f"{alpha:g}", f"{line:.2f}"]
        for run in runs:
            sure = run.rows["clean_h"] & run.rows["rob_h"] & (run.rows["rob_h_gap"] > line)
            row += [f"{100 * sure.mean():.1f} %", f"{100 * at(run, 'worst', alpha).value:.1f} %"]
        rows.append(tuple(row))
    return Table("What h's confidence explains", tuple(columns), tuple(rows))


def gaps(*pairs: str) -> Table:
    """The paper's tab:confidence, and our pairs below it."""
    rows = [_paper_gaps(key, *PAPER_GAPS[key]) for key in PAPER_GAPS]
    for pair in pairs:
        table = gap_table(load_tradeoff(sweep(pair)))
        rows += [(f"{pair} {name}", *cells) for name, *cells in table.rows]
    return Table("Confidence gaps", table.columns, tuple(rows))


def _paper_gaps(key: str, accuracy: float, right: float, wrong: float) -> tuple[str, ...]:
    """A row of the paper; medians are in its text, for h alone."""
    medians = {"h pgd": ("0.933", "–"), "h clean": ("–", "0.378")}.get(key, ("–", "–"))
    model, images = key.split()
    name = f"*the paper's {model}, {images.replace('pgd', 'PGD-20')}*"
    return name, f"{100 * accuracy:.1f} %", f"{right:.3f}", medians[0], f"{wrong:.3f}", medians[1]


def chosen_alpha(pair: str) -> Choice:
    found = load_facts(sweep(pair)).get("choice")
    if found is None:
        raise ValueError(f"expected the run of {pair} to have a chosen alpha, got none: sweep with --clean-accuracy")
    return Choice(**found)
