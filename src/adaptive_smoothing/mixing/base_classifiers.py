"""What every mixture has in common: a standard and a robust classifier, and the numbers that mix them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.mixer import BaseOutputs
from adaptive_smoothing.mixing.transforms import LogitTransform, inner
from adaptive_smoothing.models.contract import (
    check_eval,
    check_logit_form,
    check_not_probabilities,
    guard_images,
    trusted_images,
    values_are_at_hand,
)
from adaptive_smoothing.models.features import FeatureTaps


class BaseClassifiers(nn.Module):
    """A standard and a robust classifier that stay as they are: `train()` leaves both in eval mode.

    Their weights are not frozen here: `ads.wrap` does that.
    """

    def __init__(self, standard: nn.Module, robust: nn.Module) -> None:
        super().__init__()
        for role, model in (("standard", standard), ("robust", robust)):
            if not isinstance(model, nn.Module):
                raise TypeError(
                    f"expected the {role} classifier as a torch module, got {type(model).__name__}: load one by name "
                    "with ads.load_model, or wrap your own with ads.wrap"
                )
            check_eval(model)
        _check_same_classes(standard, robust)
        self.standard = standard
        self.robust = robust
        self._taps: dict[str, FeatureTaps] = {}
        self.training = False

    @property
    def num_classes(self) -> int | None:
        """What both say of themselves, if they say the same."""
        declared = {getattr(model, "num_classes", None) for model in (self.standard, self.robust)}
        return declared.pop() if len(declared) == 1 else None

    def tap(self, standard: tuple[str, ...], robust: tuple[str, ...]) -> None:
        """From now on the evidence has the features of these layers; of a transform, those of the network inside."""
        pairs = (("standard", standard), ("robust", robust))
        self._taps = {role: FeatureTaps(inner(getattr(self, role)), layers) for role, layers in pairs if layers}

    def base_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """g(x) and h(x), or an error when they are not logits over the same classes."""
        base_outputs = self.base_outputs(images)
        return self.transformed(base_outputs.g, base_outputs.h, images)

    def transformed(self, g: Tensor, h: Tensor, images: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the base classifiers that are `LogitTransform`s make of logits that stand for their networks'."""
        if isinstance(self.standard, LogitTransform):
            g = self.standard.transform(g, images)
        if isinstance(self.robust, LogitTransform):
            h = self.robust.transform(h, images)
        return g, h

    def base_outputs(self, images: Tensor) -> BaseOutputs:
        """What the networks of g and h say, before a `LogitTransform`, and the features that are tapped, in one pass
        of each."""
        guard_images(images)
        with trusted_images():
            (g, g_features), (h, h_features) = (self._says(role, images) for role in ("standard", "robust"))
        readable = values_are_at_hand(images)
        for logits in (g, h):
            check_logit_form(logits, images)
            if readable:
                check_not_probabilities(logits)
        if g.shape != h.shape:
            raise ValueError(
                f"expected two classifiers over the same classes, got {g.shape[1]} from the standard and "
                f"{h.shape[1]} from the robust one; class i must mean the same in both"
            )
        return BaseOutputs(g, h, g_features, h_features)

    def _says(self, role: str, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if role in self._taps:
            logits, features = self._taps[role](images)
            return logits, tuple(features.values())
        return inner(getattr(self, role))(images), ()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.standard.eval()
        self.robust.eval()
        return self

    def settle(self, number: float | tuple[float, ...] | Tensor, name: str) -> Tensor:
        """The number of this name as a tensor on the device of the base classifiers, in their precision or float32."""
        weights = chain(self.standard.parameters(), self.robust.parameters())
        beside = next((weight for weight in weights if weight.is_floating_point()), torch.empty(0))
        if isinstance(number, Tensor) and number.is_floating_point():
            return number.to(beside.device)
        dtype = torch.promote_types(beside.dtype, torch.float32)
        try:
            return torch.as_tensor(number, dtype=dtype, device=beside.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"expected {name} as numbers or a tensor, got {number!r}: pass a float") from error

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.half()` and `.bfloat16()` are for the networks: in bfloat16 an alpha of 0.999 would become 1."""
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = getattr(self, name)
            if after.dtype != buffer.dtype:
                setattr(self, name, buffer.to(after.device))
        return self


def _check_same_classes(standard: nn.Module, robust: nn.Module) -> None:
    g, h = getattr(standard, "num_classes", None), getattr(robust, "num_classes", None)
    if isinstance(g, int) and isinstance(h, int) and g != h:
        raise ValueError(
            f"expected two classifiers over the same classes, got {g} from the standard and {h} from the robust one; "
            "class i must mean the same in both"
        )
