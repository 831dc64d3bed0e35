"""The verb `report`: one page of several runs."""

import json
import shutil
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli.main import app
from adaptive_smoothing.results import read_json, write_json

STORED = Path(__file__).parents[1] / "report" / "stored"
ONE, OTHER = STORED / "evaluation-mixture", STORED / "certification"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def content(path: str | Path) -> dict:
    text = Path(path).read_text(encoding="utf-8")
    return json.loads(text.partition('id="data">')[2].partition("</script>")[0])


def test_several_runs_are_on_one_page() -> None:
    printed = report(ONE, OTHER, "--title", "a & b")
    assert "Open this page in a browser: file://" in printed and "Runs on the page: " in printed
    assert [run["kind"] for run in content("runs/page.html")["runs"]] == ["Verdict", "Certificates"]
    assert "<title>a &amp; b</title>" in Path("runs/page.html").read_text(encoding="utf-8")


def test_the_page_of_one_run_is_in_its_folder(tmp_path: Path) -> None:
    shutil.copytree(ONE, tmp_path / "run")
    report("run")
    assert len(content("run/page.html")["runs"]) == 1


def test_the_page_of_several_runs_does_not_replace_one_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for each in (ONE, OTHER):
        (tmp_path / "all" / each.name).symlink_to(each)
    (tmp_path / "all" / "page.html").write_text("the page of a demo")
    report("all")
    assert len(content("runs/page.html")["runs"]) == 2 and Path("all/page.html").read_text() == "the page of a demo"
    report("all", "--out", "elsewhere/mine.html")
    report("all", "--out", "elsewhere/mine.html")  # a page can be written again
    assert len(content("elsewhere/mine.html")["runs"]) == 2


def test_the_page_is_opened_and_its_path_printed_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    result = CliRunner().invoke(app, ["report", str(ONE), "--out", "page.html", "--open", "--json"])
    assert opened == [Path("page.html").resolve().as_uri()]
    found = json.loads(result.stdout)
    assert found["page"] == "page.html" and found["runs"] == [run["name"] for run in content("page.html")["runs"]]


def test_errors_are_one_sentence(run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("file").write_text("")
    Path("newer").mkdir()
    write_json("newer/result.json", read_json(ONE / "result.json") | {"schema": 99})
    for arguments, sentence in (
        (["nowhere"], "expected a run folder, found no folder nowhere"),
        (["file"], "expected a run folder, found no folder file"),
        (["empty"], "expected a run with result.json in empty or in a folder inside it, got none"),
        (["newer"], "expected files of schema 1 or less in newer, got schema 99"),
        ([str(ONE), "--out", "page"], "expected --out as the name of an HTML file, got page: for example"),
        ([str(ONE), "--out", "file/page.html"], "file"),
    ):
        assert run_main("report", *arguments) == 1
        printed = " ".join(capsys.readouterr().err.split())
        assert printed.startswith("error: ") and sentence in printed and "Traceback" not in printed
