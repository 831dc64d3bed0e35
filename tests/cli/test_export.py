import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli import demo
from adaptive_smoothing.cli import export as verb
from adaptive_smoothing.cli.main import app

pytestmark = pytest.mark.usefixtures("package")
RUN = Path(__file__).parents[2] / "results" / "verdicts" / "h-standard"


def run(*arguments: str) -> str:
    return " ".join(CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False).output.split())


def test_a_mixture_is_written_as_a_graph_with_alpha_as_an_input(tmp_path: Path) -> None:
    pair = (demo.STANDARD, demo.ROBUST, "--alpha", "0.75")
    printed = run(*pair, "--out", "model.pt2", "--shape", "3x16x16", "--device", "cpu")
    assert "images of 3 x 16 x 16 in [0, 1] -> 10 logits" in printed
    assert "The input alpha moves it between g and h; default 0.75." in printed
    assert "the largest difference is" in printed
    assert (tmp_path / "model.pt2").stat().st_size > 1000
    with pytest.raises(FileExistsError, match="choose another --out, or add --overwrite"):
        run(*pair, "--out", "model.pt2")


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


def test_an_evaluation_is_written_as_an_entry_of_robustbench(tmp_path: Path) -> None:
    printed = run(str(RUN), "--out", "Mine2026Mixed.json", "--set", "venue=arXiv", "--set", "additional_data=false")
    assert "belongs in model_info/cifar10/Linf of RobustBench" in printed
    assert "Add link, name, authors with --set" in printed
    entry = json.loads((tmp_path / "Mine2026Mixed.json").read_text())
    assert entry["venue"] == "arXiv" and entry["additional_data"] is False and entry["eps"] == "8/255"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "model.pb"), "ends in .onnx, .pt2, .json, got 'model.pb'"),
        (("--format", "onxx"), "did you mean 'onnx'"),
        (("--shape", "32"), "such as 3x32x32, got '32'"),
        (("--set", "venue=arXiv"), "--set with --format robustbench only"),
        (("--out", "a.json"), "expected a run folder with result.json"),
    ],
)
def test_errors(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run(demo.STANDARD, *arguments)
