import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli import devices
from adaptive_smoothing.cli import main as main_file
from adaptive_smoothing.cli.main import VERBS, app, load, main
from adaptive_smoothing.training.loop import Stopped
from adaptive_smoothing.version import VERSION


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["adaptive-smoothing", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_list_of_verbs_says_what_they_say() -> None:
    for name, line in VERBS.items():
        assert load(name).help == line
    said = CliRunner().invoke(app, ["--help"]).output
    assert all(name in said for name in VERBS)
    assert "--clean-accuracy" in CliRunner().invoke(app, ["demo", "--help"]).output


def test_unknown_verbs_are_refused() -> None:
    result = CliRunner().invoke(app, ["dmeo"])
    assert result.exit_code == 2 and "dmeo" in result.output


def test_verbs_are_read_when_they_are_called() -> None:
    code = (
        "import sys, adaptive_smoothing.cli.main; sys.exit(any('adaptive_smoothing.report' in m for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_also_as_a_module() -> None:
    command = [sys.executable, "-m", "adaptive_smoothing", "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"adaptive-smoothing {VERSION}\n"


def test_ctrl_c_while_a_verb_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_file, "import_module", interrupt)
    assert run_main(monkeypatch, "sweep", "a", "b") == 130
    assert "stopped: there is no result yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stop", "said"),
    [(Stopped, "the same command with --resume goes on"), (KeyboardInterrupt, "nothing new was saved")],
)
def test_ctrl_c_while_training(
    stop: type[KeyboardInterrupt], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what has left a checkpoint can be resumed."""

    def train() -> None:
        raise stop

    monkeypatch.setattr(main_file, "import_module", lambda name: SimpleNamespace(train=train))
    assert run_main(monkeypatch, "train") == 130
    assert said in capsys.readouterr().err


def test_a_terminal_without_greek(monkeypatch: pytest.MonkeyPatch) -> None:
    def speak(name: str) -> None:
        print("α = 0.5 − 0.1")
        raise ValueError("α")

    bytes_out = io.BytesIO()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(bytes_out, "ascii", write_through=True))
    monkeypatch.setattr(main_file, "import_module", speak)
    assert run_main(monkeypatch, "models") == 1
    assert bytes_out.getvalue() == b"? = 0.5 ? 0.1\nerror: ?\n"


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "gpu"])
def test_devices_that_are_not_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: ["cpu"])
    with pytest.raises(ValueError, match=rf"of this machine \(cpu\) or auto, got '{name}'"):
        devices.pick_device(name)
    assert devices.pick_device("auto") == devices.pick_device("cpu") == "cpu"


def test_devices_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 2)
    assert devices.devices()[:4] == ["cpu", "cuda", "cuda:0", "cuda:1"]
    assert devices.pick_device("auto") == "cuda" and devices.pick_device("cuda:1") == "cuda:1"
