"""Write the tables of docs/results.md and README.md from the result files of this repository.

    python docs/tables.py            # rewrite what stands between <!-- table: NAME --> and <!-- end -->
    python docs/tables.py --check    # only say whether it is up to date
    python docs/tables.py --figures  # draw the figures of results/ again, too

No figure in those tables is typed by hand: cards stand beside the weights, runs of `adaptive-smoothing sweep` in
results/ (that of the demo inside the package), benchmarks in benchmarks/results/.
"""

from __future__ import annotations

import re
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.cli.demo import STORED
from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.evaluation.stored import has_tradeoff, load_facts, load_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.facts import parameters
from adaptive_smoothing.report.figures import png, side_by_side
from adaptive_smoothing.report.folder import figures
from adaptive_smoothing.report.panels import comparison_panel
from adaptive_smoothing.report.story import Choice, Report, at
from adaptive_smoothing.report.tables import (
    PAPER_GAPS,
    Table,
    alpha_table,
    attacks_table,
    cost_table,
    frontier_table,
    gap_table,
    lead_table,
    markdown,
    models_table,
)
from adaptive_smoothing.results import read_json, read_rows

ROOT = Path(__file__).parent.parent
PAIRS = ("resnet18", "compact")
COMPARED = ROOT / "results" / "mixtures"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
MARKED = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


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


def curve(pair: str) -> Table:
    """Accuracy against alpha."""
    return alpha_table(load_tradeoff(_folder(pair)), _chosen(pair).alpha, every=True)


def pair(name: str) -> Table:
    """g, h and their mixture at the chosen alpha."""
    return models_table(load_tradeoff(_folder(name)), _chosen(name).alpha)


def chosen(pair: str) -> Table:
    """The alpha for a wanted clean accuracy, and what it costs."""
    return cost_table(load_tradeoff(_folder(pair)), _chosen(pair))


def gaps(*pairs: str) -> Table:
    """The paper's tab:confidence, and our pairs below it."""
    rows = [_paper_gaps(key, *PAPER_GAPS[key]) for key in PAPER_GAPS]
    for pair in pairs:
        table = gap_table(load_tradeoff(_folder(pair)))
        rows += [(f"{pair} {name}", *cells) for name, *cells in table.rows]
    return Table("Confidence gaps", table.columns, tuple(rows))


def _paper_gaps(key: str, accuracy: float, right: float, wrong: float) -> tuple[str, ...]:
    """A row of the paper; medians are in its text, for h alone."""
    medians = {"h pgd": ("0.933", "–"), "h clean": ("–", "0.378")}.get(key, ("–", "–"))
    model, images = key.split()
    name = f"*the paper's {model}, {images.replace('pgd', 'PGD-20')}*"
    return name, f"{100 * accuracy:.1f} %", f"{right:.3f}", medians[0], f"{wrong:.3f}", medians[1]


def held(*pairs: str) -> Table:
    """What h holds by its confidence alone, beside what stands all three attacks."""
    runs = [load_tradeoff(_folder(pair)) for pair in pairs]
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


def candidates(pair: str) -> Table:
    """The robust halves that were compared on validation images."""
    measured = read_json(ROOT / "results" / "candidates" / f"{pair}.json")
    names = {read_json(path)["sha256"]: path.stem for path in (ROOT / "results" / "training").glob("*.json")}
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


def training() -> Table:
    """Seconds of training, and of what comes between epochs."""
    measured = read_json(ROOT / "benchmarks/results/train.json")
    columns = ("recipe", "mode", "first epoch, s", "an epoch, s", "a checkpoint, s", "a validation, s")
    keys = ("first", "epoch", "checkpoint", "validation")
    rows = tuple((row["recipe"], row["mode"], *(f"{row[key]:.2f}" for key in keys)) for row in measured["rows"])
    return Table(f"Training on one {measured['device']}, torch {measured['torch']}", columns, rows)


def attacks(*runs: str) -> Table:
    """Ours beside AutoAttack's reference: benchmarks/attacks.py."""
    measured = {run: read_json(ROOT / "benchmarks" / "results" / f"attacks-{run}.json") for run in runs}
    rows = [
        (_subject(result["facts"]["models"]), name, *_contest(row))
        for result in measured.values()
        for name, row in result["rows"].items()
    ]
    columns = (
        "model",
        "attack",
        "seconds",
        "times as fast",
        "first run, s",
        "forwards an image",
        "backwards",
        "robust, %",
        "only ours broke",
        "only theirs broke",
    )
    facts = next(iter(measured.values()))["facts"]
    title = f"{facts['images']:,} images of {facts['data']} on {facts['device']}, torch {facts['torch']}"
    return Table(title, columns, tuple(rows))


def _contest(row: dict[str, float]) -> tuple[str, ...]:
    cells = {"seconds": ".1f", "times as fast": ".1f", "first": ".0f", "forwards": ",.0f", "backwards": ",.0f"}
    cells |= {"seconds": ".2f"} if row["seconds"] < 1 else {}
    shown = [format(row[key], form) if key in row else "" for key, form in cells.items()]
    broke = [str(row[key]) if key in row else "" for key in ("only ours broke", "only theirs broke")]
    return (*shown, percent(row["robust accuracy"]), *broke)


def _subject(models: dict[str, Any]) -> str:
    if "model" in models:
        return models["model"]["name"]
    return f"{models['g']['name']} and {models['h']['name']}, α = {models['alpha']:g}"


def verdicts(*runs: str) -> Table:
    """Evaluations in results/: what is left of the accuracy after each attack."""
    rows = []
    for run in runs:
        result = read_json(ROOT / "results" / run / "result.json")
        steps = " → ".join(f"{step['attack']} {percent(step['left'])}" for step in result["waterfall"])
        low, high = (100 * bound for bound in result["robust"]["interval"])
        robust = f"{percent(result['robust']['accuracy'])} ({low:.1f} to {high:.1f})"
        found = result["alarms"]
        alarms = "not looked for" if found is None else ", ".join(alarm["name"] for alarm in found) or "none"
        preset = result["settings"]["attack"]["name"]
        rows.append((_subject(result["models"]), preset, f"{result['images']:,}", steps, robust, alarms))
    columns = ("model", "preset", "images", "accuracy left after each attack, %", "robust, %", "alarms")
    return Table("Verdicts", columns, tuple(rows), "95 % Clopper-Pearson intervals.")


# tab:confidence, its AutoAttack columns: accuracy, right: mean and median, wrong: mean.
PAPER_MARGINS = {"g": (0.0, "–", "–", "0.986", "–"), "h": (0.4075, "0.774", "0.933", "0.553", "–")}


def margins(*runs: str) -> Table:
    """Confidence gaps under AutoAttack, on the iterate with the smallest margin, beside the paper's."""
    rows = [
        (f"*the paper's {letter}, AutoAttack*", percent(accuracy), *gaps)
        for letter, (accuracy, *gaps) in PAPER_MARGINS.items()
    ]
    for run in runs:
        result = read_json(ROOT / "results" / run / "result.json")
        attack = result["settings"]["attack"]["name"]
        for images, cell in result["gaps"].items():
            figures = [cell[f"{kind}_{what}"] for kind in ("right", "wrong") for what in ("mean", "median")]
            shown = ["–" if figure is None else f"{figure:.3f}" for figure in figures]
            name = f"{_subject(result['models'])}, {'clean' if images == 'clean' else attack}"
            rows.append((name, percent(cell["accuracy"]), *shown))
    columns = ("", "accuracy, %", "right: mean gap", "median", "wrong: mean gap", "median")
    return Table("Confidence gaps under attack", columns, tuple(dict.fromkeys(rows)))


def consistency() -> Table:
    """The same images in other batches and processes: benchmarks/consistency.py."""
    result = read_json(ROOT / "benchmarks" / "results" / "consistency.json")
    differences = ("verdict", "fooled by", "queries")
    rows = [
        (
            name,
            percent(row["robust accuracy"]),
            *(str(len(row[kind])) for kind in differences),
            f"{row['margin, largest difference']:.1g}",
            f"{row['seconds']:,.0f}",
        )
        for name, row in result["rows"].items()
    ]
    columns = ("arrangement", "robust, %", *(f"other {kind}" for kind in differences), "margin off by", "seconds")
    return Table(f"{result['facts']['images']} images, in fp32 on a CPU", columns, tuple(rows))


def objectives(run: str = "objectives") -> Table:
    """Attacks on mixtures, each alone: benchmarks/objectives.py."""
    result = read_json(ROOT / "benchmarks" / "results" / f"{run}.json")
    mixtures, facts = result["mixtures"], result["facts"]
    names = next(iter(mixtures.values()))
    rows = [
        (name, *(cell for found in mixtures.values() for cell in (percent(found[name]["stands"]), _fell(found[name]))))
        for name in names
    ]
    columns = ["attack, alone"]
    for mixture in mixtures:
        columns += [f"{mixture}: stands, %", "fell to another"]
    return Table(f"{facts['images']:,} images of {facts['data']} on {facts['device']}", tuple(columns), tuple(rows))


def frontier(name: str) -> Table:
    """Mixtures at wanted clean accuracies: results/mixtures/NAME, by benchmarks/mixtures.py."""
    return frontier_table(_comparison(name))


def leads(name: str) -> Table:
    """How far they are ahead of the first of them where that has the same clean accuracy."""
    return lead_table(_comparison(name))


def kept(name: str, alone: str) -> Table:
    """What mixtures lose of the images that h alone keeps (an evaluation in results/), and keep of those it loses."""
    comparison, h = _comparison(name), read_rows(ROOT / "results" / alone / "rows.npz")
    stands = (h["fooled_by"] == -1)[: comparison.images]
    wanted = sorted({point.wanted for point in comparison.points if point.wanted})
    at = {(point.mixture, point.wanted): point.stands[: comparison.images] for point in comparison.points}
    rows = tuple(
        (mixture, *(_lost_and_gained(stands, at.get((mixture, target))) for target in wanted))
        for mixture in comparison.mixtures
    )
    title = f"Images that h alone keeps ({stands.sum()} of {comparison.images:,}): lost / kept beside them"
    return Table(title, ("mixture", *(f"at {100 * target:g} %" for target in wanted)), rows)


def _lost_and_gained(alone: np.ndarray, mixed: np.ndarray | None) -> str:
    return "–" if mixed is None else f"{(alone & ~mixed).sum()} / {(mixed & ~alone).sum()}"


def mixtures(*names: str) -> Table:
    """Mixtures under several attacks: results/mixtures/NAME, by benchmarks/mixtures.py; further runs add attacks."""
    return attacks_table(reduce(Comparison.with_attacks_of, map(_comparison, names)))


def losses(name: str) -> Table:
    """The paper's tab:loss_abla: results/mixtures/NAME, whose mixtures were made with changes of loss.ce and others."""
    result = _comparison(name)
    stands: dict[tuple[str, str, str], str] = {}
    for point in result.points:
        changes = dict(change.split("=") for change in point.facts["made from"].split()[1:])
        ce, bce, product = (changes[f"loss.{term}"] for term in ("ce", "bce", "product"))
        stands[ce, bce, product] = percent(point.robust)
    pairs = sorted({key[:2] for key in stands})
    products = sorted({key[2] for key in stands})
    rows = tuple((f"c_prod = {product}", *(stands[*pair, product] for pair in pairs)) for product in products)
    columns = ("stands, %", *(f"c_CE = {ce}, c_BCE = {bce}" for ce, bce in pairs))
    return Table(f"{result.images:,} images", columns, rows)


def overhead() -> Table:
    """What a mixture costs over g and h: benchmarks/mixing.py."""
    measured = read_json(ROOT / "benchmarks" / "results" / "mixing.json")
    rows = tuple(
        (
            row["mixture"],
            f"{row['arithmetic']}{', compiled' if row['compiled'] else ''}",
            f"{row['g_and_h_images_per_second']:,}",
            f"{row['mixture_images_per_second']:,}",
            f"{100 * row['overhead']:.1f}",
        )
        for row in measured["overhead"]
    )
    columns = ("mixture", "arithmetic", "g and h, images a second", "mixture, images a second", "more time, %")
    return Table(f"{' and '.join(measured['models'])} on one {measured['device']}", columns, rows)


def arithmetic() -> Table:
    """How fast and how far off each arithmetic is: benchmarks/arithmetic.py."""
    measured = read_json(ROOT / "benchmarks" / "results" / "arithmetic.json")
    rows = tuple(
        (
            row["model"],
            row["arithmetic"],
            f"{row['images_per_second']:,}",
            percent(row["median"]),
            percent(row["largest"]),
            percent(row["above_bound"]),
        )
        for row in measured["rows"]
    )
    bound = f"images off by more than {percent(measured['bound'])}, %"
    columns = ("model", "arithmetic", "images a second", "off by, % of the spread: median", "largest", bound)
    title = f"{measured['images']:,} images, {' and '.join(measured['models'])} on one {measured['device']}"
    return Table(title, columns, rows)


def _fell(row: dict[str, Any]) -> str:
    return str(row["fell to another"]) if "seconds" in row else ""


def draw(pair: str) -> None:
    """figure.png and gaps.png of a stored run, as `sweep` draws them."""
    for name, figure in figures(Report(load_tradeoff(_folder(pair)), choice=_chosen(pair))).items():
        (ROOT / "results" / pair / f"{name}.png").write_bytes(png(figure))


def _comparison(name: str) -> Comparison:
    """A run of benchmarks/mixtures.py: inside the package, for the demo, or in results/mixtures."""
    inside = STORED.with_name(name)
    return Comparison.read(inside if inside.exists() else COMPARED / name)


def _folder(pair: str) -> Path:
    inside = STORED.with_name(pair)
    return inside if has_tradeoff(inside) else ROOT / "results" / pair


def _chosen(pair: str) -> Choice:
    found = load_facts(_folder(pair)).get("choice")
    if found is None:
        raise ValueError(f"expected the run of {pair} to have a chosen alpha, got none: sweep with --clean-accuracy")
    return Choice(**found)


KINDS = (
    models,
    candidates,
    training,
    attacks,
    verdicts,
    margins,
    consistency,
    objectives,
    frontier,
    leads,
    kept,
    mixtures,
    losses,
    overhead,
    arithmetic,
    pair,
    curve,
    chosen,
    held,
    gaps,
)
TABLES = {table.__name__: table for table in KINDS}


def rewritten(text: str) -> str:
    """The page with every marked table made anew."""

    def table(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        kind, *pair = name.split()
        if kind not in TABLES:
            raise KeyError(f"expected one of {', '.join(TABLES)}, got the mark {name!r}")
        return f"{begin}{markdown(TABLES[kind](*pair))}{end}"

    return MARKED.sub(table, text)


def main() -> int:
    old = {}
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            old[page] = after
    if "--check" in sys.argv[1:]:
        print(f"out of date: {', '.join(page.name for page in old)}: python docs/tables.py" if old else "up to date")
        return int(bool(old))
    for page, after in old.items():
        page.write_text(after, encoding="utf-8")
    if "--figures" in sys.argv[1:]:
        for pair in PAIRS:
            draw(pair)
        for folder in COMPARED.glob("*-frontier"):
            panel = comparison_panel(Comparison.read(folder))
            (folder / "figure.png").write_bytes(png(side_by_side([panel])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
