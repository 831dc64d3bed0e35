"""Weights that are cast once. `torch.autocast` casts frozen weights in every pass, and cuDNN changes their layout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

LAYERS = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}


class CastWeights(TorchFunctionMode):
    """A mode, for use inside `torch.autocast`, in which layers with frozen weights get weights of the other type.

    The mode keeps them, and images should be in channels-last format, as the kept weights of convolutions are.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        # For each weight, by its identity: the weight, its version, and what it was cast to.
        self.kept: dict[int, tuple[Parameter, int, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LAYERS and not torch.compiler.is_compiling():
            args = [self._cast(value) for value in args]
            kwargs = {name: self._cast(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _cast(self, value: Any) -> Any:
        if type(value) is not Parameter or not self._applies_to(value):
            return value
        weight, version, cast = self.kept.get(id(value), (None, None, None))
        if weight is not value or version != value._version or cast is None:
            layout = torch.channels_last if value.dim() == 4 else torch.preserve_format
            cast = value.detach().to(self.dtype, memory_format=layout)
            # What is computed while a graph is recorded has no value before the graph is replayed.
            if not (value.is_cuda and torch.cuda.is_current_stream_capturing()):
                self.kept[id(value)] = value, value._version, cast
        return cast

    def _applies_to(self, weight: Parameter) -> bool:
        """Return whether autocast would cast a weight, in the same way every time: models may disable it in a part."""
        if not torch.is_autocast_enabled(weight.device.type) or weight.dtype != torch.float32:
            return False
        return not (torch.is_grad_enabled() and weight.requires_grad) and not weight.is_inference()
