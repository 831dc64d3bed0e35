"""Tables of certification."""

from __future__ import annotations

from typing import Any

import numpy as np
from margins import QUANTILES, margin_figures
from places import BENCHMARKS, RESULTS, percent, sweep

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.frontier import Frontier, build_frontier, clean_accuracies, with_alpha
from adaptive_smoothing.certification.local_lipschitz import estimated_radius
from adaptive_smoothing.certification.radius import needed_margin
from adaptive_smoothing.evaluation.tradeoff_files import load_tradeoff
from adaptive_smoothing.evaluation.verdict import STANDS
from adaptive_smoothing.report.certified import read_certificates
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import read_json, read_rows

CERTIFIED = RESULTS / "certified"
RADII = {"soft": (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5), "hard": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)}
ALPHAS = (1.0, 0.9, 0.8, 0.7, 0.6)


def coverage() -> Table:
    """How often bounds fail: benchmarks/coverage.py."""
    measured = read_json(BENCHMARKS / "coverage.json")
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for row in measured["rows"]:
        width = "" if row["above the average"] is None else f" ({row['above the average']:.4f})"
        key = row["doubts"], row["failure probability"]
        cells.setdefault(key, {})[row["bound"]] = f"{100 * row['failed']:.2f}{width}"
    bounds = list(dict.fromkeys(row["bound"] for row in measured["rows"]))
    rows = tuple(
        (doubts, f"{100 * chance:g}", *(found.get(bound, "–") for bound in bounds))
        for (doubts, chance), found in cells.items()
    )
    title = f"{measured['runs']:,} simulated runs of {measured['samples']:,} samples: failed, % (above the average by)"
    return Table(title, ("doubts", "may fail, %", *bounds), rows)


def margins_of(pair: str, verdict: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Whether h stands, and by how much, under PGD-20 (a sweep) and under AutoAttack (a verdict of preset margin)."""
    run, rows = load_tradeoff(sweep(pair)), read_rows(RESULTS / verdict / "rows.npz")
    return {
        "PGD-20": (run.rows["clean_h"] & run.rows["rob_h"], run.rows["rob_h_gap"]),
        "AutoAttack": (rows["fooled_by"] == STANDS, rows["attacked_gap"]),
    }


def needed(pair: str, verdict: str) -> Table:
    """Robust margins of h and the alphas that they need."""
    rows = []
    for name, (right, margins) in margins_of(pair, verdict).items():
        found = margin_figures(right, margins)
        pairs = [f"{found['quantiles'][str(q)]:.3f} → {found['alphas'][str(q)]:.3f}" for q in QUANTILES]
        rows.append((name, f"{len(right):,}", f"{100 * found['stands']:.2f}", f"{found['mean']:.3f}", *pairs))
    columns = ("", "images", "h stands, %", "mean margin", *(f"{100 * q:g} % quantile → α" for q in QUANTILES))
    return Table("Margins of h where it stands, and the alpha that the lemma needs for each", columns, tuple(rows))


def matched(votes: str, base: str, *others: str, theorem: str = "margin") -> Frontier:
    """h alone, and mixtures of g with others whose alpha gives its clean accuracy on validation images."""
    folder = CERTIFIED / votes
    runs = {
        name: (read_certificates(folder / name / "val"), read_certificates(folder / name)) for name in (base, *others)
    }
    target = clean_accuracies(runs[base][0], np.ones(1)).item()
    return build_frontier(runs, target, theorem)


def certified(votes: str, base: str, *others: str) -> Table:
    """Certified accuracy of h alone and of mixtures as accurate, by each theorem: sound, and plug-in for soft votes."""
    found = matched(votes, base, *others)
    rows, radii = [], RADII[votes]
    for h, member in found.members.items():
        first = (h, _alpha(member), percent(member.clean))
        for theorem, name in _theorems(member).items():
            again = with_alpha(member, member.settings["alpha"], theorem)
            rows.append((*first, name, *(f"{100 * again.accuracy(radius):.1f}" for radius in radii)))
            if member.settings.get("votes") == "soft":
                guessed = (f"{100 * again.accuracy(radius, estimated=True):.1f}" for radius in radii)
                rows.append((*first, f"{name}, plug-in", *guessed))
    title = f"As accurate as {base} on validation images ({percent(found.clean_accuracy)} %): right and certified, %"
    return Table(title, ("h", "α", "clean, %", "bound", *(f"L2 {radius:g}" for radius in radii)), tuple(rows))


def _alpha(member: Certificates) -> str:
    return "1" if member.settings["alpha"] == 1 else f"{member.settings['alpha']:.3f}"


def _theorems(member: Certificates) -> dict[str, str]:
    """What there is to compare: of h alone, ours is the paper's."""
    alone = member.settings["alpha"] == 1
    if member.settings["method"] == "lipschitz":
        return {"paper": "thm:certified_radius", "margin": "lead of logits" if alone else "ours"}
    votes = {"paper": "thm:randomized_smoothing"} | ({} if alone else {"margin": "ours"})
    return votes if member.settings["votes"] == "hard" else {"lipschitz": "thm:certified_radius"} | votes


def soundness() -> Table:
    """What became of certified images under attack: benchmarks/soundness.py."""
    rows, total = [], 0
    for path in sorted(BENCHMARKS.glob("soundness-*.json")):
        found, each = read_json(path), read_rows(path.with_suffix(".npz"))
        tried, settings, models = found["challenge"], found["certified"]["settings"], found["models"]
        # Of what h had to spare at the image, over the lead that its mixture needs.
        taken = (each["before"] - each["after"]) / (each["before"] - needed_margin(models["alpha"]))
        total += tried["images"]
        rows.append(
            (
                models["h"]["name"],
                _by(settings),
                f"{models['alpha']:g}",
                f"{tried['norm']}, {tried['steps']} steps",
                f"{tried['images']:,}",
                f"{tried['broken']}",
                f"{tried['broken with some g']}",
                f"{tried['mean lead before']:.3f} → {tried['mean lead after']:.3f}",
                f"{100 * np.median(taken):.0f} / {100 * taken.max():.0f}",
            )
        )
    columns = ("h", "by", "α", "attack", "certified and attacked", "broken", "broken with some g", "mean lead of h")
    title = f"{total:,} certified test images, moved to the end of their radius"
    return Table(title, (*columns, "lead to spare that was taken, median / most, %"), tuple(rows))


def _by(settings: dict[str, Any]) -> str:
    if "votes" not in settings:
        return "proven constant"
    return f"{settings['samples']:,} {settings['votes']} votes, {settings['runner-up']}"


def sampling() -> Table:
    """Noisy answers a second, compiled and not: benchmarks/sampling.py."""
    rows = []
    for device in ("cuda", "cpu"):
        found = read_json(BENCHMARKS / f"sampling-{device}.json")
        plain, *_ = found["rows"]
        for row in found["rows"]:
            faster = row["samples a second"] / plain["samples a second"]
            rows.append(
                (
                    found["facts"]["device"],
                    row["precision"],
                    f"{row['batch']:,}",
                    "compiled" if row["compiled"] else "as it is",
                    f"{row['first, s']:.1f}",
                    f"{row['samples a second']:,}",
                    f"{faster:.2f}×",
                    f"{row['network alone']:,}",
                )
            )
    columns = ("", "precision", "batch", "base", "first batches, s", "samples a second", "faster", "network alone")
    return Table("Samples a second of gaussian-050, with their noise and counted", columns, tuple(rows))


def certify_speed() -> Table:
    """Ours against Cohen's procedure: benchmarks/certify.py."""
    rows = []
    for path in sorted(BENCHMARKS.glob("certify-*.json")):
        found = read_json(path)
        setting, plain = found["setting"], found["rows"]["Cohen, plainly"]
        for name, row in found["rows"].items():
            fewer = plain["samples an image"] / row["samples an image"]
            faster = row["images a second"] / plain["images a second"]
            rows.append(
                (
                    f"σ {setting['sigma']:g}, radius {setting['radius']:g}",
                    name,
                    f"{row['images']}",
                    f"{row['samples an image']:,.0f}",
                    f"{fewer:.1f}×",
                    f"{row['images a second']:.1f}",
                    f"{faster:.1f}×",
                    f"{100 * row['certified accuracy']:.1f}",
                )
            )
    columns = ("", "procedure", "images", "samples an image", "fewer", "images a second", "faster", "certified, %")
    return Table("Deciding one radius for test images, one H200", columns, tuple(rows))


def local() -> Table:
    """Estimated local constants of robust models, and what they keep of a mixture at 8/255."""
    rows = []
    for folder in sorted((CERTIFIED / "local").iterdir()):
        found = read_certificates(folder)
        constants, eps = found.rows["constants"], found.settings["eps"]
        own = constants[np.arange(len(constants)), found.rows["robust_class"]]
        kept = [
            found.correct & (estimated_radius(found.rows["probabilities"], constants, eps, alpha) >= eps)
            for alpha in ALPHAS
        ]
        rows.append(
            (
                folder.name,
                percent(found.clean),
                f"{constants.mean():.3f}",
                f"{own.mean():.3f}",
                f"{np.median(constants.mean(1)):.3f}",
                *(f"{100 * each.mean():.1f}" for each in kept),
            )
        )
    columns = ("h", "clean, %", "mean constant", "of the predicted class", "median over images")
    title = "Local Lipschitz estimates in Linf at 8/255, 1,000 test images: right and estimated to stand, %"
    return Table(title, (*columns, *(f"α = {alpha:g}" for alpha in ALPHAS)), tuple(rows))
