"""The paper's mixing network: a small residual network on features of both base classifiers (fig:mixing_arch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.transforms import without_transform
from adaptive_smoothing.models.features import FeatureTaps, as_map, dry_run, suggest_taps
from adaptive_smoothing.models.resnet import PreActBlock, initialize, without_autocast

Taps = Sequence[str]

STAGES = 3
# Of the running statistics of the score. It is small, so that they average over thousands of images.
MOMENTUM = 0.01


class MixingNetwork(Mixer):
    """A residual network from features at two taps of each base classifier to a score per image.

    The score has mean 0 and variance 1 on the training images. Features at the early taps enter first; those at the
    later taps join after the first of three stages. 1x1 convolutions reduce both from `channels`, the sums of both
    classifiers, to `width`. If the feature maps of the two classifiers have different sizes, the larger one is averaged
    down. A stage has `depth` residual blocks. The network of the paper resembles a ResNet-18: width 64, depth 2.
    `MixingNetwork.between(g, h)` finds the taps and the channels.

    Args:
        channels: the channels of both early taps together, and of both later taps.
        standard_taps, robust_taps: the names of two layers of g and of h.
        width: channels of the first stage.
        depth: residual blocks per stage.

    Examples:
        >>> network = ads.MixingNetwork.between(g, h, width=8)
        >>> network.standard_taps
        ('stage1', 'stage2')
        >>> ads.MixedClassifier(g, h, network).mix(images).alpha.shape
        torch.Size([4])
    """

    kind = "network"
    title = "mixing network"
    summary = "a mixing network on features of both classifiers"

    def __init__(
        self, channels: tuple[int, int], *, standard_taps: Taps, robust_taps: Taps, width: int = 32, depth: int = 1
    ) -> None:
        super().__init__()
        _check_taps(standard_taps)
        _check_taps(robust_taps)
        self.channels, self.width, self.depth = channels, width, depth
        self.standard_taps, self.robust_taps = tuple(standard_taps), tuple(robust_taps)
        widths = [width * 2**stage for stage in range(STAGES)]
        self.early, self.later = (nn.Conv2d(found, width, 1, bias=False) for found in channels)
        entering = (width, 2 * widths[0], widths[1])
        self.stages = nn.ModuleList(
            nn.Sequential(
                PreActBlock(entered, wide, 2, nn.ReLU), *(PreActBlock(wide, wide, 1, nn.ReLU) for _ in range(depth - 1))
            )
            for entered, wide in zip(entering, widths, strict=True)
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], 1, bias=False)
        self.balance = nn.BatchNorm1d(1, affine=False, momentum=MOMENTUM)
        initialize(self)

    @classmethod
    def between(
        cls,
        standard: nn.Module,
        robust: nn.Module,
        *,
        standard_taps: Taps | None = None,
        robust_taps: Taps | None = None,
        shape: tuple[int, int, int] = (3, 32, 32),
        width: int = 32,
        depth: int = 1,
    ) -> Self:
        """Return a network for two classifiers. Taps that are not named are chosen by a dry run with `shape` images."""
        taps, early, later = [], 0, 0
        for base, named in ((standard, standard_taps), (robust, robust_taps)):
            model = without_transform(base)
            names = tuple(named or suggest_taps(model, shape))
            _check_taps(names)
            _, features = dry_run(FeatureTaps(model, names), model, shape)
            early += as_map(features[names[0]]).shape[1]
            later += as_map(features[names[1]]).shape[1]
            taps.append(names)
        network = cls((early, later), standard_taps=taps[0], robust_taps=taps[1], width=width, depth=depth)
        return network.to(next(robust.parameters()).device).eval()

    def forward(self, base_outputs: BaseOutputs) -> MixerOutput:
        pairs = zip(base_outputs.g_features, base_outputs.h_features, strict=True)
        early, later = (_concatenate(as_map(g), as_map(h)) for g, h in pairs)
        first, *others = self.stages
        features = first(self.early(early))
        features = torch.cat([features, _fit(self.later(later), (features.shape[2], features.shape[3]))], dim=1)
        for stage in others:
            features = stage(features)
        pooled = F.relu(self.norm(features)).mean((2, 3))
        return MixerOutput(self.balance(without_autocast(self.head, pooled)).squeeze(1), base_outputs.h)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {name: getattr(self, name) for name in ("channels", "standard_taps", "robust_taps", "width", "depth")}

    def extra_repr(self) -> str:
        return f"standard_taps={self.standard_taps}, robust_taps={self.robust_taps}, width={self.width}"


def _check_taps(taps: Taps) -> None:
    """Raise an error for anything but the names of two layers."""
    if not all(isinstance(tap, str) for tap in taps):
        raise TypeError(
            f"expected taps as names of layers, got {list(taps)}: list(dict(model.named_modules())) has all"
        )
    if len(taps) != 2:
        raise ValueError(f"expected two taps in each classifier, got {list(taps)}: an early and a later layer")


def _concatenate(g: Tensor, h: Tensor) -> Tensor:
    """Return both feature maps at the size of the smaller one, joined along the channels."""
    size = min(g.shape[2], h.shape[2]), min(g.shape[3], h.shape[3])
    return torch.cat([_fit(g, size), _fit(h, size)], dim=1)


def _fit(features: Tensor, size: tuple[int, int]) -> Tensor:
    return features if features.shape[2:] == size else F.adaptive_avg_pool2d(features, size)
