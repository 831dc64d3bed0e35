import json
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.cli import demo, demo_models
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.shard import Shard
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.report.demo import ROLES
from adaptive_smoothing.report.load import load_run
from adaptive_smoothing.results import read_json, write_json
from adaptive_smoothing.runs.folder import JOURNAL
from adaptive_smoothing.tuning.curves import accuracy_curve

HALF = ("--clean-accuracy", "0.5", "--images", "3")


@pytest.fixture(scope="session")
def tail(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fine-tuned tail for the tiny models; its accuracy curve is added with the first test."""
    folder = tmp_path_factory.mktemp("tail")
    g, h = (zoo.load(weights / f"{name}.safetensors") for name in (demo.STANDARD, demo.ROBUST))
    MixedClassifier(g, h, FineTunedTail.of(h)).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def mixture(package: object, tail: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny mixture in the place of that of the package, and attacks of two steps."""
    monkeypatch.setattr(demo, "STEPS", dict.fromkeys(demo.STEPS, 2))
    monkeypatch.setattr(demo_models, "MIXED", str(tail))
    if not (tail / VALIDATION).exists():
        mixed = MixedClassifier.from_pretrained(tail)
        accuracy_curve(mixed, datasets.load("builtin", "val")).save(tail / VALIDATION)
    return tail


@pytest.fixture
def compared(write_comparison: Callable[[Path], Path]) -> Path:
    """A stored comparison of both mixtures at a clean accuracy of 0.5, with an alpha of 0.25."""
    demo_models.COMPARED.mkdir()
    path = write_comparison(demo_models.COMPARED) / "result.json"
    models = {letter: model_facts(name) for letter, name in (("g", demo.STANDARD), ("h", demo.ROBUST))}
    stored = read_json(path) | {"models": models}
    for each in stored["mixtures"]:
        each |= {"numbers": {"alpha": 0.25}, "wanted": each["wanted"] - 0.3}
    write_json(path, stored)
    return path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["demo", "--device", "cpu", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    # The terminal of a test is narrow; where lines break is not tested.
    return " ".join(result.output.split())


def folders(out: str = "runs/demo") -> dict[str, Verdict]:
    return {role: load_run(Path(out) / role) for role in ROLES if (Path(out) / role / "result.json").exists()}


def test_four_models_are_attacked_on_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(demo, "_write_page", lambda folder, result: folder / "page.html")
    printed = run(*HALF, "--open")
    assert opened == [Path("runs/demo/page.html").resolve().as_uri()]
    found, result = folders(), read_json("runs/demo/result.json")
    assert list(found) == list(ROLES) and all(torch.equal(each.index, torch.arange(3)) for each in found.values())
    assert found["learned"].stages == found["fixed"].stages == ("margin-pgd", "turning-pgd")
    assert found["robust"].stages == found["standard"].stages == ("margin-pgd", "diverse-pgd")
    images = datasets.load("builtin", "test", images=3)
    with torch.no_grad():
        correct = zoo.load(demo.ROBUST)(images.floats()).argmax(1) == images.labels
    assert torch.equal(found["robust"].clean_correct, correct)
    alpha = read_json("runs/demo/fixed/result.json")["models"]["alpha"]
    assert f"mixture, fixed α = {alpha:.3f}" in printed and "24 of 24 validation images predicted" in printed
    assert result["kind"] == "demo" and result["images"] == 3 and not result["facts"]["interrupted"]
    assert {role: each["robust"]["accuracy"] for role, each in result["models"].items()} == {
        role: each.robust for role, each in found.items()
    }
    assert "stored" not in printed and not list(Path("runs/demo").rglob(JOURNAL))


def test_stored_runs_of_the_same_models_are_shown_beside(compared: Path) -> None:
    printed = json.loads(
        CliRunner().invoke(app, ["demo", "--clean-accuracy", "50", "--images", "2", "--json", "--quiet"]).stdout
    )
    learned, fixed = (printed["models"][role]["stored"] for role in ("learned", "fixed"))
    assert learned == {"clean": 7 / 8, "robust": 3 / 4, "attack": "B and C"} and fixed["robust"] == 1 / 2
    assert printed["folder"] == "runs/demo" and printed["models"]["robust"]["stored"] is None
    assert read_json("runs/demo/fixed/result.json")["models"]["alpha"] == 0.25


def test_stored_runs_of_other_models_or_accuracies_are_left_out(compared: Path) -> None:
    assert demo_models.stored_runs(0.5).keys() == {"learned", "fixed"} and not demo_models.stored_runs(0.45)
    stored = read_json(compared)
    stored["models"]["h"]["sha256"] = "0" * 64
    write_json(compared, stored)
    assert not demo_models.stored_runs(0.5)


@pytest.fixture
def interrupted_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[object]]:
    """Return `stop(at)`: Ctrl-C comes with the at-th stage of an attack. It returns a list of all of them."""

    def stop(at: int) -> list[object]:
        attacked: list[object] = []

        def attack(self: Shard, *arguments: object) -> None:
            attacked.append(self)
            if len(attacked) == at:
                raise KeyboardInterrupt
            original(self, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Shard, "_attack", attack)
        return attacked

    original = Shard._attack
    return stop


def test_ctrl_c_reports_the_models_that_are_done_and_the_same_command_continues(
    interrupted_at: Callable[[int], list[object]],
) -> None:
    interrupted_at(5)
    printed = run(*HALF, code=130)
    assert "stopped: run the same command again to continue" in printed
    assert list(folders()) == ["learned", "fixed"] and read_json("runs/demo/result.json")["facts"]["interrupted"]
    assert "The learned α changes robust accuracy" in printed and "h, robust" not in printed
    attacked = interrupted_at(0)
    assert "h, robust" in run(*HALF)
    assert len(attacked) == 4 and list(folders()) == list(ROLES)


def test_ctrl_c_before_anything_is_done(
    interrupted_at: Callable[[int], list[object]], run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_at(1)
    assert run_main("demo", *HALF) == 130
    assert "stopped: run the same command again to continue" in capsys.readouterr().err and not folders()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--clean-accuracy", "2"), "expected an accuracy such as 0.9, or 90 in percent, got 2"),
        (("--clean-accuracy", "0.999"), "expected a clean accuracy this pair can reach, got 0.999: the best on 24"),
        (("--images", "25"), "expected --images of at most 24, as many as are here, got 25: attack fewer"),
        (("--out", "file"), "expected a folder that can be written to, got file (Not a directory): choose another"),
        (("--out", "other"), "expected a folder without another run, got other, which holds one: choose another"),
        (("--out", "inside"), "expected a folder without another run, got inside/learned, which holds one"),
    ],
)
def test_wrong_inputs_are_noticed_before_the_work(
    arguments: tuple[str, ...],
    message: str,
    run_main: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("file").write_text("mine")
    for folder in ("other", "inside/learned"):
        write_json(Path(folder) / "result.json", {"kind": "evaluation"})
    monkeypatch.setattr(demo, "evaluate", lambda *a, **k: pytest.fail("work was done"))
    monkeypatch.setattr(demo_models, "_measured_alpha", lambda *a: pytest.fail("work was done"))
    assert run_main("demo", "--images", "3", *arguments) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert read_json("other/result.json") == read_json("inside/learned/result.json") == {"kind": "evaluation"}
    assert not Path("runs").exists()


def test_no_images_are_refused() -> None:
    assert "--images" in run("--images", "0", code=2)


def test_missing_models_are_named(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(zoo, "BUILTIN", tmp_path)
    monkeypatch.setattr(demo_models, "MIXED", "compact-mixed")
    assert run_main("demo", *HALF) == 1
    assert "compact-mixed" in capsys.readouterr().err


def test_a_gpu_runs_the_whole_preset_on_all_images() -> None:
    gpu, cpu = demo.Workload.of_device("cuda:1"), demo.Workload.of_device("cpu")
    assert gpu.images == 1000 and gpu.cascade == preset("fast", demo.THREAT)
    assert cpu.images == 128 and cpu.cascade.stage_keys == tuple(demo.STEPS) and not cpu.cascade.audit
