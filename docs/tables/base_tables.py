"""Tables of base classifiers, of their training, and of their mixtures with a fixed alpha."""

from __future__ import annotations

import json

from attack_tables import PAPER_MARGINS
from places import BENCHMARKS, RESULTS, percent, sweep

from adaptive_smoothing.cli.demo_models import STORED_ROBUST
from adaptive_smoothing.evaluation.tradeoff import load_facts, load_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import parameters
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.tradeoff.report import PAPER_GAPS, Choice, accuracy_at
from adaptive_smoothing.report.tradeoff.tables import alpha_table, choice_table, gap_table
from adaptive_smoothing.results import read_json
from adaptive_smoothing.runs.folder import RESULT

# The best ResNet-18 of RobustBench that was trained without further data: clean accuracy, and that under AutoAttack.
BEST_PUBLIC = ("*Addepalli et al. 2022*", 0.8571, 0.5248)
# Evaluations of models under `standard`.
STANDARD = {"resnet18-robust": RESULTS / "verdicts" / "h-standard", "compact-robust": STORED_ROBUST}
# Trainings of results/training/resnet18-candidates.jsonl: what each has that the one before has not.
PARTS = {
    "hA": "helper images (HAT), weight decay 3e-4, 100 epochs",
    "hB": "mild augmentation, cutout 8",
    "decay": "weight decay 5e-4 in place of 3e-4",
    "plain": "no weight decay of batch norms and biases",
    "awp": "weight perturbation 0.005 in the last 40 epochs",
    "longer-awp": "130 epochs in place of 100, weight perturbation in the last 78",
    "longer-awp-ema-0.9995": "weights averaged with decay 0.9995 in place of 0.999",
}


def models() -> Table:
    """Return every stored model, the paper's two, and the best public ResNet-18."""
    rows = []
    for card in zoo.names().values():
        facts, test = card.card, card.card["figures"]["test"]
        rows.append(
            (
                card.name,
                card.architecture,
                f"{parameters(card) / 1e6:.2f} M",
                f"{facts['seconds'] / 60:.1f}",
                percent(test["clean"]),
                percent(test["pgd20"]),
                standard(card.name),
            )
        )
    for name, key in (("*the paper's g*", "g"), ("*the paper's h*", "h")):
        clean, attacked = PAPER_GAPS[f"{key} clean"][0], PAPER_GAPS[f"{key} pgd"][0]
        rows.append((name, "ResNet-18", "", "", percent(clean), percent(attacked), percent(PAPER_MARGINS[key][0])))
    name, clean, attacked = BEST_PUBLIC
    rows.append((name, "ResNet-18", "", "", percent(clean), "", percent(attacked)))
    columns = ("model", "architecture", "parameters", "GPU minutes", "clean, %", "PGD-20, %", "AutoAttack, %")
    note = (
        "AutoAttack: our models under the preset `standard`, the others as published. In brackets: the number of "
        "images, if it is not 10,000. Addepalli et al.: the best ResNet-18 of RobustBench that was trained without "
        "further data."
    )
    return Table("Models on the 10,000 test images", columns, tuple(rows), note)


def standard(name: str) -> str:
    """Return the robust accuracy of a model under `standard`, from a stored evaluation."""
    if name not in STANDARD:
        return "–"
    result = read_json(STANDARD[name] / RESULT)
    return _of_some(result["robust"]["accuracy"], result["images"], 10_000)


def _of_some(accuracy: float, images: int, whole: int) -> str:
    """Return an accuracy, with the number of images in brackets if it is not that of the whole split."""
    return percent(accuracy) + (f" ({images:,})" if images < whole else "")


def parts() -> Table:
    """Return what each part of the recipe of the robust ResNet-18 brings, on validation images."""
    lines = (RESULTS / "training" / "resnet18-candidates.jsonl").read_text(encoding="utf-8").splitlines()
    found = {row["name"]: row for row in map(json.loads, lines)}
    rows = []
    for name, part in PARTS.items():
        figures = found[name]["figures"]
        fast = _of_some(figures["fast"], figures["fast images"], figures["images"])
        title = f"+ {part}" if rows else part
        rows.append((title, percent(figures["clean"]), percent(figures["pgd20"]), fast))
    columns = ("part", "clean, %", "PGD-20, %", "`fast`, %")
    note = "In brackets: the number of images, if it is not 5,000. One training each."
    return Table("Candidates on 5,000 validation images", columns, tuple(rows), note)


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
