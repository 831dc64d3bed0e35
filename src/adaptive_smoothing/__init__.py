"""Mix an accurate and a robust image classifier into one, attack the mixture, and certify it.

import adaptive_smoothing as ads

mixed = ads.MixedClassifier(standard=g, robust=h, alpha=0.9)
verdict = ads.evaluate(mixed, data, "fast", ads.Linf(8 / 255))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import adaptive_attack, auto_attack, fast_attack, preset
from adaptive_smoothing.certification.certify import certify
from adaptive_smoothing.data.conversion import from_dataset, from_tensors
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.data.datasets import load as load_data
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.radii import evaluate_radii
from adaptive_smoothing.evaluation.sweep import tradeoff
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.locally_biased import LocallyBiasedSmoothing
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import wrap
from adaptive_smoothing.models.zoo import load as load_model
from adaptive_smoothing.threat import L2, Linf
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.mixing.train import train_mixing
from adaptive_smoothing.tuning.nonlinear import fit_nonlinear
from adaptive_smoothing.tuning.tune import tune
from adaptive_smoothing.version import VERSION

if TYPE_CHECKING:
    from adaptive_smoothing.report.load import load_run

__version__ = VERSION

__all__ = [
    "L2",
    "PGD",
    "EvaluationOptions",
    "FineTunedTail",
    "GradientMixedClassifier",
    "Hardmax",
    "ImageData",
    "Linf",
    "LocallyBiasedSmoothing",
    "MixedClassifier",
    "MixingNetwork",
    "MixingRecipe",
    "Nonlinear",
    "SmoothedClassifier",
    "__version__",
    "adaptive_attack",
    "auto_attack",
    "certify",
    "evaluate",
    "evaluate_radii",
    "fast_attack",
    "fit_nonlinear",
    "from_dataset",
    "from_tensors",
    "load_data",
    "load_model",
    "load_run",
    "preset",
    "tradeoff",
    "train_mixing",
    "tune",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Import `load_run` when it is first used: reports need matplotlib."""
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from adaptive_smoothing.report.load import load_run

    return load_run
