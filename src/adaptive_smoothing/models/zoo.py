"""Models by name: of the package, of the repository's `zoo/`, of other libraries, and from local files.

A folder of models holds `NAME.safetensors` and `NAME.json` for each model, and `manifest.json` with their sha256 sums.
Only tensors are unpickled. A file whose sha256 differs from the manifest is not loaded.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.cards import MANIFEST, Card, manifest_card, markdown, read_card, read_manifest
from adaptive_smoothing.models.contract import freeze
from adaptive_smoothing.models.third_party import SOURCES
from adaptive_smoothing.models.wrap import num_classes
from adaptive_smoothing.noise import generator
from adaptive_smoothing.results import atomic, write_json

BUILTIN = Path(__file__).parent / "weights"
MIXTURE = "mixture.json"  # in the folder of a mixture: see `mixing.pretrained`
ZOO_VARIABLE = "ADAPTIVE_SMOOTHING_ZOO"
NESTED_KEYS = ("state_dict", "model", "net", "ema")
WRAPPERS = re.compile(r"((module|_orig_mod)\.)*")  # prefixes of the names of weights


def load(name: str | Path, *, device: torch.device | str = "cpu") -> nn.Module:
    """Return a model in eval mode with frozen weights: [0, 1] images -> logits.

    Args:
        name: a model of the package or of the zoo (see `names`), `timm:NAME`, `torchvision:NAME`, `hf:REPO`,
            `robustbench:NAME`, or a path to a `.safetensors`, `.pt` or `.pth` file. Next to the file, a `.json` file of
            the same name holds `{"arch": ..., "options": {...}}`. Options of a library follow a question mark:
            `timm:resnet18?pretrained=0`, `robustbench:NAME?dataset=cifar100&threat=L2`.
    """
    card = find_card(str(name))
    source, _, rest = str(name).partition(":")
    model = (SOURCES[source](rest) if card is None else freeze(_restore(card))).to(device)
    stored = {} if card is None else {"arch": card.arch, "options": card.options}
    if card is not None and card.sha256:
        stored["sha256"] = card.sha256
    model._origin = {"name": str(name), **stored}  # type: ignore[assignment]
    if torch.device(device).type == "cuda":
        # Twice as fast on GPUs, and slower on CPUs.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def origin(model: nn.Module) -> dict[str, Any] | None:
    """Return the name by which `load` found a model and, if it is stored, its sha256, architecture and options."""
    return getattr(model, "_origin", None)


def is_as_stored(model: nn.Module) -> bool:
    """Return whether a model still has the weights that `load` read; True for models of other libraries."""
    found = origin(model)
    card = None if found is None else find_card(found["name"])
    if card is None:
        return found is not None
    stored = _read_weights(card)
    return all(torch.equal(value.cpu(), stored[key].to(value.dtype)) for key, value in model.state_dict().items())


def find_card(name: str) -> Card | None:
    """Return the card of a model that `load` accepts, or None if another library has it."""
    source, colon, _ = name.partition(":")
    if colon and source in SOURCES:
        return None
    if Path(name).suffix in (".safetensors", ".pt", ".pth"):
        return read_card(Path(name))
    # Models of the package come first, so that they load also with a broken zoo above the working folder.
    stored = _cards(BUILTIN)
    if name not in stored:
        stored = names()
    if name not in stored:
        raise ValueError(_unknown_name(name, list(stored)))
    return stored[name]


def names() -> dict[str, Card]:
    """Return the cards of the models of the package and of the zoo, by name; those of the package come first."""
    return dict(sorted((_cards(zoo_folder()) | _cards(BUILTIN)).items()))


def _cards(folder: Path | None) -> dict[str, Card]:
    if folder is None or not (folder / MANIFEST).is_file():
        return {}
    return {name: manifest_card(folder, name, entry) for name, entry in read_manifest(folder).items()}


def is_builtin(path: Path) -> bool:
    """Return whether the weights or the mixture at this path are part of the package."""
    return path.parent == BUILTIN


def zoo_folder() -> Path | None:
    """Return $ADAPTIVE_SMOOTHING_ZOO, the nearest `zoo/` above the working folder, or that of the source checkout."""
    if named := os.environ.get(ZOO_VARIABLE):
        if not (Path(named) / MANIFEST).is_file():
            found = f"{named}: correct it, or unset it"
            raise FileNotFoundError(f"expected a folder with {MANIFEST} in ${ZOO_VARIABLE}, got {found}")
        return Path(named)
    checkout = Path(__file__).resolve().parents[3]
    places = [Path.cwd(), *Path.cwd().parents, checkout]
    return next((place / "zoo" for place in places if (place / "zoo" / MANIFEST).is_file()), None)


def _unknown_name(name: str, known: list[str]) -> str:
    if any((place / name / MIXTURE).is_file() for place in (zoo_folder(), BUILTIN) if place is not None):
        return f"expected the name of a model, got {name!r}, a mixture: ads.MixedClassifier.from_pretrained({name!r})"
    nearest = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(map(repr, nearest))}?" if nearest else f"stored here: {known or 'none'}"
    sources = ", ".join(f"{source}:NAME" for source in SOURCES)
    return f"expected the name of a model, got {name!r}: {hint} Other forms: {sources}, a path to .safetensors"


def _restore(card: Card) -> nn.Module:
    """Return the architecture with its weights, which are converted from half precision to float32."""
    return _rebuild(card.arch, card.options, _read_weights(card), f" in {card.path}")


def _rebuild(arch: str, options: Mapping[str, Any], weights: Mapping[str, Tensor], where: str = "") -> nn.Module:
    model = build(arch, **options)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        # load_state_dict lists every layer.
        first, *others = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        problem = textwrap.shorten(first, 200, placeholder=" ...") + (f" (and {len(others)} more)" if others else "")
        raise ValueError(f"expected weights for {arch} with {dict(options)}, got others{where}: {problem}") from error
    return model


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Return tensors by name from a `.safetensors` file with this sha256."""
    check_weights_file(path, sha256)
    try:
        return safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors, got something else in {path}: {error}") from error


def _read_weights(card: Card) -> dict[str, Tensor]:
    if card.path.suffix == ".safetensors":
        return read_weights(card.path, card.sha256)
    check_weights_file(card.path, card.sha256)
    try:
        checkpoint = torch.load(card.path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise nearly any error
        refused = re.search(r"GLOBAL (\S+)", str(error))
        found = f"one that also holds {refused[1]}" if refused else "something else, or a damaged one"
        hint = "save model.state_dict() as safetensors where you trust the file"
        raise ValueError(f"expected a checkpoint of tensors only in {card.path}, got {found}: {hint}") from error
    return _state_dict(checkpoint, card)


def check_weights_file(path: Path, sha256: str | None = None) -> None:
    """Raise an error for files that are not weights (LFS pointers, web pages) or have another sha256."""
    if not path.is_file():
        raise FileNotFoundError(f"expected weights at {path}, got no file: download it, or correct the path")
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


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_dict(checkpoint: Any, card: Card) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, also if they are nested, without the prefixes of wrappers."""
    nested = [key for key in NESTED_KEYS if isinstance(checkpoint, Mapping) and key in checkpoint]
    nested = [card.key] if card.key else [key for key in nested if isinstance(checkpoint[key], Mapping)]
    if len(nested) > 1:
        hint = f'choose one in {card.path.with_suffix(".json").name} with "key"'
        raise ValueError(f"expected one set of weights in {card.path}, got {nested}: {hint}")
    if nested and nested[0] not in checkpoint:
        raise ValueError(f"expected {nested[0]!r} in {card.path}, got {list(checkpoint)}")
    weights = checkpoint[nested[0]] if nested else checkpoint
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        found = f"keys {list(weights)[:8]}" if isinstance(weights, Mapping) else type(weights).__name__
        raise ValueError(f"expected a state_dict in {card.path}, got {found}")
    return {WRAPPERS.sub("", key, count=1): value for key, value in weights.items()}


def save(model: nn.Module, folder: Path | str, name: str, card: Mapping[str, Any]) -> Path:
    """Write NAME.safetensors in half precision, NAME.json, NAME.md and the manifest; each file is written atomically.

    Before that, the stored weights are loaded into a new model, whose logits are compared with those of `model`.

    Args:
        card: `arch` and `options` for `architectures.build`, unless the model has these attributes, and other facts to
            store, such as accuracy, recipe or licence.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arch, options = (card.get(key, getattr(model, key, default)) for key, default in (("arch", None), ("options", {})))
    if not isinstance(arch, str) or not isinstance(options, Mapping):
        found = f"{arch!r} and {options!r}: pass the arguments of architectures.build"
        raise ValueError(f"expected arch (a name) and options (a table) in the card, got {found}")
    _check_rebuilds(model, arch, options)
    weights = folder / f"{name}.safetensors"
    sha256, size = write_weights(model, weights)
    facts = {key: value for key, value in card.items() if key not in ("arch", "options")}
    stored = {
        "arch": arch,
        "options": dict(options),
        "num_classes": num_classes(model),
        "sha256": sha256,
        "card": facts,
    }
    write_json(folder / f"{name}.json", stored)
    models = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
    models[name] = {"sha256": sha256, "bytes": size}
    count = sum(parameter.numel() for parameter in model.parameters())
    with atomic(folder / f"{name}.md") as partial:
        partial.write_text(markdown(read_card(weights), count, size))
    write_json(folder / MANIFEST, {"models": dict(sorted(models.items()))})
    return weights


def write_weights(model: nn.Module, path: Path) -> tuple[str, int]:
    """Write the weights in half precision, atomically. Returns the sha256 and the size of the file."""
    content = safetensors.torch.save(compact_weights(model), metadata={"format": "pt"})
    with atomic(path) as partial:
        partial.write_bytes(content)
    return hashlib.sha256(content).hexdigest(), len(content)


def compact_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the state_dict with weights in half precision, as it is stored."""
    weights = {key for key, value in model.named_parameters() if value.is_floating_point()}
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    # Buffers are not converted: a running variance may be tiny, and errors there multiply.
    return {key: _half(key, value) if key in weights else value for key, value in tensors.items()}


def _half(key: str, value: Tensor) -> Tensor:
    half = value.half()
    if not half.isfinite().all():
        worst = value.abs().max().item()
        raise ValueError(f"expected weights that half precision can hold, got {worst:.4g} in {key!r} (limit 65504)")
    # Tiny weights lose digits or vanish in half precision: such a tensor is not converted.
    return half if (half.to(value.dtype) - value).norm() <= 1e-3 * value.norm() else value


def _check_rebuilds(model: nn.Module, arch: str, options: Mapping[str, Any]) -> None:
    rebuilt = _rebuild(arch, options, compact_weights(model))
    images = torch.rand(4, 3, 32, 32, generator=generator(0, "zoo"))
    with torch.no_grad():
        expected = freeze(copy.deepcopy(model)).cpu().float()(images)
        found = freeze(rebuilt)(images)
    difference = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
    if not difference < 0.05:
        found = f"a relative difference of {difference:.2g}: an option is missing or wrong (activation, mean, std, ...)"
        raise ValueError(f"expected {arch} with options {dict(options)} to give this model's logits, got {found}")


def model_facts(name: str) -> dict[str, Any]:
    """Return the name of a model and, if it is stored, its architecture, options, sha256 and parameter count."""
    card = find_card(name)
    if card is None:
        return {"name": name}
    sha256 = card.sha256 or file_sha256(card.path)
    return {"name": name, "arch": card.arch, "options": card.options, "sha256": sha256, "parameters": parameters(card)}


def parameters(card: Card) -> int:
    """Return the number of parameters of the architecture, without reading the weights."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in build(card.arch, **card.options).parameters())


def short_name(name: str) -> str:
    """Return a model's name or path in a form that can be part of a folder's name."""
    return Path(name.partition("?")[0].replace(":", "-")).stem
