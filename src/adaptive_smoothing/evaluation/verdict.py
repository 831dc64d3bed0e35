"""The result of an evaluation, image by image: `AttackEvaluation` under one attack, `Verdict` under a cascade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from adaptive_smoothing.evaluation.alarms import Alarm, check_easier, check_outside
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.calibration import Calibration
from adaptive_smoothing.evaluation.gaps import GapStatistics, gap_statistics
from adaptive_smoothing.evaluation.outputs import ATTACKED, BASES, CLEAN
from adaptive_smoothing.results import interval, percent_with_interval
from adaptive_smoothing.threat import Threat, threat_title

# In `fooled_by`: misclassified without an attack, and not fooled by any attack.
MISCLASSIFIED, ROBUST = -2, -1
# Columns of a shard: attacked images; for which images a user's attack function left the threat model; which are easier
# after all attacks.
ADVERSARIAL, OUTSIDE, EASIER = "adversarial", "outside", "easier"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Predictions for every image, before an attack and after it.

    Args:
        attacked_predictions: None without an attack.
        attack: title of the attack; empty without one.
    """

    index: Tensor
    labels: Tensor
    clean_predictions: Tensor
    attacked_predictions: Tensor | None = None
    attack: str = field(kw_only=True, default="")

    @property
    def clean_correct(self) -> Tensor:
        """Which images are classified correctly without an attack."""
        return self.clean_predictions == self.labels

    @property
    def robust_correct(self) -> Tensor:
        """Which images are classified correctly before and after the attack."""
        if self.attacked_predictions is None:
            raise ValueError("expected an evaluation under an attack, got one without: evaluate(model, data, attack)")
        return self.clean_correct & (self.attacked_predictions == self.labels)

    @property
    def clean(self) -> float:
        """Clean accuracy."""
        return self.clean_correct.double().mean().item()

    @property
    def robust(self) -> float:
        """Robust accuracy."""
        return self.robust_correct.double().mean().item()

    @property
    def clean_interval(self) -> tuple[float, float]:
        """95 % Clopper-Pearson interval of the clean accuracy."""
        return interval(int(self.clean_correct.sum()), len(self.labels))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Clopper-Pearson interval of the robust accuracy."""
        return interval(int(self.robust_correct.sum()), len(self.labels))

    def __repr__(self) -> str:
        found = f"clean {percent_with_interval(self.clean, self.clean_interval, 2)}"
        if self.attacked_predictions is not None:
            found += f", robust {percent_with_interval(self.robust, self.interval, 2)}"
        images = f"{len(self.labels):,} image{'s' * (len(self.labels) != 1)}"
        circumstances = f"{images}, {self.attack or 'no attack'}"
        return f"{type(self).__name__}: {found}; 95 % intervals\n{circumstances}"


@dataclass(frozen=True, repr=False, kw_only=True)
class AttackEvaluation(Evaluation):
    """An evaluation under one attack, such as a user's attack function, whose images were checked.

    Args:
        threat: what the attacked images were checked against; None: nothing.
        outside: which attacked images were outside the threat or [0, 1]. They prove nothing and count as not fooled.
        easier: on which attacked images the correct class leads by more than before the attack.
        distances: by norm, how far the attack moved each image; 0 for images that were not attacked.
        adversarial: the attacked versions of the first images; None if they were not saved. An image that was not
            attacked, or whose attacked version does not count, is the clean one.
    """

    threat: Threat | None
    outside: Tensor
    easier: Tensor
    distances: dict[str, Tensor]
    adversarial: Tensor | None = None

    @property
    def largest_distances(self) -> dict[str, float]:
        """The largest distance by norm from an image to its attacked version, of those that count."""
        return {norm: distance[~self.outside].max().item() for norm, distance in self.distances.items()}

    @property
    def remarks(self) -> list[str]:
        """What a reader has to know about the attacked images: how far they are, and the warnings."""
        largest = ", ".join(f"{norm} {distance:.4g}" for norm, distance in self.largest_distances.items())
        unchecked = "; not checked against a threat" * (self.threat is None)
        counted = " that counts" * bool(self.outside.any())
        return [f"largest distance of an attacked image{counted}: {largest}{unchecked}", *self.warnings]

    @property
    def warnings(self) -> list[str]:
        """Reasons why the robust accuracy may be too high."""
        outside, easier, attacked = (int(which.sum()) for which in (self.outside, self.easier, self.clean_correct))
        found = [*check_outside(outside, attacked, self.threat), *check_easier(easier, attacked)]
        return [f"{alarm.observation}: {alarm.advice}" for alarm in found]

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *self.remarks])


@dataclass(frozen=True, repr=False, kw_only=True)
class Verdict(Evaluation):
    """An evaluation by a cascade of attacks.

    Args:
        fooled_by: for each image the number of the stage that fooled it, or `ROBUST` or `MISCLASSIFIED`.
        margin: largest incorrect logit minus the correct one, of the worst version of each image that was found.
        queries: number of times the attacks ran the model on each image.
        stages: keys of the stages, those of the audit included if there was one.
        alarms: None if the checks were off.
        outputs: further columns by name (`docs/files.md`): probabilities, confidences, and the alpha of a mixture.
            Empty for a run that was stored without them.
        adversarial: the worst versions of the first images that were found; None if they were not saved.
        pictured: the worst versions of the images that become pictures; None for a stored run, which has the pictures.
    """

    # The columns of `rows.npz`, and the fields that hold them.
    COLUMNS: ClassVar[dict[str, str]] = {
        "index": "index",
        "label": "labels",
        "prediction": "clean_predictions",
        "attacked_prediction": "attacked_predictions",
        **{name: name for name in ("fooled_by", "margin", "queries", "clean_gap", "attacked_gap")},
    }

    fooled_by: Tensor
    margin: Tensor
    queries: Tensor
    clean_gap: Tensor
    attacked_gap: Tensor
    stages: tuple[str, ...]
    settings: dict[str, Any]
    audit: Audit | None = None
    alarms: tuple[Alarm, ...] | None = None
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    adversarial: Tensor | None = None
    pictured: Tensor | None = None

    @property
    def robust_correct(self) -> Tensor:
        """Which images are classified correctly, and fooled by no attack."""
        return self.fooled_by == ROBUST

    @property
    def waterfall(self) -> list[tuple[str, int, float]]:
        """(attack, images it fooled, accuracy left after it), starting with the clean accuracy."""
        left = int(self.clean_correct.sum())
        rows = [("clean", len(self.labels) - left, left / len(self.labels))]
        for number, name in enumerate(self.stages):
            fooled = int((self.fooled_by == number).sum())
            left -= fooled
            rows.append((name, fooled, left / len(self.labels)))
        return rows

    def gaps(self) -> dict[str, GapStatistics]:
        """Return the confidence gaps of correct and incorrect predictions, clean and attacked."""
        parts = {"clean": (self.clean_correct, self.clean_gap), "attacked": (self.robust_correct, self.attacked_gap)}
        return {name: gap_statistics(correct.numpy(), gap.double().numpy()) for name, (correct, gap) in parts.items()}

    def calibration(self) -> dict[str, dict[str, Calibration]]:
        """Return the calibration of the model, or of mixture, g and h, clean and attacked; empty without outputs."""
        return {version: self._calibration(version) for version in (CLEAN, ATTACKED)} if self.outputs else {}

    def _calibration(self, version: str) -> dict[str, Calibration]:
        is_mixture = f"{version}_alpha" in self.outputs
        own = self.clean_predictions if version == CLEAN else self.attacked_predictions
        predictions = {"mixture" if is_mixture else "model": own}
        confidences = dict.fromkeys(predictions, self.outputs[f"{version}_confidence"])
        for base in BASES if is_mixture else ():
            predictions[base] = self.outputs[f"{version}_{base}_prediction"]
            confidences[base] = self.outputs[f"{version}_{base}_confidence"]
        return {
            name: Calibration.measure(confidences[name].numpy(), (found == self.labels).numpy())
            for name, found in predictions.items()
            if found is not None
        }

    def rows(self) -> dict[str, np.ndarray]:
        """Return the columns of `rows.npz`: one entry per image in each."""
        columns = {column: getattr(self, name) for column, name in self.COLUMNS.items()}
        return {name: column.numpy() for name, column in {**columns, **self.outputs}.items()}

    def summary(self) -> dict[str, Any]:
        """Return the content of `result.json`, which is the same for every run with the same settings."""
        calibration = self.calibration().items()
        return {
            "attack": self.attack,
            "images": len(self.labels),
            "clean": {"accuracy": self.clean, "interval": self.clean_interval},
            "robust": {"accuracy": self.robust, "interval": self.interval},
            "waterfall": [{"attack": name, "took": fooled, "left": left} for name, fooled, left in self.waterfall],
            "gaps": self.gaps(),
            "calibration": {
                version: {name: each.summary() for name, each in found.items()} for version, found in calibration
            },
            "queries": int(self.queries.sum()),
            "audit": None if self.audit is None else self.audit.summary(),
            "alarms": None if self.alarms is None else [alarm.summary() for alarm in self.alarms],
            "settings": self.settings,
        }

    def __repr__(self) -> str:
        if self.alarms is None:
            return f"{super().__repr__()}, alarms off"
        return f"{super().__repr__()}, {len(self.alarms) or 'no'} alarm{'s' * (len(self.alarms) != 1)}"


def attack_title(attack: object) -> str:
    """Return the name and the threat of any attack, for example "fast at Linf 8/255"; empty for None."""
    if attack is None:
        return ""
    name = getattr(attack, "name", None) or getattr(attack, "__name__", type(attack).__name__)
    threat = getattr(attack, "threat", None)
    return f"{name} at {threat_title(threat)}" if isinstance(threat, Threat) else str(name)
