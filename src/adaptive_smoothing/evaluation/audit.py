"""The audit of a short cascade: full attacks on a sample of the images that survived it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from adaptive_smoothing.results import interval


@dataclass(frozen=True)
class Audit:
    """Result of the full attacks on a sample of the images that survived a shorter cascade.

    Args:
        random: survivors that were audited because they were drawn at random.
        closest: survivors that were audited because they were the closest to being fooled.
    """

    survivors: int
    random: int
    random_fooled: int
    closest: int
    closest_fooled: int

    @property
    def audited(self) -> int:
        return self.random + self.closest

    @property
    def unseen(self) -> int:
        """Survivors that were not audited."""
        return self.survivors - self.audited

    @property
    def missed_share(self) -> float:
        """Upper bound on the share of the unseen that the full attacks would fool: Clopper-Pearson, at 95 %."""
        if not self.random or not self.unseen:
            return float(self.unseen > 0)
        return interval(self.random_fooled, self.random, confidence=0.90)[1]

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> Audit:
        """Return the audit whose summary is in a `result.json`."""
        return cls(**{each.name: summary[each.name.replace("fooled", "fell")] for each in fields(cls)})

    def summary(self) -> dict[str, int | float]:
        """Return the figures for `result.json`, where "fell" means "fooled"."""
        counts = {name.replace("fooled", "fell"): count for name, count in asdict(self).items()}
        return {**counts, "unseen": self.unseen, "missed_share_at_most": self.missed_share}
