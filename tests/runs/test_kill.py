"""A real process is killed and run again: the result has the bytes of an undisturbed run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner

from adaptive_smoothing.cli.main import app
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.report import verdicts

OPTIONS = {"depth": 10, "width": 0.25}
SHARDS, EACH = 2, 2
# Both stages attack all images. The second one takes most of a second, so that a signal can come while it runs.
ATTACKS = """
from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.cascade import Cascade, Stage

def two_stages(threat, seed=0):
    first, second = (APGD(threat, steps=steps, widest_margin=True, seed=seed) for steps in (8, 100))
    return Cascade("two-stages", threat, (Stage("apgd-ce", first), Stage("apgd-again", second)))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file, and images most of which it classifies correctly; some are robust, so that every stage has work."""
    folder = tmp_path_factory.mktemp("kill")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("wide_resnet", **OPTIONS).eval()
    with torch.no_grad():
        model.head.weight.mul_(30)
    zoo.save(model, folder, "tiny", {"arch": "wide_resnet", "options": OPTIONS})
    pixels = torch.randint(256, (SHARDS * EACH, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = zoo.load(folder / "tiny.safetensors")(pixels / 255).argmax(1)
    labels[::3] = (labels[::3] + 1) % 10
    classes = np.array([str(k) for k in range(10)])
    np.savez(folder / "data.npz", images=pixels.permute(0, 2, 3, 1).numpy(), labels=labels.numpy(), classes=classes)
    (folder / "attacks_to_kill.py").write_text(ATTACKS)
    return folder


def command(place: Path, out: str) -> list[str]:
    model, data = str(place / "tiny.safetensors"), str(place / "data.npz")
    settings = ["--attack", "attacks_to_kill:two_stages", "--threat", "Linf:0.02", "--device", "cpu"]
    settings += ["--set", "alarms=false", "--set", f"shard_size={EACH}"]
    return ["evaluate", model, "--data", data, *settings, "--out", str(place / out)]


def start(place: Path, out: str) -> subprocess.Popen:
    program = [sys.executable, "-m", "adaptive_smoothing.cli.main", *command(place, out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=place
    )


def finish(place: Path, out: str) -> str:
    """Run the command to its end in this process, which has imported torch already."""
    result = CliRunner().invoke(app, command(place, out))
    assert result.exit_code == 0, result.output
    return result.output


def entries(folder: Path) -> set[tuple[str, int]]:
    """Return the files of a journal, each with the time it was written."""
    found = set()
    for path in (folder / "journal").glob("*"):
        try:
            found.add((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # replaced in this moment
            continue
    return found


def wait_for(process: subprocess.Popen, folder: Path, writes: int) -> None:
    """Wait until so many files of the journal have been written."""
    before = entries(folder)
    written: set[tuple[str, int]] = set()
    while len(written) < writes:
        assert process.poll() is None, process.communicate()[0]
        written |= {entry for entry in entries(folder) - before if not entry[0].endswith(".tmp")}
        time.sleep(0.001)


def test_a_run_that_is_killed_and_stopped_has_the_result_of_an_undisturbed_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binding is written first, then each shard after either stage: both signals come during a second stage."""
    monkeypatch.chdir(place)  # where the attacks are
    for figure in ("waterfall_figure", "calibration_figure"):  # take a second each
        monkeypatch.setattr(verdicts, figure, lambda verdict: Figure())
    killed, whole = place / "killed", place / "whole"
    process = start(place, "killed")
    wait_for(process, killed, writes=2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in (killed / "journal").glob("*.entry")] == ["shard-000000.entry"]
    # Batch systems send SIGTERM before they kill.
    process = start(place, "killed")
    wait_for(process, killed, writes=2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "run the same command again to continue" in output
    assert len(list((killed / "journal").glob("*.entry"))) == SHARDS and not (killed / "result.json").exists()
    assert "does not match its checksum" not in finish(place, "killed")
    finish(place, "whole")
    assert (killed / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    expected, found = (dict(np.load(folder / "rows.npz")) for folder in (whole, killed))
    assert list(found) == list(expected) and all(np.array_equal(found[name], expected[name]) for name in expected)
    # There are images that are misclassified, robust, and fooled by the first stage.
    assert {-2, -1, 0} <= set(expected["fooled_by"].tolist()) and len(expected["label"]) == SHARDS * EACH
    assert not (killed / "journal").exists()
