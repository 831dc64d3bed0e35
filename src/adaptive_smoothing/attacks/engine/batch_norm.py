"""Batch norm of a frozen network together with the activation that follows it, as one operation.

PyTorch computes them one after the other and keeps the result of each for the backward pass. On a GPU, this takes half
of the time of a gradient and most of its memory. `FusedBatchNorm` is a mode in which any model, whoever wrote it,
computes both at once: it looks at the calls of `F.batch_norm` and of activations, not at the modules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

# The activations that are fused, by the function that computes them.
RELU, SILU = "relu", "silu"
ACTIVATIONS: dict[Callable[..., Tensor], str] = {
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), RELU),
    F.silu: SILU,
}
# Functions that look at the shape of a tensor and not at its values.
METADATA = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_contiguous}
# Kernels count elements in 32 bits.
MOST_ELEMENTS = 2**31


class Norm(NamedTuple):
    """The arguments of `F.batch_norm` in evaluation mode, and the activation that follows, or None."""

    mean: Tensor
    variance: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    activation: str | None = None


# The activation after each batch norm, by the identity of its running mean. The mean is kept, so that no other tensor
# gets the same identity.
Plan = dict[int, tuple[Tensor, str]]


def activations_after_norms(model: Callable[[Tensor], Any], images: Tensor) -> Plan:
    """Return which batch norms of a model are followed by an activation, and by nothing else, from one forward pass."""
    with torch.no_grad(), (recorder := _Recorder()):
        model(images)
    return recorder.plan()


class FusedBatchNorm(TorchFunctionMode):
    """A mode in which batch norms with frozen weights are computed together with the activation after them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.activated: Tensor | None = None  # the output of a batch norm that already contains its activation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ACTIVATIONS and args and args[0] is self.activated:
            self.activated = None
            return args[0]
        if func is not F.batch_norm or (found := _arguments(*args, **kwargs)) is None:
            return func(*args, **kwargs)
        inputs, norm = found
        _, activation = self.plan.get(id(norm.mean), (None, None))
        norm = norm._replace(activation=activation)
        output = _NormAndActivation.apply(inputs, *norm)
        if norm.activation is not None:
            self.activated = output
        return output


class _Recorder(TorchFunctionMode):
    """Records which functions use the output of each batch norm."""

    def __init__(self) -> None:
        super().__init__()
        # For each running mean: the number of calls of its norm, and the activation of each use of their outputs, or
        # None for another use.
        self.means: dict[int, Tensor] = {}
        self.calls: Counter[int] = Counter()
        self.uses: dict[int, list[str | None]] = defaultdict(list)
        # The mean of each output, by identity. Outputs are kept, so that no other tensor gets the same identity.
        self.mean_of: dict[int, int] = {}
        self.kept: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        looks_only = func in METADATA or getattr(func, "__name__", "") == "__get__"
        for value in () if looks_only else tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and id(value) in self.mean_of:
                self.uses[self.mean_of[id(value)]].append(ACTIVATIONS.get(func))
                if result is value:  # in place: from now on this tensor is the activation
                    del self.mean_of[id(value)]
        if func is F.batch_norm and (found := _arguments(*args, **(kwargs or {}))) is not None:
            mean = found[1].mean
            self.means[id(mean)] = mean
            self.calls[id(mean)] += 1
            self.mean_of[id(result)] = id(mean)
            self.kept.append(result)
        return result

    def plan(self) -> Plan:
        """Return the activations of norms each of whose outputs is used once, by the same activation."""
        plan: Plan = {}
        for key, mean in self.means.items():
            first, *others = self.uses[key] or [None]
            if first is not None and len(others) + 1 == self.calls[key] and set(others) <= {first}:
                plan[key] = mean, first
        return plan


def _arguments(
    inputs: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Norm] | None:
    """Return the arguments of a call that can be fused, or None: one in training, or with an unusual memory layout."""
    if training or mean is None or variance is None or weight is None or bias is None:
        return None
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (mean, variance, weight, bias))
    layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
    usual = type(inputs) is Tensor and inputs.dim() in (2, 4) and inputs.dtype in (torch.float32, torch.bfloat16)
    if learns or not usual or torch._C._functorch.is_functorch_wrapped_tensor(inputs):
        return None
    if not inputs.is_contiguous(memory_format=layout) or not 0 < inputs.numel() < MOST_ELEMENTS:
        return None
    return inputs, Norm(mean, variance, weight, bias, eps)


class _NormAndActivation(torch.autograd.Function):
    """activation(batch_norm(inputs)). Only the inputs are kept for the backward pass, and only with an activation."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *norm: Any) -> Tensor:
        ctx.norm = Norm(*norm)
        ctx.save_for_backward(*[inputs] * (ctx.norm.activation is not None))
        return _kernels(inputs).forward(inputs, ctx.norm)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,), (inputs,) = gradients, ctx.saved_tensors or (None,)
        if inputs is not None:
            layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
            gradient = gradient.contiguous(memory_format=layout)
        return _kernels(gradient).backward(gradient, inputs, ctx.norm), *[None] * len(ctx.norm)


def _kernels(tensor: Tensor) -> Any:
    """Return the module with the kernels for the device of a tensor."""
    if tensor.is_cuda:
        from adaptive_smoothing.attacks.engine import batch_norm_triton

        return batch_norm_triton
    return _PlainKernels


class _PlainKernels:
    """The kernels in plain PyTorch, in float32: the definition that the tests compare with."""

    @staticmethod
    def forward(inputs: Tensor, norm: Norm) -> Tensor:
        output = _affine(inputs, norm)
        if norm.activation is not None:
            output = F.relu(output) if norm.activation == RELU else F.silu(output)
        return output.to(inputs.dtype)

    @staticmethod
    def backward(gradient: Tensor, inputs: Tensor | None, norm: Norm) -> Tensor:
        scale = _column(norm.weight * (norm.variance + norm.eps).rsqrt(), gradient)
        factor = gradient.float() * scale
        if inputs is not None:
            output = _affine(inputs, norm)
            share = output.sigmoid()
            slope = (output > 0).float() if norm.activation == RELU else share * (1 + output * (1 - share))
            factor = factor * slope
        return factor.to(gradient.dtype)


def _affine(inputs: Tensor, norm: Norm) -> Tensor:
    mean, bias = _column(norm.mean, inputs), _column(norm.bias, inputs)
    return (inputs.float() - mean) * _column(norm.weight * (norm.variance + norm.eps).rsqrt(), inputs) + bias


def _column(values: Tensor, inputs: Tensor) -> Tensor:
    """Return one value per channel in a form that broadcasts with the inputs."""
    return values.view(1, -1, *[1] * (inputs.dim() - 2))


def has_kernels(device: torch.device) -> bool:
    """Return whether this machine has the kernels that make fusing worthwhile: Triton, on an NVIDIA GPU."""
    if device.type != "cuda":
        return False
    try:
        from adaptive_smoothing.attacks.engine import batch_norm_triton  # noqa: F401
    except ImportError:
        return False
    return True


def prepare_kernels(device: torch.device) -> None:
    """Start loading the compiler of the kernels, which takes a second, in the background."""

    def prepare() -> None:
        with suppress(Exception):  # the first kernel will raise it again
            if has_kernels(device):
                from adaptive_smoothing.attacks.engine import batch_norm_triton

                batch_norm_triton.compile_one()

    if device.type == "cuda":
        Thread(target=prepare, name="prepare kernels", daemon=True).start()
