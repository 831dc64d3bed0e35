"""Files of weights: tensors by name, read from safetensors or from a checkpoint, and written as safetensors.

A file whose sha256 differs from the expected one is not read. A checkpoint (`.pt`, `.pth`) is a pickle, of which only
tensors are read, because other pickled objects can run code.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from adaptive_smoothing.results import write_bytes

# The entries of a checkpoint that may hold the weights.
NESTED_KEYS = ("state_dict", "model", "net", "ema")
# The prefixes that DataParallel and torch.compile put before the names of weights.
WRAPPERS = re.compile(r"((module|_orig_mod)\.)*")


def read_weights(path: Path, sha256: str | None = None, key: str | None = None) -> dict[str, Tensor]:
    """Return tensors by name from a `.safetensors`, `.pt` or `.pth` file.

    Args:
        sha256: the expected checksum of the file.
        key: the entry of a checkpoint that holds the weights, if several do.
    """
    _check_file(path, sha256)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_checkpoint(path, key)


def load_state(model: nn.Module, weights: Mapping[str, Tensor], expected: str, where: Path | str = "") -> None:
    """Load a state_dict into a model, or raise a short error: `load_state_dict` lists every layer.

    If every name starts with the same prefix, such as `model.`, and no name fits without removing it, it is removed.

    Args:
        expected: the model that the weights are for, and `where` the file they are in, for an error.
    """
    prefixes = {name.partition(".")[0] for name in weights}
    if len(prefixes) == 1 and not weights.keys() & model.state_dict().keys():
        weights = {name.partition(".")[2]: value for name, value in weights.items()}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first, *others = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        problem = textwrap.shorten(first, 200, placeholder=" ...") + (f" (and {len(others)} more)" if others else "")
        found = f"others in {where}" if where else "others"
        raise ValueError(f"expected weights for {expected}, got {found}: {problem}") from error


def write_weights(model: nn.Module, path: Path) -> tuple[str, int]:
    """Write the weights in half precision, atomically. Returns the sha256 and the size of the file."""
    return write_tensors(compact_weights(model), path)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> tuple[str, int]:
    """Write tensors with their dtype, atomically. Returns the sha256 and the size of the file."""
    # Safetensors refuses tensors that share memory.
    separate = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    content = safetensors.torch.save(separate, metadata={"format": "pt"})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest(), len(content)


def compact_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the state_dict as it is stored: parameters in half precision, buffers unchanged."""
    weights = {key for key, value in model.named_parameters() if value.is_floating_point()}
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    # Buffers are not converted: a running variance may be tiny, and errors there multiply.
    return {key: _half(key, value) if key in weights else value for key, value in tensors.items()}


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file of weights."""
    _check_exists(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_exists(path: Path) -> None:
    card, hint = path.with_suffix(".json"), "download it, or correct the path"
    if card.is_file():
        hint = f"{card.name} describes it, but the file itself was not copied; put it next to {card.name}"
    if not path.is_file():
        raise FileNotFoundError(f"expected weights at {path}, got no file: {hint}")


def _check_file(path: Path, sha256: str | None) -> None:
    """Raise an error for a file that does not hold weights (LFS pointer, web page) or has another sha256."""
    _check_exists(path)
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if not start:
        raise ValueError(f"expected weights in {path}, got an empty file: the download was interrupted; repeat it")
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"expected weights in {path}, got a Git LFS pointer: run `git lfs pull`")
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        found = "a web page: the download needs a login or exceeded a quota; download it by hand"
        raise ValueError(f"expected weights in {path}, got {found}")
    if sha256 and (found := file_sha256(path)) != sha256:
        raise ValueError(f"expected sha256 {sha256} for {path}, got {found}: damaged or replaced; fetch it again")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors, got something else in {path}: {error}") from error


def _read_checkpoint(path: Path, key: str | None) -> dict[str, Tensor]:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise nearly any error
        refused = re.search(r"GLOBAL (\S+)", str(error))
        found = f"one that also holds {refused[1]}" if refused else "something else, or a damaged one"
        hint = "save model.state_dict() as safetensors where you trust the file"
        raise ValueError(f"expected a checkpoint of tensors only in {path}, got {found}: {hint}") from error
    weights = _nested_weights(checkpoint, key, path)
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        found = f"keys {list(weights)[:8]}" if isinstance(weights, Mapping) else type(weights).__name__
        raise ValueError(f"expected a state_dict in {path}, got {found}")
    return {WRAPPERS.sub("", name, count=1): value for name, value in weights.items()}


def _nested_weights(checkpoint: Any, key: str | None, path: Path) -> Any:
    """Return the entry `key` of a checkpoint, by default the only one that holds weights, or the checkpoint itself."""
    if not isinstance(checkpoint, Mapping):
        return checkpoint
    if key is not None:
        if key not in checkpoint:
            raise ValueError(f"expected {key!r} in {path}, got {list(checkpoint)}")
        return checkpoint[key]
    nested = [name for name in NESTED_KEYS if isinstance(checkpoint.get(name), Mapping)]
    if len(nested) > 1:
        hint = f'choose one with "key" in {path.with_suffix(".json").name}, or with &key= after checkpoint='
        raise ValueError(f"expected one set of weights in {path}, got {nested}: {hint}")
    return checkpoint[nested[0]] if nested else checkpoint


def _half(key: str, value: Tensor) -> Tensor:
    half = value.half()
    if not half.isfinite().all():
        worst = value.abs().max().item()
        raise ValueError(f"expected weights that half precision can hold, got {worst:.4g} in {key!r} (limit 65504)")
    # Tiny weights lose digits or vanish in half precision: such a tensor is not converted.
    return half if (half.to(value.dtype) - value).norm() <= 1e-3 * value.norm() else value
