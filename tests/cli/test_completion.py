"""Completion by a shell: verbs without an import, options from the verb once and from the cache afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive_smoothing.cli.completion import options_only
from adaptive_smoothing.cli.main import VERBS, find, load
from adaptive_smoothing.version import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "completion"


def spellings(command: object) -> set[tuple[str, ...]]:
    return {(each.name, *each.opts, *each.secondary_opts) for each in command.params}  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", VERBS)
def test_the_stored_options_are_those_of_the_verb(verb: str, cache: Path) -> None:
    own = spellings(load(verb))
    assert spellings(load(verb, options_only(verb, find))) == own and (cache / f"{verb}.json").is_file()

    def unused(verb: str) -> None:
        raise AssertionError("the verb is imported")

    assert spellings(load(verb, options_only(verb, unused))) == own  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "[]", '{"code": "0.0.1 5", "options": []}'])
def test_a_damaged_or_old_file_is_replaced(content: str, cache: Path) -> None:
    cache.mkdir()
    (cache / "models.json").write_text(content)
    assert ("as_json", "--json") in spellings(load("models", options_only("models", find)))
    assert '"--json"' in (cache / "models.json").read_text()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ev", ["evaluate"]), ("models --", ["--json", "--quiet", "--memory", "--help"]), ("mix --mode a", ["adaptive"])],
)
def test_a_shell_is_offered_verbs_options_and_values(typed: str, offered: list[str], cache: Path) -> None:
    for verb in ("models", "mix"):
        options_only(verb, find)
    words = f"adaptive-smoothing {typed}"
    request = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    request |= {"_ADAPTIVE_SMOOTHING_COMPLETE": "complete_bash"}
    code = (
        "import sys; sys.argv[:] = ['adaptive-smoothing']; from adaptive_smoothing.cli.main import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **request})
    assert done.stdout.split() == offered and done.stderr == "False\n"
