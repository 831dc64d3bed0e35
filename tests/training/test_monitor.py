"""Progress of a training: the step and the time left fit in 80 columns, and a file has lines."""

import re

import pytest
from rich import reconfigure

from adaptive_smoothing.training.monitor import TrainingMonitor

ROW = {"epoch": 1, "step": 1, "loss": 0.1234, "accuracy": 0.5678, "val_clean": 0.91, "val_pgd10": 0.42}


def test_80_columns_have_the_step_and_the_time_left(tmp_path, capsys):
    reconfigure(force_terminal=True, width=80, no_color=True)
    try:
        monitor = TrainingMonitor(tmp_path, title="mixing-resnet18-robust", tensorboard=False)
        monitor.log(ROW)
        with monitor.show(1200, 0) as advance:
            advance(7)
    finally:
        reconfigure()
    *_, last = (line for line in capsys.readouterr().out.splitlines() if "elapsed" in line)
    assert "step 7 of 1,200, loss 0.123" in last and "…" in last
    assert re.search(r"0:0\d elapsed, \d+:\d\d left$", last.rstrip())


def test_a_file_has_lines_from_the_start(tmp_path, capsys):
    monitor = TrainingMonitor(tmp_path, title="tiny", tensorboard=False)
    with monitor.show(3, 0) as advance:
        advance(1)
    with monitor.show_evaluation("val", 50):
        pass
    printed = capsys.readouterr().out
    assert re.search(r"elapsed: step 0 of 3, tiny\n0:0\d elapsed, 0:0\d left: step 1 of 3, tiny\n", printed)
    assert "0:00 elapsed: image 0 of 50, evaluating tiny on val" in printed


def test_a_quiet_training_prints_nothing(tmp_path, capsys):
    monitor = TrainingMonitor(tmp_path, quiet=True, tensorboard=False)
    with monitor.show(3, 0) as advance:
        advance(1)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("done", [0, 2])
def test_the_pace_is_that_of_this_process(done, tmp_path, monkeypatch):
    """A resumed training has finished some steps before."""
    now, reported = [100.0], []
    monkeypatch.setattr("adaptive_smoothing.training.monitor.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(
        "adaptive_smoothing.runs.progress_bar.TimeBar.report", lambda self, text, left: reported.append(left)
    )
    with TrainingMonitor(tmp_path, quiet=True, tensorboard=False).show(10, done) as advance:
        now[0] += 5
        advance(done + 1)
    assert reported == [None, 5.0 * (9 - done)]
