import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

from adaptive_smoothing.cli import demo
from adaptive_smoothing.cli import export as verb
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report.robustbench_loader import FILE
from adaptive_smoothing.results import read_json, write_json

pytestmark = pytest.mark.usefixtures("package")
RUN = Path(__file__).parents[2] / "results" / "verdicts" / "h-standard"
OLD_LOADER, LOADER = (FILE.format(model=model) for model in ("'old'", "'new'"))


def run(*arguments: str) -> str:
    return " ".join(CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False).output.split())


def test_a_mixture_is_written_as_a_graph_with_alpha_as_an_input(tmp_path: Path) -> None:
    pair = (demo.STANDARD, demo.ROBUST, "--alpha", "0.75")
    printed = run(*pair, "--out", "model.pt2", "--shape", "3x16x16")
    assert "images of 3 x 16 x 16 in [0, 1] -> 10 logits" in printed
    assert "The input alpha moves it between g and h; default 0.75." in printed
    assert "the largest difference is" in printed
    assert (tmp_path / "model.pt2").stat().st_size > 1000
    with pytest.raises(FileExistsError, match=r"expected a new file, got model.pt2, which exists: .*--overwrite"):
        run(*pair, "--out", "model.pt2")


def test_a_range_of_alpha_is_printed(tmp_path: Path) -> None:
    g, h = zoo.load(demo.STANDARD), zoo.load(demo.ROBUST)
    MixedClassifier(g, h, 0.5, alpha_range=(0.5, 1.0)).save_pretrained(tmp_path / "mine", hold=True)
    printed = run("mine", "--out", "model.pt2", "--shape", "3x16x16")
    assert "From 0 to 1, alpha gives h a weight of 0.5 to 1: the alpha_range of the mixture." in printed


def test_the_format_is_that_of_the_suffix_or_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def write(model: object, path: Path, **options: object) -> None:
        found.append((path.name, options["format"], options["shape"]))
        raise ValueError("enough")

    monkeypatch.setattr(verb, "export_model", write)
    for options in (("--out", "a.onnx"), ("--out", "a.bin", "--format", "pt2", "--shape", "1,8,9")):
        with pytest.raises(ValueError, match="enough"):
            run(demo.STANDARD, *options)
    assert found == [("a.onnx", "onnx", None), ("a.bin", "pt2", (1, 8, 9))]


def test_without_a_name_the_file_has_that_of_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(verb, "export_model", lambda model, path, **options: found.append(str(path)))
    monkeypatch.setattr(verb, "_show", lambda written, console: None)
    run(demo.STANDARD)
    run(demo.STANDARD, "--format", "pt2")
    assert found == ["model.onnx", "model.pt2"]


@pytest.fixture(scope="module")
def evaluated(install: Callable[[pytest.MonkeyPatch, Path], object], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of an evaluation of a mixture, without a check for alarms."""
    folder = tmp_path_factory.mktemp("evaluated")
    options = ("--attack", "standard", "--threat", "Linf:1/2", "--images", "2", "--set", "alarms=false")
    with pytest.MonkeyPatch.context() as patch:
        install(patch, folder)
        names = (demo.STANDARD, demo.ROBUST, "--alpha", "0.75")
        CliRunner().invoke(app, ["evaluate", *names, *options, "--out", "run", "--device", "cpu"])
    return str(folder / "run")


@pytest.mark.parametrize(
    ("options", "entry"),
    [(("--out", "deep/Mine2026Mixed.json"), "deep/Mine2026Mixed"), (("--format", "robustbench"), "model_info")],
)
def test_an_entry_of_robustbench_has_a_file_that_loads_the_model(
    evaluated: str, options: tuple[str, ...], entry: str
) -> None:
    printed = run(evaluated, *options)
    assert f"Written to {entry}.py: load_model() returns the model for benchmark() of RobustBench" in printed
    assert (
        "Uses eps = 0.5 instead of 8/255." in read_json(f"{entry}.json")["footnote"] and "Alarms were off." in printed
    )
    expected, images = LoadedModel.load(demo.STANDARD, demo.ROBUST, 0.75, "cpu").model, torch.rand(2, 3, 32, 32)
    assert torch.equal(runpy.run_path(f"{entry}.py")["load_model"]()(images), expected(images))


@pytest.mark.parametrize("there", ["x.json", "x.py"])
def test_an_entry_and_its_loader_are_replaced_with_overwrite_only(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    monkeypatch.setattr(verb, "loader_text", lambda *given: LOADER)
    Path(there).write_text(OLD_LOADER)
    with pytest.raises(FileExistsError, match=f"got {there}, which exists: .* replace it with --overwrite"):
        run(str(RUN), "--out", "x.json")
    assert not Path({"x.json": "x.py", "x.py": "x.json"}[there]).exists()
    run(str(RUN), "--out", "x.json", "--overwrite")
    assert Path("x.py").read_text() == LOADER and read_json("x.json")["dataset"] == "cifar10"


@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_a_file_that_is_no_loader_is_never_replaced(options: tuple[str, ...]) -> None:
    Path("train.py").write_text("print('mine')\n")
    message = "expected no file or a loader at train.py, got a file that is not one: choose another name for the entry"
    with pytest.raises(FileExistsError, match=message):
        run(str(RUN), "--out", "train.json", *options)
    assert Path("train.py").read_text() == "print('mine')\n" and not Path("train.json").exists()


@pytest.mark.parametrize(("step", "loader"), [("loader_text", OLD_LOADER), ("write_json", None), ("write_text", None)])
def test_no_interruption_leaves_the_loader_of_another_entry(
    monkeypatch: pytest.MonkeyPatch, step: str, loader: str | None
) -> None:
    write_json("x.json", {"old": True})
    Path("x.py").write_text(OLD_LOADER)
    monkeypatch.setattr(verb, "loader_text", lambda *given: LOADER)
    monkeypatch.setattr(verb, step, Mock(side_effect=KeyboardInterrupt))
    run(str(RUN), "--out", "x.json", "--overwrite")
    assert ("old" in read_json("x.json")) == (step != "write_text")
    assert (Path("x.py").read_text() if Path("x.py").exists() else None) == loader


def test_the_loader_of_another_entry_is_removed_if_the_model_cannot_be_loaded() -> None:
    Path("x.py").write_text(OLD_LOADER)
    printed = run(str(RUN), "--out", "x.json", "--overwrite")
    assert "There is no x.py that loads the model: expected the evaluated model, with digest" in printed
    assert "The old x.py was removed: it loads the model of another entry." in printed and not Path("x.py").exists()
    assert "was removed" not in run(str(RUN), "--out", "x.json", "--overwrite")


def test_the_function_of_a_mixture_is_named_for_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Mock(return_value="# the file\n")
    monkeypatch.setattr(verb, "loader_text", found)
    assert "Written to a.py" in run(str(RUN), "--out", "a.json", "--loader", "my_models:make")
    assert found.call_args.args[1].allow == ["my_models:make"] and Path("a.py").read_text() == "# the file\n"


def test_alarms_of_the_run_are_printed_and_the_adaptive_attacks_need_autoattack() -> None:
    printed = run(str(RUN.with_name("mixture-standard")), "--out", "a.json")
    assert "alarm fab-breaks: FAB" in printed and "RobustBench also needs" not in printed
    printed = run(str(RUN.with_name("mixture-adaptive")), "--out", "b.json")
    assert "No alarm fired." in printed and "RobustBench also needs autoattack_acc, from a run with" in printed


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((demo.ROBUST,), "H"),
        (("--alpha", "0.5", "--shape", "3x32x32"), "--alpha, --shape"),
        (("--shape", "3x32x32", "--mean", "0.5"), "--shape, --mean"),
    ],
)
def test_options_of_a_model_are_refused_for_a_run(options: tuple[str, ...], found: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"expected a run folder alone for --format robustbench, got also {found}:"):
        run(str(RUN), *options, "--out", "x.json")
    assert not (tmp_path / "x.json").exists()


def test_the_place_is_checked_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.LoadedModel, "load", lambda *given: pytest.fail("a model was loaded"))
    (tmp_path / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "pipe.onnx")  # stands for a device
    for name, found in (("folder", "a folder"), ("pipe", "a device or a pipe")):
        with pytest.raises(FileExistsError, match=f"got {name}.onnx, which is {found}: choose another name"):
            run(demo.STANDARD, "--out", f"{name}.onnx", "--overwrite")
    assert (tmp_path / "pipe.onnx").is_fifo()


def test_an_evaluation_is_written_as_an_entry_of_robustbench(tmp_path: Path) -> None:
    printed = run(str(RUN), "--out", "Mine2026Mixed.json", "--set", "venue=arXiv", "--set", "additional_data=false")
    assert "belongs in model_info/cifar10/Linf of RobustBench" in printed
    assert "Add link, name, authors with --set" in printed
    entry = json.loads((tmp_path / "Mine2026Mixed.json").read_text())
    assert entry["venue"] == "arXiv" and entry["additional_data"] is False and entry["eps"] == "8/255"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "model.pb"), "ends in .onnx or .pt2 or .json, got 'model.pb'"),
        (("--out", "a.onnx", "--format", "pt2"), "ends in .pt2 for pt2, got 'a.onnx'"),
        (("--out", "a.py", "--format", "robustbench"), "ends in .json for robustbench, got 'a.py'"),
        (("--shape", "0x32x32"), r"three whole numbers above 0, got \(0, 32, 32\)"),
        (("--format", "onxx"), "did you mean 'onnx'"),
        (("--shape", "32"), "such as 3x32x32, got '32'"),
        (("--set", "venue=arXiv"), "--set with --format robustbench only"),
        (("--out", "a.json"), "expected a run folder with result.json"),
    ],
)
def test_errors(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(demo.STANDARD, *arguments)


def test_another_kind_of_run_is_refused() -> None:
    stored = Path(__file__).parents[1] / "report" / "stored" / "certification"
    with pytest.raises(ValueError, match=r"expected the evaluation of a model in .*, got a run of kind certification"):
        run(str(stored), "--out", "a.json")
