"""What a model or an attack is, as plain data: the same in every process, and other data after any change of it.

Numbers, tensors and settings are taken as they are, functions and classes by what their code says, unless they come
from an installed library, whose name is enough.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.threat import Threat

# Bytes of a model that are summed together, and how many such blocks at a time.
BLOCK, SUMMING = 2**22, 4
# What torch keeps in every module; how it computes is in the rest. Parameters and buffers are summed on their own.
KEPT_BY_TORCH = frozenset(vars(nn.Module())) - {"training"}
MADE_BY_HAND = ("__init__", "__call__")
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class _Seen(dict[int, tuple[int, Any]]):
    """What has been described, each with its number: once is enough, and circles come to an end."""

    def again(self, value: Any) -> str | None:
        if id(value) in self:
            return f"again {self[id(value)][0]}"
        self[id(value)] = len(self), value  # kept, as what is gone may leave its identity to another
        return None


def describe(value: Any) -> Any:
    """A setting, an attack or any other value as plain data."""
    return _described(value, _Seen())


def model_digest(model: nn.Module) -> str:
    """sha256 of what a model computes: its modules and how they are set, its code, and every number in it."""
    return _model_digest(model, _Seen())


def _model_digest(model: nn.Module, seen: _Seen) -> str:
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        seen.again(module)
        digest.update(json.dumps([name, _module(module, seen)], sort_keys=True).encode())
    # Not the state_dict, which lacks the numbers that a module does not save, such as those of a normalisation.
    tensors = dict(sorted([*model.named_parameters(), *model.named_buffers()]))
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    # While one block is copied from the device, others are summed on other cores.
    with ThreadPoolExecutor(SUMMING) as pool:
        for part in pool.map(_sum, _blocks(tensors.values())):
            digest.update(part)
    return digest.hexdigest()


def _module(module: nn.Module, seen: _Seen) -> Any:
    """Without its hooks, which as a rule only look on."""
    settings = {name: value for name, value in vars(module).items() if name not in KEPT_BY_TORCH}
    return _described([type(module), settings], seen)


# --- values -------------------------------------------------------------------------------------------


def _described(value: Any, seen: _Seen) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Threat):
        return f"{value.norm}:{_described(value.eps, seen)}"
    if isinstance(value, Tensor):
        return _array(value, value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    if isinstance(value, np.ndarray):
        return _array(value, value)
    if isinstance(value, tuple | list):
        return [_described(part, seen) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((_described(part, seen) for part in value), key=json.dumps)
    if isinstance(value, Mapping):
        return {str(name): _described(part, seen) for name, part in value.items()}
    if isinstance(value, partial):
        return {"": "partial", "of": _described([value.func, value.args, value.keywords], seen)}
    if isinstance(value, MethodType):
        return {"": "method", "of": _described([value.__func__, value.__self__], seen)}
    return _object(value, seen)


def _array(value: Tensor | np.ndarray, content: np.ndarray) -> str:
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content.tobytes()).hexdigest()}"


def _object(value: Any, seen: _Seen) -> Any:
    if isinstance(value, type | FunctionType) and _is_installed(value.__module__):
        return value.__qualname__
    if again := seen.again(value):
        return again
    if isinstance(value, nn.Module):
        return {"": type(value).__qualname__, "sha256": _model_digest(value, seen)}
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        return _class(value, seen)
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or _instance(value, seen)


def _instance(value: Any, seen: _Seen) -> Any:
    kind, installed = type(value), _is_installed(type(value).__module__)
    if dataclasses.is_dataclass(value):
        settings = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    elif installed and not callable(value):
        # The text of a device, of a type of numbers or of a path says what it is, that of others where it is.
        return kind.__qualname__ if hasattr(value, "__dict__") else f"{kind.__qualname__} {value}"
    else:
        settings = getattr(value, "__dict__", {})
    code = {} if installed else {"code": _described(kind, seen)}
    return {"": kind.__qualname__, **_described(settings, seen), **code}


# --- code ---------------------------------------------------------------------------------------------


def _function(function: FunctionType, seen: _Seen) -> Any:
    """Its code, what it closes over, and whatever of its file it names."""
    named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    named = {name: value for name, value in sorted(named.items()) if not isinstance(value, ModuleType)}
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    settings = [cells, function.__defaults__, function.__kwdefaults__, named]
    return {"": function.__qualname__, "code": _code(function.__code__), "with": _described(settings, seen)}


def _class(kind: type, seen: _Seen) -> Any:
    """Its functions and constants, and those it inherits; not what Python adds, such as its place in a file."""
    own = [base for base in kind.__mro__ if not _is_installed(base.__module__)]
    parts = {f"{base.__qualname__}.{name}": _undecorated(value) for base in own for name, value in vars(base).items()}
    kept = {name: value for name, value in sorted(parts.items()) if name.endswith(MADE_BY_HAND) or name[-2:] != "__"}
    plain = {name: value for name, value in kept.items() if isinstance(value, FunctionType | bool | int | float | str)}
    return {"": kind.__qualname__, **_described(plain, seen)}


def _undecorated(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _code(code: CodeType) -> str:
    constants = [_constant(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()


def _constant(part: Any) -> str:
    if isinstance(part, CodeType):
        return _code(part)
    # The order of a set is another one in every process.
    return repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)


def _names(code: CodeType) -> set[str]:
    """Of this function and of those inside it."""
    inside = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*(_names(part) for part in inside))


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


@lru_cache
def _is_installed(module: str | None) -> bool:
    """Whether a module is of this package, comes with Python or was installed."""
    if module is None or module.split(".")[0] == __name__.split(".")[0]:
        return True
    if module == "__main__":
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or file.startswith(LIBRARIES) or "site-packages" in file or "dist-packages" in file


# --- the numbers of a model ---------------------------------------------------------------------------


def _blocks(tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    """The contents of tensors, put together where they are: a copy from a device costs little more when it is long."""
    block: list[Tensor] = []
    for tensor in tensors:
        content = tensor.detach().contiguous().flatten().view(torch.uint8)
        block.append(content.to(block[0].device) if block else content)
        if sum(map(len, block)) >= BLOCK:
            yield _on_the_host(block)
            block = []
    if block:
        yield _on_the_host(block)


def _on_the_host(block: list[Tensor]) -> memoryview:
    """From a GPU into pinned memory, which torch keeps for the next time and which is faster to copy to."""
    content = torch.cat(block)
    return torch.empty_like(content, device="cpu", pin_memory=content.is_cuda).copy_(content).numpy().data


def _sum(block: memoryview) -> bytes:
    return hashlib.sha256(block).digest()
