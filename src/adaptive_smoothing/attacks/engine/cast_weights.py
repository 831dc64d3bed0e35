"""Weights that are cast once. `torch.autocast` casts frozen weights in every pass, and cuDNN changes their layout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from adaptive_smoothing.attacks.engine.batch_norm import is_wrapped

LAYERS = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}


class CastWeights(TorchFunctionMode):
    """A mode, for use inside `torch.autocast`, in which layers with frozen weights get weights of `dtype`.

    A recorded CUDA graph keeps using the casts made before it was recorded.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        # What a weight was cast to, by its id and the layout. The weight is kept, so that no other one gets its id. Its
        # version shows changes in place, but not those through `.data`.
        self.kept: dict[tuple[int, torch.memory_format], tuple[Parameter, int, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LAYERS and not torch.compiler.is_compiling():
            images = args[0] if args else kwargs["input"]
            if not is_wrapped(images):  # autocast does not cast inside vmap
                layout = _layout(images)
                args = [self._cast(value, layout) for value in args]
                kwargs = {name: self._cast(value, layout) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _cast(self, value: Any, layout: torch.memory_format) -> Any:
        if type(value) is not Parameter or not self._is_cast(value):
            return value
        layout = layout if value.dim() == 4 else torch.preserve_format
        kept = self.kept.get((id(value), layout))
        if kept is not None and kept[1] == value._version:
            return kept[2]
        cast = value.detach().to(self.dtype, memory_format=layout)
        # What is computed while a graph is recorded has no value before the graph is replayed.
        if not (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.kept[id(value), layout] = value, value._version, cast
        return cast

    def _is_cast(self, weight: Parameter) -> bool:
        """Return whether a weight is in float32 and not trained, and autocast would cast it to the type of the mode."""
        device = weight.device.type
        if not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != self.dtype:
            return False
        inference = torch.is_inference_mode_enabled() or weight.is_inference()
        trained = torch.is_grad_enabled() and weight.requires_grad
        return weight.dtype == torch.float32 and not trained and not inference


def _layout(images: Tensor) -> torch.memory_format:
    """Return the layout that weights should have: channels-last only if the images have no other."""
    if images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous():
        return torch.channels_last
    return torch.preserve_format
