"""What `certify` certifies: h smoothed or as it is, g certain or as it is, and the method that suits it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from adaptive_smoothing.certification.lipschitz import LipschitzLogits
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import short_name
from adaptive_smoothing.models.smoothed import SmoothedClassifier


@dataclass(frozen=True)
class CertifyPreparation:
    """How a model is to be certified, as far as it was said."""

    method: str | None
    sigma: float | None
    votes: str
    hardmax: bool


@dataclass(frozen=True)
class CertifiedModel(LoadedModel):
    """A model that is ready for its method: h smoothed, g certain, as was asked for."""

    kind: str = ""

    @classmethod
    def prepare(
        cls, names: tuple[str, ...], alpha: float | None, device: str, ways: CertifyPreparation
    ) -> CertifiedModel:
        """A model, or G and H, by name."""
        loaded = LoadedModel.load(names[0], names[1] if len(names) > 1 else None, alpha, device)
        kind = _method(ways.method, loaded.model, ways.sigma, names[-1])
        model = _prepared(loaded.model, kind, ways, names[-1]).to(device)
        name = loaded.short if len(names) == 1 or alpha != 1 else short_name(names[-1])
        return cls(model, loaded.parts, {**loaded.facts, "hardmax": ways.hardmax}, name, kind)


def _method(method: str | None, model: nn.Module, sigma: float | None, name: str) -> str:
    """What was asked for, or what h is made for."""
    h = model.robust if isinstance(model, MixedClassifier) else model
    if method is not None:
        return method
    if sigma is None and isinstance(h, LipschitzLogits):
        return "lipschitz"
    if sigma is None and _trained_sigma(name) is None:
        raise ValueError(
            f"expected a network with a proven Lipschitz constant, or one trained under noise, got {name}: smooth it "
            "with --sigma 0.25, or ask for an estimate with --method local"
        )
    return "smoothing"


def _prepared(model: nn.Module, kind: str, ways: CertifyPreparation, name: str) -> nn.Module:
    """The classifier that is certified."""
    if ways.hardmax:
        if not isinstance(model, MixedClassifier):
            raise ValueError("expected a mixture for --hardmax, got one model alone: it is about G")
        model = model.with_standard(Hardmax(model.standard))
    if kind != "smoothing":
        return model
    noise = ways.sigma if ways.sigma is not None else _trained_sigma(name)
    if noise is None:
        raise ValueError(f"expected --sigma, got none, and {name} was not trained under noise: try 0.25, 0.5 or 1")
    if not noise > 0:
        raise ValueError(f"expected --sigma above 0, got {noise:g}: without noise there is nothing to certify with")
    if isinstance(model, MixedClassifier):
        CertificationTarget.of(model)  # what cannot be certified cannot be smoothed either
        return model.with_robust(SmoothedClassifier(model.robust, noise, hard=ways.votes == "hard"))
    return SmoothedClassifier(model, noise, hard=ways.votes == "hard")


def _trained_sigma(name: str) -> float | None:
    """That of a base for randomized smoothing, which its card says."""
    try:
        card = zoo.find_card(name)
    except (ValueError, OSError):  # a mixture
        return None
    method = {} if card is None else card.card.get("recipe", {}).get("method", {})
    return method.get("sigma") if method.get("name") == "gaussian" else None
