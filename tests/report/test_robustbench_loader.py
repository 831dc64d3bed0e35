"""The file that loads the model of a stored evaluation for RobustBench."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels
from adaptive_smoothing.models.digest import model_digest
from adaptive_smoothing.report.robustbench_loader import loader_text


def result_of(loaded: LoadedModel) -> dict[str, Any]:
    return {"models": loaded.facts, "settings": {"model": model_digest(loaded.model)}}


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the folder of a stored mixture, which is not that of its name."""
    monkeypatch.chdir(tmp_path)
    g, h = ads.load_model("compact-standard"), ads.load_model("compact-robust")
    ads.MixedClassifier(g, h, 0.7, alpha_range=(0.5, 1.0)).save_pretrained("runs/mine", hold=True)
    return "runs/mine"


@pytest.mark.parametrize(
    "names",
    [
        ("compact-robust", None, None),
        ("compact-standard", "compact-robust", 0.85),
        ("compact-mixed", None, None),
        ("runs/mine", None, None),
    ],
)
@pytest.mark.usefixtures("mixture")
def test_the_file_returns_the_evaluated_model(names: tuple[str, str | None, float | None], tmp_path: Path) -> None:
    loaded = LoadedModel.load(*names, device="cpu")
    file = tmp_path / "model_info.py"
    file.write_text(loader_text(result_of(loaded)), encoding="utf-8")
    model, images = runpy.run_path(str(file))["load_model"](), torch.rand(2, 3, 32, 32)
    assert isinstance(model, torch.nn.Module) and not model.training
    assert torch.equal(model(images), loaded.model(images))


def test_a_run_of_an_older_version_names_a_mixture_of_the_zoo() -> None:
    result = result_of(LoadedModel.load("compact-mixed", None, None, "cpu"))
    del result["models"]["source"]
    assert "from_pretrained('compact-mixed')" in loader_text(result)


def test_a_model_that_has_changed_is_refused(mixture: str) -> None:
    result = result_of(LoadedModel.load(mixture, None, None, "cpu"))
    ads.MixedClassifier.from_pretrained(mixture).with_alpha(0.6).save_pretrained(mixture, hold=True)
    with pytest.raises(ValueError, match=r"with digest \w{12}, got \w{12}: the model or the code has changed; run"):
        loader_text(result)


def test_the_same_model_at_another_path_is_the_evaluated_one(mixture: str) -> None:
    result = result_of(LoadedModel.load(mixture, None, None, "cpu"))
    result["models"]["source"] = str(Path(mixture).rename("runs/other"))
    assert "from_pretrained('runs/other')" in loader_text(result)


def test_a_mixture_with_a_function_of_the_user_needs_its_name(mixture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import adaptive_smoothing as ads\n\ndef make():\n    return ads.load_model('compact-robust')\n"
    Path("my_builder_code.py").write_text(code)
    monkeypatch.syspath_prepend(".")
    mixed, own = ads.MixedClassifier.from_pretrained(mixture), OwnModels("my_builder_code:make")
    mixed.save_pretrained(mixture, hold=True, builders={"robust": own.loader})
    result = result_of(LoadedModel.load(mixture, None, None, "cpu", own))
    with pytest.raises(ValueError, match="on the command line --loader my_builder_code:make"):
        loader_text(result)
    assert f"from_pretrained('{mixture}', allow=['my_builder_code:make'])" in loader_text(result, own)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"model": {"name": "x", "loader": "my:load"}}, "got one of your --loader: call my:load in a file of your own"),
        ({"alpha": 0.3}, "expected the name of the evaluated model in the run, got none"),
        ({"mixture": "missing", "source": "runs/missing"}, "'runs/missing'"),
    ],
)
def test_a_model_without_a_name_or_a_folder_is_refused(models: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        loader_text({"models": models, "settings": {"model": ""}})
