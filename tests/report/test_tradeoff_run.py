"""The run folder of a sweep."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.sweep import tradeoff
from adaptive_smoothing.evaluation.tradeoff import load_facts, load_tradeoff
from adaptive_smoothing.report import tradeoff_run
from adaptive_smoothing.report.tradeoff.report import Choice, Report
from adaptive_smoothing.report.tradeoff_run import write_run
from adaptive_smoothing.threat import Linf


def test_the_folder_of_a_sweep_can_be_read_back(tmp_path, linear, monkeypatch):
    monkeypatch.setattr(tradeoff_run, "png", lambda figure: b"")
    monkeypatch.setattr(tradeoff_run, "svg", lambda figure: "")
    pixels = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = linear(pixels / 255).argmax(1)
    labels[:3] = (labels[:3] + 1) % 4
    data = ads.from_tensors(pixels, labels, name="toy/test", classes=list("abcd"))
    run = tradeoff(linear, linear, data, PGD(Linf(0.02), steps=1), mix_alphas=(0, 0.5, 1), pictures=4)
    path = write_run(tmp_path / "new", Report(run, Choice(0.6, 0.5, 0.66, 9), {"device": "cpu"}), "g & h")
    written = {each.name for each in path.parent.iterdir()}
    figures = {f"{name}.{kind}" for name in ("figure", "gaps") for kind in ("png", "svg")}
    assert written == {"result.json", "rows.npz", "pictures.npz", "page.html"} | figures
    assert np.array_equal(load_tradeoff(path.parent).rows["mix"], run.rows["mix"])
    assert load_facts(path.parent) == {
        "device": "cpu",
        "choice": {"wanted": 0.6, "alpha": 0.5, "accuracy": 0.66, "images": 9},
    }
    text = Path(path).read_text(encoding="utf-8")
    content = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert "<h1>g &amp; h</h1>" in text and content["runs"][0]["pictures"]["count"] == 4
    (dial,) = content["dials"]
    assert dial["grid"][dial["start"]] == pytest.approx(0.5) and list(dial["robust"]) == ["0", "50", "100"]
    assert [sheet["key"] for sheet in content["runs"][0]["pictures"]["sheets"]] == ["clean", "std", "rob"]
