"""Models of other libraries, by name, as classifiers. A library is imported only if one of its models is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.models.wrap import wrap
from adaptive_smoothing.settings import parse_query


def _load_timm(text: str) -> nn.Module:
    name, options = _parse(text, {"pretrained": "1", "num_classes": ""})
    timm = _import("timm", "timm")
    extra = {"num_classes": int(options["num_classes"])} if options["num_classes"] else {}
    model = timm.create_model(name, pretrained=_flag(options["pretrained"]), **extra)
    config = timm.data.resolve_model_data_config(model)
    shape = config["input_size"]
    return wrap(model, mean=config["mean"], std=config["std"], size=shape[1:], shape=shape)


def _load_torchvision(text: str) -> nn.Module:
    name, options = _parse(text, {"pretrained": "1"})
    models = _import("torchvision.models", "torchvision")
    weights = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=weights if _flag(options["pretrained"]) else None)
    preset = weights.transforms()
    size = preset.crop_size[0]
    return wrap(model, mean=preset.mean, std=preset.std, size=size, shape=(3, size, size))


def _load_hf(text: str) -> nn.Module:
    name, options = _parse(text, {"revision": "main"})
    transformers = _import("transformers", "hf")
    # Only safetensors: a pickled checkpoint from a hub can run code.
    model = transformers.AutoModelForImageClassification.from_pretrained(
        name, revision=options["revision"], use_safetensors=True
    )
    processor = transformers.AutoImageProcessor.from_pretrained(name, revision=options["revision"])
    size = _hf_size(processor)
    normalises = getattr(processor, "do_normalize", True)
    mean, std = (processor.image_mean, processor.image_std) if normalises else (0.0, 1.0)
    return wrap(model, mean=mean, std=std, size=size, shape=(3, *size))


def _hf_size(processor: Any) -> tuple[int, int]:
    """Return the height and width of the network's input: of the crop if there is one, else of the resized image."""
    size = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    if isinstance(size, int):
        return size, size
    size = dict(size)
    edge = size.get("shortest_edge")
    height, width = size.get("height", edge), size.get("width", edge)
    if height is None or width is None:
        hint = "load the model with transformers and pass it to ads.wrap with size="
        raise ValueError(f"expected an image size with height and width or shortest_edge, got {size}: {hint}")
    return int(height), int(width)


def _load_robustbench(text: str) -> nn.Module:
    name, options = _parse(text, {"dataset": "cifar10", "threat": "Linf"})
    robustbench = _import("robustbench.utils", "robustbench")
    folder = str(Path(torch.hub.get_dir()) / "robustbench")
    model = robustbench.load_model(
        model_name=name, dataset=options["dataset"], threat_model=options["threat"], model_dir=folder
    )
    edge = 224 if options["dataset"] == "imagenet" else 32
    return wrap(model, mean=0.0, std=1.0, shape=(3, edge, edge))


# Functions that load the model `LIBRARY:NAME?key=value&key=value`, by library, from the text after the colon.
SOURCES: dict[str, Callable[[str], nn.Module]] = {
    "timm": _load_timm,
    "torchvision": _load_torchvision,
    "hf": _load_hf,
    "robustbench": _load_robustbench,
}


def _parse(text: str, defaults: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the name and the options in `NAME?key=value&key=value`; `defaults` has every key that is allowed."""
    name, given = parse_query(text, defaults)
    return name, {**defaults, **given}


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false"):
        raise ValueError(f"expected 0 or 1, got {text!r}")
    return text.lower() in ("1", "true")


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:
        hint = f"run pip install 'adaptive-smoothing[{extra}]'"
        if isinstance(error, RuntimeError):
            hint = "it was built for another torch; reinstall both"
        raise ImportError(f"expected {module} for this model, got {error}: {hint}") from error
