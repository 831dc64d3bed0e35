"""A real process, killed without a word and run again: the result has the bytes of an undisturbed one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build

OPTIONS = {"depth": 10, "width": 0.25}
SHARDS, EACH = 3, 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file, and images most of which it gets right; some of those stand, so that every stage has work."""
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
    return folder


def command(place: Path, out: str) -> list[str]:
    model, data = str(place / "tiny.safetensors"), str(place / "data.npz")
    arguments = ["--preset", "margin", "--threat", "Linf:0.02", "--device", "cpu"]
    arguments += ["--set", "alarms=false", "--set", f"shard_size={EACH}"]
    program = [sys.executable, "-m", "adaptive_smoothing.cli.main", "evaluate", model, "--data", data]
    return [*program, *arguments, "--out", str(place / out)]


def start(place: Path, out: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(place, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(process: subprocess.Popen) -> str:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def entries(folder: Path) -> set[tuple[str, int]]:
    """The entries of a journal, each with the time it was written."""
    found = set()
    for path in (folder / "journal").glob("*"):
        try:
            found.add((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # replaced in this moment
            continue
    return found


def kill(process: subprocess.Popen, folder: Path, writes: int, later: float = 0.0) -> None:
    """Kill -9 right after so many files of the journal have been written, or some seconds later."""
    before = entries(folder)
    written: set[tuple[str, int]] = set()
    while len(written) < writes:
        assert process.poll() is None, process.communicate()[0]
        written |= {entry for entry in entries(folder) - before if not entry[0].endswith(".tmp")}
        time.sleep(0.001)
    time.sleep(later)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_batch_system_that_ends_a_run_is_told_how_to_go_on(place: Path) -> None:
    process = start(place, "ended")
    while not entries(place / "ended"):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped: run the same command again to continue" in said


def rows(folder: Path) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "rows.npz"))


def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(place: Path) -> None:
    """The binding is the first file; then each shard is written after either stage. The last run goes to the end."""
    whole = start(place, "whole")
    for writes, later in ((1, 0.0), (2, 0.1), (1, 0.0)):
        kill(start(place, "killed"), place / "killed", writes, later)
    survived = sorted(path.name for path in (place / "killed" / "journal").glob("*.entry"))
    assert survived[:2] == [f"shard-{number:06}.entry" for number in range(2)]
    assert not (place / "killed" / "result.json").exists()
    finish(whole)
    said = finish(start(place, "killed"))
    assert "does not match its checksum" not in said
    assert (place / "killed" / "result.json").read_bytes() == (place / "whole" / "result.json").read_bytes()
    expected, found = rows(place / "whole"), rows(place / "killed")
    assert list(found) == list(expected) and all(np.array_equal(found[name], expected[name]) for name in expected)
    # There was something to lose: images that were wrong, that fell to the first stage, and that stood.
    assert {-2, -1, 0} <= set(expected["fooled_by"].tolist()) and len(expected["label"]) == SHARDS * EACH
    assert not (place / "killed" / "journal").exists()
