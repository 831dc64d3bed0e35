"""The entry of an evaluation for RobustBench: a JSON file as in its folder `model_info`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any

from adaptive_smoothing.mixing.mixers import OLD_KINDS
from adaptive_smoothing.models import architectures, third_party, zoo
from adaptive_smoothing.models.cards import base_description
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.threat import parse_threat, radius_text

# The field for the robust accuracy of a preset. RobustBench ranks by `external` if an entry has it: the accuracy under
# attacks stronger than AutoAttack. All its entries also have `autoattack_acc`.
AUTOATTACK, BEST_KNOWN = "autoattack_acc", "external"
FIELDS = {"standard": AUTOATTACK, "adaptive": BEST_KNOWN}
# The attacks of AutoAttack. Each preset of `FIELDS` has them; a cascade of the same name may not.
AUTOATTACK_STAGES = ("apgd-ce", "apgd-t", "fab-t", "square")
# The data sets of RobustBench, by the name of the data of an evaluation. Its images of ImageNet are validation images.
DATASETS = {
    "builtin/test": "cifar10",
    "cifar10/test": "cifar10",
    "cifar100/test": "cifar100",
    "imagenet/val": "imagenet",
    "imagenet/test": "imagenet",
}
# The images in its evaluations, and the radii of its leaderboards by data set and norm.
IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
RADII = {
    ("cifar10", "Linf"): "8/255",
    ("cifar10", "L2"): "0.5",
    ("cifar100", "Linf"): "8/255",
    ("imagenet", "Linf"): "4/255",
}
# Architectures and mixers as RobustBench writes them.
ARCHITECTURES = {
    "preact_resnet18": "PreActResNet-18",
    "preact_resnet34": "PreActResNet-34",
    "preact_resnet50": "PreActResNet-50",
}
MIXERS = {"network": "mixing network", "fine-tuned-tail": "fine-tuned tail"}


@dataclass(frozen=True)
class Publication:
    """What an evaluation does not know: the paper, and how the model was made.

    Args:
        link, name, authors, venue: address, title, authors and place of publication of the paper.
        additional_data: whether it was trained with more than the training images.
        architecture: default: the architectures of the evaluated models, if they are known.
        reported: robust accuracy in the paper, in percent.
    """

    link: str | None = None
    name: str | None = None
    authors: str | None = None
    additional_data: bool | None = None
    venue: str | None = None
    architecture: str | None = None
    reported: str | None = None


def model_info(result: dict[str, Any], publication: Publication) -> dict[str, Any]:
    """Return the fields of `model_info`. Accuracies are texts in percent, as RobustBench writes them.

    The result of the preset `standard`, which is AutoAttack, is `autoattack_acc`, and that of `adaptive` is `external`.
    Alarms set `unreliable`. Without a check for alarms there is no such field, and RobustBench shows "unknown".
    """
    field, (dataset, norm), alarms = _field(result), _leaderboard(result), result["alarms"]
    robust, networks = _percent(result["robust"]["accuracy"]), _networks(result["models"])
    paper = asdict(publication)
    paper["architecture"] = paper["architecture"] or _architecture(result["models"])
    paper["reported"] = paper["reported"] or robust
    measured = {
        "number_forward_passes": len(networks),
        "dataset": dataset,
        "eps": _radius(result),
        "clean_acc": _percent(result["clean"]["accuracy"]),
        field: robust,
    }
    notes = " ".join(_notes(result, dataset, norm))
    flags = {} if alarms is None else {"unreliable": bool(alarms)}
    return paper | measured | ({"footnote": notes} if notes else {}) | flags


def missing(info: dict[str, Any]) -> list[str]:
    """Return the fields that RobustBench needs and that have no value yet."""
    return [name for name, value in info.items() if value is None]


def folder_of(result: dict[str, Any]) -> str:
    """Return the folder in RobustBench's repository that the entry belongs to, such as model_info/cifar10/Linf."""
    return "/".join(("model_info", *_leaderboard(result)))


def _field(result: dict[str, Any]) -> str:
    """Return the field for the robust accuracy, or raise an error for attacks that prove less than AutoAttack."""
    if (preset := result["settings"]["attack"]["name"]) not in FIELDS:
        hint = "RobustBench ranks by this accuracy; evaluate the model again with one of them"
        raise ValueError(f"expected a run with --attack {' or '.join(FIELDS)}, got {preset}: {hint}")
    run = {stage["attack"] for stage in result["waterfall"]}
    if absent := [stage for stage in AUTOATTACK_STAGES if stage not in run]:
        hint = "your own cascade needs another name"
        raise ValueError(f"expected the attacks of the preset {preset}, got a run without {', '.join(absent)}: {hint}")
    return FIELDS[preset]


def _leaderboard(result: dict[str, Any]) -> tuple[str, str]:
    """Return the data set and the norm of an evaluation, or raise an error if RobustBench does not have them."""
    settings = result["settings"]
    data, norm = settings["data"], settings["attack"]["threat"].partition(":")[0]
    check_choice("the data of an entry of RobustBench", data, DATASETS)
    dataset = DATASETS[data]
    check_choice(f"the norm of an entry of RobustBench for {dataset}", norm, [n for d, n in RADII if d == dataset])
    return dataset, norm


def _notes(result: dict[str, Any], dataset: str, norm: str) -> Iterator[str]:
    """Yield the sentences of the footnote, which RobustBench shows below the title."""
    if result["images"] < IMAGES[dataset]:
        yield f"Measured on {result['images']:,} images."
    if (eps := _radius(result)) != (usual := RADII[dataset, norm]):
        yield f"Uses eps = {eps} instead of {usual}."
    if _field(result) == BEST_KNOWN:
        robust, preset = _percent(result["robust"]["accuracy"]), result["settings"]["attack"]["name"]
        yield f"{robust}% robust accuracy is due to the preset {preset} of adaptive-smoothing."
    for alarm in result["alarms"] or ():
        yield f"Alarm {alarm['name']}: {alarm['saw']}."


def _networks(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts about each network of the evaluated model."""
    found = [models[role] for role in ("model", "g", "h", "standard", "robust") if isinstance(models.get(role), dict)]
    return [base_description(model) for model in found]


def _architecture(models: dict[str, Any]) -> str | None:
    """Return the architectures in the form "ResNet-152 + WideResNet-70-16 + mixing network"; None if one is unknown."""
    parts = [_architecture_of(network) for network in _networks(models)]
    if isinstance(alpha := models.get("alpha"), dict):
        kind = str(OLD_KINDS.get(alpha["kind"], alpha["kind"]))
        parts.append(MIXERS.get(kind, kind))
    return None if None in parts else " + ".join(map(str, parts))


def _architecture_of(network: dict[str, Any]) -> str | None:
    """Return the architecture of a model of this package, of timm or of torchvision; None if it is unknown."""
    name = str(network.get("name"))
    library, text = third_party.split(name) or ("", "")
    if library in ("timm", "torchvision"):
        return text.partition("?")[0]
    card = zoo.names().get(name)
    arch = network.get("arch", card and card.arch)
    if arch != "wide_resnet" and arch not in ARCHITECTURES:
        return arch
    usual = {key: option.default for key, option in signature(architectures.ARCHITECTURES[arch]).parameters.items()}
    options = usual | network.get("options", card.options if card else {})
    if arch == "wide_resnet":
        return f"WideResNet-{options['depth']}-{options['width']}"
    width = "" if options["width"] == usual["width"] else f" (width {options['width']})"
    return ARCHITECTURES[arch] + width


def _radius(result: dict[str, Any]) -> str:
    threat = parse_threat(result["settings"]["attack"]["threat"])
    return radius_text(threat.norm, float(threat.eps))


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
