"""Sentences, tables and figures of a certification, and the files of its run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from adaptive_smoothing.certification.certificates import Certificates, Frontier
from adaptive_smoothing.certification.smoothing import reachable_radius
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.outputs import CLEAN
from adaptive_smoothing.evaluation.pictures import Pictures, pictured_rows
from adaptive_smoothing.report.figures import Panel, png, side_by_side
from adaptive_smoothing.report.run_folder import write_result
from adaptive_smoothing.report.style import LIGHT, Style
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import percent, read_rows, write_bytes, write_json
from adaptive_smoothing.runs.folder import CERTIFIED, FACTS, PAGE, PICTURES, RESULT, ROWS, read_result, with_schema

WRITTEN = (RESULT, ROWS, PICTURES, FACTS, CERTIFIED, PAGE)
# Images on the page of a certification.
SHOWN = 100
FRONTIER, FRONTIER_FIGURE = "frontier.json", "frontier.png"
FRONTIER_WRITTEN = (FRONTIER, FRONTIER_FIGURE, PAGE)


def write_certificates(
    folder: Path,
    certificates: Certificates,
    models: dict[str, Any],
    facts: dict[str, Any],
    data: ImageData | None = None,
) -> None:
    """Write the files of the run folder.

    Args:
        data: the images of the run, for its pictures.
    """
    if data is not None and len(rows := pictured_rows(data, SHOWN)):
        Pictures.made(rows, {CLEAN: data.take(rows).floats().cpu()}, data.classes).save(folder)
    result, figure = {**certificates.summary(), "models": models}, side_by_side([certified_panel(certificates)])
    write_result(folder, "certification", result, certificates.rows, {CERTIFIED: figure}, facts)


def read_certificates(folder: Path) -> Certificates:
    """Return the certificates that `write_certificates` wrote."""
    return Certificates(read_rows(folder / ROWS), read_result(folder, "certification")["settings"])


def certified_sentences(certificates: Certificates) -> list[str]:
    """Return the result in words."""
    settings, images = certificates.settings, len(certificates.correct)
    model = "h alone" if settings["alpha"] == 1 else f"a mixture with alpha at least {settings['alpha']:.4g}"
    if settings["method"] == "smoothing":
        model += f"; h is smoothed with sigma {settings['sigma']:g} and {settings['votes']} votes"
    clean = f"Clean accuracy {percent(certificates.clean, 2)} on {images:,} images. The model is {model}."
    if settings["method"] == "local":
        holds = certificates.accuracy(settings["eps"], estimated=True)
        mean = certificates.rows["constants"].mean()
        result = (
            f"Estimated, not certified: the mean local Lipschitz constant in {settings['norm']}, over classes and "
            f"images, is {mean:.3f}. According to the estimate, {percent(holds, 2)} of the images are correct and "
            f"robust at radius {settings['eps']:.4g}."
        )
        return [clean, result]
    radius = np.where(certificates.correct, certificates.rows["radius"], 0.0)
    certified, correct = certificates.certified.sum(), (certificates.certified & certificates.correct).sum()
    return [
        clean,
        f"{certified:,} images are certified, {correct:,} of them are correct. The mean {settings['norm']} radius is "
        f"{radius.mean():.3f}, where incorrect predictions count as 0. {guarantee(settings)}",
    ]


def guarantee(settings: Mapping[str, Any]) -> str:
    if settings["method"] == "lipschitz":
        return f"The certificates are deterministic: the logits have the Lipschitz constant {settings['constant']:.4g}."
    return (
        f"Each certificate is wrong with a probability of at most {settings['failure probability']:g}. It holds for "
        f"the classifier in {settings['precision']}."
    )


def certified_table(certificates: Certificates) -> Table:
    """Return the certified accuracy at several radii and, for smoothing, the plug-in estimate of the paper."""
    at = _radii(max(certificates.rows["radius"].max(), certificates.rows["estimate"].max()))
    reach = _reach(certificates)
    rows = []
    for row in certificates.table(at):
        certified = (percent(row["certified"], 2), f"{100 * row['low']:.1f} to {100 * row['high']:.1f}")
        certified = certified if row["radius"] <= reach else ("–", "–")
        rows.append((f"{row['radius']:.4g}", *certified, percent(row["estimate"], 2)))
    columns = (f"{certificates.settings['norm']} radius", "certified accuracy", "95 % interval")
    note = f"–: {_limit(certificates)}." if reach < at[-1] else ""
    if certificates.settings["method"] != "smoothing":
        return Table("Certified accuracy", columns, tuple(row[:3] for row in rows), note)
    estimate = "The plug-in estimate uses the sampled means as if they were exact; it is not a certificate."
    return Table("Certified accuracy", (*columns, "plug-in estimate"), tuple(rows), f"{note} {estimate}".strip())


def _reach(certificates: Certificates) -> float:
    """Return the largest radius that the samples of a certification can reach, in its norm."""
    settings = certificates.settings
    reach = reachable_radius(settings, certificates.rows["probabilities"].shape[1])
    return reach / settings["pixels"] ** 0.5 if "pixels" in settings else reach


def _limit(certificates: Certificates) -> str:
    """Return the explanation of a dash in a table."""
    samples = certificates.settings["samples"]
    return f"{samples:,} samples per image cannot certify a radius above {_reach(certificates):.4g}"


def _radii(largest: float) -> list[float]:
    """Return about eight round radii, from 0 to one that is not reached."""
    step = next((s for s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0) if largest / s <= 9), 5.0)
    return [step * k for k in range(int(largest / step) + 2)]


def certified_frontier_table(frontier: Frontier) -> Table:
    """Return the certified accuracy of each mixture at several radii, and the name of the best."""
    at, members = _radii(float(frontier.radii.max())), frontier.members
    (_, best), accuracies = frontier.best(at), frontier.accuracies(at)
    reach = {name: _reach(member) for name, member in members.items()}
    rows = [
        ("alpha", *(f"{member.settings['alpha']:.3f}" for member in members.values()), ""),
        ("clean", *(f"{100 * member.clean:.1f}" for member in members.values()), ""),
    ]
    for k, radius in enumerate(at):
        cells = (f"{100 * accuracies[name][k]:.1f}" if radius <= reach[name] else "–" for name in members)
        rows.append((f"L2 {radius:.4g}", *cells, best[k] or "–"))
    title = f"Certified accuracy at {100 * frontier.clean_accuracy:g} % clean accuracy on validation images, in %"
    limits = [f"{name}: {_limit(member)}" for name, member in members.items() if reach[name] < at[-1]]
    return Table(title, ("", *members, "best"), tuple(rows), f"–: {'; '.join(limits)}." if limits else "")


def write_frontier(folder: Path, frontier: Frontier) -> None:
    """Write the figure and frontier.json."""
    at = _radii(float(frontier.radii.max()))
    best, names = frontier.best(at)
    members = {name: member.summary() for name, member in frontier.members.items()}
    write_bytes(folder / FRONTIER_FIGURE, png(side_by_side([frontier_panel(frontier)])))
    found = {"clean accuracy": frontier.clean_accuracy, "radii": at, "best": best.tolist(), "whose": names}
    write_json(folder / FRONTIER, with_schema("frontier", {**found, "members": members}))


def frontier_panel(frontier: Frontier, style: Style = LIGHT, *, title: str = "", estimates: bool = False) -> Panel:
    """Return a panel with the curve of each mixture and the best at each radius.

    Args:
        estimates: draw the plug-in estimates as well.
    """

    def draw(axes: Axes) -> None:
        at = frontier.radii
        best, _ = frontier.best(at)
        end = np.count_nonzero(best) + 1
        axes.step(at[:end], best[:end], where="pre", color=style.faint, alpha=0.3, linewidth=7, label="best of all")
        for (name, member), look in zip(frontier.members.items(), _looks(style), strict=False):
            alpha = member.settings["alpha"]
            label = f"{name} alone" if alpha == 1 else f"{name}, α = {alpha:.3f}"
            axes.step(*member.curve(), where="pre", **look, label=label)
            if estimates:
                axes.step(*member.curve(estimated=True), where="pre", **{**look, "linestyle": ":"}, linewidth=1)
            axes.plot(0, member.clean, "o", color=look["color"], clip_on=False)
        if estimates:
            axes.plot([], [], ":", color=style.faint, linewidth=1, label="plug-in estimates")
        axes.plot([], [], "o", color=style.faint, label="clean accuracy")
        _label(axes, "L2", title or f"At {100 * frontier.clean_accuracy:.3g} % clean accuracy")

    return draw


def _looks(style: Style) -> Iterator[dict[str, Any]]:
    """Yield a colour and a line style for each curve."""
    for line in cycle(("-", "--", "-.")):
        for colour in (style.clean, style.mix, style.rob, style.std):
            yield {"color": colour, "linestyle": line}


def certified_panel(certificates: Certificates) -> Panel:
    """Return a panel with the certified accuracy as a function of the radius, and the estimate as a thin line."""

    def draw(axes: Axes) -> None:
        method, colour = certificates.settings["method"], LIGHT.clean
        if method != "local":
            axes.step(*certificates.curve(), where="pre", color=colour, linestyle="-", label="certified")
        if method != "lipschitz":
            curve = certificates.curve(estimated=True)
            axes.step(*curve, where="pre", color=colour, linewidth=1, linestyle=":", label="estimate")
        axes.plot(0, certificates.clean, "o", color=colour, clip_on=False, label="clean accuracy")
        _label(axes, certificates.settings["norm"], "Correct and certified")

    return draw


def _label(axes: Axes, norm: str, title: str) -> None:
    axes.set(xlabel=f"{norm} radius", ylabel="accuracy", xlim=(0, None), ylim=(0, 1), title=title)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend()
