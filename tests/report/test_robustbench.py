"""The entry for RobustBench of a stored evaluation, and a benchmark with RobustBench's interface."""

from pathlib import Path
from typing import Any

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.report.robustbench import Publication, folder_of, missing, model_info
from adaptive_smoothing.runs.folder import read_result

RUNS = Path(__file__).parents[2] / "results" / "verdicts"
# The keys of model_info/cifar10/Linf/*.json in RobustBench.
KEYS = {
    *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture"),
    *("eps", "clean_acc", "reported", "autoattack_acc", "external", "footnote", "unreliable"),
}


def stored(run: str, **settings: str) -> dict[str, Any]:
    """Return a stored result with other data, or another threat or name of the attack."""
    result = read_result(RUNS / run)
    result["settings"]["data"] = settings.pop("data", result["settings"]["data"])
    result["settings"]["attack"] |= settings
    return result


def test_the_entry_of_a_run_of_autoattack() -> None:
    result = stored("h-standard")
    info = model_info(result, Publication(venue="arXiv", additional_data=False))
    assert set(info) <= KEYS
    assert info["dataset"] == "cifar10" and info["eps"] == "8/255" and info["number_forward_passes"] == 1
    assert info["clean_acc"] == f"{100 * result['clean']['accuracy']:.2f}"
    assert info["autoattack_acc"] == info["reported"] == f"{100 * result['robust']['accuracy']:.2f}"
    assert "external" not in info and info["footnote"] == "Measured on 1,000 images." and info["unreliable"] is False
    assert missing(info) == ["link", "name", "authors"]
    assert folder_of(result) == "model_info/cifar10/Linf"


def test_the_best_known_accuracy_is_that_of_the_adaptive_attacks() -> None:
    info = model_info(stored("ours-adaptive"), Publication())
    assert "autoattack_acc" not in info and info["external"] == "43.00"
    assert info["footnote"].endswith("43.00% robust accuracy is due to the preset adaptive of adaptive-smoothing.")


@pytest.mark.parametrize("attack", ["fast", "margin", "my_attacks:pgd"])
def test_weaker_attacks_are_refused(attack: str) -> None:
    with pytest.raises(ValueError, match=rf"expected a run with --attack standard or adaptive, got {attack}: .*again"):
        model_info(stored("h-standard", name=attack), Publication())


def test_another_cascade_with_the_name_of_a_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the attacks of the preset standard, got a run without apgd-ce"):
        model_info(stored("mixture-fast", name="standard"), Publication())


def test_alarms_make_an_entry_unreliable() -> None:
    result = stored("mixture-standard")
    (alarm,) = result["alarms"]
    info = model_info(result, Publication())
    assert info["unreliable"] is True and f"Alarm fab-breaks: {alarm['saw']}." in info["footnote"]
    assert "unreliable" not in model_info(result | {"alarms": None}, Publication())  # RobustBench shows "unknown"


@pytest.mark.parametrize(
    ("run", "architecture", "passes"),
    [
        ("h-standard", "PreActResNet-18", 1),
        ("mixture-standard", "PreActResNet-18 + PreActResNet-18", 2),
        ("ours-adaptive", "PreActResNet-18 + PreActResNet-18 + fine-tuned tail", 2),
    ],
)
def test_architectures_have_the_form_of_robustbench(run: str, architecture: str, passes: int) -> None:
    info = model_info(stored(run), Publication())
    assert (info["architecture"], info["number_forward_passes"]) == (architecture, passes)
    assert model_info(stored(run), Publication(architecture="mine"))["architecture"] == "mine"


def test_architectures_of_other_models() -> None:
    wide = {"name": "w", "arch": "wide_resnet", "options": {"depth": 16, "width": 2}}
    narrow = {"name": "n", "arch": "preact_resnet18", "options": {"width": 40}}
    nonlinear = {"transform": "nonlinear", "options": {}, "of": {"name": "timm:resnet50?num_classes=10"}}
    hardmax = {"transform": "hardmax", "options": {}, "of": nonlinear}
    found = []
    for models in (
        {"g": wide, "h": narrow, "alpha": 0.5},
        {"standard": nonlinear, "robust": wide, "alpha": {"kind": "network"}},
        {"standard": hardmax, "robust": {"name": "w", "arch": "wide_resnet"}, "alpha": 0.5},
        {"model": {"name": "l", "arch": "lipschitz_net", "options": {"width": 32}}},
        {"model": {"name": "mine", "loader": "my_models:load"}},
    ):
        found.append(model_info(stored("h-standard") | {"models": models}, Publication())["architecture"])
    assert found == [
        "WideResNet-16-2 + PreActResNet-18 (width 40)",
        "resnet50 + WideResNet-16-2 + mixing network",
        "resnet50 + WideResNet-28-10",
        "lipschitz_net",
        None,  # it is listed among the fields to add
    ]


def test_another_radius_is_a_footnote() -> None:
    usual = model_info(stored("h-standard", threat="L2:0.5"), Publication())
    assert usual["eps"] == "0.5" and usual["footnote"] == "Measured on 1,000 images."
    other = model_info(stored("h-standard", threat="L2:0.25"), Publication())
    assert other["footnote"] == "Measured on 1,000 images. Uses eps = 0.25 instead of 0.5."
    assert folder_of(stored("h-standard", threat="L2:0.25")) == "model_info/cifar10/L2"


@pytest.mark.parametrize(
    ("data", "threat", "message"),
    [
        ("ph/test", "L2:0.5", "data of an entry of RobustBench to be one of .*cifar100/test.*, got 'ph/test'"),
        ("cifar10/val", "Linf:0.03", "got 'cifar10/val': did you mean 'cifar10/test'"),
        ("cifar100/test", "L2:0.5", "the norm of an entry of RobustBench for cifar100 to be one of Linf, got 'L2'"),
    ],
)
def test_data_and_norms_without_a_leaderboard_are_refused(data: str, threat: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_info(stored("h-standard", data=data, threat=threat), Publication())


def benchmark(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int = 2) -> float:
    """Return the clean accuracy as `robustbench.benchmark` computes it, with its checks of the model."""
    assert not model.training
    model = model.to(torch.device("cpu"))
    with torch.no_grad():
        parts = zip(images.split(batch_size), labels.split(batch_size), strict=True)
        return sum(int((model(x).max(1)[1] == y).sum()) for x, y in parts) / len(images)


def test_a_mixture_is_a_model_for_benchmark() -> None:
    g, h = ads.load_model("compact-standard"), ads.load_model("compact-robust")
    data = ads.load_data("builtin", "test").take(6)
    mixed = ads.MixedClassifier(g, h, 0.8)
    found = benchmark(mixed, data.floats(), data.labels)
    assert found == pytest.approx(ads.evaluate(mixed, data).clean)
