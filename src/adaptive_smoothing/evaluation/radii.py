"""`evaluate_radii`: robust accuracy at several radii. A radius is attacked on the survivors of the smaller ones only.

An image that is fooled within a radius is fooled within every larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.cascade import Cascade
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.data.datasets import ImageData, check_data
from adaptive_smoothing.evaluation.audit import Audit
from adaptive_smoothing.evaluation.cascade_run import DEFAULT_OPTIONS, EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.pictures import pictured_rows
from adaptive_smoothing.evaluation.verdict import Verdict, attack_title
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.results import percent_with_interval
from adaptive_smoothing.runs.progress import Progress, RunProgress, ignore_progress
from adaptive_smoothing.settings.checks import check_numbers, check_options
from adaptive_smoothing.threat import Threat

# Makes the attack for a threat.
MakeCascade = Callable[[Threat], Cascade]


@dataclass(frozen=True, repr=False)
class RadiusCurve:
    """Robust accuracy as a function of the radius: one verdict per radius, in ascending order."""

    radii: tuple[float, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def clean(self) -> float:
        """Clean accuracy."""
        return self.verdicts[0].clean

    @property
    def robust(self) -> tuple[float, ...]:
        """Robust accuracy at each radius."""
        return tuple(verdict.robust for verdict in self.verdicts)

    def summary(self) -> dict[str, Any]:
        """Return the content of `result.json`, apart from the names of the folders."""
        first = self.verdicts[0]
        rows = zip(self.radii, self.verdicts, strict=True)
        return {
            "images": len(first.labels),
            "clean": {"accuracy": first.clean, "interval": first.clean_interval},
            "radii": [{"eps": eps, "robust": each.robust, "interval": each.interval} for eps, each in rows],
            "settings": first.settings,
        }

    def __repr__(self) -> str:
        first = self.verdicts[0]
        lines = [f"RadiusCurve: clean {percent_with_interval(first.clean, first.clean_interval, 2)}; 95 % intervals"]
        for verdict in self.verdicts:
            lines.append(f"{percent_with_interval(verdict.robust, verdict.interval, 2)} robust, {verdict.attack}")
        return "\n".join(lines)


def evaluate_radii(
    model: nn.Module,
    data: ImageData,
    attack: str | MakeCascade,
    norm: type[Threat],
    radii: Sequence[float],
    *,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    progress: RunProgress = ignore_progress,
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> RadiusCurve:
    """Return the robust accuracy of a model at several radii.

    Examples:
        >>> curve = ads.evaluate_radii(mixed, data, "B", ads.Linf, [2 / 255, 8 / 255])
        >>> curve.robust[1] <= curve.robust[0]
        True

    The radii are attacked in ascending order, each on the images that survived the smaller ones. An image that was
    fooled before keeps its row. Other arguments are those of `evaluate`.

    Args:
        attack: the name of a preset, or a function that returns the cascade for a threat.
        norm: the kind of threat: `Linf` or `L2`.
    """
    if not isinstance(norm, type):
        raise TypeError(f"expected a kind of threat such as ads.Linf, got {norm!r}: name the class, and pass radii")
    check_data(data)
    check_options(options, EvaluationOptions)
    threats = [norm(radius) for radius in check_radii(radii)]
    verdict, verdicts, pictured = None, [], pictured_rows(data, options.pictures)
    for number, threat in enumerate(threats):
        cascade = _cascade(attack, threat)
        left = torch.arange(len(data)) if verdict is None else verdict.robust_correct.nonzero().squeeze(1)
        found = None
        if len(left):
            found = evaluate(
                model,
                data if verdict is None else data.take(left),
                cascade,
                device=device,
                devices=devices,
                journal=journal_of(journal, number),
                overwrite=overwrite,
                progress=_labelled(progress, cascade) if len(threats) > 1 else progress,
                options=replace(
                    options,
                    save_adversarial=int((left < options.save_adversarial).sum()),
                    pictures=int(torch.isin(left, pictured).sum()),
                ),
            )
        verdict = found if verdict is None else _combined(verdict, found, left, cascade.for_model(model), pictured)
        assert verdict is not None  # the first radius attacks all images
        verdicts.append(verdict)
    return RadiusCurve(tuple(float(threat.eps) for threat in threats), tuple(verdicts))


def _cascade(attack: str | MakeCascade, threat: Threat) -> Cascade:
    """Return the cascade of a preset, or of a function of the user, for a threat."""
    if isinstance(attack, str):
        return preset(attack, threat)
    made = attack(threat) if callable(attack) and not isinstance(attack, PGD) else None
    if not isinstance(made, Cascade):
        expected = "the name of a preset, or a function from a threat to a cascade"
        hint = "pass lambda threat: Cascade(name, threat, stages)"
        raise TypeError(f"expected {expected}, got {made or attack!r}: {hint}")
    return made


def check_radii(radii: Sequence[float]) -> list[float]:
    """Return the radii in ascending order, or raise an error if there are none or if two are equal."""
    radii = check_numbers("radii", radii)
    found = sorted(float(radius) for radius in radii)
    if not found or len({f"{radius:.4g}" for radius in found}) < len(found):
        raise ValueError(f"expected one or more different radii, got {radii}: leave out repetitions")
    return found


def journal_of(folder: str | Path | None, number: int) -> Path | None:
    """Return the journal of the radius with this number; that of the first radius is the folder itself."""
    if folder is None:
        return None
    return Path(folder) / f"radius-{number}" if number else Path(folder)


def _labelled(progress: RunProgress, cascade: Cascade) -> RunProgress:
    """Return a function that reports which radius is attacked."""

    def report(now: Progress) -> None:
        stage = f"eps {cascade.threat.eps:.4g}: {now.stage}" if now.stage else ""
        progress(replace(now, stage=stage))

    return report


def _combined(before: Verdict, found: Verdict | None, left: Tensor, cascade: Cascade, pictured: Tensor) -> Verdict:
    """Return the verdict on all images at a larger radius.

    Args:
        before: the verdict at the smaller radius.
        found: the verdict on the images that were left; None if none were.
        left: the positions of these images.
        pictured: the positions of the images that become pictures.
    """
    settings = {**before.settings, "attack": describe(cascade)}
    settings["smaller radii"] = [*before.settings.get("smaller radii", ()), before.settings["attack"]["threat"]]
    now = replace(before, attack=attack_title(cascade), settings=settings)
    if found is None:
        return replace(now, audit=None if before.audit is None else Audit(0, 0, 0, 0, 0))

    def fill(old: Tensor, new: Tensor) -> Tensor:
        filled = old.clone()
        filled[left[: len(new)]] = new
        return filled

    columns: dict[str, Any] = {
        name: fill(getattr(before, name), getattr(found, name)) for name in Verdict.COLUMNS.values()
    }
    saved, shown = before.adversarial, before.pictured
    if shown is not None and found.pictured is not None:
        shown = shown.clone()
        shown[torch.isin(pictured, left)] = found.pictured
    return replace(
        now,
        **columns | {"queries": fill(before.queries, before.queries[left] + found.queries)},
        # The stages of an audit are listed only if there was one.
        stages=max(before.stages, found.stages, key=len),
        audit=found.audit,
        alarms=found.alarms,
        outputs={name: fill(column, found.outputs[name]) for name, column in before.outputs.items()},
        adversarial=saved if saved is None or found.adversarial is None else fill(saved, found.adversarial),
        pictured=shown,
    )
