"""The base classes of mixtures of g and h (`BaseClassifiers`) and of modules that compute alpha (`Mixer`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from adaptive_smoothing.mixing.transforms import LogitTransform, without_transform
from adaptive_smoothing.models.contract import (
    can_read_values,
    check_eval,
    check_logit_form,
    check_not_probabilities,
    guard_images,
    trusted_images,
)
from adaptive_smoothing.models.features import FeatureTaps


class BaseOutputs(NamedTuple):
    """Outputs of the base networks for a batch: logits [N, C], before any `LogitTransform`, and tapped features."""

    g: Tensor
    h: Tensor
    g_features: tuple[Tensor, ...] = ()
    h_features: tuple[Tensor, ...] = ()


class MixerOutput(NamedTuple):
    """A score per image [N], which is higher where h should get more weight, and the logits to use as those of h."""

    score: Tensor
    h: Tensor


class Mixer(nn.Module, ABC):
    """A module that computes an alpha for each image, and may replace the logits of h.

    It returns a score, from which `MixedClassifier` computes
    alpha = low + (high - low) * sigmoid(alpha_scale * score + alpha_shift), where (low, high) is its `alpha_range`.
    """

    # A mixer that can be stored (see `mixers`) has a name for files, a name for tables, a description for cards, and a
    # property `options` that `restore` can read.
    kind: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]

    # The layers of g and of h whose features the mixer reads.
    standard_taps: tuple[str, ...] = ()
    robust_taps: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, base_outputs: BaseOutputs) -> MixerOutput: ...

    @classmethod
    def restore(cls, robust: nn.Module, options: Mapping[str, Any]) -> Self:
        """Return a mixer for this h with the stored `options` of one, before its weights are loaded."""
        return cls(**options)


class BaseClassifiers(nn.Module):
    """A standard and a robust classifier. `train()` leaves both in eval mode."""

    NOT_IN_DIGEST: ClassVar = frozenset({"_taps"})
    log_probabilities_known: ClassVar = True  # a mixture returns them by design

    def __init__(self, standard: nn.Module, robust: nn.Module) -> None:
        super().__init__()
        check_eval(standard)
        check_eval(robust)
        self.standard, self.robust = standard, robust
        _check_same_classes(*self._declared_classes())
        self._taps: dict[str, FeatureTaps] = {}
        self.training = False

    @property
    def num_classes(self) -> int | None:
        """The number of classes that both base classifiers declare, or None."""
        g, h = self._declared_classes()
        return g if g == h else None

    def _declared_classes(self) -> list[int | None]:
        return [getattr(model, "num_classes", None) for model in (self.standard, self.robust)]

    def tap(self, standard: tuple[str, ...], robust: tuple[str, ...]) -> None:
        """Add the features of these layers to the base outputs. Names are those in the network without a transform."""
        for role, layers in (("standard", standard), ("robust", robust)):
            if layers:
                self._taps[role] = FeatureTaps(without_transform(getattr(self, role)), layers)

    def transformed(self, g: Tensor, h: Tensor, images: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits of the two networks after the `LogitTransform`s of the base classifiers, if they have any."""
        if isinstance(self.standard, LogitTransform):
            g = self.standard.transform(g, images)
        if isinstance(self.robust, LogitTransform):
            h = self.robust.transform(h, images)
        return g, h

    def base_outputs(self, images: Tensor) -> BaseOutputs:
        """Return the logits before any `LogitTransform` and the tapped features, with one pass of each network."""
        guard_images(images)
        with trusted_images():
            (g, g_features), (h, h_features) = (self._run(role, images) for role in ("standard", "robust"))
        readable = can_read_values(images)
        for logits in (g, h):
            check_logit_form(logits, images)
            if readable:
                check_not_probabilities(logits)
        _check_same_classes(g.shape[1], h.shape[1])
        return BaseOutputs(g, h, g_features, h_features)

    def _run(self, role: str, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if role in self._taps:
            logits, features = self._taps[role](images)
            return logits, tuple(features.values())
        return without_transform(getattr(self, role))(images), ()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.standard.eval()
        self.robust.eval()
        return self

    def as_tensor(self, number: float | tuple[float, ...] | Tensor, name: str) -> Tensor:
        """Return a number as a tensor on the device of the base classifiers, in float32 or more.

        An error names the argument `name`.
        """
        weights = chain(self.standard.parameters(), self.robust.parameters())
        weight = next((weight for weight in weights if weight.is_floating_point()), torch.empty(0))
        if isinstance(number, Tensor) and number.is_floating_point():
            return number.to(weight.device)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        try:
            return torch.as_tensor(number, dtype=dtype, device=weight.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"expected {name} as numbers or a tensor, got {number!r}: pass a float") from error

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move everything, but cast the networks only: `.bfloat16()` would turn an alpha of 0.999 into 1."""
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = getattr(self, name)
            if after.dtype != buffer.dtype:
                setattr(self, name, buffer.to(after.device))
        return self


def _check_same_classes(g: int | None, h: int | None) -> None:
    if isinstance(g, int) and isinstance(h, int) and g != h:
        found = f"{g} from the standard and {h} from the robust one; class i must mean the same in both"
        raise ValueError(f"expected two classifiers over the same classes, got {found}")
