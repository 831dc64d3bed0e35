"""The entry for RobustBench of a stored evaluation, and a benchmark with RobustBench's interface."""

from pathlib import Path

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.report.robustbench import Publication, folder_of, missing, model_info, write_model_info
from adaptive_smoothing.results import read_json
from adaptive_smoothing.runs.folder import read_result

RUNS = Path(__file__).parents[2] / "results" / "verdicts"
# The keys of model_info/cifar10/Linf/*.json in RobustBench.
KEYS = {
    *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture"),
    *("eps", "clean_acc", "reported", "autoattack_acc", "external", "footnote", "unreliable"),
}


def test_the_entry_of_a_run_of_autoattack() -> None:
    result = read_result(RUNS / "h-standard")
    info = model_info(result, Publication(venue="arXiv", additional_data=False))
    assert set(info) <= KEYS
    assert info["dataset"] == "cifar10" and info["eps"] == "8/255" and info["number_forward_passes"] == 1
    assert info["clean_acc"] == f"{100 * result['clean']['accuracy']:.2f}"
    assert info["autoattack_acc"] == info["reported"] == f"{100 * result['robust']['accuracy']:.2f}"
    assert "external" not in info and info["footnote"] == "Measured on 1,000 images."
    assert missing(info) == ["link", "name", "authors"]
    assert folder_of(result) == "model_info/cifar10/Linf"


def test_a_mixture_has_two_passes_and_other_attacks_are_external() -> None:
    info = model_info(read_result(RUNS / "ours-adaptive"), Publication(architecture="ResNet-18 + ResNet-18"))
    assert info["number_forward_passes"] == 2 and info["architecture"] == "ResNet-18 + ResNet-18"
    assert "autoattack_acc" not in info and float(info["external"]) > 0
    assert "preset adaptive" in info["footnote"]


def test_a_radius_that_is_not_a_multiple_of_one_byte() -> None:
    result = read_json(RUNS / "h-standard" / "result.json")
    result["settings"]["attack"]["threat"] = "L2:0.5"
    assert model_info(result, Publication())["eps"] == "0.5" and folder_of(result).endswith("/L2")


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a run folder with result.json"):
        write_model_info(tmp_path, tmp_path / "a.json", Publication())
    with pytest.raises(ValueError, match=r"expected the evaluation of a model in .*, got a run of kind certification"):
        write_model_info(Path(__file__).parent / "stored" / "certification", tmp_path / "a.json", Publication())
    assert not list(tmp_path.iterdir())


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
