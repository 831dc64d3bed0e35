"""Models of other libraries, by name, as classifiers. A library is imported only if one of its models is loaded.

A name is `LIBRARY:NAME?option=value&option=value`, with these options:

- all libraries: `mean`, `std`, `size`, in place of the preprocessing of the library: `mean=0.5,0.5,0.5&size=64`.
- timm, torchvision: `num_classes`; `pretrained=0` for random weights; `checkpoint`, a file of weights of your own
  (`.safetensors`, `.pt`, `.pth`), and `key`, the entry of the file that holds them if several do.
- hf: `revision`. robustbench: `dataset`, `threat`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from adaptive_smoothing.models.weight_files import load_state, read_weights
from adaptive_smoothing.models.wrap import Channels, Classifier, Preprocessing, wrap
from adaptive_smoothing.settings.checks import parse_flag, parse_query, parse_size, suggestion
from adaptive_smoothing.threat import parse_number

PREPROCESSING = ("mean", "std", "size")
_OWN_WEIGHTS_HINT = "add ?checkpoint=PATH for weights of your own, or ?pretrained=0 for random ones"


@dataclass(frozen=True)
class Library:
    """How to get models of a library.

    Args:
        network: returns a network and its preprocessing from its name and options. With `pretrained` false, the weights
            are random and none are downloaded; transformers still needs the configuration of the network.
        options: the options of a name, with their defaults.
    """

    network: Callable[[str, Mapping[str, str], bool], tuple[nn.Module, Preprocessing]]
    options: Mapping[str, str]

    def parse(self, text: str) -> tuple[str, dict[str, str]]:
        """Return the name and all options of `NAME?option=value&option=value`."""
        return _parse(text, {**self.options, **dict.fromkeys(PREPROCESSING, "")})


def load(library: str, text: str) -> Classifier:
    """Return the classifier `LIBRARY:TEXT`, with pretrained weights unless its options say something else."""
    name, options = SOURCES[library].parse(text)
    checkpoint = options.get("checkpoint")
    model, settings = SOURCES[library].network(name, options, _is_pretrained(options))
    if checkpoint:
        path = Path(checkpoint).expanduser()
        weights = read_weights(path, key=options["key"] or None)
        load_state(model, weights, f"{library}:{name}", path)
    settings |= parse_preprocessing({key: options[key] for key in PREPROCESSING if options[key]})
    size = settings.get("size", 224 if options.get("dataset") == "imagenet" else 32)
    return wrap(model, **settings, shape=(3, size, size) if isinstance(size, int) else (3, *size))


def untrained(library: str, text: str, config: Mapping[str, Any] | None = None) -> nn.Module:
    """Return the network of a name with random weights and without preprocessing. No weights are downloaded.

    Args:
        config: the configuration of a network of transformers; with it, nothing is downloaded.
    """
    if config is not None:
        # A configuration may name code of a repository, which is not run because a file names it.
        plain = {key: value for key, value in config.items() if key != "auto_map"}
        return _hf_network(_import("transformers", "hf").AutoConfig.for_model(**plain))
    name, options = SOURCES[library].parse(text)
    return SOURCES[library].network(name, options, False)[0]


def fixes_weights(library: str, text: str) -> bool:
    """Return whether the name alone determines the weights. A new head or a network without pretraining is random."""
    _, options = SOURCES[library].parse(text)
    return bool(options.get("checkpoint")) or (_is_pretrained(options) and not options.get("num_classes"))


def without_weights(name: str) -> str:
    """Return a name without the file of its weights: a model that is stored in full does not need your path."""
    network, _, query = name.partition("?")
    kept = [option for option in query.split("&") if option.partition("=")[0] not in ("checkpoint", "key", "")]
    return f"{network}?{'&'.join(kept)}" if kept else network


def parse_preprocessing(given: Mapping[str, str]) -> Preprocessing:
    """Return the options of `wrap` that a user wrote as text: mean and std `0.5` or `0.5,0.4,0.5`, size `64`."""
    found: Preprocessing = {}
    if "mean" in given:
        found["mean"] = _numbers("mean", given["mean"])
    if "std" in given:
        found["std"] = _numbers("std", given["std"])
    if "size" in given:
        found["size"] = parse_size("size", given["size"])
    return found


def _numbers(name: str, text: str) -> Channels:
    try:
        return [parse_number(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"expected {name} as 0.5, or as 0.485,0.456,0.406 for three channels, got {text!r}") from error


def _timm(name: str, options: Mapping[str, str], pretrained: bool) -> tuple[nn.Module, Preprocessing]:
    timm = _import("timm", "timm")
    try:
        model = timm.create_model(name, pretrained=pretrained, **_classes(options))
    except OSError as error:
        raise _not_downloaded("timm", name, error, _OWN_WEIGHTS_HINT) from error
    except RuntimeError as error:
        if "Unknown model" not in str(error):
            raise
        raise ValueError(f"unknown model {name!r} of timm: {suggestion(name, timm.list_models(), count=3)}") from error
    config = timm.data.resolve_model_data_config(model)
    return model, {"mean": config["mean"], "std": config["std"], "size": config["input_size"][1:]}


def _torchvision(name: str, options: Mapping[str, str], pretrained: bool) -> tuple[nn.Module, Preprocessing]:
    models = _import("torchvision.models", "torchvision")
    _check_torchvision_classifier(name, models)
    if pretrained and options["num_classes"]:
        hint = "add checkpoint=PATH with weights of your own, or pretrained=0"
        if options["checkpoint"]:
            hint = "leave pretrained=1 out, because the weights are those of checkpoint"
        raise ValueError(f"expected torchvision:{name} without num_classes, because it is pretrained: {hint}")
    weights = models.get_model_weights(name).DEFAULT
    try:
        model = models.get_model(name, weights=weights if pretrained else None, **_classes(options))
    except OSError as error:
        raise _not_downloaded("torchvision", name, error, _OWN_WEIGHTS_HINT) from error
    preset = weights.transforms()
    return model, {"mean": preset.mean, "std": preset.std, "size": preset.crop_size[0]}


def _check_torchvision_classifier(name: str, models: Any) -> None:
    """Raise an error for an unknown name, and for a network that does not classify images."""
    classifiers = models.list_models(module=models) + models.list_models(module=models.quantization)
    if name in classifiers:
        return
    if name in models.list_models():
        hint = "it has another task, such as segmentation, detection or video; choose a classifier, such as resnet18"
        raise ValueError(f"expected a classifier of images from torchvision, got {name!r}: {hint}")
    raise ValueError(f"unknown model {name!r} of torchvision: {suggestion(name, classifiers, count=3)}")


def _hf(name: str, options: Mapping[str, str], pretrained: bool) -> tuple[nn.Module, Preprocessing]:
    transformers, revision = _import("transformers", "hf"), options["revision"]
    # Only safetensors: a pickled checkpoint from a hub can run code. By default transformers asks whether to run code
    # of the repository; the answer is no.
    given = {"revision": revision, "trust_remote_code": False}
    if pretrained:
        model = transformers.AutoModelForImageClassification.from_pretrained(name, use_safetensors=True, **given)
    else:
        model = _hf_network(transformers.AutoConfig.from_pretrained(name, **given))
    processor = transformers.AutoImageProcessor.from_pretrained(name, **given)
    normalises = getattr(processor, "do_normalize", True)
    mean, std = (processor.image_mean, processor.image_std) if normalises else (0.0, 1.0)
    return model, {"mean": mean, "std": std, "size": _hf_size(processor)}


def _hf_network(config: Any) -> nn.Module:
    """Return the network of a configuration of transformers, with random weights."""
    transformers = _import("transformers", "hf")
    return transformers.AutoModelForImageClassification.from_config(config, trust_remote_code=False)


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


def _robustbench(name: str, options: Mapping[str, str], pretrained: bool) -> tuple[nn.Module, Preprocessing]:
    if not pretrained:
        hint = "pass builders= a function that returns the network"
        raise ValueError(f"expected a library that builds networks without weights, got robustbench for {name}: {hint}")
    robustbench = _import("robustbench.utils", "robustbench")
    folder = str(Path(torch.hub.get_dir()) / "robustbench")
    try:
        model = robustbench.load_model(
            model_name=name, dataset=options["dataset"], threat_model=options["threat"], model_dir=folder
        )
    except (OSError, RuntimeError, KeyError) as error:
        raise _not_downloaded("robustbench", name, error, f"put the file into {folder}") from error
    return model, {"mean": 0.0, "std": 1.0}


def _not_downloaded(library: str, name: str, error: Exception, hint: str) -> OSError:
    """Return the error of a failed download."""
    found = f"{type(error).__name__}: {error}"
    hint = f"they could not be downloaded; check the name, the options and the connection, or {hint}"
    return OSError(f"expected the weights of {library}:{name}, got {found}: {hint}")


_OWN_WEIGHTS = {"pretrained": "", "num_classes": "", "checkpoint": "", "key": ""}
SOURCES: dict[str, Library] = {
    "timm": Library(_timm, _OWN_WEIGHTS),
    "torchvision": Library(_torchvision, _OWN_WEIGHTS),
    "hf": Library(_hf, {"revision": "main"}),
    "robustbench": Library(_robustbench, {"dataset": "cifar10", "threat": "Linf"}),
}


def split(name: str) -> tuple[str, str] | None:
    """Return the library and the rest of `LIBRARY:NAME?options`, or None for a name of another form."""
    library, colon, text = name.partition(":")
    is_address = text.startswith("//")  # hf://org/name is a mixture of the hub
    return (library, text) if colon and library in SOURCES and not is_address else None


def _is_pretrained(options: Mapping[str, str]) -> bool:
    """Return whether the library's weights are wanted: by default, unless there is a checkpoint."""
    given = options.get("pretrained")
    return parse_flag("pretrained", given) if given else not options.get("checkpoint")


def _classes(options: Mapping[str, str]) -> dict[str, int]:
    text = options["num_classes"]
    if text and not (text.isdecimal() and int(text) > 1):
        raise ValueError(f"expected num_classes as a whole number above 1, got {text!r}")
    return {"num_classes": int(text)} if text else {}


def _parse(text: str, defaults: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the name and the options in `NAME?key=value&key=value`; `defaults` has every key that is allowed."""
    name, given = parse_query(text, defaults)
    return name, {**defaults, **given}


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:
        hint = f"run pip install 'adaptive-smoothing[{extra}]'"
        if isinstance(error, RuntimeError):
            hint = "a compiled package was built for another torch; install torch and torchvision together again"
        raise ImportError(f"expected {module} for this model, got {error}: {hint}") from error
