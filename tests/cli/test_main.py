import io
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.__main__ import main as package_main
from adaptive_smoothing.cli import main as main_file
from adaptive_smoothing.cli.main import VERBS, app, load
from adaptive_smoothing.training.options import Stopped
from adaptive_smoothing.version import VERSION


def test_the_list_of_verbs_has_the_first_lines_of_their_help() -> None:
    for name, line in VERBS.items():
        assert load(name).help == line
    printed = CliRunner().invoke(app, ["--help"]).output
    assert all(name in printed for name in VERBS)
    assert "--clean-accuracy" in CliRunner().invoke(app, ["demo", "--help"]).output


def test_unknown_verbs_are_refused() -> None:
    result = CliRunner().invoke(app, ["dmeo"])
    assert result.exit_code == 2 and "'dmeo'. Did you mean 'demo'?" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("option", "printed"), [("--version", VERSION), ("-V", VERSION), ("--help", "doctor"), ("-h", "doctor")]
)
def test_the_version_and_the_help_are_printed_without_importing_torch(option: str, printed: str) -> None:
    code = (
        f"import runpy, sys; sys.argv[1:] = ['{option}']\n"
        "try: runpy.run_module('adaptive_smoothing', run_name='__main__')\n"
        "except SystemExit: print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed in result.stdout and result.stdout.endswith("[]\n")


def test_help_has_a_short_form() -> None:
    short, long = (CliRunner().invoke(app, ["models", option]).output for option in ("-h", "--help"))
    assert short == long and "--json" in short


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = "\x1b[3"
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for expected in (True, False):
        main_file._errors().print("[red]error[/]")
        assert (colour in sys.stderr.getvalue()) is expected  # type: ignore[attr-defined]
        sys.stderr.truncate(0)
        monkeypatch.setenv("NO_COLOR", "1")


def test_ctrl_c_while_the_command_line_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @property
        def main(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "adaptive_smoothing.cli.main", Interrupted())
    with pytest.raises(SystemExit) as stopped:
        package_main()
    assert stopped.value.code == 130


def test_a_second_ctrl_c_does_not_hide_how_to_continue(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    def print_slowly(text: str) -> None:
        signal.raise_signal(signal.SIGINT)
        print(text, file=sys.stderr)

    monkeypatch.setattr(main_file, "import_module", interrupt)
    monkeypatch.setattr(main_file, "_errors", lambda: SimpleNamespace(print=print_slowly))
    assert run_main("evaluate", "a") == 130
    assert "run the same command again" in capsys.readouterr().err


def test_ctrl_c_while_a_verb_is_imported(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_file, "import_module", interrupt)
    assert run_main("sweep", "a", "b") == 130
    assert "stopped: there is no result yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stop", "printed"),
    [
        (Stopped, "run the same command with --resume to continue from the last checkpoint"),
        (KeyboardInterrupt, "there is no checkpoint to --resume from yet"),
    ],
)
def test_ctrl_c_in_training_offers_to_resume_from_a_checkpoint_only(
    stop: type[KeyboardInterrupt],
    printed: str,
    run_main: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train() -> None:
        raise stop

    monkeypatch.setattr(main_file, "import_module", lambda name: SimpleNamespace(train=train))
    assert run_main("train") == 130
    assert printed in capsys.readouterr().err


def test_warnings_are_sentences_and_deprecations_are_left_out(
    run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def models() -> None:
        for category in (UserWarning, DeprecationWarning, FutureWarning):
            warnings.showwarning(category(f"a {category.__name__}"), category, "file.py", 1)

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # `main` replaces it
    monkeypatch.setattr(main_file, "import_module", lambda name: SimpleNamespace(models=models))
    assert run_main("models") == 0
    assert capsys.readouterr().err == "warning: a UserWarning\n"


def test_a_terminal_without_greek(run_main: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        print("α = 0.5 − 0.1")
        raise ValueError("α")

    written = io.BytesIO()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(written, "ascii", write_through=True))
    monkeypatch.setattr(main_file, "import_module", fail)
    assert run_main("models") == 1
    assert written.getvalue() == b"? = 0.5 ? 0.1\nerror: ?\n"


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_brackets_and_colons_in_messages_are_not_markup(
    kind: type[Exception],
    run_main: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(name: str) -> None:
        raise kind("expected images in [0, 1] of shape [batch], got a:fire: [-2.1, 2.6]")

    monkeypatch.setattr(main_file, "import_module", fail)
    assert run_main("models") == 1
    assert "in [0, 1] of shape [batch], got a:fire: [-2.1, 2.6]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "ours"),
    [
        ("expected steps as a whole number, got '20': write a number", True),
        ("recipe.toml: expected x as a number, got [1,\n2]: pass a number", True),
        ("pop expected at most 1 argument, got 2", False),
        ("expected 2 arguments, got 3", False),
        ("list expected at most 1 argument, got 2: see help", False),
    ],
)
def test_only_messages_of_this_package_are_printed_without_a_traceback(message: str, ours: bool) -> None:
    assert main_file.is_explained(TypeError(message)) is ours


def test_a_type_error_of_python_is_a_defect_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_file, "import_module", lambda name: len(5))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "argv", ["adaptive-smoothing", "models"])
    with pytest.raises(TypeError, match="has no len"):
        main_file.main()
