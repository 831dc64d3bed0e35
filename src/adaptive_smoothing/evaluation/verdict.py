"""What an evaluation says: of every image whether it was right, whether it stood, what fooled it, by how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from adaptive_smoothing.evaluation.accuracy import Evaluation
from adaptive_smoothing.evaluation.alarms import Alarm
from adaptive_smoothing.results import interval

# In `fooled_by`: classified wrong without any attack, and not fooled by any.
WRONG, STANDS = -2, -1


@dataclass(frozen=True)
class Audit:
    """Full attacks on some of what a shorter cascade left standing."""

    survivors: int
    random: int
    random_fell: int
    closest: int
    closest_fell: int

    @property
    def unseen(self) -> int:
        """Survivors that were not audited."""
        return self.survivors - self.random - self.closest

    @property
    def missed_share(self) -> float:
        """At most this share of the unseen would fall, at 95 %: one-sided Clopper-Pearson on the random ones."""
        if not self.random or not self.unseen:
            return float(self.unseen > 0)
        return interval(self.random_fell, self.random, confidence=0.90)[1]

    def summary(self) -> dict[str, Any]:
        return {**self.__dict__, "unseen": self.unseen, "missed_share_at_most": self.missed_share}


@dataclass(frozen=True)
class Verdict(Evaluation):
    """An evaluation by a cascade: `fooled_by` numbers `stages`, `margin` is that of the worst version of an image."""

    fooled_by: Tensor = field(kw_only=True)
    margin: Tensor = field(kw_only=True)
    queries: Tensor = field(kw_only=True)
    clean_gap: Tensor = field(kw_only=True)
    attacked_gap: Tensor = field(kw_only=True)
    stages: tuple[str, ...] = field(kw_only=True)
    settings: dict[str, Any] = field(kw_only=True)
    audit: Audit | None = field(kw_only=True, default=None)
    # None: nobody looked.
    alarms: tuple[Alarm, ...] | None = field(kw_only=True, default=None)

    @property
    def robust_correct(self) -> Tensor:
        return self.fooled_by == STANDS

    @property
    def waterfall(self) -> list[tuple[str, int, float]]:
        """(attack, images it took, accuracy that is left after it), from the clean accuracy down."""
        left, rows = int(self.clean_correct.sum()), []
        rows.append(("clean", len(self.labels) - left, left / len(self.labels)))
        for number, name in enumerate(self.stages):
            took = int((self.fooled_by == number).sum())
            left -= took
            rows.append((name, took, left / len(self.labels)))
        return rows

    def gaps(self) -> dict[str, dict[str, float | None]]:
        """The paper's tab:confidence: mean and median lead of the prediction, where right and where wrong."""
        return {
            "clean": gap_figures(self.clean_correct, self.clean_gap),
            "attacked": gap_figures(self.robust_correct, self.attacked_gap),
        }

    def rows(self) -> dict[str, np.ndarray]:
        """One entry per image in each column."""
        columns = {
            "index": self.index,
            "label": self.labels,
            "prediction": self.clean_predictions,
            "attacked_prediction": self.attacked_predictions,
            "fooled_by": self.fooled_by,
            "margin": self.margin,
            "queries": self.queries,
            "clean_gap": self.clean_gap,
            "attacked_gap": self.attacked_gap,
        }
        return {name: tensor.numpy() for name, tensor in columns.items() if tensor is not None}

    def summary(self) -> dict[str, Any]:
        """What `result.json` holds: every figure, and nothing that a second run would change."""
        return {
            "images": len(self.labels),
            "clean": {"accuracy": self.clean, "interval": self.clean_interval},
            "robust": {"accuracy": self.robust, "interval": self.interval},
            "waterfall": [{"attack": name, "took": took, "left": left} for name, took, left in self.waterfall],
            "gaps": self.gaps(),
            "queries": int(self.queries.sum()),
            "audit": None if self.audit is None else self.audit.summary(),
            "alarms": None if self.alarms is None else [alarm.__dict__ for alarm in self.alarms],
            "settings": self.settings,
        }


def gap_figures(right: Tensor, gap: Tensor) -> dict[str, float | None]:
    """Accuracy, and mean and median gap of right and of wrong predictions; None where there are none."""
    found: dict[str, float | None] = {"accuracy": right.double().mean().item()}
    for name, which in (("right", right), ("wrong", ~right)):
        values = gap[which].double().numpy()
        found[f"{name}_mean"] = float(values.mean()) if len(values) else None
        found[f"{name}_median"] = float(np.median(values)) if len(values) else None
    return found


def top_gap(logits: Tensor) -> Tensor:
    """Probability of the prediction over that of the runner-up."""
    first, second = logits.float().softmax(1).topk(2).values.unbind(1)
    return first - second
