"""An evaluation in words, in tables and in a figure, and the files of its run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.calibration import BINS, Calibration
from adaptive_smoothing.evaluation.cost import Cost
from adaptive_smoothing.evaluation.outputs import CLEAN
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.evaluation.stored import save_adversarial
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.figures import Panel, legend_below, percent_axes, side_by_side
from adaptive_smoothing.report.run_folder import write_result
from adaptive_smoothing.report.style import LIGHT
from adaptive_smoothing.report.tables import Table, gap_statistics_table
from adaptive_smoothing.results import percent, percent_with_interval
from adaptive_smoothing.runs.folder import ADVERSARIAL_FILE, CALIBRATION, FACTS, PICTURES, RESULT, ROWS, WATERFALL

# Bins of the histogram of leads.
LEAD_BINS = 40
# Bins of a reliability diagram with fewer images are not drawn.
FEW_IMAGES = 5


def write_verdict(
    folder: Path, verdict: Verdict, models: dict[str, Any], facts: dict[str, Any], data: ImageData | None = None
) -> list[str]:
    """Write the files of the run folder, and return their names.

    Args:
        data: the images of the run, for its pictures.
    """
    figures = {WATERFALL: waterfall_figure(verdict), CALIBRATION: calibration_figure(verdict)}
    save_adversarial(folder, verdict)
    if pictures := None if data is None else Pictures.of(verdict, data):
        pictures.save(folder)
    write_result(folder, "evaluation", {**verdict.summary(), "models": models}, verdict.rows(), figures, facts)
    saved = [] if verdict.adversarial is None else [ADVERSARIAL_FILE]
    return [RESULT, ROWS, *saved, *[PICTURES] * (pictures is not None), FACTS, *figures]


def sentences(verdict: Verdict) -> list[str]:
    """Return the result in words: accuracies with their intervals, and the audit."""
    clean = percent_with_interval(verdict.clean, verdict.clean_interval, 2)
    robust = percent_with_interval(verdict.robust, verdict.interval, 2)
    images = f"{len(verdict.labels):,} images; 95 % Clopper-Pearson intervals"
    found = [f"Clean accuracy {clean}, robust accuracy {robust} on {images}."]
    if verdict.audit is not None:
        found.append(audit_sentence(verdict.audit, len(verdict.labels)))
    return found


def audit_sentence(audit: Audit, images: int) -> str:
    """Return the outcome of the audit in words."""
    if not audit.random:
        count = f"{audit.survivors} image{'s' * (audit.survivors != 1)}"
        return f"No audit: {count} survived the attacks, which is too few."
    points = 100 * audit.missed_share * audit.unseen / images
    fooled = f"{audit.random_fooled} of {audit.random} random images"
    if audit.closest:
        fooled += f", and {audit.closest_fooled} of the {audit.closest} that were closest to being fooled"
    return (
        f"Audit of the {audit.survivors:,} images that survived, with full FAB-T and Square: fooled were {fooled}. "
        f"With 95 % confidence, at most {percent(audit.missed_share)} of the {audit.unseen:,} images that were not "
        f"audited can be fooled. That is {points:.2f} points of accuracy."
    )


def verdict_tables(verdict: Verdict, costs: dict[str, Cost]) -> list[Table]:
    """Return all tables of an evaluation."""
    calibration = [calibration_table(verdict)] if verdict.outputs else []
    return [waterfall_table(verdict), gap_table(verdict), *calibration, *([cost_table(costs)] if costs else [])]


def waterfall_table(verdict: Verdict) -> Table:
    """Return how many images each attack fooled, and the accuracy after it."""
    rows = [(stage_title(key), f"{fooled:,}", percent(left, 2)) for key, fooled, left in verdict.waterfall]
    fooled = ", and on the fooled ones, for the widest margin" if _attacks_fooled_images(verdict) else ""
    note = f"Each attack is run on the images that are still classified correctly{fooled}. "
    note += "clean: incorrect without an attack."
    return Table("Accuracy after each attack", ("", "images fooled", "accuracy left"), tuple(rows), note)


def _attacks_fooled_images(verdict: Verdict) -> bool:
    """Return whether attacks are also run on fooled images, for the widest margin, as in the preset `margin`."""
    attack = verdict.settings.get("attack")
    stages = attack.get("stages", ()) if isinstance(attack, dict) else ()
    attacks = [stage["attack"] for stage in stages if isinstance(stage["attack"], dict)]
    return any(each.get("widest_margin") or each.get("to_the_end") for each in attacks)  # to_the_end: of older files


def gap_table(verdict: Verdict) -> Table:
    """Return the paper's tab:confidence for one model."""
    note = (
        "Gap: probability of the first class minus that of the second; under attack, on the worst version of an image."
    )
    if not _attacks_fooled_images(verdict):
        note += (
            " Most presets stop at the first success, so their gaps of incorrect predictions are not the largest "
            "possible; the preset margin and PGD do not stop."
        )
    return gap_statistics_table(verdict.gaps(), len(verdict.labels), note, digits=2)


def calibration_table(verdict: Verdict) -> Table:
    """Return the expected calibration error, the mean confidence and the accuracy, clean and attacked."""
    rows = tuple(
        (f"{name}, {version}", *(percent(each.summary()[key], 2) for key in ("error", "confidence", "accuracy")))
        for version, parts in verdict.calibration().items()
        for name, each in parts.items()
    )
    note = (
        f"Calibration error: the mean over {BINS} bins of the distance between confidence and accuracy, weighted by "
        "their images. Attacked: on the worst version of each image."
    )
    return Table("Calibration", ("", "calibration error", "mean confidence", "accuracy"), rows, note)


def cost_table(costs: dict[str, Cost]) -> Table:
    """Return the number of weights, operations and speed of the model, and of g and h if it is a mixture."""
    first = next(iter(costs.values())).images_per_second
    rows = tuple(
        (
            name,
            f"{cost.parameters / 1e6:.2f} M",
            f"{cost.flops / 1e9:.3f} G",
            f"{cost.images_per_second:,.0f}",
            f"{cost.images_per_second / first:.2f}",
        )
        for name, cost in costs.items()
    )
    columns = ("", "weights", "FLOPs per image", "images / s", "relative speed")  # short words, for 60 columns
    note = "Forward passes on this machine, with default settings of torch."
    return Table("Cost of a prediction", columns, rows, note)


def waterfall_figure(verdict: Verdict) -> Figure:
    """Return a figure of the accuracy after each attack (left), and of the lead of the correct class (right)."""
    return side_by_side([waterfall_panel(verdict), lead_panel(verdict)])


def waterfall_panel(verdict: Verdict) -> Panel:
    """Return a panel with one bar per attack: the accuracy it leaves, and the share it fooled."""

    def draw(axes: Axes) -> None:
        keys, counts, shares = zip(*verdict.waterfall, strict=True)
        left = [100 * share for share in shares]
        before, places = [100.0, *left[:-1]], range(len(left))
        axes.barh(places, left, color=LIGHT.clean, height=0.7)
        axes.barh(places, [a - b for a, b in zip(before, left, strict=True)], left=left, color=LIGHT.mix, height=0.7)
        for place, fooled in enumerate(counts):
            # To the right of the bar: a short bar has no room for text.
            text = f"{left[place]:.2f} %" + (f"  (−{fooled:,})" if fooled else "")
            axes.text(before[place] + 1.5, place, text, va="center", fontsize=9)
        axes.set_yticks(list(places), [stage_title(key) for key in keys])
        axes.invert_yaxis()
        axes.set_xlim(0, 145)
        axes.set_xticks(range(0, 101, 20))
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="accuracy left, %", title=f"Accuracy after each attack, {len(verdict.labels):,} images")

    return draw


def lead_panel(verdict: Verdict) -> Panel:
    """Return a histogram of how far the correct class leads, on the worst version found of each image."""

    def draw(axes: Axes) -> None:
        robust, lead = verdict.robust_correct, -verdict.margin
        fooled = verdict.clean_correct & ~robust
        # An image that was not attacked has no worst version.
        known = lead.isfinite()
        bins = _bins(lead[verdict.clean_correct & known].numpy())
        for which, color, word in ((robust, LIGHT.clean, "robust"), (fooled, LIGHT.mix, "fooled")):
            axes.hist(lead[which & known].numpy(), bins=bins, color=color, label=f"{word}: {int(which.sum()):,}")
        axes.axvline(0, color=LIGHT.ink, linewidth=1)
        axes.set(xlabel="lead of the correct class, in logits", ylabel="images")
        axes.set_title("Worst version found of each image")
        # Leave room for the legend above the bars.
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()

    return draw


def calibration_figure(verdict: Verdict) -> Figure:
    """Return the reliability diagrams of the model, or of the mixture, g and h: clean (left) and attacked (right)."""
    return side_by_side([reliability_panel(*each) for each in verdict.calibration().items()])


def reliability_panel(version: str, parts: dict[str, Calibration]) -> Panel:
    """Return a panel with the accuracy as a function of the confidence. A larger marker has more images."""
    colours = {"model": LIGHT.clean, "mixture": LIGHT.mix, "g": LIGHT.std, "h": LIGHT.rob}

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=LIGHT.faint, linewidth=1, linestyle=":", label="perfect calibration")
        for name, each in reversed(parts.items()):  # g and h first, so that they do not cover the mixture
            shown, colour = each.images >= FEW_IMAGES, colours[name]
            at, sizes = (each.confidence[shown], each.accuracy[shown]), 150 * each.images[shown] / each.images.sum()
            axes.plot(*at, color=colour, marker="o", markersize=4, label=f"{name}: error {percent(each.error)}")
            axes.scatter(*at, s=sizes, color=colour, alpha=0.7)
        axes.set(xlim=(0, 1.02), ylim=(-0.02, 1.02), ylabel="accuracy")
        axes.set_xlabel(f"confidence; bins of {FEW_IMAGES} or more images")
        axes.set_title("Clean images" if version == CLEAN else "Worst version found of each image")
        percent_axes(axes, PercentFormatter(1, decimals=0))
        legend_below(axes)

    return draw


def _bins(values: np.ndarray) -> list[float]:
    """Return the edges of about forty bins over all values, one of them at zero."""
    low, high = values.min(initial=0.0), values.max(initial=0.0)
    width = max((high - low) / LEAD_BINS, 1e-3)
    return [width * edge for edge in range(math.floor(low / width), math.ceil(high / width) + 2)]
