"""Batch norm of a frozen network together with the activation that follows it, as one operation.

PyTorch computes them one after the other and keeps the result of each for the backward pass. On a GPU, this takes half
of the time of a gradient and most of its memory. `FusedBatchNorm` is a mode in which any model, whoever wrote it,
computes both at once: it looks at the calls of `F.batch_norm` and of activations, not at the modules.

A norm must know the activation before it is called. `activations_after_norms` finds out in one forward pass. If a later
pass does anything else with the output of a norm, the mode raises `WrongPlanError` instead of returning another result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, MutableMapping
from functools import cache
from threading import Lock, Thread
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from adaptive_smoothing.settings.checks import warn_user

# The activations that are fused, by the function that computes them, and those functions that work in place.
RELU, SILU = "relu", "silu"
ACTIVATIONS: dict[Callable[..., Tensor], str] = {
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), RELU),
    F.silu: SILU,
}
IN_PLACE = {F.relu_, torch.relu_, Tensor.relu_}
# Functions that read the form of a tensor and not its values. Other properties, such as `data` and `mT`, share its
# values.
FORM = ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "is_quantized", "requires_grad")
METADATA = {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_contiguous, Tensor.is_floating_point),
    *(Tensor.__len__, torch.is_floating_point, torch.numel),
    *(getattr(Tensor, name).__get__ for name in FORM),
}
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


class WrongPlanError(Exception):
    """The model does not use the output of a batch norm as planned. Nothing that it returned may be used."""

    def __init__(self) -> None:
        super().__init__("expected an activation after a batch norm, got another use: run the model without a plan")


def activations_after_norms(model: Callable[[Tensor], Any], images: Tensor) -> Plan:
    """Return which batch norms of a model are followed by an activation, and by nothing else, from one forward pass."""
    with torch.no_grad(), (recorder := _Recorder()):
        result = model(images)
    plan = recorder.plan()
    del result  # kept until here: an output that is still alive may be used later
    return plan


class FusedBatchNorm(TorchFunctionMode):
    """A mode in which batch norms with frozen weights are computed together with the planned activation after them.

    A planned norm returns a placeholder, and the activation of the placeholder returns the result. The mode raises
    `WrongPlanError` if another function receives the placeholder, or if the activation has not been called at the end.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        # The result for each placeholder that is alive: None after the activation has returned it.
        self.results: MutableMapping[Tensor, tuple[Tensor, str] | None] = WeakTensorKeyDictionary()
        self.waiting = 0  # placeholders whose activation has not been called
        self.hooks = _saving_hooks()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # a part of the model that its author compiled
            return func(*args, **kwargs)
        if self.results and func not in METADATA:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, Tensor) and value in self.results:
                    return self._activated(value, func, kwargs)
        found = _arguments(*args, **kwargs) if func is F.batch_norm else None
        # Checkpointing computes a part of the model again in the backward pass, where this mode has ended.
        if found is None or _saving_hooks() != self.hooks:
            return func(*args, **kwargs)
        inputs, norm = found
        _, activation = self.plan.get(id(norm.mean), (None, None))
        output = _NormAndActivation.apply(inputs, *norm._replace(activation=activation))
        return output if activation is None else self._placeholder(output, activation)

    def _placeholder(self, result: Tensor, activation: str) -> Tensor:
        """Return another tensor with the memory of the result: the model can confuse them, but the mode cannot."""
        placeholder = result.view_as(result)
        self.results[placeholder] = result, activation
        self.waiting += 1
        return placeholder

    def _activated(self, placeholder: Tensor, func: Any, kwargs: Any) -> Tensor:
        """Return the result for a placeholder that `func` receives, if this is its first use and as planned."""
        result, activation = self.results[placeholder] or (None, None)
        if result is None or ACTIVATIONS.get(func) != activation:
            raise WrongPlanError
        self.results[placeholder] = None
        if func in IN_PLACE or kwargs.get("inplace"):  # from now on the placeholder is the result as well
            del self.results[placeholder]
        self.waiting -= 1
        return result

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None and self.waiting:
            raise WrongPlanError


class _Recorder(TorchFunctionMode):
    """Records which functions use the output of each batch norm."""

    def __init__(self) -> None:
        super().__init__()
        # For each running mean: the number of calls of its norm, and the activation of each use of their outputs, or
        # None for another use.
        self.means: dict[int, Tensor] = {}
        self.calls: Counter[int] = Counter()
        self.uses: dict[int, list[str | None]] = defaultdict(list)
        # The identity of the mean for each output that is alive.
        self.mean_of: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in () if func in METADATA or not self.mean_of else tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and value in self.mean_of:
                self.uses[self.mean_of[value]].append(ACTIVATIONS.get(func))
                if result is value:  # in place: from now on this tensor is the activation
                    del self.mean_of[value]
        if func is F.batch_norm and (found := _arguments(*args, **(kwargs or {}))) is not None:
            mean = found[1].mean
            self.means[id(mean)] = mean
            self.calls[id(mean)] += 1
            self.mean_of[result] = id(mean)
        return result

    def plan(self) -> Plan:
        """Return the activations of norms each of whose outputs was used once, by the same activation, and is gone."""
        plan: Plan = {}
        alive = set(self.mean_of.values())
        for key, mean in self.means.items():
            first, *others = self.uses[key] or [None]
            once = len(others) + 1 == self.calls[key] and key not in alive
            if first is not None and once and set(others) <= {first}:
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
    channels = mean, variance, weight, bias
    if torch.is_grad_enabled() and any(each.requires_grad for each in channels):
        return None
    plain = all(type(each) in (Tensor, Parameter) and not is_wrapped(each) for each in (inputs, *channels))
    if not plain or inputs.dim() not in (2, 4) or inputs.dtype not in (torch.float32, torch.bfloat16):
        return None
    if any(each.dtype != torch.float32 or not each.is_contiguous() for each in channels):
        return None
    layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
    if not inputs.is_contiguous(memory_format=layout) or not 0 < inputs.numel() < MOST_ELEMENTS:
        return None
    return inputs, Norm(mean, variance, weight, bias, eps)


def _saving_hooks() -> Any:
    """Return the hooks for tensors that autograd saves, which checkpointing sets, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def is_wrapped(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to a transform of `torch.func`, such as vmap, and has no memory of its own."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


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
        # Autograd cannot see into kernels, so a gradient that is differentiated again is computed in plain PyTorch.
        kernels = _PlainKernels if torch.is_grad_enabled() else _kernels(gradient)
        return kernels.backward(gradient, inputs, ctx.norm), *[None] * len(ctx.norm)


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
            if norm.activation == RELU:
                factor = factor.masked_fill(output <= 0, 0)
            else:
                share = output.sigmoid()
                factor = factor * share * (1 + output * (1 - share))
        return factor.to(gradient.dtype)


def _affine(inputs: Tensor, norm: Norm) -> Tensor:
    mean, bias = _column(norm.mean, inputs), _column(norm.bias, inputs)
    return (inputs.float() - mean) * _column(norm.weight * (norm.variance + norm.eps).rsqrt(), inputs) + bias


def _column(values: Tensor, inputs: Tensor) -> Tensor:
    """Return one value per channel in a form that broadcasts with the inputs."""
    return values.view(1, -1, *[1] * (inputs.dim() - 2))


_LOADING = Lock()


def has_kernels(device: torch.device) -> bool:
    """Return whether this machine has the kernels that make fusing worthwhile: Triton, on an NVIDIA GPU."""
    if device.type != "cuda":
        return False
    with _LOADING:  # another thread may be doing the same
        return _can_compile(device)


@cache
def _can_compile(device: torch.device) -> bool:
    try:
        from adaptive_smoothing.attacks.engine import batch_norm_triton
    except ImportError:
        return False
    try:
        with torch.cuda.device(device):
            batch_norm_triton.compile_one()
    except Exception as error:  # Triton needs a C compiler, and supports recent GPUs only
        warn_user(f"Triton does not work here, so attacks take longer: {error}")
        return False
    return True


def prepare_kernels(device: torch.device) -> None:
    """Start loading the compiler of the kernels, which takes a second, in the background."""
    if device.type == "cuda":
        Thread(target=has_kernels, args=(device,), name="prepare kernels", daemon=True).start()
