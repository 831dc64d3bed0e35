"""Mix an accurate and a robust image classifier into one that is both, and measure it honestly.

import adaptive_smoothing as ads

mixed = ads.MixedClassifier(standard=g, robust=h, alpha=0.9)
x_adv = ads.PGD(ads.Linf(8 / 255), steps=20)(mixed, x, y)
"""

from adaptive_smoothing.attacks.adaptive import adaptive_attack
from adaptive_smoothing.attacks.autoattack import auto_attack, fast_attack
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.certify import certify
from adaptive_smoothing.data.datasets import ImageData, from_dataset, from_tensors
from adaptive_smoothing.data.datasets import load as load_data
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.tradeoff import Tradeoff, tradeoff
from adaptive_smoothing.evaluation.verdict import Evaluation, Verdict
from adaptive_smoothing.mixing.classifier import MixedClassifier, MixedOutput
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.formula import alpha_from_gamma, gamma_from_alpha
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.locally_biased import LocallyBiasedSmoothing, NearestNeighbors
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.oracle import OracleAlpha, oracle_mixture
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models.features import FeatureTaps, suggest_taps
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import Classifier, wrap
from adaptive_smoothing.models.zoo import load as load_model
from adaptive_smoothing.threat import L2, Linf, Threat, parse_threat
from adaptive_smoothing.training.mixing.train import train_mixing
from adaptive_smoothing.tuning.nonlinear import fit_nonlinear
from adaptive_smoothing.tuning.tune import tune
from adaptive_smoothing.version import VERSION

__version__ = VERSION

__all__ = [
    "L2",
    "PGD",
    "Certificates",
    "Classifier",
    "Evaluation",
    "FeatureTaps",
    "FineTunedTail",
    "GradientMixedClassifier",
    "Hardmax",
    "ImageData",
    "Linf",
    "LocallyBiasedSmoothing",
    "MixedClassifier",
    "MixedOutput",
    "MixingNetwork",
    "NearestNeighbors",
    "Nonlinear",
    "OracleAlpha",
    "SmoothedClassifier",
    "Threat",
    "Tradeoff",
    "Verdict",
    "__version__",
    "adaptive_attack",
    "alpha_from_gamma",
    "auto_attack",
    "certify",
    "evaluate",
    "fast_attack",
    "fit_nonlinear",
    "from_dataset",
    "from_tensors",
    "gamma_from_alpha",
    "load_data",
    "load_model",
    "oracle_mixture",
    "parse_threat",
    "preset",
    "suggest_taps",
    "tradeoff",
    "train_mixing",
    "tune",
    "wrap",
]
