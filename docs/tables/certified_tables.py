"""Tables of certification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from margins import QUANTILES, margin_figures
from places import BENCHMARKS, RESULTS, percent, sweep

from adaptive_smoothing.certification.certificates import (
    Certificates,
    Frontier,
    chosen_alphas,
    clean_accuracies,
    with_alpha,
)
from adaptive_smoothing.certification.local_lipschitz import estimated_radius
from adaptive_smoothing.certification.radius import SMOOTHING_THEOREMS, lipschitz_radius, needed_margin
from adaptive_smoothing.evaluation.tradeoff import load_tradeoff
from adaptive_smoothing.evaluation.verdict import ROBUST
from adaptive_smoothing.report.certified import read_certificates
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.results import read_json, read_rows

CERTIFIED = RESULTS / "certified"
RADII = {"soft": (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5), "hard": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)}
ALPHAS = (1.0, 0.9, 0.8, 0.7, 0.6)


def coverage() -> Table:
    """Return how often the bounds fail (benchmarks/coverage.py)."""
    measured = read_json(BENCHMARKS / "coverage.json")
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for row in measured["rows"]:
        width = "" if row["above the average"] is None else f" ({row['above the average']:.4f})"
        key = row["doubts"], row["failure probability"]
        cells.setdefault(key, {})[row["bound"]] = f"{100 * row['failed']:.2f}{width}"
    bounds = list(dict.fromkeys(row["bound"] for row in measured["rows"]))
    rows = tuple(
        (
            doubts.replace("unsure", "low-confidence").replace("sure ", "high-confidence "),
            f"{100 * chance:g}",
            *(found.get(bound, "–") for bound in bounds),
        )
        for (doubts, chance), found in cells.items()
    )
    runs = f"{measured['runs']:,} simulated runs of {measured['samples']:,} samples"
    columns = ("error probabilities", "allowed, %", *bounds)
    return Table(f"{runs}: failures, % (excess over the sample mean)", columns, rows)


def margins_of(pair: str, verdict: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return where h is robust, and its margins, under PGD-20 (a sweep) and AutoAttack (preset `margin`)."""
    run, rows = load_tradeoff(sweep(pair)), read_rows(RESULTS / verdict / "rows.npz")
    return {
        "PGD-20": (run.rows["clean_h"] & run.rows["rob_h"], run.rows["rob_h_gap"]),
        "AutoAttack": (rows["fooled_by"] == ROBUST, rows["attacked_gap"]),
    }


def needed(pair: str, verdict: str) -> Table:
    """Return the robust margins of h and the alpha that each needs."""
    rows = []
    for name, (right, margins) in margins_of(pair, verdict).items():
        found = margin_figures(right, margins)
        pairs = [f"{found['quantiles'][str(q)]:.3f} → {found['alphas'][str(q)]:.3f}" for q in QUANTILES]
        rows.append((name, f"{len(right):,}", f"{100 * found['stands']:.2f}", f"{found['mean']:.3f}", *pairs))
    columns = ("", "images", "h robust, %", "mean margin", *(f"{100 * q:g} % quantile → α" for q in QUANTILES))
    return Table("Margins of h on images where it is robust, and the alpha that the lemma needs", columns, tuple(rows))


def matched(votes: str, base: str, *others: str, theorem: str = "margin") -> Frontier:
    """Return h alone, and mixtures of g with other h that match its clean accuracy on validation images."""
    folder = CERTIFIED / votes
    runs = {
        name: (read_certificates(folder / name / "val"), read_certificates(folder / name)) for name in (base, *others)
    }
    target = clean_accuracies(runs[base][0], np.ones(1)).item()
    return build_frontier(runs, target, theorem)


def build_frontier(
    members: Mapping[str, tuple[Certificates, Certificates]], clean_accuracy: float, theorem: str = "margin"
) -> Frontier:
    """Return the frontier of several h with the same g.

    Args:
        members: certificates of validation images, on which alpha is chosen, and of test images, by the name of h.
    """
    alphas = chosen_alphas({name: validation for name, (validation, _) in members.items()}, clean_accuracy)
    found = {name: with_alpha(members[name][1], alpha, theorem) for name, alpha in alphas.items()}
    return Frontier(found, clean_accuracy)


def certified(votes: str, base: str, *others: str) -> Table:
    """Return certified accuracies by each theorem: sound ones, and plug-in estimates for soft votes."""
    found = matched(votes, base, *others)
    rows, radii = [], RADII[votes]
    for h, member in found.members.items():
        first = (h, _alpha(member), percent(member.clean))
        for theorem, name in _theorems(member).items():
            again = with_alpha(member, member.settings["alpha"], theorem)
            rows.append((*first, name, *_accuracies(again, theorem, radii)))
            if member.settings.get("votes") == "soft":
                rows.append((*first, f"{name}, plug-in", *_accuracies(again, theorem, radii, estimated=True)))
    title = f"Certified accuracy, %; as accurate as {base} on validation images ({percent(found.clean_accuracy)} %)"
    columns = ("h", "α", "clean, %", "bound", *(f"L2 {radius:g}" for radius in radii))
    return Table(title, columns, tuple(rows), "–: out of reach of the theorem, or of this number of samples.")


def _accuracies(member: Certificates, theorem: str, radii: tuple[float, ...], estimated: bool = False) -> list[str]:
    reach = _reach(member, theorem, estimated)
    return ["–" if at > reach else f"{100 * member.accuracy(at, estimated=estimated):.1f}" for at in radii]


def _reach(member: Certificates, theorem: str, estimated: bool) -> float:
    """Return a radius that no image can exceed: h certain of its class, as far as the samples can show it."""
    settings = member.settings
    if settings["method"] == "lipschitz":
        each = settings["constant"] / 4
        return float(lipschitz_radius(1.0, [0.0], each, each, settings["alpha"])) if theorem == "paper" else np.inf
    # With n samples, no valid lower bound of a mean in [0, 1] exceeds this one.
    top = 1.0 if estimated else settings["failure probability"] ** (1 / settings["samples"])
    return float(SMOOTHING_THEOREMS[theorem](top, 1 - top, settings["sigma"], settings["alpha"]))


def _alpha(member: Certificates) -> str:
    return "1" if member.settings["alpha"] == 1 else f"{member.settings['alpha']:.3f}"


def _theorems(member: Certificates) -> dict[str, str]:
    """Return the theorems to compare. For h alone, our bound is the paper's."""
    alone = member.settings["alpha"] == 1
    if member.settings["method"] == "lipschitz":
        return {"paper": "thm:certified_radius", "margin": "logit margin" if alone else "ours"}
    votes = {"paper": "thm:randomized_smoothing"} | ({} if alone else {"margin": "ours"})
    return votes if member.settings["votes"] == "hard" else {"lipschitz": "thm:certified_radius"} | votes


def soundness() -> Table:
    """Return the result of attacks on certified images (benchmarks/soundness.py)."""
    rows, total = [], 0
    for path in sorted(BENCHMARKS.glob("soundness-*.json")):
        found, each = read_json(path), read_rows(path.with_suffix(".npz"))
        tried, settings, models = found["challenge"], found["certified"]["settings"], found["models"]
        # The share of the margin of h, beyond what its mixture needs, that the attack removed.
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
    columns = ("h", "certified by", "α", "attack", "images", "broken", "broken for some g", "mean margin of h")
    title = f"{total:,} certified test images, attacked at the end of their radius"
    return Table(title, (*columns, "spare margin removed, median / largest, %"), tuple(rows))


def _by(settings: dict[str, Any]) -> str:
    if "votes" not in settings:
        return "proven constant"
    return f"{settings['samples']:,} {settings['votes']} votes, {settings['runner-up']}"


def sampling() -> Table:
    """Return samples per second, compiled and not (benchmarks/sampling.py)."""
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
                    "compiled" if row["compiled"] else "eager",
                    f"{row['first, s']:.1f}",
                    f"{row['samples a second']:,}",
                    f"{faster:.2f}×",
                    f"{row['network alone']:,}",
                )
            )
    columns = ("", "precision", "batch", "base", "first batches, s", "samples per second", "faster", "network alone")
    return Table("Samples per second of gaussian-050, including noise and counting", columns, tuple(rows))


def certify_speed() -> Table:
    """Compare our procedure with that of Cohen et al. (benchmarks/certify.py)."""
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
                    name.replace("plainly", "plain"),
                    f"{row['images']}",
                    f"{row['samples an image']:,.0f}",
                    f"{fewer:.1f}×",
                    f"{row['images a second']:.1f}",
                    f"{faster:.1f}×",
                    f"{100 * row['certified accuracy']:.1f}",
                )
            )
    columns = ("", "procedure", "images", "samples per image", "fewer", "images per second", "faster", "certified, %")
    return Table("Deciding one radius for test images, one H200", columns, tuple(rows))


def local() -> Table:
    """Return estimated local Lipschitz constants, and the robust accuracy they suggest for mixtures at 8/255."""
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
    title = "Local Lipschitz estimates in Linf at 8/255, 1,000 test images: correct and estimated robust, %"
    return Table(title, (*columns, *(f"α = {alpha:g}" for alpha in ALPHAS)), tuple(rows))
