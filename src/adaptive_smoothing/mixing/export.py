"""Export of a classifier as a graph that runs without this library: ONNX, or a program of `torch.export` (.pt2).

The graph maps images [N, C, H, W] in [0, 1], of any batch size N, to `logits` [N, classes]. For a mixture, the number
that moves it between g and h is a second input, `alpha` or `alpha_shift`, and the alpha of each image a second output,
`alphas` [N]. The input `alpha` is that of `with_alpha`: the weight of h is low + (high - low) * alpha for the
`alpha_range` (low, high) of the mixture. The logits of an image outside [0, 1] are NaN. So are all logits if `alpha` is
outside [0, 1].

A graph is compared with the model before it is written. A .pt2 file is an output only: loading one can run code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adaptive_smoothing.mixing.export_formats import WRITERS, Numbers, Run, require
from adaptive_smoothing.models.contract import SLACK, check_eval
from adaptive_smoothing.models.digest import model_digest
from adaptive_smoothing.models.features import dry_run
from adaptive_smoothing.models.inference import copy_on_cpu, full_precision
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import Classifier, Resize
from adaptive_smoothing.noise import generator
from adaptive_smoothing.results import check_new_file, write_bytes
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.version import code_version

# Suffixes of the files, by format.
FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
# The largest difference between graph and model, relative to a logit larger than 1.
TOLERANCE = 1e-4
BATCHES = (1, 3, 8)
# The numbers at which a graph is compared with the model; for a shift, the distances from its default.
ALPHAS, SHIFTS = (0.0, 0.5, 1.0), (-2.0, 2.0)

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Exported:
    """A file that `export` wrote.

    Args:
        facts: what the file says about itself: input shape, classes, default alpha, version and digest of the model;
            for a mixture also its `alpha_range`, the weights of h between which alpha moves it.
        difference: the largest difference from the model, which was at most `TOLERANCE`.
    """

    path: Path
    format: str
    facts: dict[str, Any]
    difference: float


def export(
    model: nn.Module,
    path: Path | str,
    *,
    shape: Shape | None = None,
    format: str | None = None,
    name: str = "",
    overwrite: bool = False,
) -> Exported:
    """Write a classifier or a mixture as a graph, after a comparison with the model on random images.

    Args:
        model: what is written.
        path: where to write; `.onnx` and `.pt2` name the format.
        shape: channels, height and width of the images. Default: the size that the model resizes to, or the shape that
            `wrap` recorded, or (3, 32, 32).
        format: "onnx" or "pt2", for a path with another suffix.
        name: the name of the model, for the facts in the file.
        overwrite: replace an existing file.

    Examples:
        >>> written = ads.export(h, "robust.pt2")  # or "robust.onnx"; a mixture: mixed.export("mixed.onnx")
        >>> written.facts["shape"], written.difference < 1e-4
        ([3, 32, 32], True)
    """
    path = _checked_path(path)
    format = find_format(path, format)
    check_new_file(path, overwrite=overwrite)
    check_eval(model)
    _check_can_export(model, format)
    for package in ("onnxscript", "onnxruntime") if format == "onnx" else ():
        require(package)
    # ONNX has no device. torch.export traces on a GPU for batches of at most 65,535 images only.
    model = copy_on_cpu(model) if _device(model).type != "cpu" else model
    shape, numbers = input_shape(model) if shape is None else _checked_shape(shape), _numbers(model)
    facts = _facts(model, shape, numbers, name)
    graph = Graph(model)
    with torch.no_grad():
        program = _trace(graph, _images(model, shape, 2), numbers)
        content, run = WRITERS[format](program, numbers, facts)
        with full_precision():  # torch cannot trace in it
            difference = _compare(graph, run, model, shape, numbers)
    write_bytes(path, content)
    return Exported(path, format, facts, difference)


class Graph(nn.Module):
    """A model as a function of images and of the numbers that stay inputs, with NaN for images outside [0, 1]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.outputs = _Outputs(model)

    # torch.export names the inputs after these arguments. It cannot trace `**numbers`.
    def forward(
        self, images: Tensor, alpha: Tensor | None = None, alpha_shift: Tensor | None = None
    ) -> dict[str, Tensor]:
        given = {"model.alpha": alpha, "model.alpha_shift": alpha_shift}
        numbers = {name: number for name, number in given.items() if number is not None}
        found = functional_call(self.outputs, numbers, (images,))
        inside = ((images >= -SLACK) & (images <= 1 + SLACK)).flatten(1).all(1, keepdim=True)
        return found | {"logits": found["logits"].masked_fill(~inside, torch.nan)}


class _Outputs(nn.Module):
    """The outputs of a model by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        model: Any = self.model
        if not hasattr(model, "moved_by"):  # not a MixedClassifier, which imports this module
            return {"logits": model(images)}
        mixed = model.mix(images)
        return {"logits": mixed.logits, "alphas": mixed.alpha}


def find_format(path: Path, format: str | None, suffixes: Mapping[str, str] = FORMATS) -> str:
    """Return the format of a file: the given one, or that of its suffix. A suffix of another format is an error."""
    named = next((known for known, suffix in suffixes.items() if path.suffix.lower() == suffix), None)
    if (found := format or named) is None:
        expected = f"a file that ends in {' or '.join(suffixes.values())}"
        raise ValueError(f"expected {expected}, got {str(path)!r}: rename it, or name the format")
    check_choice("the format", found, suffixes)
    if named not in (None, found):
        hint = "rename it, or leave the format out"
        raise ValueError(f"expected a file that ends in {suffixes[found]} for {found}, got {str(path)!r}: {hint}")
    return found


def _checked_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected the path of a file to write, such as 'model.onnx', got {path!r}: pass a text")
    return Path(path)


def _checked_shape(shape: object) -> Shape:
    sizes = shape if isinstance(shape, tuple | list) else ()
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        expected = "shape as (channels, height, width), three whole numbers above 0"
        raise ValueError(f"expected {expected}, got {shape!r}: for example shape=(3, 32, 32), or --shape 3x32x32")
    channels, height, width = sizes
    return channels, height, width


def _check_can_export(model: nn.Module, format: str) -> None:
    if any(isinstance(module, SmoothedClassifier) for module in model.modules()):
        expected = "expected a model that runs each of its networks once per image"
        hint = "export its base, and average over the noise where the graph is run"
        raise ValueError(f"{expected}, got a SmoothedClassifier, which runs its base once per draw of noise: {hint}")
    others = {weight.dtype for weight in model.parameters() if weight.is_floating_point()} - {torch.float32}
    if format == "onnx" and others:  # onnxruntime has few operators for them
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in others))
        raise ValueError(f"expected a model in float32 for ONNX, got {found}: call model.float(), or write a .pt2 file")


def input_shape(model: nn.Module) -> Shape:
    """Return the shape of images without resizing: the one that `wrap` recorded, by default (3, 32, 32)."""
    bases = [getattr(model, role) for role in ("standard", "robust") if hasattr(model, role)] or [model]
    found = {_base_shape(base) for base in bases}
    shapes = {shape for shape in found if shape is not None} or {(3, 32, 32)}
    resizes = any(isinstance(module, Resize) for base in bases for module in base.modules())
    if len(shapes) > 1 or (resizes and None in found):
        shown = " and ".join(sorted(" x ".join(map(str, shape)) if shape else "none" for shape in found))
        hint = "pass shape=(channels, height, width), or --shape 3x224x224"
        raise ValueError(f"expected base classifiers for images of the same size, got {shown}: {hint}")
    return next(iter(shapes))


def _base_shape(base: nn.Module) -> Shape | None:
    """Return the shape of images that a base classifier does not resize, or None if it declares none."""
    declared = next((module.shape for module in base.modules() if isinstance(module, Classifier)), None)
    size = next((module.size for module in base.modules() if isinstance(module, Resize)), None)
    shape = declared if size is None else (declared[0] if declared else 3, *size)
    return None if shape is None else _checked_shape(shape)


def _numbers(model: nn.Module) -> Numbers:
    """Return the numbers that become inputs, with their defaults."""
    name = getattr(model, "moved_by", None)
    if name is None:
        return {}
    number = getattr(model, name).detach()
    if number.dim():
        hint = "that belongs to a batch; export model.with_alpha(one number)"
        raise ValueError(f"expected one alpha for all images, got {number.numel()}: {hint}")
    return {name: number}


def _facts(model: nn.Module, shape: Shape, numbers: Numbers, name: str) -> dict[str, Any]:
    """Return the facts that the file says about itself. The digest is that of `result.json` of an evaluation."""
    facts = {
        "producer": f"adaptive-smoothing {code_version()}",
        "name": name,
        "digest": model_digest(model),
        "classes": dry_run(model, model, shape).shape[1],
        "shape": list(shape),
        "defaults": {name: _rounded(number) for name, number in numbers.items()},
    }
    if hasattr(model, "moved_by"):  # a MixedClassifier
        facts["alpha_range"] = [_rounded(end) for end in model.get_buffer("alpha_range")]
    return facts


def _rounded(number: Tensor) -> float:
    return float(f"{number:.7g}")  # 0.8, not 0.800000011


def _trace(graph: Graph, images: Tensor, numbers: Numbers) -> torch.export.ExportedProgram:
    shapes = {"images": {0: torch.export.Dim("batch")}, **dict.fromkeys(numbers)}
    try:
        return torch.export.export(graph, (images,), numbers, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # a forward can do anything that torch.export cannot follow
        why = next(iter(str(error).strip().splitlines()), "")
        hint = "remove what depends on the values of images or on the size of the batch"
        raise ValueError(
            f"expected a model that torch.export can trace, got {type(error).__name__}: {why}; {hint}"
        ) from error


def _compare(graph: Graph, run: Run, model: nn.Module, shape: Shape, numbers: Numbers) -> float:
    """Return the largest difference between a graph and its model, or raise an error if it is too large."""
    largest = 0.0
    for size in BATCHES:
        images = _images(model, shape, size)
        for chosen in _settings(numbers):
            expected, found = graph(images, **chosen), run(images, chosen)
            difference = max(_difference(found[key], expected[key]) for key in expected)
            if not difference <= TOLERANCE:
                at = ", ".join([f"a batch of {size}", *(f"{name} {value:g}" for name, value in chosen.items())])
                hint = "nothing was written; export in float32, or report the model's architecture"
                raise ValueError(
                    f"expected a graph that differs from the model by at most {TOLERANCE:g}, "
                    f"got {difference:.2g} for {at}: {hint}"
                )
            largest = max(largest, difference)
    return largest


def _settings(numbers: Numbers) -> Iterator[Numbers]:
    """Yield the numbers at which a graph is compared: the defaults first."""
    yield numbers
    for name, default in numbers.items():
        others = [default.new_tensor(alpha) for alpha in ALPHAS] if name == "alpha" else [default + s for s in SHIFTS]
        yield from ({name: other} for other in others)


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return ((found - expected).abs() / expected.abs().clamp_min(1)).max().item()


def _images(model: nn.Module, shape: Shape, count: int) -> Tensor:
    images = torch.rand(count, *shape, generator=generator(0, "export", count, *shape))
    weight = next((weight for weight in model.parameters() if weight.is_floating_point()), images)
    return images.to(weight.device, weight.dtype)


def _device(model: nn.Module) -> torch.device:
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))
