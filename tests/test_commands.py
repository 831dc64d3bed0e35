"""The commands of the documents, and the stored results that they made."""

import importlib
import re
import shlex
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from adaptive_smoothing.cli.main import load

ROOT = Path(__file__).parents[1]


def module(path: Path):
    """Import a program of this repository, as Python does when it runs the program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        return importlib.import_module(path.stem)


runner = module(ROOT / "docs" / "commands.py")
COMMANDS = [command for page in runner.PAGES for command in runner.commands(page)]


def output(command: str) -> Path:
    words = shlex.split(command)
    return ROOT / words[words.index("--out") + 1]


class ParsedError(Exception):
    """The words of a benchmark were accepted."""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: output(command).name)
def test_a_command_of_the_documents_is_accepted(command: str, monkeypatch):
    program, *words = [word for word in shlex.split(command) if not re.fullmatch(runner.VARIABLE, word)]
    if program == "adaptive-smoothing":
        load(words[0]).make_context(words[0], words[1:])
        return

    def parse(parser: ArgumentParser, *_):
        _, unknown = parser.parse_known_args(words[1:])
        raise ParsedError(*unknown)

    monkeypatch.setattr(ArgumentParser, "parse_args", parse)
    with pytest.raises(ParsedError, match=r"^$"):
        module(ROOT / words[0]).main()


def test_every_stored_result_is_that_of_a_command_or_in_the_log():
    """A stored result is a benchmark's file, or a folder with result.json."""
    made = {output(command).relative_to(ROOT).as_posix() for command in COMMANDS}
    log = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    files = [*(ROOT / "benchmarks" / "results").glob("*.json"), *(ROOT / "results").rglob("result.json")]
    stored = {path.relative_to(ROOT).as_posix().removesuffix("/result.json") for path in files}
    missing = {path for path in stored if not any(path.startswith(f"{out}/") or path == out for out in made)}
    assert len(stored) > 30
    assert not {path for path in missing if not re.search(rf"{re.escape(path)}\b(?!-)", log)}


def test_a_command_is_one_line_without_its_comment(tmp_path: Path):
    page = tmp_path / "page.md"
    commands = ['X=1 python a.py "b c" \\\n        --out d  # e', "python f.py", "python g.py --out FOLDER ..."]
    page.write_text("    It's text --out.\n" + "".join(f"    {command}\n" for command in commands), encoding="utf-8")
    assert runner.commands(page) == ["X=1 python a.py 'b c' --out d"]


def test_commands_are_run_with_the_folder_of_the_data_and_write_to_another_one(tmp_path: Path, monkeypatch, capfd):
    code = "import os, sys; print(sys.argv[1:], os.environ['X'], os.environ['ADAPTIVE_SMOOTHING_DATA'])"
    (tmp_path / "a.py").write_text(code, encoding="utf-8")
    lines = [f"    X=1 python {tmp_path / 'a.py'} DATA --out {out}\n" for out in ("b/c", "runs/d")]
    (tmp_path / "page.md").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(runner, "PAGES", (tmp_path / "page.md",))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["commands.py", "a.py", "--into", "again"])
    with pytest.raises(SystemExit):
        runner.main()
    assert "expected --data with these commands, got none" in capfd.readouterr().err
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--data", "place"])
    assert runner.main() == 0
    printed, place = capfd.readouterr().out, str(tmp_path / "place")
    for out in (str(tmp_path / "again" / "b" / "c"), "runs/d"):
        assert f"{[place, '--out', out]} 1 {place}" in printed
    assert len(re.findall(r"exit code 0, \d+ s", printed)) == 2
