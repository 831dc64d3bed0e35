"""Mixed classifiers as folders: save one, find it by path or name, and load it.

A folder holds `mixture.json`, `mixture.md` (a card for people), `mixer.safetensors` if alpha is a mixer, and the
weights of the base classifiers if it was saved with `hold`. The JSON object has these keys:

- `format`: 1.
- `standard`, `robust`: the base classifiers. Each is described in one of these ways:
    - `{"name": ..., "sha256": ...}`: a model that `zoo.load` finds by name; with the sha256 of a stored file.
    - `{"name": ..., "build": ...}`: a model that a function of the user returns for a name (`--loader`).
    - `{"held": FILE, "sha256": ..., "build": ...}`: all parameters and buffers are in this folder, in full precision.
      `build` says how to build the network; see `models.construction`. Nothing is imported because a file names it.
    - `{"type": ...}`: a module without a name, or one that was changed after loading. The user passes it again.
    - `{"transform": ..., "options": ..., "of": ...}`: a `LogitTransform` of one of these.
- `alpha`: a number, or `{"kind": ..., "options": ..., "sha256": ...}` for a mixer.
- `numbers`: the other arguments of `MixedClassifier`.
- `card`: other facts, such as the recipe and the figures.

Each base classifier also has an `identity`: a sha256 of its weights and of other tensors, its preprocessing, and its
logits for fixed images (`models.identity`). Loading compares all of it, and an error names the difference.

Files of older versions have no identity, and still load. A model with a name and a sha256 is compared by the sha256 of
its file. A model of another library is not compared, and a warning says so. `{"weights": ...}` is a digest of a module
that the user passes again. `{"held": FILE}` without `build` is a model with a card, compared by the sha256 in the card.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing.data.devices import check_device
from adaptive_smoothing.mixing import mixture_card, mixture_format
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.mixers import MIXERS, OLD_KINDS, find_mixer, is_storable
from adaptive_smoothing.mixing.mixture_format import FORMAT, NUMBERS, ROLES
from adaptive_smoothing.mixing.stored_base import BaseLoader, Given, describe_base
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.cards import base_description
from adaptive_smoothing.models.construction import Builder, allowed_names
from adaptive_smoothing.models.contract import freeze
from adaptive_smoothing.models.weight_files import load_state, read_weights, write_tensors, write_weights
from adaptive_smoothing.results import check_writable, read_json, room_for, write_json, write_text
from adaptive_smoothing.settings.checks import check_choice, warn_user
from adaptive_smoothing.settings.user_code import import_function

FILE, WEIGHTS = zoo.MIXTURE, "mixer.safetensors"


def save(
    arguments: Mapping[str, Any],
    folder: Path | str,
    *,
    card: Mapping[str, Any],
    hold: bool,
    builders: Mapping[str, Builder],
) -> Path:
    """Write the mixture with these arguments of `MixedClassifier`; with `hold`, also its base classifiers.

    Args:
        builders: by role, how to build the network of a base classifier that is held.
    """
    _check_builders(builders, hold)
    folder = _output_folder(Path(folder))
    with room_for(folder, "free some space, or choose another path"):
        _write(arguments, folder, card=card, hold=hold, builders=builders)
    return folder


def _write(
    arguments: Mapping[str, Any], folder: Path, *, card: Mapping[str, Any], hold: bool, builders: Mapping[str, Builder]
) -> None:
    description: dict[str, Any] = {"format": FORMAT}
    # If an error occurs, the folder keeps the mixture that it had.
    with TemporaryDirectory(dir=folder, prefix=".save-") as temporary:
        partial = Path(temporary)
        for role in ROLES:
            description[role] = describe_base(role, arguments[role], partial, hold, builders.get(role))
        exact = hold or any("held" in base_description(description[role]) for role in ROLES)
        description["alpha"] = _describe_alpha(arguments["alpha"], partial, exact)
        description["numbers"] = {name: arguments[name].tolist() for name in NUMBERS}
        description["card"] = dict(card)
        text = mixture_card.markdown(folder.resolve().name, description, partial / WEIGHTS)
        write_json(partial / FILE, description)
        write_text((partial / FILE).with_suffix(".md"), text)
        _warn_if_less_is_held(folder, description)
        for file in sorted(partial.iterdir(), key=lambda file: file.name == FILE):  # the description last
            file.replace(folder / file.name)


def _warn_if_less_is_held(folder: Path, description: Mapping[str, Any]) -> None:
    """Warn if the folder has the weights of a base classifier, and the new description has its identity only."""
    try:
        old = read(folder)
    except (OSError, ValueError):  # none, or a damaged one
        return
    for role in ROLES:
        before, after = (base_description(each[role]) for each in (old, description))
        if "held" in before and not after.keys() & {"held", "name"}:
            found = f"{folder} had the weights of the {role} classifier, and now has its identity only"
            warn_user(f"{found}: save with hold=True, or to another folder")


def _output_folder(folder: Path) -> Path:
    """Return a folder that exists, or raise an error if it is not a folder or cannot be written to."""
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise ValueError(f"expected a folder for the mixture, got {folder}, a file: choose another path")
    check_writable(folder, "choose another path")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _check_builders(builders: Mapping[str, Builder], hold: bool) -> None:
    if not isinstance(builders, Mapping):
        raise TypeError(
            f'expected builders as {{"standard": make_g}}, got {type(builders).__name__}: pass a dictionary'
        )
    for role in builders:
        check_choice("a key of builders", role, ROLES)
    if builders and not hold:
        raise ValueError("expected hold=True with builders=, got hold=False: a builder is for weights that are held")


def load(
    folder: Path | str,
    given: Mapping[str, Given | str | None],
    device: torch.device | str,
    allow: Collection[str] | str = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `MixedClassifier` and the card that `save` wrote.

    Args:
        given: base classifiers that the user passes, or functions that build their networks, by role; the others are
            found by name or in the folder.
        allow: names `module:function` that may be imported if the folder names them.
    """
    check_device(device)
    names = allowed_names(allow)
    folder = find(folder)
    description = read(folder)
    loader = BaseLoader(folder, device, names)
    g, h = (loader.load(role, description[role], _function_or_module(role, given[role])) for role in ROLES)
    alpha = _restore_alpha(description["alpha"], h, folder)
    return {"standard": g, "robust": h, "alpha": alpha, **_tuples(description["numbers"])}, description["card"]


def _function_or_module(role: str, given: Given | str | None) -> Given | None:
    """Return what the user passes for a base classifier. A function is imported by the name that the user gives."""
    if isinstance(given, str):
        return import_function(given, f"{role}=")
    if given is not None and not callable(given):
        expected = f"{role}= as a module, as a function that builds its network, or as module:function"
        raise TypeError(f"expected {expected}, got {type(given).__name__}: pass one of these")
    return given


def find(name: Path | str) -> Path:
    """Return the folder of a mixture, given as a path or as the name of one in the package or in the zoo."""
    if (Path(name) / FILE).is_file():
        return Path(name)
    if found := zoo.find_mixture(str(name)):
        return found
    raise FileNotFoundError(zoo.unknown_name(f"a folder with {FILE}, or the name of a mixture", str(name)))


def exists(name: Path | str) -> bool:
    """Return whether `find` finds a mixture."""
    return (Path(name) / FILE).is_file() or str(name) in zoo.mixture_names()


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `mixture.json`, with the present name of its kind of mixer."""
    description = read_json(folder / FILE)
    mixture_format.check(description, folder / FILE)
    if isinstance(alpha := description["alpha"], dict):
        alpha["kind"] = OLD_KINDS.get(alpha["kind"], alpha["kind"])
    return description


def _describe_alpha(alpha: Tensor | nn.Module, folder: Path, exact: bool) -> float | dict[str, Any]:
    """Return the description of alpha. The weights of a mixer are written to the folder, in half precision or exact."""
    if isinstance(alpha, Tensor):
        if alpha.dim():
            raise ValueError("expected one alpha for all images, got one per image: that belongs to a batch")
        return alpha.item()
    if not is_storable(alpha):
        expected = f"a number or one of {', '.join(mixer.__name__ for mixer in MIXERS.values())}"
        hint = "save its weights yourself, and mix again"
        raise ValueError(f"expected {expected} as alpha, got a {type(alpha).__name__}: {hint}")
    sha256, _ = write_tensors(alpha.state_dict(), folder / WEIGHTS) if exact else write_weights(alpha, folder / WEIGHTS)
    return {"kind": alpha.kind, "options": alpha.options, "sha256": sha256}


def _restore_alpha(description: float | dict[str, Any], robust: nn.Module, folder: Path) -> float | Mixer:
    if not isinstance(description, dict):
        return float(description)
    kind = find_mixer(description["kind"])
    try:
        mixer = kind.restore(robust, _tuples(description["options"]))
    except (TypeError, KeyError) as error:
        raise mixture_format.damaged("alpha.options", folder / FILE, str(error)) from error
    load_state(mixer, read_weights(folder / WEIGHTS, description["sha256"]), kind.title, folder / WEIGHTS)
    return freeze(mixer)


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with tuples in place of lists: JSON has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
