"""The verb `evaluate`: its files, an interruption, its errors, its progress."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from adaptive_smoothing.attacks import presets
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.cli import console, demo
from adaptive_smoothing.cli import evaluate as evaluate_file
from adaptive_smoothing.cli.console import RunProgressBar
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.evaluation import cost
from adaptive_smoothing.evaluation.radii import RadiusCurve
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import zoo
from adaptive_smoothing.report import radii, run_folder, verdicts
from adaptive_smoothing.report.load import load_run
from adaptive_smoothing.runs import progress_bar
from adaptive_smoothing.runs.journal import Journal
from adaptive_smoothing.runs.progress import Progress
from adaptive_smoothing.threat import Threat
from adaptive_smoothing.tuning.curves import accuracy_curve

pytestmark = pytest.mark.usefixtures("package")

FOLDER = Path("runs/evaluate-compact-standard-fast")
SHORT = "compact-standard-compact-robust"
QUICK = ("--set", "alarms=false")
FOUR = ("--set", "shard_size=4")
WRITTEN = ("result.json", "rows.npz", "pictures.npz", "facts.json", "waterfall.png", "calibration.png")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast preset of a few steps."""

    def build(threat: Threat, *, seed: int = 0) -> Cascade:
        near, far = (DiversifiedPGD(threat, steps=steps, seed=seed) for steps in (1, 6))
        return Cascade("fast", threat, (Stage("near", near), Stage("far", far)))

    monkeypatch.setitem(presets.PRESETS, "fast", build)
    monkeypatch.setattr(cost, "ROUNDS", 1)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure takes half a second to draw."""
    monkeypatch.setattr(run_folder, "png", lambda figure: b"")
    for module, figure in ((verdicts, "waterfall_figure"), (verdicts, "calibration_figure"), (radii, "radii_figure")):
        monkeypatch.setattr(module, figure, lambda result: None)


def evaluate(*arguments: str, code: int = 0) -> str:
    command = ["evaluate", "--device", "cpu", "--images", "9", *FOUR, *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    # The terminal of a test is narrow; where lines break is not what is tested.
    return " ".join(result.output.split()) + str(result.exception or "")


def test_a_run_writes_its_files_and_prints_the_waterfall(package: Callable) -> None:
    printed = evaluate(demo.STANDARD, "--threat", "Linf:0.3")
    assert {path.name for path in FOLDER.iterdir()} == {*WRITTEN, "page.html"}
    result = json.loads((FOLDER / "result.json").read_text())
    rows = dict(np.load(FOLDER / "rows.npz"))
    facts = json.loads((FOLDER / "facts.json").read_text())
    data = package("builtin").take(9)
    assert rows["label"].tolist() == data.labels.tolist() and rows["index"].tolist() == list(range(9))
    with torch.no_grad():
        correct = zoo.load(demo.STANDARD)(data.floats()).argmax(1) == data.labels
    assert result["clean"]["accuracy"] == correct.double().mean().item()
    assert result["robust"]["accuracy"] == (rows["fooled_by"] == -1).mean() < result["clean"]["accuracy"]
    assert result["models"]["model"]["name"] == demo.STANDARD and len(result["models"]["model"]["sha256"]) == 64
    assert facts["seconds"] > 0 and facts["cost"][demo.STANDARD]["parameters"] > 0 and "date" in facts
    for name, took, left in [(step["attack"], step["took"], step["left"]) for step in result["waterfall"]]:
        assert f"{name} {took} {100 * left:.2f} %" in printed
    assert "Accuracy after each attack" in printed and "alarm" in printed.lower()


@pytest.mark.usefixtures("no_pictures")
def test_the_result_is_the_same_bytes_twice() -> None:
    for out in ("one", "two"):
        evaluate(demo.STANDARD, *QUICK, "--out", out)
    assert Path("one/result.json").read_bytes() == Path("two/result.json").read_bytes()
    one, two = (dict(np.load(f"{out}/rows.npz")) for out in ("one", "two"))
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.usefixtures("no_pictures")
def test_a_mixture_is_made_of_two_models_and_alpha() -> None:
    printed = evaluate(demo.STANDARD, demo.ROBUST, "--alpha", "0.7", *QUICK)
    result = json.loads((Path("runs") / "evaluate-compact-standard-compact-robust-0.7-fast/result.json").read_text())
    assert result["models"]["alpha"] == 0.7 and result["models"]["h"]["name"] == demo.ROBUST
    assert "mixture" in printed and "Alarms were off" in printed


def page_content(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8").partition('id="data">')[2].partition("</script>")[0])


@pytest.mark.usefixtures("no_pictures")
def test_several_alphas_are_attacked_and_share_a_page() -> None:
    command = (demo.STANDARD, demo.ROBUST, "--alpha", "0.7,0.3", *QUICK)
    printed, folder = evaluate(*command), Path("runs/evaluate-compact-standard-compact-robust-fast")
    names = [f"compact-standard-compact-robust-alpha-{alpha}" for alpha in (0.3, 0.7)]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "page.html"]
    assert "All operating points on one page: Open this page in a browser:" in printed
    verdicts = [load_run(folder / name) for name in names]
    assert [round(each.settings["operating point"]["value"], 6) for each in verdicts] == [0.3, 0.7]
    (dial,) = page_content(folder / "page.html")["dials"]
    counts = [int(each.robust_correct.sum()) for each in verdicts]
    assert all(shown <= count for shown, count in zip(dial["robust"].values(), counts, strict=True))
    again = evaluate(*command)
    assert again.count("This run was finished before") == 2
    alone = ("--out", "alone", *QUICK)
    evaluate(demo.STANDARD, demo.ROBUST, "--alpha", "0.3", *alone)
    expected = load_run("alone")
    assert torch.equal(verdicts[0].fooled_by, expected.fooled_by)


@pytest.mark.usefixtures("no_pictures")
def test_a_mixture_is_moved_to_clean_accuracies_on_validation_images(package: Callable) -> None:
    printed = evaluate(demo.STANDARD, demo.ROBUST, "--clean-accuracy", "0.5,60", *QUICK, "--json")
    val = package("builtin", "val")
    g, h = (zoo.load(name) for name in (demo.STANDARD, demo.ROBUST))
    curve = accuracy_curve(MixedClassifier(g, h, 0.5), val)
    for target in (0.5, 0.6):
        folder = Path(f"runs/evaluate-compact-standard-compact-robust-fast/{SHORT}-clean-{100 * target:g}")
        found = json.loads((folder / "result.json").read_text())
        assert found["models"]["alpha"] == curve.largest_setting(target)
        assert found["models"]["clean accuracy on validation images"] == target
        assert f'"clean accuracy on validation images": {target}' in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((demo.ROBUST, "--alpha", "0.5", "--clean-accuracy", "0.9"), "expected --alpha or --clean-accuracy, got both"),
        (("--clean-accuracy", "0.9"), "expected a mixture for --clean-accuracy, got one classifier: name a stored"),
        ((demo.ROBUST, "--alpha", "0.5,x"), "expected --alpha such as 0.8,0.85,0.9, got '0.5,x'"),
        ((demo.ROBUST, "--alpha", "0.5,1.5"), "expected --alpha in [0, 1] (0 is G, 1 is H), got '0.5,1.5'"),
        ((demo.ROBUST, "--clean-accuracy", "0.9,y"), "expected --clean-accuracy such as 0.88,0.9, got '0.9,y'"),
    ],
)
def test_operating_points_that_do_not_fit_are_errors(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in evaluate(demo.STANDARD, *arguments, *QUICK, code=1)


@pytest.mark.usefixtures("no_pictures")
def test_the_result_is_printed_as_json() -> None:
    command = ["evaluate", demo.STANDARD, "--device", "cpu", "--images", "2", *QUICK, "--json"]
    printed = CliRunner().invoke(app, command).stdout
    assert json.loads(printed) == {"folder": str(FOLDER)} | json.loads((FOLDER / "result.json").read_text())


@pytest.mark.usefixtures("no_pictures")
def test_an_earlier_result_is_not_lost() -> None:
    evaluate(demo.STANDARD, *QUICK)
    before = (FOLDER / "result.json").read_bytes()
    printed = evaluate(demo.STANDARD, *QUICK, "--threat", "Linf:0.1", code=1)
    assert "which holds one with another attack: choose another --out, or replace it with --overwrite" in printed
    assert (FOLDER / "result.json").read_bytes() == before
    evaluate(demo.STANDARD, *QUICK, "--threat", "Linf:0.1", "--overwrite")
    assert json.loads((FOLDER / "result.json").read_text())["settings"]["attack"]["threat"] == "Linf:0.1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--preset", "autoattack"), "expected preset to be one of fast, standard, adaptive"),
        (("--preset", "standrd"), "got 'standrd': did you mean 'standard'?"),
        (("--attack", "no_such_module:attack"), "expected a module 'no_such_module' for --attack, got none"),
        (("--eps", "1/255,x"), "expected --eps such as 2/255,4/255,8/255, got '1/255,x'"),
        (("--eps", "8/255,8/255"), "expected one or more different radii"),
        (("--eps", "8"), "did you mean 8/255?"),
        (("--save-adversarial", "some"), "expected --save-adversarial N or all, got 'some'"),
        (("--threat", "Linf:abc"), "expected a threat such as Linf:8/255 or L2:0.5, got 'Linf:abc'"),
        (("--threat", "Linf:8"), "did you mean 8/255?"),
        (("--threat", "Linf:-0.1"), "expected eps >= 0, got -0.1"),
        (("--threat", "L1:0.5"), "expected a threat such as Linf:8/255 or L2:0.5, got 'L1:0.5'"),
        (("--set", "shard_sise=4"), "unknown key 'shard_sise'; did you mean 'shard_size'?"),
        (("--set", "shard_size=0"), "expected a shard_size of at least 1, got 0"),
        ((demo.ROBUST,), "expected G, H and --alpha for a mixture, or one MODEL alone"),
        (("--alpha", "0.5"), "expected G, H and --alpha for a mixture, or one MODEL alone"),
        (("--check", "binarisation"), "expected --check binarization, got 'binarisation'"),
        (("--device", "tpu"), "expected a device of this machine"),
        (("--preset", "STD"), "expected a model that STD has an attack for, got a"),
    ],
)
def test_an_error_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    run_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main("evaluate", demo.STANDARD, *QUICK, *arguments) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.startswith("error: ") and sentence in printed and "Traceback" not in printed
    assert not list(Path("runs").rglob("result.json"))


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_after_ctrl_c_the_same_command_continues(
    run_main: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ctrl_c_at: Callable[[int], None],
    options: tuple[str, ...],
) -> None:
    """Also if it replaces an earlier run."""
    command = [demo.STANDARD, "--device", "cpu", "--images", "9", *FOUR, *QUICK, *options]
    evaluate(demo.STANDARD, *QUICK, "--out", "undisturbed")
    if options:
        evaluate(demo.STANDARD, *QUICK, "--threat", "Linf:0.1")
    ctrl_c_at(5)
    assert run_main("evaluate", *command) == 130
    assert "stopped: run the same command again to continue" in capsys.readouterr().err
    seen: list[str] = []
    monkeypatch.setattr(Journal, "write", lambda self, name, columns: seen.append(name))
    assert CliRunner().invoke(app, ["evaluate", *command]).exit_code == 0
    assert seen == ["shard-000002"] * 2  # two of three shards were done
    assert (FOLDER / "result.json").read_bytes() == Path("undisturbed/result.json").read_bytes()
    assert not (FOLDER / "journal").exists()


@pytest.mark.usefixtures("no_pictures")
def test_a_run_that_is_killed_between_its_result_and_its_end_can_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Journal) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "clear", killed)
        evaluate(demo.STANDARD, *QUICK, code=130)
    before = (FOLDER / "result.json").read_bytes()
    assert (FOLDER / "journal").exists()
    assert "got one with another attack" in evaluate(demo.STANDARD, *QUICK, "--threat", "Linf:0.1", code=1)
    assert (FOLDER / "result.json").read_bytes() == before
    evaluate(demo.STANDARD, *QUICK)
    assert (FOLDER / "result.json").read_bytes() == before and not (FOLDER / "journal").exists()


@pytest.mark.usefixtures("no_pictures")
def test_attacks_that_do_not_apply_are_named_and_other_files_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    FOLDER.mkdir(parents=True)
    (FOLDER / "notes.txt").write_text("mine")
    plain = presets.PRESETS["fast"]

    def more(threat: Threat, *, seed: int = 0) -> Cascade:
        cascade = plain(threat, seed=seed)
        extra = replace(cascade.stages[0], key="transfer-g", needs=lambda model: False)
        return replace(cascade, stages=(*cascade.stages, extra))

    monkeypatch.setitem(presets.PRESETS, "fast", more)
    printed = evaluate(demo.STANDARD, *QUICK)
    assert "Attacks that do not apply to this model: transfer from g." in printed
    assert f"Written to {FOLDER}: {', '.join(WRITTEN)} Open this page in a browser: file:" in printed
    assert (FOLDER / "notes.txt").read_text() == "mine"


@pytest.mark.usefixtures("no_pictures")
def test_a_finished_run_is_printed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate(demo.STANDARD, *QUICK)
    before = (FOLDER / "result.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(evaluate_file, "evaluate_radii", None)  # nothing is attacked
        again = evaluate(demo.STANDARD, *QUICK)
    tables = slice(first.index("Clean accuracy"), first.index("Alarms were off."))
    assert first[tables] in again and "This run was finished before, with version" in again
    assert (FOLDER / "result.json").read_bytes() == before
    for arguments, reason in (
        ((demo.STANDARD,), "setting of alarms"),
        ((demo.ROBUST, *QUICK, "--out", str(FOLDER)), "model"),
        ((demo.STANDARD, *QUICK, "--images", "8"), "set of images"),
        ((demo.STANDARD, *QUICK, "--eps", "0.1,0.2"), "attack, eps"),
        ((demo.STANDARD, *QUICK, "--save-adversarial", "2"), "save adversarial"),
        ((demo.STANDARD, *QUICK, "--check", "binarization"), "binarization"),
    ):
        assert f"which holds one with another {reason}: choose another --out" in evaluate(*arguments, code=1)


@pytest.mark.filterwarnings("ignore:all .* have the label")
@pytest.mark.usefixtures("no_pictures")
def test_several_radii_have_a_folder_each_and_can_be_continued(
    ctrl_c_at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (demo.STANDARD, *QUICK, "--eps", "0.1,1/255,0.02", "--threat", "Linf")
    printed = evaluate(*command, "--out", "undisturbed")
    result = json.loads(Path("undisturbed/result.json").read_text())
    assert [row["folder"] for row in result["radii"]] == ["eps-0.003922", "eps-0.02", "eps-0.1"]
    assert "Accuracy at each radius" in printed and "Linf 1/255" in printed and "Linf 0.02" in printed
    curve = load_run(Path("undisturbed"))
    assert isinstance(curve, RadiusCurve) and [row["robust"] for row in result["radii"]] == list(curve.robust)
    with monkeypatch.context() as patched:
        ctrl_c_at(8)  # six entries are those of the first radius
        evaluate(*command, code=130)
        patched.undo()
    ctrl_c_at(99)
    evaluate(*command)
    for name in ("result.json", "eps-0.1/result.json"):
        assert (FOLDER / name).read_bytes() == (Path("undisturbed") / name).read_bytes()
    assert not (FOLDER / "journal").exists()
    assert "This run was finished before" in evaluate(*command)
    assert "with another eps" in evaluate(demo.STANDARD, *QUICK, "--eps", "1/255,0.02", code=1)


@pytest.mark.usefixtures("no_pictures")
def test_a_run_that_is_replaced_leaves_no_files_of_its_own() -> None:
    one, several = ("--save-adversarial", "2"), ("--eps", "1/255,0.02")
    for options, names in (
        (several, {"result.json", "facts.json", "page.html", "radii.png", "eps-0.003922", "eps-0.02"}),
        (one, {*WRITTEN, "page.html", "adversarial.npz"}),
        (several, {"result.json", "facts.json", "page.html", "radii.png", "eps-0.003922", "eps-0.02"}),
    ):
        evaluate(demo.STANDARD, *QUICK, "--images", "2", *options, "--overwrite")
        assert {path.name for path in FOLDER.iterdir()} == names


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("wanted", "count"), [("3", 3), ("all", 9)])
def test_attacked_images_are_written(wanted: str, count: int, package: Callable) -> None:
    printed = evaluate(demo.STANDARD, *QUICK, "--save-adversarial", wanted, "--threat", "Linf:0.1")
    assert "rows.npz, adversarial.npz, pictures.npz, facts.json" in printed
    verdict, clean = load_run(FOLDER), package("builtin").take(count).floats()
    assert isinstance(verdict, Verdict) and verdict.adversarial is not None and len(verdict.adversarial) == count
    assert (verdict.adversarial - clean).abs().max() <= 0.1 + 1e-6
    with torch.no_grad():
        predictions = zoo.load(demo.STANDARD)(verdict.adversarial).argmax(1)
    assert verdict.attacked_predictions is not None and torch.equal(predictions, verdict.attacked_predictions[:count])
    evaluate(demo.STANDARD, *QUICK, "--overwrite")
    assert not (FOLDER / "adversarial.npz").exists()


@pytest.mark.usefixtures("no_pictures")
def test_an_attack_of_ones_own_is_a_function_in_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("own_attacks.py").write_text(
        "def darker(model, images, labels):\n    return (images - 0.1).clamp(0, 1)\n"
        "def nothing(model, images, labels):\n    return None\n"
    )
    evaluate(demo.STANDARD, *QUICK, "--attack", "own_attacks:darker", "--threat", "Linf:0.1", "--out", "darker")
    result = json.loads(Path("darker/result.json").read_text())
    assert [step["attack"] for step in result["waterfall"]] == ["clean", "own_attacks:darker"]
    assert result["attack"] == "own_attacks:darker at Linf 0.1"
    printed = evaluate(demo.STANDARD, *QUICK, "--attack", "own_attacks:nothing", code=1)
    assert "the attack returned something else than images" in printed and "got NoneType" in printed


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (
            "fails",
            "expected attacked images from failing_attacks:fails, got KeyError in failing_attacks.py, line 2: 'x'",
        ),
        ("make", "expected an attack from failing_attacks:make, got ZeroDivisionError in failing_attacks.py, line 6:"),
        (
            "short",
            "expected a function of (model, images, labels) for --attack, got failing_attacks:short(model): change",
        ),
    ],
)
def test_an_error_in_an_attack_of_ones_own_has_the_traceback_of_that_attack_only(
    monkeypatch: pytest.MonkeyPatch,
    run_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    name: str,
    answer: str,
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "failing_attacks", raising=False)
    Path("failing_attacks.py").write_text(
        "def find(key):\n    return {}[key]\n"
        "def fails(model, images, labels):\n    return find('x')\n"
        "def make(threat):\n    return 1 / 0\n"
        "def short(model):\n    return model\n"
    )
    assert run_main("evaluate", demo.STANDARD, *QUICK, "--device", "cpu", "--attack", f"failing_attacks:{name}") == 1
    printed = capsys.readouterr().err
    assert answer in " ".join(printed.split())
    files = re.findall(r'File ".*?([^/\\]+)", line (\d+)', printed)
    assert files == {"fails": [("failing_attacks.py", "4"), ("failing_attacks.py", "2")], "short": []}.get(
        name, [("failing_attacks.py", "6")]
    )


@pytest.mark.usefixtures("no_pictures")
def test_the_binarization_test_uses_the_attack_of_the_run() -> None:
    printed = evaluate(demo.STANDARD, *QUICK, "--images", "2", "--check", "binarization")
    facts = json.loads((FOLDER / "facts.json").read_text())["binarization"]
    assert facts["attack"] == "fast" and facts["images"] + facts["skipped"] > 0
    outcome = "passed" if facts["passed"] else "FAILED"
    assert f"Binarization test {outcome}: on {facts['images']} images fast found the planted example in" in printed


@pytest.mark.usefixtures("no_pictures")
def test_progress_in_a_file_is_printed_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 0.0)
    printed = evaluate(demo.STANDARD, *QUICK)
    assert re.search(r"0:00 elapsed: checking the model before it is attacked on \d images", printed)
    assert re.search(r"elapsed, \d:\d\d left: \d images left, robust so far", printed)


def test_a_journal_of_another_run_is_refused(ctrl_c_at: Callable[[int], None]) -> None:
    ctrl_c_at(3)
    evaluate(demo.STANDARD, *QUICK, code=130)
    ctrl_c_at(99)
    assert "got one with another attack: choose another folder" in evaluate(
        demo.STANDARD, "--threat", "Linf:0.1", code=1
    )
    assert "got one with another model: choose" in evaluate(demo.ROBUST, "--out", str(FOLDER), *QUICK, code=1)


def test_other_classes_are_refused(monkeypatch: pytest.MonkeyPatch, package: Callable) -> None:
    data = replace(package("cifar100"), classes=tuple(map(str, range(100))))
    monkeypatch.setattr(evaluate_file.datasets, "load", lambda *a, **k: data)
    assert "expected a model for the 100 classes of cifar100/test" in evaluate(demo.STANDARD, code=1)


class Bar:
    def __init__(self) -> None:
        self.left: list[float | None] = []
        self.texts: list[str] = []

    def report(self, text: str, seconds_left: float | None) -> None:
        self.texts.append(text)
        self.left.append(seconds_left)


def test_shards_from_the_journal_do_not_count_for_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty of a hundred images were in the journal; the next twenty take ten seconds, so the last take ten."""
    now, bar = 0.0, Bar()
    monkeypatch.setattr(console.time, "perf_counter", lambda: now)
    show = RunProgressBar(bar, start=0.0)  # type: ignore[arg-type]
    for finished in (20, 40, 60):
        show(Progress(100, finished, finished, 10, ""))
    assert bar.left == [None, None, None]
    for finished, now in ((60, 0.0), (70, 5.0), (80, 10.0)):  # noqa: B007
        show(Progress(100, finished, 80, 40, "apgd-t"))
    assert bar.left[-1] == pytest.approx(10)
    assert bar.texts[-1] == "20 images left, robust so far 50.0 %, APGD, targeted DLR"
    show(Progress(100, 90, 80, 40, "audit: square"))
    assert bar.texts[-1] == "10 images left, robust so far 50.0 %, audit: Square"
