"""Models by name: of the package, of the repository's `zoo/`, of other libraries, and from local files.

A folder of models holds `NAME.safetensors`, `NAME.json` (the card) and `NAME.md` for each model, and `manifest.json`
with the sha256 of each weights file. A file whose sha256 differs from the manifest is not loaded. Where there is no
`zoo/`, its models and mixtures are fetched into a cache (see `download`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.data.devices import check_device
from adaptive_smoothing.models import download, third_party, zoo_index
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.cards import MANIFEST, Card, manifest_card, markdown, read_card, read_manifest
from adaptive_smoothing.models.contract import freeze
from adaptive_smoothing.models.identity import Identity
from adaptive_smoothing.models.inference import copy_on_cpu
from adaptive_smoothing.models.origin import Origin, loaded_identity, origin, placed
from adaptive_smoothing.models.third_party import SOURCES
from adaptive_smoothing.models.weight_files import compact_weights, file_sha256, load_state, read_weights, write_weights
from adaptive_smoothing.models.wrap import num_classes
from adaptive_smoothing.models.zoo_index import MIXTURE
from adaptive_smoothing.noise import generator
from adaptive_smoothing.results import write_json, write_text
from adaptive_smoothing.settings.checks import similar_paths, suggestion

BUILTIN = Path(__file__).parent / "weights"
ZOO_VARIABLE = "ADAPTIVE_SMOOTHING_ZOO"
WEIGHT_FILES = (".safetensors", ".pt", ".pth")
# Files of `export`.
EXPORTED = (".onnx", ".pt2")


def load(name: str | Path, *, device: torch.device | str = "cpu") -> nn.Module:
    """Return a model in eval mode with frozen weights: [0, 1] images -> logits.

    Args:
        name: a model of the package or of the zoo (see `names`), `timm:NAME`, `torchvision:NAME`, `hf:REPO`,
            `robustbench:NAME`, or a path to a `.safetensors`, `.pt` or `.pth` file. Next to the file, a `.json` file of
            the same name holds `{"arch": ..., "options": {...}}`. Options of a library follow a question mark:
            `timm:resnet18?num_classes=7&checkpoint=PATH`; see `third_party`.
        device: where to put it.

    Examples:
        >>> model = ads.load_model("compact-robust")
        >>> model.training, model.num_classes
        (False, 10)
    """
    check_device(device)
    found: Origin = {"name": str(name)}
    card = find_card(str(name))
    if card is None:
        library, _, rest = str(name).partition(":")
        model: nn.Module = third_party.load(library, rest)
        identity = Identity.of(model) if third_party.fixes_weights(library, rest) else None
        return placed(model, device, found, identity)
    model = freeze(_rebuild(card.arch, card.options, _card_weights(card), card.path))
    found |= {"arch": card.arch, "options": card.options}
    if card.sha256:
        found["sha256"] = card.sha256
    return placed(model, device, found)


def is_as_stored(model: nn.Module, identity: Identity) -> bool:
    """Return whether a model that now has this identity is what its name stands for: it was not trained further.

    A name does not determine random weights, such as those of `timm:resnet18?pretrained=0`.
    """
    found = origin(model)
    if found is None:
        return False
    if "arch" not in found:
        loaded = loaded_identity(model)
        return loaded is not None and not identity.differences(loaded)
    try:
        return not identity.differences(Identity.of(load(found["name"])))
    except (OSError, ValueError):  # the file is gone, or was replaced by a damaged one
        return False


def find_card(name: str) -> Card | None:
    """Return the card of a model that `load` accepts, or None for a model of another library."""
    if third_party.split(name):
        return None
    if Path(name).suffix in WEIGHT_FILES:
        return read_card(Path(name))
    # Models of the package come first, so that they load also with a broken zoo above the working folder.
    stored = _cards(BUILTIN)
    if name not in stored:
        stored = _cards(zoo_folder())
    if name in stored:
        return stored[name]
    if entry := zoo_index.models().get(name):
        return read_card(download.fetch(entry.needed) / f"{name}.safetensors")
    libraries = ", ".join(f"{library}:NAME" for library in SOURCES)
    raise ValueError(unknown_name(f"the name of a model, {libraries} or a path to .safetensors", name))


def names() -> dict[str, Card]:
    """Return the cards of the models on this machine, sorted by name.

    If several places have a model of the same name, the card is that of the package, else that of the zoo.
    """
    cache = download.zoo_cache()
    cached = {name: read_card(cache / f"{name}.safetensors") for name in download.cached(zoo_index.models())}
    return dict(sorted((cached | _cards(zoo_folder()) | _cards(BUILTIN)).items()))


def mixtures() -> dict[str, Path]:
    """Return the folders of the mixtures on this machine, sorted by name, from the same places as `names`."""
    cached = {name: download.zoo_cache() / name for name in download.cached(zoo_index.mixtures())}
    return dict(sorted((cached | _mixtures(zoo_folder()) | _mixtures(BUILTIN)).items()))


def find_mixture(name: str) -> Path | None:
    """Return the folder of a mixture of the package or of the zoo, which is fetched if it is not on this machine."""
    stored = _mixtures(zoo_folder()) | _mixtures(BUILTIN)
    if name not in stored and (entry := zoo_index.mixtures().get(name)):
        here, known = {*_cards(zoo_folder()), *_cards(BUILTIN)}, zoo_index.models()
        later = [file for base in entry.bases if base in known and base not in here for file in known[base].needed]
        return download.fetch(entry.needed, later) / name
    return stored.get(name)


def mixture_names() -> set[str]:
    """Return the names of the mixtures that are on this machine or can be fetched."""
    return {*_mixtures(zoo_folder()), *_mixtures(BUILTIN), *zoo_index.mixtures()}


def unknown_name(expected: str, name: str) -> str:
    """Return the message for a name that is not of the expected kind, with the models and mixtures of similar names."""
    if not name:
        return f"expected {expected}, got an empty name: `adaptive-smoothing models` lists names"
    models, zoo = {*_cards(zoo_folder()), *_cards(BUILTIN), *zoo_index.models()}, zoo_folder()
    if Path(name).suffix in EXPORTED:
        hint = "exported files are not loaded (a .pt2 file can run code); load the model that it was exported from"
        return f"expected {expected}, got {name!r}: {hint}"
    if name in mixture_names() or (Path(name) / MIXTURE).is_file():
        return f"expected {expected}, got {name!r}, a mixture: ads.MixedClassifier.from_pretrained({name!r})"
    if name in models:
        return f"expected {expected}, got {name!r}, a model: ads.load_model({name!r})"
    library, colon, _ = name.partition(":")
    if not colon and (Path(name).exists() or Path(name).name != name):
        return f"expected {expected}, got {name!r}, {_path_problem(Path(name))}"
    hint = suggestion(library, SOURCES if colon else sorted(models | mixture_names()), count=1 if colon else 3)
    place = f"the zoo is {zoo}" if zoo else f"there is no zoo/ here or above, nor in ${ZOO_VARIABLE}"
    source = f"what is not here is fetched from ${download.URL_VARIABLE}, {download.zoo_url() or 'which is not set'}"
    return f"expected {expected}, got {name!r}: {hint} ({place}; {source})"


def _path_problem(path: Path) -> str:
    """Return why a path is not that of a model or a mixture, and what to do."""
    if path.is_dir():
        return f"a folder without {MIXTURE}: name a folder that `mix` or save_pretrained has written"
    if path.exists():
        return f"a file that does not end in {', '.join(WEIGHT_FILES)}: name a file of weights"
    near = "".join(f" (did you mean {name!r}?)" for name in similar_paths(path))
    return f"a path with nothing there: correct it{near}; a mixture of the hub is hf://ORG/NAME"


def _cards(folder: Path | None) -> dict[str, Card]:
    if folder is None or not (folder / MANIFEST).is_file():
        return {}
    return {name: manifest_card(folder, name, entry) for name, entry in read_manifest(folder).items()}


def _mixtures(folder: Path | None) -> dict[str, Path]:
    return {} if folder is None else {path.parent.name: path.parent for path in folder.glob(f"*/{MIXTURE}")}


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


def _card_weights(card: Card) -> dict[str, Tensor]:
    return read_weights(card.path, card.sha256, card.key)


def _rebuild(arch: str, options: Mapping[str, Any], weights: Mapping[str, Tensor], where: Path | str = "") -> nn.Module:
    """Return the architecture with these weights, which are converted from half precision to float32."""
    model = build(arch, **options)
    load_state(model, weights, f"{arch} with {dict(options)}", where)
    return model


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
    identity = {"arch": arch, "options": dict(options), "num_classes": num_classes(model), "sha256": sha256}
    write_json(folder / f"{name}.json", {**identity, "card": facts})
    write_text(folder / f"{name}.md", markdown(read_card(weights), _count_parameters(model), size))
    models = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
    models[name] = {"sha256": sha256, "bytes": size}
    write_json(folder / MANIFEST, {"models": dict(sorted(models.items()))})
    return weights


def _check_rebuilds(model: nn.Module, arch: str, options: Mapping[str, Any]) -> None:
    """Raise an error unless the architecture with the stored weights has the logits of `model`."""
    rebuilt = _rebuild(arch, options, compact_weights(model))
    images = torch.rand(4, 3, 32, 32, generator=generator(0, "zoo"))
    with torch.no_grad():
        expected = freeze(copy_on_cpu(model)).float()(images)
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
        return _count_parameters(build(card.arch, **card.options))


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def short_name(name: str) -> str:
    """Return a model's name or path in a form that can be part of a folder's name."""
    path = Path(name.partition("?")[0].replace(":", "-"))
    return path.stem if path.suffix in WEIGHT_FILES else path.name  # a version has a dot, too: hf://org/name@v1.0
