"""The entry of an evaluation for RobustBench: a JSON file as in its folder `model_info`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import read_result
from adaptive_smoothing.threat import parse_threat, radius_text

# The preset whose result RobustBench calls autoattack_acc.
AUTOATTACK = "standard"
# The images in RobustBench's own evaluation of CIFAR.
ALL_IMAGES = 10_000
DATASETS = {"builtin": "cifar10"}


@dataclass(frozen=True)
class Publication:
    """What an evaluation does not know: the paper, and how the model was made.

    Args:
        name: the title of the paper.
        additional_data: whether it was trained with more than the training images.
        architecture: default: the architectures of the evaluated models.
        reported: robust accuracy in the paper, in percent.
    """

    link: str | None = None
    name: str | None = None
    authors: str | None = None
    additional_data: bool | None = None
    venue: str | None = None
    architecture: str | None = None
    reported: str | None = None


def write_model_info(run: Path | str, path: Path | str, publication: Publication) -> dict[str, Any]:
    """Write the entry of a stored evaluation, which is returned."""
    info = model_info(read_result(run, "evaluation"), publication)
    write_json(path, info)
    return info


def model_info(result: dict[str, Any], publication: Publication) -> dict[str, Any]:
    """Return the fields of `model_info`. Accuracies are texts in percent, as RobustBench writes them.

    The result of the preset `standard`, which is AutoAttack, is `autoattack_acc`. That of any other is `external`.
    """
    attack, images = result["settings"]["attack"], result["images"]
    robust, models = _percent(result["robust"]["accuracy"]), _models(result["models"])
    threat, is_autoattack = parse_threat(attack["threat"]), attack["name"] == AUTOATTACK
    paper = asdict(publication)
    paper["architecture"] = paper["architecture"] or " + ".join(models)
    paper["reported"] = paper["reported"] or robust
    measured = {
        "number_forward_passes": len(models),
        "dataset": _dataset(result["settings"]["data"]),
        "eps": radius_text(threat.norm, float(threat.eps)),
        "clean_acc": _percent(result["clean"]["accuracy"]),
        "autoattack_acc" if is_autoattack else "external": robust,
    }
    notes = [f"Measured on {images:,} images."] * (images < ALL_IMAGES)
    notes += [f"Robust accuracy under the attacks of the preset {attack['name']}."] * (not is_autoattack)
    return paper | measured | ({"footnote": " ".join(notes)} if notes else {}) | {"unreliable": False}


def missing(info: dict[str, Any]) -> list[str]:
    """Return the fields that RobustBench needs and that have no value yet."""
    return [name for name, value in info.items() if value is None]


def folder_of(result: dict[str, Any]) -> str:
    """Return the folder in RobustBench's repository that the entry belongs to, such as model_info/cifar10/Linf."""
    settings = result["settings"]
    return f"model_info/{_dataset(settings['data'])}/{settings['attack']['threat'].partition(':')[0]}"


def _models(models: dict[str, Any]) -> list[str]:
    """Return the architecture, or else the name, of each network of the evaluated model."""
    found = [models[role] for role in ("model", "g", "h", "standard", "robust") if isinstance(models.get(role), dict)]
    networks = [model.get("of", model) for model in found]
    return [str(model.get("arch", model.get("name", "own"))) for model in networks]


def _dataset(name: str) -> str:
    name = name.partition("/")[0]
    return DATASETS.get(name, name)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
