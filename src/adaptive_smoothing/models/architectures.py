"""Architectures by name, for recipes and model cards."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypedDict, Unpack

from torch import nn

from adaptive_smoothing.models.lipschitz import LipschitzNet
from adaptive_smoothing.models.resnet import PreActBlock, PreActBottleneck, PreActResNet
from adaptive_smoothing.settings.checks import check_choice, suggestion


class ResNetOptions(TypedDict, total=False):
    """Options of all residual networks."""

    activation: str
    num_classes: int
    mean: Sequence[float]
    std: Sequence[float]


class LipschitzNetOptions(TypedDict, total=False):
    """Options of Lipschitz networks."""

    scale: float
    size: int
    num_classes: int


def preact_resnet18(width: int = 64, **options: Unpack[ResNetOptions]) -> PreActResNet:
    return _resnet((2, 2, 2, 2), width, PreActBlock, **options)


def preact_resnet34(width: int = 64, **options: Unpack[ResNetOptions]) -> PreActResNet:
    return _resnet((3, 4, 6, 3), width, PreActBlock, **options)


def preact_resnet50(width: int = 64, **options: Unpack[ResNetOptions]) -> PreActResNet:
    return _resnet((3, 4, 6, 3), width, PreActBottleneck, **options)


def wide_resnet(depth: int = 28, width: int = 10, **options: Unpack[ResNetOptions]) -> PreActResNet:
    """Return WRN-depth-width: three stages of (depth - 4) / 6 blocks with 16, 32 and 64 channels times `width`."""
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"expected a depth of 6n + 4 (10, 16, 22, 28, 34, ...), got {depth}")
    widths = [round(channels * width) for channels in (16, 32, 64)]
    return PreActResNet([(depth - 4) // 6] * 3, widths, stem=16, **options)


def lipschitz_net(
    width: int = 64, blocks: Sequence[int] = (4, 4, 4), hidden: int = 512, **options: Unpack[LipschitzNetOptions]
) -> LipschitzNet:
    """Return a network with Lipschitz constant `scale`: each stage has twice the width of the one before."""
    return LipschitzNet([width * 2**i for i in range(len(blocks))], blocks, hidden=hidden, **options)


def _resnet(
    blocks: tuple[int, ...], width: int, block: type[PreActBlock], **options: Unpack[ResNetOptions]
) -> PreActResNet:
    return PreActResNet(blocks, [width * 2**i for i in range(4)], stem=width, block=block, **options)


# The arguments of `PreActResNet` and `LipschitzNet` that the functions above compute, so that a user cannot set them.
COMPUTED = ("blocks", "widths", "stem", "block")
ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    function.__name__: function
    for function in (preact_resnet18, preact_resnet34, preact_resnet50, wide_resnet, lipschitz_net)
}


def build(arch: str, **options: Any) -> nn.Module:
    """Return an untrained model: `build("wide_resnet", depth=16, width=4, activation="silu", num_classes=10)`."""
    check_choice("arch", arch, ARCHITECTURES)
    function = signature(ARCHITECTURES[arch])
    of_network = [name for name in signature(function.return_annotation).parameters if name not in COMPUTED]
    known = [name for name in dict.fromkeys([*function.parameters, *of_network]) if name != "options"]
    for option in options:
        if option not in known:
            raise ValueError(f"expected an option of {arch}, got {option!r}: {suggestion(option, known)}")
    return ARCHITECTURES[arch](**options)
