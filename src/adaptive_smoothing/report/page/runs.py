"""The runs on a page, read from their folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_smoothing.certification.certificates import Certificates, with_alpha
from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.operating_point import SHIFT
from adaptive_smoothing.mixing.stored_base import base_facts
from adaptive_smoothing.report.certified import FRONTIER
from adaptive_smoothing.report.load import load_run
from adaptive_smoothing.results import read_json
from adaptive_smoothing.runs.folder import FACTS, JOURNAL, RESULT, read_result
from adaptive_smoothing.threat import parse_number, radius_text
from adaptive_smoothing.tuning.curves import VALIDATION, CleanAccuracyCurve

# Folders deeper than this are not searched for runs.
DEPTH = 3
# The kind of a folder with a run for each model.
DEMO = "demo"
# Folders inside a run folder that are no runs to show: finished shards, and validation images.
NO_RUNS = (JOURNAL, "val")


@dataclass(frozen=True)
class StoredMixture:
    """A mixture that `mix` has stored: its clean accuracy on validation images at every setting, and its setting."""

    curve: CleanAccuracyCurve
    setting: float

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @property
    def clean_correct(self) -> np.ndarray:
        """Which validation images are classified correctly."""
        return (self.curve.low < self.setting) & (self.setting < self.curve.high)


@dataclass(frozen=True)
class PageRun:
    """One run on a page.

    Args:
        name: what the run is called in tables and charts.
        folder: name of its folder.
        models: the facts about its models in result.json.
        facts: what differs between equal runs: the date, seconds, versions, the machine, the command.
        is_reference: it is shown for comparison, without a tile and sentences of its own.
    """

    name: str
    result: Verdict | Certificates | Tradeoff | Comparison | StoredMixture
    models: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    pictures: Pictures | None = None
    folder: str = ""
    is_reference: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.result.facts if isinstance(self.result, Comparison) else self.result.settings


def own(runs: Sequence[PageRun]) -> list[PageRun]:
    """Return the runs that are not there for comparison only."""
    return [run for run in runs if not run.is_reference]


def read_runs(folders: Sequence[str | Path]) -> list[PageRun]:
    """Return the runs in these folders and in the folders inside them, each with a name of its own."""
    found = [run for folder in folders for run in _read(Path(folder))]
    for rename in (lambda run, _: f"{run.name} ({run.folder})", lambda run, number: f"{run.name}, run {number}"):
        repeated = {name for name, count in Counter(run.name for run in found).items() if count > 1}
        found = [
            replace(run, name=rename(run, number)) if run.name in repeated else run
            for number, run in enumerate(found, 1)
        ]
    return found


def _read(folder: Path) -> list[PageRun]:
    if not folder.is_dir():
        hint = "name a folder that evaluate, certify, sweep, mix or demo has written"
        raise FileNotFoundError(f"expected a run folder, found no folder {folder}: {hint}")
    if not (found := [run for each in _with_runs(folder) for run in _read_one(each)]):
        hint = "evaluate, certify, sweep and demo write one at their end; repeat an interrupted command to finish it"
        raise FileNotFoundError(f"expected a run with {RESULT} in {folder} or in a folder inside it, got none: {hint}")
    return found


def _with_runs(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the folder if it holds a run or a frontier, otherwise the folders inside it that do."""
    found = read_json(folder / RESULT) if (folder / RESULT).is_file() else {}
    is_run = found and found.get("kind") != DEMO
    if is_run or (folder / FRONTIER).is_file() or _is_mixture(folder):
        yield folder
    elif depth < DEPTH:
        for inside in sorted(folder.iterdir()):
            if inside.is_dir() and inside.name not in NO_RUNS:
                yield from _with_runs(inside, depth + 1)


def _read_frontier(folder: Path) -> list[PageRun]:
    """Return the certifications of a frontier, each with the alpha that was chosen for it."""
    runs = []
    for name, member in read_json(folder / FRONTIER)["members"].items():
        (run,) = _read_one(folder / name)
        assert isinstance(run.result, Certificates)
        settings = member["settings"]
        found = with_alpha(run.result, settings["alpha"], settings["theorem"])
        runs.append(replace(run, name=f"{name}, {_certified_with(found)}", result=found))
    return runs


def _is_mixture(folder: Path) -> bool:
    """Return whether a folder holds a mixture with its clean accuracy, as `mix` writes it."""
    return (folder / pretrained.FILE).is_file() and (folder / VALIDATION).is_file()


def _read_mixture(folder: Path) -> PageRun:
    """Return the mixture in a folder."""
    description, curve = pretrained.read(folder), CleanAccuracyCurve.load(folder / VALIDATION)
    alpha, numbers = description["alpha"], description["numbers"]
    if curve.parameter == SHIFT:
        setting = numbers["alpha_shift"]
    else:  # a mixer whose range has no width has one alpha as well
        setting = numbers["alpha_range"][0] if isinstance(alpha, dict) else alpha
    models = {role: base_facts(description[role]) for role in pretrained.ROLES} | {"alpha": alpha, "numbers": numbers}
    mixture = StoredMixture(curve, float(setting))
    return PageRun(folder.name, mixture, models, description.get("card", {}), folder=folder.name)


def _read_one(folder: Path) -> list[PageRun]:
    """Return the run in a folder; of a frontier or an evaluation at several radii one run for each part."""
    if (folder / FRONTIER).is_file():
        return _read_frontier(folder)
    if not (folder / RESULT).is_file():
        return [_read_mixture(folder)]
    if "mixtures" in (found := read_json(folder / RESULT)):
        return [PageRun(folder.name, comparison := Comparison.read(folder), facts=comparison.facts, folder=folder.name)]
    found = read_result(folder)
    if found["kind"] == "radii":
        return [run for row in found["radii"] for run in _read_one(folder / row["folder"])]
    facts = read_json(folder / FACTS) if (folder / FACTS).is_file() else found.get("facts", {})
    models, result = found.get("models") or facts.get("models", {}), load_run(folder)
    assert isinstance(result, Verdict | Certificates | Tradeoff)  # `radii` was left above
    return [PageRun(run_name(models, result), result, models, facts, Pictures.load(folder), folder.name)]


def run_name(models: Mapping[str, Any], result: object) -> str:
    """Return a name for a run from the facts about its models, with its operating point or radius."""
    if isinstance(result, Tradeoff):
        return f"{_name(models, 'g')} + {_name(models, 'h')}, all α"
    if "mixture" in models:
        name = str(models["mixture"])
    elif "g" in models and "h" in models:
        name = f"{_name(models, 'g')} + {_name(models, 'h')}"
    else:
        name = _name(models, "model")
    if isinstance(result, Certificates):
        return f"{name}, {_certified_with(result)}"
    if (wanted := models.get("clean accuracy on validation images")) is not None:
        name += f" at {100 * wanted:g} %"
    if isinstance(models.get("alpha"), int | float):
        name += f", α = {models['alpha']:.3g}"
    return name


def _certified_with(found: Certificates) -> str:
    settings = found.settings
    alpha = "" if settings["alpha"] == 1 else f"α ≥ {settings['alpha']:.3g}, "
    return f"{alpha}σ = {settings['sigma']:g}" if settings["method"] == "smoothing" else f"{alpha}{settings['method']}"


def _name(models: Mapping[str, Any], role: str) -> str:
    return str(dict(models.get(role) or {}).get("name", role))


def threat_of(run: PageRun) -> str:
    """Return the threat of a run in words, such as `Linf 8/255`; empty if it has none."""
    settings = run.settings
    if isinstance(run.result, Tradeoff):
        return f"{settings['norm']} {radius_text(settings['norm'], settings['eps'])}"
    attack = settings.get("attack")
    norm, _, eps = (attack.get("threat", "") if isinstance(attack, dict) else "").partition(":")
    try:
        return f"{norm} {radius_text(norm, parse_number(eps))}" if norm else ""
    except ValueError:  # one radius for each image
        return norm
