"""The formats of an exported graph: ONNX, and the programs of `torch.export` (.pt2)."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

# Of the facts in a .pt2 file, which is a zip archive.
FACTS = "adaptive_smoothing.json"

# The numbers that are inputs of a graph, by name, and a graph as a function of images and numbers.
Numbers = dict[str, Tensor]
Run = Callable[[Tensor, Numbers], dict[str, Tensor]]


def require(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        hint = "run pip install 'adaptive-smoothing[export]'"
        raise ImportError(f"expected {package} to write and check an ONNX file, got {error}: {hint}") from error


def as_pt2(program: torch.export.ExportedProgram, numbers: Numbers, facts: dict[str, Any]) -> tuple[bytes, Run]:
    """Return the content of a .pt2 file, and its function."""
    file, module = io.BytesIO(), program.module()
    torch.export.save(program, file, extra_files={FACTS: json.dumps(facts, indent=2)})
    return file.getvalue(), lambda images, numbers: module(images, **numbers)


def as_onnx(program: torch.export.ExportedProgram, numbers: Numbers, facts: dict[str, Any]) -> tuple[bytes, Run]:
    """Return the content of an ONNX file, and its function in onnxruntime. Its numbers are inputs with a default."""
    ir, runtime = require("onnx_ir"), require("onnxruntime")
    outputs = ["logits", *["alphas"] * (len(program.graph_signature.user_outputs) > 1)]
    with warnings.catch_warnings():
        # torch warns of its own code.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        written = torch.onnx.export(
            program, (), dynamo=True, input_names=["images", *numbers], output_names=outputs, verbose=False
        )
    assert written is not None  # it is for a trace without dynamo only
    graph = written.model.graph
    for value in graph.inputs:
        if value.name in numbers:
            value.const_value = ir.tensor(numbers[value.name].numpy(), name=value.name)
            graph.initializers[value.name] = value
    for value in (*graph.inputs, *graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape(["batch" if isinstance(size, ir.SymbolicDim) else size for size in value.shape])
    for key, fact in facts.items():
        written.model.metadata_props[key] = fact if isinstance(fact, str) else json.dumps(fact)
    content = written.model_proto.SerializeToString()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # it warns of every input with a default
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor, numbers: Numbers) -> dict[str, Tensor]:
        feeds = {name: value.numpy() for name, value in {"images": images, **numbers}.items()}
        return {name: torch.from_numpy(value) for name, value in zip(outputs, session.run(outputs, feeds), strict=True)}

    return content, run


WRITERS: dict[str, Callable[..., tuple[bytes, Run]]] = {"onnx": as_onnx, "pt2": as_pt2}
