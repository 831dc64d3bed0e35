"""The model that `certify` certifies: loads it, smooths h if the method needs it, and chooses the method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from adaptive_smoothing.certification.lipschitz import LipschitzLogits
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.zoo import short_name


@dataclass(frozen=True)
class CertifyPreparation:
    """Options of `certify` that change the model, or choose the method.

    Args:
        sigma: noise of smoothing; None for the noise that h was trained with.
        votes: "hard" or "soft".
        hardmax: replace g by its hardmax.
    """

    method: str | None
    sigma: float | None
    votes: str
    hardmax: bool


@dataclass(frozen=True)
class CertifiedModel(LoadedModel):
    """A model that is ready to be certified by the method `kind`."""

    kind: str = ""

    @classmethod
    def prepare(
        cls, names: tuple[str, ...], alpha: float | None, device: str, preparation: CertifyPreparation
    ) -> CertifiedModel:
        """Load a model, or G and H, by name."""
        loaded = LoadedModel.load(names[0], names[1] if len(names) > 1 else None, alpha, device)
        kind = _method(preparation.method, loaded.model, preparation.sigma, names[-1])
        model = _prepared(loaded.model, kind, preparation, names[-1]).to(device)
        name = loaded.short if len(names) == 1 or alpha != 1 else short_name(names[-1])
        return cls(model, loaded.parts, {**loaded.facts, "hardmax": preparation.hardmax}, name, kind)


def _method(method: str | None, model: nn.Module, sigma: float | None, name: str) -> str:
    """Return the given method, or the one that h is made for."""
    h = model.robust if isinstance(model, MixedClassifier) else model
    if method is not None:
        return method
    if sigma is None and isinstance(h, LipschitzLogits):
        return "lipschitz"
    if sigma is None and _trained_sigma(name) is None:
        raise ValueError(
            f"expected a network with a proven Lipschitz constant, or one trained under noise, got {name}: smooth it "
            "with --sigma 0.25, or estimate with --method local"
        )
    return "smoothing"


def _prepared(model: nn.Module, kind: str, preparation: CertifyPreparation, name: str) -> nn.Module:
    """Return the classifier that is certified."""
    if preparation.hardmax:
        if not isinstance(model, MixedClassifier):
            raise ValueError("expected a mixture for --hardmax, got one model: the option replaces G by its hardmax")
        model = model.with_standard(Hardmax(model.standard))
    if kind != "smoothing":
        return model
    noise = preparation.sigma if preparation.sigma is not None else _trained_sigma(name)
    if noise is None:
        raise ValueError(f"expected --sigma, got none, and {name} was not trained under noise: try 0.25, 0.5 or 1")
    if not noise > 0:
        raise ValueError(f"expected --sigma above 0, got {noise:g}: without noise nothing can be certified")
    if isinstance(model, MixedClassifier):
        CertificationTarget.of(model)  # raises if the mixture cannot be certified
        return model.with_robust(SmoothedClassifier(model.robust, noise, hard=preparation.votes == "hard"))
    return SmoothedClassifier(model, noise, hard=preparation.votes == "hard")


def _trained_sigma(name: str) -> float | None:
    """Return the noise that a model was trained with, from its card; None if there was none."""
    try:
        card = zoo.find_card(name)
    except (ValueError, OSError):  # a mixture has no such card
        return None
    method = {} if card is None else card.card.get("recipe", {}).get("method", {})
    return method.get("sigma") if method.get("name") == "gaussian" else None
