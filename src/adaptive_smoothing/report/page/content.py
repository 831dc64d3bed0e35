"""The content of a page as plain data, which its scripts read as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.evaluation.comparison import Comparison, Point
from adaptive_smoothing.evaluation.outputs import ATTACKED, BASES, CLEAN
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST, Verdict
from adaptive_smoothing.report.page.dials import RADIUS, Correct, Dial, dials
from adaptive_smoothing.report.page.runs import PageRun, StoredMixture, own, threat_of
from adaptive_smoothing.report.page.sheets import array, probabilities, sheet, sheet_columns
from adaptive_smoothing.results import difference, interval

# Bytes of the pictures on one page and of their probabilities, before they become text, which takes a third more.
PICTURE_BYTES = 2_700_000
# Bins of a histogram.
BINS = 40
VERSIONS = {
    CLEAN: "clean",
    ATTACKED: "attacked",
    "std": "attacked through g (STD)",
    "rob": "attacked through h (ROB)",
}


def content(runs: Sequence[PageRun]) -> dict[str, Any]:
    """Return everything that the scripts of a page show."""
    found = dials(runs)
    shown = _fitting(runs)
    return {
        "runs": [_run(run, pictures) for run, pictures in zip(runs, shown, strict=True)],
        "dials": [_dial(dial) for dial in found],
        "points": [point for number, run in enumerate(runs) for point in _points(run, _group(found, number, run))],
        "differences": differences(runs),
    }


def _run(run: PageRun, pictures: Pictures | None) -> dict[str, Any]:
    result = run.result
    found: dict[str, Any] = {"name": run.name, "kind": type(result).__name__, "threat": threat_of(run)}
    if isinstance(result, Comparison | StoredMixture):
        return found
    found |= {"data": run.settings.get("data", ""), "images": len(_labels(result))}
    found["pictures"] = None if pictures is None else _pictures(result, pictures)
    if isinstance(result, Verdict):
        found |= _verdict(result)
    if isinstance(result, Certificates):
        found |= {"certified": _certified_curve(result), "norm": run.settings.get("norm", "L2")}
    return found


def _labels(result: Verdict | Certificates | Tradeoff) -> np.ndarray:
    return result.labels.numpy() if isinstance(result, Verdict) else result.rows["label"]


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Return the charts of an evaluation: the waterfall, the margins, alpha; and rows for the filters of images."""
    found: dict[str, Any] = {
        "attack": verdict.attack,
        "clean": _share(verdict.clean_correct.numpy()),
        "robust": _share(verdict.robust_correct.numpy()),
        "waterfall": [
            {"title": stage_title(key), "fooled": fooled, "left": left} for key, fooled, left in verdict.waterfall
        ],
        "margins": _margins(verdict),
        "calibration": {
            version: [
                {"name": name, "error": each.error, "points": _calibration_points(each)} for name, each in parts.items()
            ]
            for version, parts in verdict.calibration().items()
        },
    }
    if f"{CLEAN}_alpha" in verdict.outputs:
        clean, attacked = (verdict.outputs[f"{version}_alpha"].double().numpy() for version in (CLEAN, ATTACKED))
        if np.ptp(clean) > 0 or np.ptp(attacked) > 0:
            found["alpha"] = _alphas(clean, attacked[verdict.clean_correct.numpy()])
    return found


def _calibration_points(found: Any) -> list[list[float]]:
    return [
        [float(confidence), float(accuracy), int(images)]
        for confidence, accuracy, images in zip(found.confidence, found.accuracy, found.images, strict=True)
        if images
    ]


def _share(correct: np.ndarray) -> dict[str, Any]:
    low, high = interval(int(correct.sum()), len(correct))
    return {"count": int(correct.sum()), "value": float(correct.mean()), "low": low, "high": high}


def _margins(verdict: Verdict) -> dict[str, Any]:
    """Return a histogram of the lead of the correct class on the worst version of each image that was found."""
    lead, robust = -verdict.margin.double().numpy(), verdict.robust_correct.numpy()
    known = np.isfinite(lead) & verdict.clean_correct.numpy()
    low, high = lead[known].min(initial=0.0), lead[known].max(initial=0.0)
    width = max((high - low) / BINS, 1e-3)
    edges = width * np.arange(math.floor(low / width), math.ceil(high / width) + 2)
    counts = {
        name: np.histogram(lead[which & known], edges)[0].tolist()
        for name, which in (("robust", robust), ("fooled", ~robust))
    }
    return {"edges": edges.round(6).tolist(), **counts}


def _alphas(clean: np.ndarray, attacked: np.ndarray) -> dict[str, Any]:
    """Return histograms of alpha on clean images and on attacked ones, and how well alpha tells the two apart."""
    low, high = min(clean.min(), attacked.min(initial=1.0)), max(clean.max(), attacked.max(initial=0.0))
    edges = np.linspace(low, max(high, low + 1e-3), BINS + 1)
    return {
        "edges": edges.round(6).tolist(),
        "clean": np.histogram(clean, edges)[0].tolist(),
        "attacked": np.histogram(attacked, edges)[0].tolist(),
        "auroc": _auroc(clean, attacked),
    }


def _auroc(clean: np.ndarray, attacked: np.ndarray) -> float | None:
    """Return the probability that a random attacked image has a larger alpha than a random clean one."""
    if not len(clean) or not len(attacked):
        return None
    below, equal = (
        np.searchsorted(np.sort(clean), attacked, side).astype(float).mean() / len(clean) for side in ("left", "right")
    )
    return (below + equal) / 2


def _certified_curve(found: Certificates) -> list[list[float]]:
    """Return the certified accuracy at the radii where it falls."""
    radii, left = found.curve()
    finite = np.isfinite(radii)
    return [[float(radius), float(share)] for radius, share in zip(radii[finite], left[finite], strict=True)]


def _dial(dial: Dial) -> dict[str, Any]:
    """Return a dial for dial.js."""
    bounds = [] if dial.parameter == RADIUS else [int(dial.transferred(at).sum()) for at in range(len(dial.grid))]
    return {
        "name": dial.name,
        "parameter": dial.parameter,
        "grid": dial.grid.tolist(),
        "images": len(dial.clean.first),
        "clean": _correct(dial.clean),
        "attacked": [{"key": key, **_correct(each)} for key, each in dial.attacked.items()],
        "bounds": bounds,
        "robust": {str(at): int(dial.robust(at).sum()) for at in sorted(dial.attacked_at)},
        "start": dial.start,
        "measured": dial.measured,
        "remark": dial.remark,
        "runs": dial.runs,
    }


def _correct(found: Correct) -> dict[str, Any]:
    return {"first": array(found.first.astype(np.int64)), "last": array(found.last.astype(np.int64))}


def _group(found: Sequence[Dial], number: int, run: PageRun) -> str:
    """Return the name of the mixture of several runs, which a line connects; of any other run, its own name."""
    families = ((dial.name, {having for _, having in dial.runs}) for dial in found)
    return next((name for name, members in families if number in members and len(members) > 1), run.name)


def _points(run: PageRun, group: str) -> list[dict[str, Any]]:
    """Return the points of a run in the chart of robust against clean accuracy."""
    result, threat = run.result, threat_of(run)
    if isinstance(result, Comparison):
        return [_point(point, run) for point in result.points]
    if isinstance(result, Verdict):
        clean, robust = result.clean_correct.numpy(), result.robust_correct.numpy()
        return [{"name": run.name, "group": group, "threat": threat, "clean": _share(clean), "robust": _share(robust)}]
    if isinstance(result, Tradeoff):
        rows = result.rows
        bases = {"g": rows["clean_g"] & rows["std_g"], "h": rows["clean_h"] & rows["rob_h"]}
        return [
            {
                "name": f"{letter} ({dict(run.models.get(letter) or {}).get('name', letter)})",
                "group": f"{letter} (PGD-{run.settings['steps']}, {result.images:,} images)",
                "threat": threat,
                "clean": _share(rows[f"clean_{letter}"]),
                "robust": _share(robust),
            }
            for letter, robust in bases.items()
        ]
    return []


def _point(point: Point, run: PageRun) -> dict[str, Any]:
    wanted = "" if point.wanted is None else f" at {100 * point.wanted:g} %"
    how = f"stored: {' and '.join(point.facts['attacks'])}, {len(point.robust_correct):,} images"
    found = {"name": f"{point.mixture}{wanted}", "group": f"{point.mixture} ({how})", "threat": threat_of(run)}
    return found | {"clean": _share(point.clean_correct), "robust": _share(point.robust_correct)}


def differences(runs: Sequence[PageRun]) -> list[dict[str, Any]]:
    """Return the differences from the first evaluation, of those with its data and threat, on the images of both."""
    evaluations = [run for run in own(runs) if isinstance(run.result, Verdict)]
    found = []
    for run in evaluations[1:]:
        first = evaluations[0]
        assert isinstance(run.result, Verdict) and isinstance(first.result, Verdict)
        if run.settings["data"] != first.settings["data"] or threat_of(run) != threat_of(first):
            continue
        _, mine, theirs = np.intersect1d(run.result.index, first.result.index, return_indices=True)
        if not len(mine):
            continue
        row: dict[str, Any] = {"name": run.name, "from": first.name, "images": len(mine)}
        row["attack"] = run.result.attack
        for what in ("clean", "robust"):
            ours, others = (getattr(each, f"{what}_correct").numpy() for each in (run.result, first.result))
            row[what] = difference(ours[mine], others[theirs])
        found.append(row)
    return found


def _pictures(result: Verdict | Certificates | Tradeoff, pictures: Pictures) -> dict[str, Any]:
    """Return the pictures of a run, and what is known about each of them."""
    rows, count = pictures.rows, len(pictures.rows)
    _, height, width, _ = pictures.versions[CLEAN].shape
    found: dict[str, Any] = {
        "count": count,
        "height": height,
        "width": width,
        "factor": pictures.factor,
        "columns": sheet_columns(count),
        "classes": pictures.classes,
        "sheets": [
            {"key": key, "title": VERSIONS.get(key, key), "address": sheet(each)}
            for key, each in pictures.versions.items()
        ],
        "row": array(rows),
        "label": array(_labels(result)[rows]),
        "probabilities": {name: probabilities(each) for name, each in pictures.probabilities.items()},
    }
    if isinstance(result, Verdict):
        found |= _verdict_pictures(result, rows)
    elif isinstance(result, Certificates):
        found |= {"prediction": array(result.rows["prediction"][rows]), "radius": array(result.rows["radius"][rows])}
    return found | {"index": array(_index(result)[rows])}


def _index(result: Verdict | Certificates | Tradeoff) -> np.ndarray:
    return result.index.numpy() if isinstance(result, Verdict) else result.rows["index"]


def _verdict_pictures(verdict: Verdict, rows: np.ndarray) -> dict[str, Any]:
    """Return predictions, alphas and probabilities of the pictures of an evaluation."""
    outputs = {name: column.numpy()[rows] for name, column in verdict.outputs.items()}
    fooled_by = verdict.fooled_by.numpy()[rows]
    titles = {MISCLASSIFIED: "misclassified", ROBUST: ""}
    titles |= {number: stage_title(key) for number, key in enumerate(verdict.stages)}
    attacked = verdict.attacked_predictions
    found = {
        "prediction": array(verdict.clean_predictions.numpy()[rows]),
        "attackedPrediction": array((verdict.clean_predictions if attacked is None else attacked).numpy()[rows]),
        "fooledBy": [titles[by] for by in fooled_by.tolist()],
        "robust": array(fooled_by == ROBUST),
        "margin": array(verdict.margin.numpy()[rows]),
    }
    shares: dict[str, Any] = {}
    for version in (CLEAN, ATTACKED):
        for name, part in {"model": "", **{base: f"{base}_" for base in BASES}}.items():
            if (column := outputs.get(f"{version}_{part}probabilities")) is not None:
                shares[f"{version}_{name}"] = probabilities(column)
            elif (column := outputs.get(f"{version}_{part}confidence")) is not None:
                found[f"{version}_{name}_confidence"] = array(column)
        for what in ("alpha", "score"):
            if (column := outputs.get(f"{version}_{what}")) is not None:
                found[f"{version}_{what}"] = array(column)
        for base in BASES:
            if (column := outputs.get(f"{version}_{base}_prediction")) is not None:
                found[f"{version}_{base}_prediction"] = array(column)
    point = verdict.settings.get("operating point")
    return {**found, "probabilities": shares, "point": point}


def _fitting(runs: Sequence[PageRun]) -> list[Pictures | None]:
    """Return as many of the pictures as a page has room for: the same share of those of every run."""
    sizes = [0.0 if run.pictures is None else _bytes_per_picture(run, run.pictures) for run in runs]
    needed = sum(size * len(run.pictures.rows) for size, run in zip(sizes, runs, strict=True) if run.pictures)
    share = min(1.0, PICTURE_BYTES / max(needed, 1.0))
    return [None if run.pictures is None else _some(run.pictures, share) for run in runs]


def _some(pictures: Pictures, share: float) -> Pictures:
    """Return a share of the pictures at equal distances."""
    count = len(pictures.rows)
    return pictures.take(np.linspace(0, count - 1, max(1, int(share * count))).round().astype(int))


def _bytes_per_picture(run: PageRun, pictures: Pictures) -> float:
    """Return the size of all versions of a picture in a sheet, estimated from a few, and of its probabilities."""
    few = pictures.take(slice(16))
    images = sum(len(sheet(each)) * 3 / 4 for each in few.versions.values()) / len(few.rows)
    outputs = run.result.outputs if isinstance(run.result, Verdict) else {}
    classes = sum(column.shape[1] for name, column in outputs.items() if name.endswith("probabilities"))
    classes += sum(each.shape[1] for each in pictures.probabilities.values())
    return images + 2 * classes
