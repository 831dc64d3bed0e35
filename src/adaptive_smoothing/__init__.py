"""Mix an accurate and a robust image classifier into one, attack the mixture, and certify it.

import adaptive_smoothing as ads

mixed = ads.MixedClassifier(standard=g, robust=h, alpha=0.9)
verdict = ads.evaluate(mixed, data, "fast", ads.Linf(8 / 255))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adaptive_smoothing.version import VERSION

# For type checkers. At run time a name is imported when it is first used: torch takes seconds.
if TYPE_CHECKING:
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
    from adaptive_smoothing.mixing.export import export
    from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
    from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
    from adaptive_smoothing.mixing.locally_biased import LocallyBiasedSmoothing
    from adaptive_smoothing.mixing.network import MixingNetwork
    from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
    from adaptive_smoothing.models.memory import limit_memory
    from adaptive_smoothing.models.smoothed import SmoothedClassifier
    from adaptive_smoothing.models.wrap import wrap
    from adaptive_smoothing.models.zoo import load as load_model
    from adaptive_smoothing.report.load import load_run
    from adaptive_smoothing.threat import L2, Linf
    from adaptive_smoothing.training.mixing.recipe import MixingRecipe
    from adaptive_smoothing.training.mixing.train import train_mixing
    from adaptive_smoothing.tuning.nonlinear import fit_nonlinear
    from adaptive_smoothing.tuning.tune import tune

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
    "export",
    "fast_attack",
    "fit_nonlinear",
    "from_dataset",
    "from_tensors",
    "limit_memory",
    "load_data",
    "load_model",
    "load_run",
    "preset",
    "tradeoff",
    "train_mixing",
    "tune",
    "wrap",
]

# The module and the name there of each public name.
_PLACES = {
    "EvaluationOptions": "evaluation.cascade_run:EvaluationOptions",
    "FineTunedTail": "mixing.fine_tuned_tail:FineTunedTail",
    "GradientMixedClassifier": "mixing.gradient_mixture:GradientMixedClassifier",
    "Hardmax": "mixing.transforms:Hardmax",
    "ImageData": "data.datasets:ImageData",
    "L2": "threat:L2",
    "Linf": "threat:Linf",
    "LocallyBiasedSmoothing": "mixing.locally_biased:LocallyBiasedSmoothing",
    "MixedClassifier": "mixing.classifier:MixedClassifier",
    "MixingNetwork": "mixing.network:MixingNetwork",
    "MixingRecipe": "training.mixing.recipe:MixingRecipe",
    "Nonlinear": "mixing.transforms:Nonlinear",
    "PGD": "attacks.pgd:PGD",
    "SmoothedClassifier": "models.smoothed:SmoothedClassifier",
    "adaptive_attack": "attacks.presets:adaptive_attack",
    "auto_attack": "attacks.presets:auto_attack",
    "certify": "certification.certify:certify",
    "evaluate": "evaluation.evaluate:evaluate",
    "evaluate_radii": "evaluation.radii:evaluate_radii",
    "export": "mixing.export:export",
    "fast_attack": "attacks.presets:fast_attack",
    "fit_nonlinear": "tuning.nonlinear:fit_nonlinear",
    "from_dataset": "data.conversion:from_dataset",
    "from_tensors": "data.conversion:from_tensors",
    "limit_memory": "models.memory:limit_memory",
    "load_data": "data.datasets:load",
    "load_model": "models.zoo:load",
    "load_run": "report.load:load_run",
    "preset": "attacks.presets:preset",
    "tradeoff": "evaluation.sweep:tradeoff",
    "train_mixing": "training.mixing.train:train_mixing",
    "tune": "tuning.tune:tune",
    "wrap": "models.wrap:wrap",
}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _PLACES:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}", name=name, obj=import_module(__name__)
            )
        module, _, original = _PLACES[name].partition(":")
        globals()[name] = getattr(import_module(f"{__name__}.{module}"), original)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
