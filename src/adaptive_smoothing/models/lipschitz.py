"""A residual network that is 1-Lipschitz in L2 by construction, for any weights.

Every layer is rescaled by a bound on its norm that needs no iteration: the norm of a symmetric matrix is at most its
largest absolute row sum. Convolutions are residual layers x - 2 W T^-1 relu(W^T x + b) with a diagonal T >= W^T W
(Araujo et al. 2023). Layers that change the number of channels divide each row by the root of its row sum of |W W^T|
(Prach and Lampert 2022). Images get smaller by moving pixels into channels, which keeps all norms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaptive_smoothing.models.contract import check_image_form, guard_images
from adaptive_smoothing.models.resnet import CIFAR10_MEAN

# Added to row sums, which are divisors.
TINY = 1e-12
# Values that are computed from the weights of a layer. They are not stored in the layer, because a copy of the layer
# has other weights.
_CACHE: WeakKeyDictionary[nn.Module, tuple[list[tuple[int, int, torch.dtype]], Tensor]] = WeakKeyDictionary()


class LipschitzLayer(nn.Module, ABC):
    """A layer with a bound on its L2 Lipschitz constant, which is 1 up to rounding."""

    @abstractmethod
    def lipschitz(self) -> float:
        """Return a bound for the layer as it is computed in float32; the bound itself is computed in float64."""

    def cached(self, compute: Callable[..., Tensor], *weights: Tensor) -> Tensor:
        """Return compute(*weights). It is computed once as long as the weights do not change and need no gradient.

        `forward` and `lipschitz` use the same cached value, so that the bound holds for the layer as it computes.
        """
        learning = self.training or (torch.is_grad_enabled() and any(each.requires_grad for each in weights))
        if learning or torch.compiler.is_compiling() or any(each.is_inference() for each in weights):
            return compute(*weights)
        state = [(each.data_ptr(), each._version, each.dtype) for each in weights]
        if self not in _CACHE or _CACHE[self][0] != state:
            # In float64, so that the value does not depend on how a device computes float32.
            with torch.inference_mode(False), torch.no_grad():
                _CACHE[self] = state, compute(*(each.double() for each in weights)).to(weights[0].dtype)
        return _CACHE[self][1]


class ResidualConv(LipschitzLayer):
    """x - 2 W T^-1 relu(W^T x + b), where W^T is a convolution and T_i is the i-th row sum of |W^T W|, weighted by q.

    If rounding makes T too small by a factor t > 1, the layer is (1 - t) x + t (a 1-Lipschitz function of x), and its
    constant is at most 2 t - 1.
    """

    def __init__(self, channels: int, kernel: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.log_q = nn.Parameter(torch.zeros(channels))
        if not self.weight.is_meta:
            nn.init.xavier_normal_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        padding = self.weight.shape[-1] // 2
        hidden = F.relu(F.conv2d(features, self.weight, self.bias, padding=padding))
        scale = (2 / self._row_sums()).to(hidden.dtype)
        return features - F.conv_transpose2d(hidden * scale.view(1, -1, 1, 1), self.weight, padding=padding)

    def _row_sums(self) -> Tensor:
        return self.cached(weighted_row_sums, self.weight, self.log_q)

    def lipschitz(self) -> float:
        exact = weighted_row_sums(self.weight.double(), self.log_q.double())
        factor = (exact / self._row_sums().double()).max().item()
        return 2 * max(factor, 1.0) - 1


def weighted_row_sums(weight: Tensor, log_q: Tensor) -> Tensor:
    """Return sum_j |W^T W|_ij q_j / q_i of a convolution, over channels j and all shifts where kernels overlap."""
    with torch.autocast(weight.device.type, enabled=False):
        overlaps = F.conv2d(weight, weight, padding=weight.shape[-1] - 1).abs().sum((2, 3))
        q = log_q.exp()
        return (overlaps * q).sum(1) / q + TINY


class Contraction(LipschitzLayer):
    """A linear map of the channels of every pixel, or of a vector.

    The rows of W are divided by the roots of the row sums of |W W^T|. If W has fewer columns than rows, its columns are
    divided by the roots of the row sums of |W^T W|.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        if not self.weight.is_meta:
            nn.init.orthogonal_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        weight = self.contracted()
        if features.dim() == 4:
            return F.conv2d(features, weight[:, :, None, None], self.bias)
        return F.linear(features, weight, self.bias)

    def contracted(self) -> Tensor:
        """Return the rescaled weights, which the layer uses."""
        return self.cached(self._contract, self.weight)

    def _contract(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            rows = self._by_row(weight)
            return self._by_row(rows * _row_sums(rows).rsqrt())

    def _by_row(self, weight: Tensor) -> Tensor:
        """Return the weight, transposed if W has fewer columns than rows. A second call undoes the first."""
        outputs, inputs = self.weight.shape
        return weight if outputs <= inputs else weight.T

    def lipschitz(self) -> float:
        """Return a bound from row sums that are weighted by the divisors of the rows; without rounding it is 1."""
        used = self._by_row(self.contracted()).double()
        q = _row_sums(self._by_row(self.weight).double()).sqrt().squeeze(1)
        return (((used @ used.T).abs() @ q) / q).max().sqrt().item()


def _row_sums(rows: Tensor) -> Tensor:
    return (rows @ rows.T).abs().sum(1, keepdim=True) + TINY


class Isometry(LipschitzLayer):
    """A layer that only moves numbers."""

    def lipschitz(self) -> float:
        return 1.0


class PixelsToChannels(Isometry):
    """A layer that moves each square of `side` x `side` pixels into the channels of one pixel."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, features: Tensor) -> Tensor:
        return F.pixel_unshuffle(features, self.side)


class Flatten(Isometry):
    """A layer that turns a feature map into a vector."""

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(1)


class FoldedMax(Isometry):
    """An activation that sorts pairs of channels, which keeps all norms (Anil et al. 2019)."""

    def forward(self, features: Tensor) -> Tensor:
        one, other = features.chunk(2, 1)
        return torch.cat([torch.maximum(one, other), torch.minimum(one, other)], 1)


class LipschitzNet(nn.Module):
    """A classifier whose logits are `scale` times the outputs of a network that is 1-Lipschitz in L2.

    Args:
        widths: channels of each stage, at half the resolution of the stage before.
        blocks: residual convolutions of each stage.
        hidden: units of the two fully connected layers.
        size: height and width of the images.
    """

    mean: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        blocks: Sequence[int],
        *,
        hidden: int,
        scale: float = 16.0,
        size: int = 32,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"expected a positive scale, got {scale}")
        if hidden % 2:
            raise ValueError(f"expected an even number of hidden units, which are sorted in pairs, got {hidden}")
        if len(widths) != len(blocks) or size % 2 ** len(widths):
            found = f"widths {list(widths)}, blocks {list(blocks)} and size {size}"
            raise ValueError(f"expected as many widths as blocks, and a size that can be halved as often, got {found}")
        self.register_buffer("mean", torch.tensor(CIFAR10_MEAN).view(1, -1, 1, 1), persistent=False)
        self.scale, self.size, self.num_classes = scale, size, num_classes
        layers: list[LipschitzLayer] = []
        channels = len(CIFAR10_MEAN)
        for width, count in zip(widths, blocks, strict=True):
            # First, pixels become channels, because an image has too few channels for a wide layer.
            layers += [PixelsToChannels(2), Contraction(4 * channels, width)]
            layers += [ResidualConv(width) for _ in range(count)]
            channels = width
        layers += [Flatten(), Contraction(channels * (size // 2 ** len(widths)) ** 2, hidden), FoldedMax()]
        layers += [Contraction(hidden, hidden), FoldedMax()]
        self.layers = nn.Sequential(*layers)
        self.head = Contraction(hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        (check_image_form if self.training else guard_images)(images)
        features = self.layers(images - self.mean)
        with torch.autocast(images.device.type, enabled=False):
            return self.scale * self.head(features.to(self.head.weight.dtype))

    @torch.no_grad()
    def pairwise_lipschitz(self) -> Tensor:
        """Return bounds on the L2 Lipschitz constants of logit i minus logit j, [C, C] in float64."""
        constant = self.scale
        for layer in self.layers:
            assert isinstance(layer, LipschitzLayer)
            constant *= layer.lipschitz()
        rows = self.head.contracted().double()
        return constant * (rows[:, None] - rows[None]).norm(dim=2)
