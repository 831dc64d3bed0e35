"""What a model or an attack is, as plain data: the same in every process, and other data after a change of it.

Numbers, tensors and settings are taken as they are, functions and classes by what their code says, unless they come
from an installed library, whose name is enough.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import json
import math
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.threat import Threat

# Bytes of a model that are summed together, and how many such blocks at a time.
BLOCK, SUMMING = 2**22, 4
# What torch keeps in every module; how it computes is in the rest. Parameters and buffers are summed on their own.
KEPT_BY_TORCH = frozenset(vars(nn.Module())) - {"training"}
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# Their text says all of them; that of other things may say where they are in memory.
SAID_BY_TEXT = (
    *(torch.device, torch.dtype, torch.layout, torch.memory_format, np.generic, np.dtype, PurePath, re.Pattern),
    *(bytes, complex, range, slice),
)


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
    for part in _sums(_blocks(tensors.values())):
        digest.update(part)
    return digest.hexdigest()


def _module(module: nn.Module, seen: _Seen) -> Any:
    """Without its hooks, which as a rule only look on, and what it says it only keeps to be faster."""
    kept = KEPT_BY_TORCH | getattr(type(module), "ONLY_KEPT", frozenset())
    settings = {name: value for name, value in vars(module).items() if name not in kept}
    return _described([type(module), settings], seen)


# --- values -------------------------------------------------------------------------------------------


def _described(value: Any, seen: _Seen) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, SAID_BY_TEXT):
        return f"{type(value).__qualname__} {value!r}"
    if isinstance(value, Threat):
        return f"{value.norm}:{_described(value.eps, seen)}"
    if isinstance(value, Tensor):
        return _array(value, value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    if isinstance(value, np.ndarray):
        return _described(value.tolist(), seen) if value.dtype == object else _array(value, value)
    if isinstance(value, torch.Generator):
        return _described(value.get_state(), seen)
    if isinstance(value, tuple | list | set | frozenset | Mapping):
        items = _items(value, seen)
        return items if type(value) in (tuple, list, dict) else {"": _described(type(value), seen), "items": items}
    if isinstance(value, partial):
        return {"": "partial", "of": _described([value.func, value.args, value.keywords], seen)}
    if isinstance(value, MethodType | BuiltinFunctionType):
        return _method(value, seen)
    return _object(value, seen)


def _array(value: Tensor | np.ndarray, content: np.ndarray) -> str:
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content.tobytes()).hexdigest()}"


def _items(value: Any, seen: _Seen) -> Any:
    if isinstance(value, set | frozenset):
        # In no order that another process would share, so that none may be described by what came before it.
        return sorted((_described(part, _Seen(seen)) for part in value), key=json.dumps)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _described(part, seen) for name, part in value.items()}
    return [_described(part, seen) for part in (value.items() if isinstance(value, Mapping) else value)]


def _method(value: Any, seen: _Seen) -> Any:
    function = value.__func__ if isinstance(value, MethodType) else value.__qualname__
    owner = value.__self__
    return _described(function if owner is None or isinstance(owner, ModuleType) else [function, owner], seen)


def _object(value: Any, seen: _Seen) -> Any:
    if isinstance(value, type | FunctionType) and _is_installed(value.__module__):
        return value.__qualname__
    if again := seen.again(value):
        return again
    if isinstance(value, nn.Module):
        return {"": type(value).__qualname__, "sha256": _model_digest(value, seen)}
    if isinstance(value, FunctionType):
        return _function(value, seen)
    return _class(value, seen) if isinstance(value, type) else _instance(value, seen)


def _instance(value: Any, seen: _Seen) -> Any:
    kind, installed = type(value), _is_installed(type(value).__module__)
    if installed and not callable(value) and not dataclasses.is_dataclass(value):
        return kind.__qualname__
    settings = _described(_settings(value), seen)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    code = {} if installed else {"code": _described(kind, seen)}
    return {"": name if isinstance(name, str) else kind.__qualname__, **settings, **code}


def _settings(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    slots = [getattr(base, "__slots__", ()) for base in type(value).__mro__]
    names = [name for part in slots for name in ([part] if isinstance(part, str) else part)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(value, "__dict__", {})


# --- code ---------------------------------------------------------------------------------------------


def _function(function: FunctionType, seen: _Seen) -> Any:
    """Its code, what it closes over, and whatever of its file it names."""
    named = {name: function.__globals__.get(name) for name in _named(function.__code__)}
    parts = {name: _named_of(value, function.__code__) for name, value in sorted(named.items())}
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    settings = [cells, function.__defaults__, function.__kwdefaults__, parts]
    return {"": function.__qualname__, "code": _code(function.__code__), "with": _described(settings, seen)}


def _named_of(value: Any, code: CodeType) -> Any:
    """Of a module that is not installed, what the code may mean by `module.name`; of others nothing."""
    if not isinstance(value, ModuleType):
        return value
    installed = _is_installed(value.__name__)
    return {} if installed else {name: getattr(value, name) for name in sorted(_names(code)) if hasattr(value, name)}


def _class(kind: type, seen: _Seen) -> Any:
    """Its functions and values, and those it inherits; not what Python adds, such as its place in a file."""
    parts = {
        f"{place} {name}": _undecorated(value)
        for place, base in enumerate(kind.__mro__)
        if not _is_installed(base.__module__)
        for name, value in sorted(vars(base).items())
    }
    kept = {name: value for name, value in parts.items() if isinstance(value, FunctionType) or name[-2:] != "__"}
    return {"": kind.__qualname__, **_described(kept, seen)}


def _undecorated(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget, value.fset
    return value.func if isinstance(value, cached_property) else value


def _code(code: CodeType) -> str:
    constants = [_constant(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()


def _constant(part: Any) -> str:
    if isinstance(part, CodeType):
        return _code(part)
    # The order of a set is another one in every process.
    return repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _with_inner(part)


def _names(code: CodeType) -> set[str]:
    return {name for part in _with_inner(code) for name in part.co_names}


def _named(code: CodeType) -> set[str]:
    """Names of the file, as against those of attributes."""
    steps = (step for part in _with_inner(code) for step in dis.get_instructions(part))
    return {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


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
    if module == "__main__" or module not in sys.modules:
        return False
    file = getattr(sys.modules[module], "__file__", None)
    return file is None or file.startswith(LIBRARIES) or "site-packages" in file or "dist-packages" in file


# --- the numbers of a model ---------------------------------------------------------------------------


def _sums(blocks: Iterable[memoryview]) -> Iterator[bytes]:
    """While one block is copied from the device, others are summed on other cores; a few at a time."""
    with ThreadPoolExecutor(SUMMING) as pool:
        waiting: deque[Future[bytes]] = deque()
        for block in blocks:
            waiting.append(pool.submit(_sum, block))
            if len(waiting) > 2 * SUMMING:
                yield waiting.popleft().result()
        yield from (part.result() for part in waiting)


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
    if content.is_cuda:
        content = torch.empty_like(content, device="cpu", pin_memory=True).copy_(content)
    return content.cpu().numpy().data


def _sum(block: memoryview) -> bytes:
    return hashlib.sha256(block).digest()
