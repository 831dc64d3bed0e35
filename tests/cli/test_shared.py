"""Options of every verb: --json prints one JSON object on stdout and nothing else there, --quiet only errors."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from adaptive_smoothing.cli import main as main_file
from adaptive_smoothing.cli.main import VERBS, load
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.data.datasets import ImageData


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb that prints a line, as any library may, and has a result."""

    def models(fails: bool = False) -> None:
        print("a line")
        print_result({"clean": 0.9}, Path("out"))
        if fails:
            raise ValueError("expected success, got none")

    monkeypatch.setattr(main_file, "import_module", lambda name: SimpleNamespace(models=models))


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        ((), "a line\n", ""),
        (("--json",), '{"folder": "out", "clean": 0.9}\n', "a line\n"),
        (("--quiet",), "", ""),
        (("--quiet", "--json"), '{"folder": "out", "clean": 0.9}\n', ""),
        (("--quiet", "--fails"), "", "error: expected success, got none\n"),
    ],
)
def test_where_a_verb_prints(
    options: tuple[str, ...], out: str, err: str, run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("models", *options) == ("--fails" in options)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (out, err)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_the_shared_options(verb: str) -> None:
    spellings = {spelling for parameter in load(verb).params for spelling in parameter.opts}
    assert {"--json", "--quiet"} <= spellings


def result(run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run_main(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("no_pictures")
def test_the_result_of_a_verb_is_that_of_its_folder(
    package: Callable[..., ImageData], run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    pair, quick = ("compact-standard", "compact-robust"), ("--device", "cpu", "--images", "2")
    found = result(run_main, capsys, "sweep", *pair, *quick, "--alphas", "0,1", "--out", "swept")
    assert found == {"folder": "swept"} | json.loads(Path("swept/result.json").read_text())
    found = result(run_main, capsys, "mix", *pair, "--device", "cpu", "--alpha", "0.5", "--out", "mixed")
    assert found["alpha"] == 0.5 and found["card"]["mode"] == "fixed"
    found = result(run_main, capsys, "models")
    assert [model["name"] for model in found["models"]][:2] == ["compact-robust", "compact-standard"]
    assert found["models"][0]["figures"]["test"]["clean"] == 0.9312
