"""Digests of models, and descriptions of attacks and options as plain data, which are equal in every process.

A digest changes with the tensors, the attributes and the source text of a model. Code of installed packages and of this
package counts by name only. Two changes are not detected: of a global variable that a function reads, and of code
without source text, such as a class made by `type(...)`. After such a change, set an attribute of the model, such as
`model.tag = "v2"`: all attributes are part of the digest, except those that a class names in `NOT_IN_DIGEST`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.threat import Threat

PlainData = None | bool | int | float | str | list["PlainData"] | dict[str, "PlainData"]

# Attributes of every module: parameters, buffers and children are hashed separately, hooks do not count.
TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
# Attributes of a loaded model: where it was found, which can be a path, and its identity, which depends on rounding.
ORIGIN = "_origin"
LOADED_IDENTITY = "_loaded_identity"
INSTALLED = (str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def model_digest(model: nn.Module) -> str:
    """Return the digest of a model: of the tensors, the module tree, the attributes and the source text."""
    return _model_digest(model, {})


def weights_digest(model: nn.Module, *, persistent_only: bool = False) -> str:
    """Return the digest of all parameters and buffers, or only of those in the `state_dict`.

    Normalisation is usually in buffers that the `state_dict` lacks.
    """
    tensors = dict(model.state_dict()) if persistent_only else all_tensors(model)
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, also buffers that a state_dict lacks; shared ones under each name."""
    return dict(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))


def attribute_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in attributes of all layers that are neither parameters nor buffers, by name."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        for key, value in _attributes(module).items():
            found.update(_tensors_in(value, f"{name}.{key}" if name else key))
    registered = {id(tensor) for tensor in all_tensors(model).values()}  # a list may hold some again, as in nn.LSTM
    return {name: tensor for name, tensor in found.items() if id(tensor) not in registered}


def extra_states(model: nn.Module) -> dict[str, Any]:
    """Return what `get_extra_state` of each layer returns, by its name in a state_dict."""
    own = (pair for pair in model.named_modules() if type(pair[1]).get_extra_state is not nn.Module.get_extra_state)
    return {f"{name}._extra_state" if name else "_extra_state": module.get_extra_state() for name, module in own}


def _tensors_in(value: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor, or those in a list, a dictionary or a module that is not a layer, each with a name."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided and not value.is_meta:  # others have no bytes to compare
            yield name, value
    elif isinstance(value, nn.Module):
        yield from ((f"{name}.{key}", tensor) for key, tensor in all_tensors(value).items())
    elif isinstance(value, Mapping | list | tuple):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors_in(part, f"{name}.{key}")


def describe(value: object) -> Any:
    """Return an attack, its options or any other value as plain data for a JSON file."""
    return _describe(value, {})


def _model_digest(model: nn.Module, seen: dict[int, object]) -> str:
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        seen[id(module)] = module
        description = [name, _describe(type(module), seen), _describe(_attributes(module), seen)]
        digest.update(json.dumps(description, sort_keys=True).encode())
    digest.update(weights_digest(model).encode())
    return digest.hexdigest()


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module, without its parameters, buffers and children."""
    skipped = TORCH_ATTRIBUTES | {ORIGIN, LOADED_IDENTITY} | getattr(type(module), "NOT_IN_DIGEST", frozenset())
    return {key: value for key, value in vars(module).items() if key not in skipped}


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor with all its numbers in memory: one that is sparse is converted."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on any device, in the order of its indices."""
    # A GPU changes the layout much faster than a CPU.
    return dense(tensor.detach()).contiguous().cpu().flatten().view(torch.uint8).numpy().data


def _describe(value: object, seen: dict[int, object]) -> PlainData:
    """Return a value as plain data. An object that is in `seen` counts by its position there, so that cycles end."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(tensor_bytes(value)).hexdigest()}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _describe(part, seen) for key, part in value.items()}
    if isinstance(value, Mapping):
        return [_describe(pair, seen) for pair in value.items()]
    if isinstance(value, tuple | list):
        return [_describe(part, seen) for part in value]
    if isinstance(value, set | frozenset):  # has no fixed order, so that elements must not share `seen`
        return sorted((_describe(part, dict(seen)) for part in value), key=json.dumps)
    if isinstance(value, Threat):
        return f"{value.norm}:{_describe(value.eps, seen)}"
    if isinstance(value, type | FunctionType) and not _sources(value):
        return value.__qualname__
    if id(value) in seen:
        return f"again {list(seen).index(id(value))}"
    seen[id(value)] = value  # kept alive: another object could get its id
    return _describe_object(value, seen)


def _describe_object(value: object, seen: dict[int, object]) -> PlainData:
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    if isinstance(value, nn.Module):
        return {"": name, "sha256": _model_digest(value, seen)}
    if isinstance(value, type):
        return {"": name, "source": _sources(value)}
    if isinstance(value, FunctionType):
        closure = [*map(_contents, value.__closure__ or ()), value.__defaults__, value.__kwdefaults__]
        return {"": name, "source": _sources(value), "with": _describe(closure, seen)}
    if isinstance(value, partial):
        return {"": "partial", "of": _describe([value.func, value.args, value.keywords], seen)}
    if isinstance(value, MethodType):
        return {"": name, "of": _describe([value.__func__, value.__self__], seen)}
    if not hasattr(value, "__dict__") and not is_dataclass(value):
        # The repr of a dtype, a device or a path has its value; that of other objects has their address in memory.
        text = repr(value)
        return name if callable(value) or " at 0x" in text else f"{name} {text}"
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(vars(value))
    settings = {key: _describe(getattr(value, key), seen) for key in names}
    kind: type = type(value)
    return {"": name, **settings} | ({"source": found} if (found := _sources(kind)) else {})


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


@lru_cache
def _sources(value: type | FunctionType) -> list[PlainData]:
    """Return a sha256 of the source text of a function, or of a class and of each base class; none if installed."""
    return [found for part in getattr(value, "__mro__", (value,)) if (found := _source(part))]


def _source(value: type | FunctionType) -> str:
    try:
        file = inspect.getsourcefile(value) or ""
        installed = file.startswith(INSTALLED) or "site-packages" in file or "dist-packages" in file
        return "" if installed else hashlib.sha256(inspect.getsource(value).encode()).hexdigest()
    except (OSError, TypeError):  # built in, or made without a file
        return ""
