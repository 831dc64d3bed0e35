"""Pre-activation residual networks for small images: ResNet-18/34/50 and Wide ResNets.

Both families are one class with different numbers of stages, widths and blocks. Normalisation is the first layer, so
that the input is an image in [0, 1].
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from adaptive_smoothing.models.contract import check_image_form, guard_images
from adaptive_smoothing.settings.checks import check_choice

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU}

# Determined once: a call inside a compiled network would break the graph (torch 2.11).
AUTOCAST_DEVICES = tuple(device for device in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(device))

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Normalize(nn.Module):
    """(images - mean) / std per channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class PreActBlock(nn.Module):
    """A block of two 3x3 convolutions, with batch norm and activation before each.

    A shortcut that changes the shape starts after the first batch norm and activation.
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.activation = activation()
        convolutions = self._convolutions(inputs, width, stride)
        self.norms = nn.ModuleList(nn.BatchNorm2d(convolution.in_channels) for convolution in convolutions)
        self.convolutions = nn.ModuleList(convolutions)
        reshapes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if reshapes else None

    def _convolutions(self, inputs: int, width: int, stride: int) -> list[nn.Conv2d]:
        return [
            nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        ]

    def forward(self, features: Tensor) -> Tensor:
        activated = self.activation(self.norms[0](features))
        shortcut = features if self.shortcut is None else self.shortcut(activated)
        out = self.convolutions[0](activated)
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:], strict=True):
            out = convolution(self.activation(norm(out)))
        return out + shortcut


class PreActBottleneck(PreActBlock):
    """A block of 1x1, 3x3 and 1x1 convolutions with four times as many output channels."""

    expansion = 4

    def _convolutions(self, inputs: int, width: int, stride: int) -> list[nn.Conv2d]:
        return [
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.Conv2d(width, width * self.expansion, 1, bias=False),
        ]


class PreActResNet(nn.Module):
    """A residual network from images in [0, 1] to logits, with stages named stage1, stage2, ..."""

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        stem: int,
        block: type[PreActBlock] = PreActBlock,
        activation: str = "relu",
        num_classes: int = 10,
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, ACTIVATIONS)
        act = ACTIVATIONS[activation]
        self.normalize = Normalize(mean, std)
        self.stem = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        channels = stem
        self.stages: list[str] = []
        for number, (count, width) in enumerate(zip(blocks, widths, strict=True), start=1):
            stage = nn.Sequential()
            for position in range(count):
                stride = 2 if number > 1 and position == 0 else 1
                stage.append(block(channels, width, stride, act))
                channels = width * block.expansion
            self.stages.append(f"stage{number}")
            self.add_module(self.stages[-1], stage)
        self.norm = nn.BatchNorm2d(channels)
        self.activation = act()
        self.head = nn.Linear(channels, num_classes)
        self.num_classes = num_classes
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.with_features(images)[0]

    def with_features(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits and the output of each stage."""
        # Training may add noise, and its steps must not wait for the device.
        (check_image_form if self.training else guard_images)(images)
        if images.shape[1] != self.stem.in_channels:
            hint = "for gray ones pass images.expand(-1, 3, -1, -1), for an alpha channel images[:, :3]"
            raise ValueError(f"expected images with {self.stem.in_channels} channels, got {images.shape[1]}: {hint}")
        features = self.stem(self.normalize(images))
        stages: dict[str, Tensor] = {}
        for stage in self.stages:
            stages[stage] = features = getattr(self, stage)(features)
        pooled = self.activation(self.norm(features)).mean((2, 3), dtype=self.norm.weight.dtype)
        return without_autocast(self.head, pooled), stages


def without_autocast(layer: nn.Module, features: Tensor) -> Tensor:
    """Return `layer(features)` in the precision of its weights: the eight bits of bfloat16 hide small differences."""
    device, weight = features.device.type, next(layer.parameters())
    with torch.autocast(device, enabled=False) if device in AUTOCAST_DEVICES else nullcontext():
        return layer(features.to(weight.dtype))


def initialize(model: nn.Module) -> None:
    """Draw the weights of convolutions (Kaiming) and set the biases of linear layers to zero.

    Weights on the device `meta` have no values. To draw them would import the compiler of torch, which takes seconds.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
