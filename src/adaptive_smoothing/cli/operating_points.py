"""A loaded mixture at one or several operating points, for `evaluate --alpha` and `--clean-accuracy`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve, at_setting


def first_alpha(alphas: Sequence[float], targets: Sequence[float], is_pair: bool) -> float | None:
    """Return the alpha to load a mixture with; any, if it will be moved to clean accuracies."""
    if alphas and targets:
        raise ValueError("expected --alpha or --clean-accuracy, got both: --clean-accuracy chooses alpha")
    return alphas[0] if alphas else 0.5 if targets and is_pair else None


def operating_points(
    loaded: LoadedModel, alphas: Sequence[float], targets: Sequence[float], load_val: Callable[[], ImageData]
) -> list[LoadedModel]:
    """Return the model at each operating point that is wanted, or as it was loaded."""
    if targets:
        return at_clean_accuracies(loaded, targets, load_val())
    return [at_alpha(loaded, each) for each in alphas] if len(alphas) > 1 else [loaded]


def at_alpha(loaded: LoadedModel, alpha: float) -> LoadedModel:
    """Return a mixture of two models with another alpha."""
    return _moved(loaded, alpha, {"alpha": alpha}, f"alpha-{alpha:g}")


def at_clean_accuracies(loaded: LoadedModel, targets: Sequence[float], val: ImageData) -> list[LoadedModel]:
    """Return a mixture at the largest, and so most robust, setting with each clean accuracy on validation images."""
    if not isinstance(loaded.model, MixedClassifier):
        hint = "name a stored mixture, or G H"
        raise ValueError(f"expected a mixture for --clean-accuracy, got one classifier: {hint}")
    curve = _stored_curve(loaded) or accuracy_curve(loaded.model, val)
    return [_at_clean_accuracy(loaded, curve, target) for target in targets]


def _stored_curve(loaded: LoadedModel) -> CleanAccuracyCurve | None:
    """Return the clean accuracy that was stored with a mixture, if it was."""
    source = loaded.facts.get("source")
    if source is None or not pretrained.exists(source):
        return None
    path = Path(pretrained.find(source)) / VALIDATION
    return CleanAccuracyCurve.load(path) if path.is_file() else None


def _at_clean_accuracy(loaded: LoadedModel, curve: CleanAccuracyCurve, target: float) -> LoadedModel:
    setting = curve.largest_setting(target)
    facts: dict[str, Any] = {"clean accuracy on validation images": target}
    if curve.parameter == "shift":
        facts["numbers"] = {**loaded.facts["numbers"], "alpha_shift": setting}
    else:
        facts["alpha"] = setting
    return _moved(loaded, setting, facts, f"clean-{100 * target:g}")


def _moved(loaded: LoadedModel, setting: float, facts: dict[str, Any], suffix: str) -> LoadedModel:
    assert isinstance(loaded.model, MixedClassifier)
    short = f"{without_alpha(loaded)}-{suffix}"
    return replace(loaded, model=at_setting(loaded.model, setting), facts={**loaded.facts, **facts}, short=short)


def without_alpha(loaded: LoadedModel) -> str:
    """Return the short name of a mixture without its alpha."""
    alpha = loaded.facts.get("alpha")
    return loaded.short.removesuffix(f"-{alpha:g}") if isinstance(alpha, float) else loaded.short
