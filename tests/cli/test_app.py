"""The verb `app` without Gradio: its errors, and how it ends. tests/app drives the page."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptive_smoothing.app.server import LOCALHOST
from adaptive_smoothing.app.subject import Subject
from adaptive_smoothing.cli import app as verb


class Interrupted:
    """A server that Ctrl-C ends at once."""

    started: Subject
    url = "http://127.0.0.1:1/"

    def __init__(self, subject: Subject, port: int | None) -> None:
        Interrupted.started = subject

    def __enter__(self) -> "Interrupted":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def without_server(package: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "require_gradio", lambda: None)
    monkeypatch.setattr(verb, "Server", Interrupted)


def test_ctrl_c_ends_the_application_cleanly(
    without_server: None, run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    assert run_main("app", "compact-standard", "compact-robust", "--alpha", "0.5", "--json") == 0
    printed = capsys.readouterr()
    assert "Open http://127.0.0.1:1/ in a browser" in printed.err and printed.err.endswith("Ended.\n")
    assert '"model": "compact-standard-compact-robust-0.5"' in printed.out
    dial = Interrupted.started.dial
    assert dial is not None and (dial.parameter, dial.start, dial.curve) == ("alpha", 0.5, None)


def test_a_model_alone_has_no_alpha_to_move(without_server: None, run_main: Callable[..., int]):
    assert run_main("app", "compact-robust", "--data", "builtin") == 0
    assert Interrupted.started.roles == ("model",) and Interrupted.started.dial is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "got 'nosuch': choose one of"),
        (["compact-standard", "compact-robust"], "got H without --alpha: add or remove one"),
        (["--device", "abacus"], "got 'abacus'"),
    ],
)
def test_bad_arguments_are_explained(
    arguments: list[str],
    message: str,
    without_server: None,
    run_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
):
    assert run_main("app", *arguments) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_port_in_use_is_refused_before_a_model_is_loaded(
    without_server: None, run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    with socket.socket() as used:
        used.bind((LOCALHOST, 0))
        used.listen()
        port = used.getsockname()[1]
        assert run_main("app", "nosuch", "--port", str(port)) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert f"expected a free port, got {port}, which is in use or reserved: name another one with --port" in error


def test_without_gradio_the_error_says_what_to_install(
    package: Callable,
    run_main: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert run_main("app") == 1
    assert "run pip install 'adaptive-smoothing[app]'" in " ".join(capsys.readouterr().err.split())


def test_the_space_has_the_versions_of_this_repository():
    root = Path(__file__).parents[2]
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    requirements = (root / "app" / "requirements.txt").read_text(encoding="utf-8").splitlines()[1:]
    dependencies = project.partition("dependencies = [")[2].partition("]")[0]
    assert requirements == [line.strip(' ",') for line in dependencies.strip().splitlines()]
    (pinned,) = (line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("gradio=="))
    assert f"sdk_version: {pinned.removeprefix('gradio==')}" in (root / "app" / "README.md").read_text(encoding="utf-8")
