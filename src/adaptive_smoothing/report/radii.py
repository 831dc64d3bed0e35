"""Robust accuracy as a function of the radius: a table, a figure, and the files of the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.radii import RadiusCurve
from adaptive_smoothing.report.figures import Panel, error_bars, side_by_side
from adaptive_smoothing.report.run_folder import write_result
from adaptive_smoothing.report.style import LIGHT
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.verdicts import write_verdict
from adaptive_smoothing.results import percent
from adaptive_smoothing.runs.folder import FACTS, RADII, RESULT
from adaptive_smoothing.threat import radius_text


def write_radii(
    folder: Path, curve: RadiusCurve, models: dict[str, Any], facts: dict[str, Any], data: ImageData | None = None
) -> list[str]:
    """Write the curve, and a folder for the verdict at each radius; return the names of files and folders."""
    result, names = curve.summary(), [f"eps-{radius:.4g}" for radius in curve.radii]
    for row, name, verdict in zip(result["radii"], names, curve.verdicts, strict=True):
        write_verdict(folder / name, verdict, models, facts, data)
        row["folder"] = name
    write_result(folder, "radii", {**result, "models": models}, {}, {RADII: radii_figure(curve)}, facts)
    return [RESULT, FACTS, RADII, *(f"{name}/" for name in names)]


def radii_table(curve: RadiusCurve) -> Table:
    """Return the robust accuracy at each radius, and how many images were fooled that no smaller radius fooled."""
    clean, norm = curve.verdicts[0], norm_of(curve)
    rows = [("clean", percent(clean.clean, 2), _interval(clean.clean_interval), "")]
    left = int(clean.clean_correct.sum())
    for radius, verdict in zip(curve.radii, curve.verdicts, strict=True):
        robust = int(verdict.robust_correct.sum())
        row = (
            f"{norm} {radius_text(norm, radius)}",
            percent(verdict.robust, 2),
            _interval(verdict.interval),
            f"{left - robust:,}",
        )
        rows.append(row)
        left = robust
    note = "Each radius is attacked on the images that survived the smaller ones."
    return Table("Accuracy at each radius", ("", "accuracy", "95 % interval", "newly fooled"), tuple(rows), note)


def _interval(bounds: tuple[float, float]) -> str:
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"


def norm_of(curve: RadiusCurve) -> str:
    """Return the name of the norm of a curve."""
    norm, _, _ = curve.verdicts[0].settings["attack"]["threat"].partition(":")
    return norm


def radii_figure(curve: RadiusCurve) -> Figure:
    """Return a figure of the accuracy as a function of the radius, with 95 % intervals; at 0 the clean accuracy."""
    return side_by_side([radii_panel(curve)])


def radii_panel(curve: RadiusCurve) -> Panel:
    """Return the panel of `radii_figure`. Linf radii are in levels of 255."""

    def draw(axes: Axes) -> None:
        norm, first = norm_of(curve), curve.verdicts[0]
        factor = 255 if norm == "Linf" else 1
        correct = [first.clean_correct, *(verdict.robust_correct for verdict in curve.verdicts)]
        places = [factor * radius for radius in (0.0, *curve.radii)]
        error_bars(
            axes,
            places,
            [row.numpy() for row in correct],
            color=LIGHT.mix,
            marker="o",
            markersize=4,
            label="under attack",
        )
        axes.plot(0, first.clean, "o", color=LIGHT.clean, markersize=7, zorder=3, label="clean accuracy")
        for place, row in zip(places, correct, strict=True):
            share = row.double().mean().item()
            axes.annotate(percent(share), (place, share), (7, 5), textcoords="offset points", fontsize=9)
        unit = ", in levels of 255" if factor == 255 else ""
        axes.set(
            xlabel=f"{norm} radius{unit}", ylabel="accuracy", xlim=(-0.03 * places[-1], 1.14 * places[-1]), ylim=(0, 1)
        )
        axes.set_title(f"{first.attack.partition(' at ')[0]}, {len(first.labels):,} images; 95 % intervals")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(loc="upper right")

    return draw
