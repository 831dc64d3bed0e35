"""Dials: what the slider of a page moves, and which images are classified correctly at each of its settings.

An image is classified correctly on one interval of settings, so two whole numbers describe it: the first and the last
setting of the dial at which it is correct. The page counts them; no number of the page is interpolated.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.evaluation.outputs import ATTACKED, CLEAN
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.operating_point import ALPHA, SHIFT
from adaptive_smoothing.report.certified import guarantee
from adaptive_smoothing.report.page.runs import PageRun, StoredMixture, threat_of
from adaptive_smoothing.report.tradeoff.report import attack_name

RADIUS = "radius"
# The method that estimates radii and certifies nothing.
LOCAL = "local"
REMARKS = {ALPHA: "", SHIFT: "A larger shift gives h more weight."}
# Settings of a dial, apart from those at which the mixture was attacked.
STEPS = 400


@dataclass(frozen=True)
class Correct:
    """The settings at which each image is classified correctly: from `first` to `last`; never if first > last."""

    first: np.ndarray
    last: np.ndarray

    @classmethod
    def between(cls, grid: np.ndarray, low: np.ndarray, high: np.ndarray) -> Correct:
        """Return the settings strictly between `low` and `high`."""
        low, high = np.nan_to_num(low, nan=np.inf), np.nan_to_num(high, nan=-np.inf)
        return cls(np.searchsorted(grid, low, "right"), np.searchsorted(grid, high, "left") - 1)

    @classmethod
    def where(cls, correct: np.ndarray) -> Correct:
        """Return the settings from a table [setting, image] of what is correct."""
        last = len(correct) - 1 - correct[::-1].argmax(0)
        return cls(np.where(correct.any(0), correct.argmax(0), 1), np.where(correct.any(0), last, 0))

    def with_known(self, at: int, correct: np.ndarray) -> Correct:
        """Return the settings, made to agree with a measurement at one of them.

        Rounding may put an image on the other side of the end of its interval, so the nearer end is moved.
        """
        inside = (self.first <= at) & (at <= self.last)
        missing, wrong = correct & ~inside, ~correct & inside
        empty = missing & (self.first > self.last)
        first = np.where(missing, np.where(empty, at, np.minimum(self.first, at)), self.first)
        last = np.where(missing, np.where(empty, at, np.maximum(self.last, at)), self.last)
        at_first = wrong & (at - first < last - at)
        return Correct(np.where(at_first, at + 1, first), np.where(wrong & ~at_first, at - 1, last))

    def at(self, setting: int) -> np.ndarray:
        """Return which images are correct at a setting."""
        return (self.first <= setting) & (setting <= self.last)


@dataclass(frozen=True)
class Dial:
    """The settings of a mixture that the slider moves through.

    Args:
        parameter: alpha, shift or radius.
        grid: the settings.
        clean: which images are correct without an attack. Of a certificate: which are certified and correct.
        attacked: the same for stored attacked versions of the images, by name. They are transferred to all settings.
        attacked_at: by setting, which images survived every attack that was made there.
        runs: pairs of a setting and the number of a run that was made there.
        start: the setting that the page shows first.
        measured: what the attacks at a setting measure.
        remark: what the page says about every setting.
    """

    name: str
    parameter: str
    grid: np.ndarray
    clean: Correct
    attacked: dict[str, Correct] = field(default_factory=dict)
    attacked_at: dict[int, np.ndarray] = field(default_factory=dict)
    runs: tuple[tuple[int, int], ...] = ()
    start: int = 0
    measured: str = "robust accuracy"
    remark: str = ""

    def transferred(self, setting: int) -> np.ndarray:
        """Return which images are correct on their clean version and on all stored attacked ones.

        Their share is an upper bound of the robust accuracy.
        """
        found = self.clean.at(setting)
        for correct in self.attacked.values():
            found = found & correct.at(setting)
        return found

    def robust(self, setting: int) -> np.ndarray:
        """Return which images are robust at a setting at which the mixture was attacked."""
        return self.transferred(setting) & self.attacked_at[setting]


def dials(runs: Sequence[PageRun]) -> list[Dial]:
    """Return a dial for each mixture on the page. Runs of one mixture at several operating points share a dial."""
    families: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        if (key := _family(run)) is not None:
            families.setdefault(key, []).append(number)
    found = [_dial([(number, runs[number]) for number in members]) for members in families.values()]
    names = Counter(dial.name for dial in found)
    threats = [threat_of(runs[dial.runs[0][1]]) for dial in found]
    return [
        replace(dial, name=f"{dial.name}, {threat}") if names[dial.name] > 1 and threat else dial
        for dial, threat in zip(found, threats, strict=True)
    ]


def _family(run: PageRun) -> str | None:
    """Return what runs of one mixture have in common if the slider can move it, otherwise None."""
    if isinstance(run.result, Certificates):
        return None if run.settings["method"] == LOCAL else f"{id(run)}"
    if isinstance(run.result, Tradeoff | StoredMixture):
        return f"{id(run)}"
    if not isinstance(run.result, Verdict) or f"{CLEAN}_low" not in run.result.outputs:
        return None
    if not run.models:  # nothing says which mixture this is
        return f"{id(run)}"
    models, settings = dict(run.models), run.settings
    for name in ("mixture", "source", "clean accuracy on validation images"):
        models.pop(name, None)
    if not isinstance(models.get("alpha"), dict):
        models.pop("alpha", None)
    numbers = {name: number for name, number in models.pop("numbers", {}).items() if name != "alpha_shift"}
    parameter = settings["operating point"]["parameter"]
    if parameter == ALPHA:
        numbers.pop("alpha_range", None)
    return json.dumps([models, numbers, parameter, settings["fingerprint"], threat_of(run)], sort_keys=True)


def _dial(members: list[tuple[int, PageRun]]) -> Dial:
    number, first = members[0]
    if isinstance(first.result, Tradeoff):
        return _tradeoff_dial(number, first, first.result)
    if isinstance(first.result, Certificates):
        return _certified_dial(number, first.name, first.result)
    if isinstance(first.result, StoredMixture):
        return _stored_dial(number, first.name, first.result)
    return _mixture_dial(members)


def _mixture_dial(members: list[tuple[int, PageRun]]) -> Dial:
    """Return the dial of a mixture that was attacked at one or more operating points."""
    verdicts = {number: run.result for number, run in members if isinstance(run.result, Verdict)}
    points = {number: verdict.settings["operating point"] for number, verdict in verdicts.items()}
    parameter = next(iter(points.values()))["parameter"]
    names = [f"{version}_{end}" for version in (CLEAN, ATTACKED) for end in ("low", "high")]
    ends = [verdict.outputs[name].numpy() for verdict in verdicts.values() for name in names]
    grid = _grid(ends, parameter, [point["value"] for point in points.values()])
    at = {number: int(np.abs(grid - point["value"]).argmin()) for number, point in points.items()}
    clean, attacked = None, {}
    attacked_at: dict[int, np.ndarray] = {}
    for number, verdict in verdicts.items():
        outputs = {name: column.numpy() for name, column in verdict.outputs.items()}
        clean = clean or Correct.between(grid, outputs[f"{CLEAN}_low"], outputs[f"{CLEAN}_high"])
        clean = clean.with_known(at[number], verdict.clean_correct.numpy())
        found = Correct.between(grid, outputs[f"{ATTACKED}_low"], outputs[f"{ATTACKED}_high"])
        attacked[str(number)] = found.with_known(at[number], verdict.robust_correct.numpy())
        robust = verdict.robust_correct.numpy()
        attacked_at[at[number]] = attacked_at.get(at[number], robust) & robust
    assert clean is not None
    runs = tuple((at[number], number) for number in verdicts)
    start = at[members[0][0]]
    name, remark = _name([run for _, run in members]), REMARKS[parameter]
    return Dial(name, parameter, grid, clean, attacked, attacked_at, runs, start, remark=remark)


def _name(runs: list[PageRun]) -> str:
    """Return the name of a mixture: that of its first run without an operating point and, of several, a folder."""
    name = runs[0].name
    if len(runs) > 1:
        name = re.sub(rf" \({re.escape(runs[0].folder)}\)(, run \d+)?$", "", name)
    return re.sub(r" at [\d.]+ %|, α = [\d.]+|(?<= α) = [\d.]+", "", name)


def _stored_dial(number: int, name: str, mixture: StoredMixture) -> Dial:
    """Return the dial of a mixture that was not attacked: its clean accuracy on validation images."""
    curve = mixture.curve
    grid = _grid([curve.low, curve.high], curve.parameter, [mixture.setting])
    start = int(np.abs(grid - mixture.setting).argmin())
    clean = Correct.between(grid, curve.low, curve.high)
    remark = REMARKS[curve.parameter]
    return Dial(name, curve.parameter, grid, clean, runs=((start, number),), start=start, remark=remark)


def _grid(ends: list[np.ndarray], parameter: str, values: list[float]) -> np.ndarray:
    """Return the settings of a dial, among them `values`.

    Alphas have equal distances. Between two shifts about equally many images change sides, and none does at a shift.

    Args:
        ends: of the intervals at which images are correct.
    """
    if parameter == ALPHA:
        return _with(values, np.linspace(0, 1, STEPS // 2 + 1))
    found = np.concatenate(ends).astype(float)
    found = found[np.isfinite(found)]
    if not len(found):
        return np.unique(np.array(values))
    spread = np.unique(np.quantile(found, np.linspace(0, 1, STEPS + 1)))
    beyond = 0.05 * max(np.ptp(spread), 1e-3)
    between = (spread[1:] + spread[:-1]) / 2
    return _with(values, np.concatenate([[spread[0] - beyond], between, [spread[-1] + beyond]]))


def _with(values: list[float], grid: np.ndarray) -> np.ndarray:
    """Return a grid with these settings in the place of those that differ from them by rounding."""
    distance = np.abs(grid[:, None] - np.array(values)).min(1)
    return np.unique(np.concatenate([grid[distance > 1e-6], values]))


def _tradeoff_dial(number: int, run: PageRun, found: Tradeoff) -> Dial:
    """Return the dial of a sweep. The attacks on g and on h are transferred to every alpha."""
    attacked = {curve: Correct.where(found.rows[curve]) for curve in ("std", "rob")}
    places = np.searchsorted(found.alphas, found.mix_alphas)
    attacked_at = {int(at): worst for at, worst in zip(places, found.correct("worst"), strict=True)}
    runs = tuple((setting, number) for setting in attacked_at)
    alpha = dict(run.facts.get("choice", {})).get("alpha", 0.5)
    start = min(attacked_at, key=lambda at: abs(found.alphas[at] - alpha), default=0)
    clean, measured = Correct.where(found.rows[CLEAN]), f"accuracy under {attack_name(found)}"
    return Dial(run.name, ALPHA, found.alphas, clean, attacked, attacked_at, runs, start, measured)


def _certified_dial(number: int, name: str, found: Certificates) -> Dial:
    """Return the dial of the radius: an image is certified up to its own radius, which is exact."""
    correct, radius = found.correct & found.certified, found.rows["radius"]
    finite = radius[correct & np.isfinite(radius)]
    grid = np.linspace(0, float(finite.max(initial=0.0)) * 1.02 or 1.0, STEPS + 1)
    last = np.where(correct, np.searchsorted(grid, radius, "right") - 1, -1)
    correct, remark = Correct(np.zeros_like(last), last), guarantee(found.settings)
    return Dial(name, RADIUS, grid, correct, runs=((0, number),), remark=remark)


__all__ = ["ALPHA", "RADIUS", "SHIFT", "Correct", "Dial", "dials"]
