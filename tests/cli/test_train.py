"""The verb `train`: from a recipe file to a stored model."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from adaptive_smoothing.cli.main import app
from adaptive_smoothing.models import zoo

RECIPE = """
name = "tiny"
evaluate_every = 2

[model]
arch = "wide_resnet"
options = { depth = 10, width = 0.25 }

[data]
name = "bright.npz"
pad = 0

[optimizer]
epochs = 2
batch_size = 16
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """`adaptive-smoothing train tiny.toml` in a folder with a data set of dark and light images."""
    arrays = {}
    for split, count in (("train", 64), ("val", 16), ("test", 24)):
        labels = np.arange(count) % 2
        images = np.random.default_rng(count).integers(0, 120, (count, 8, 8, 3)) + 130 * labels[:, None, None, None]
        arrays |= {f"{split}_labels": labels, f"{split}_images": images.astype(np.uint8)}
    np.savez(tmp_path / "bright.npz", **arrays)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)

    def run(*options):
        fixed = ("train", "tiny.toml", "--out", "run", "--device", "cpu", "--quiet", "--json")
        outcome = CliRunner().invoke(app, [*fixed, *options])
        if outcome.exception and not isinstance(outcome.exception, SystemExit):
            raise outcome.exception
        assert outcome.exit_code == 0, outcome.output
        stored = json.loads((tmp_path / "run" / "tiny.json").read_text())
        assert json.loads(outcome.stdout)["figures"] == stored["card"]["figures"]
        return stored

    return run


def test_the_card_has_the_recipe_and_the_figures(train):
    facts = train()["card"]
    assert {split: row["images"] for split, row in facts["figures"].items()} == {"val": 16, "test": 24}
    assert facts["recipe"]["optimizer"]["epochs"] == 2 and facts["train_images"] == 64
    assert facts["code"] and facts["seconds"] > 0
    assert zoo.load("run/tiny.safetensors").num_classes == 2


def test_a_candidate_is_evaluated_on_test_images_only_when_it_is_chosen(train):
    candidate = train("--test-images", "0")
    assert list(candidate["card"]["figures"]) == ["val"]
    assert candidate["card"]["resumed"] is False
    winner = train("--resume")
    assert winner["card"] == candidate["card"] | {"figures": winner["card"]["figures"]}
    assert winner["card"]["figures"]["test"]["images"] == 24
    assert winner["sha256"] == candidate["sha256"]
    assert winner["card"]["figures"]["val"] == candidate["card"]["figures"]["val"]


def test_a_run_is_not_overwritten(train):
    train("--test-images", "4")
    with pytest.raises(
        FileExistsError, match=r"expected a folder without a run, got run: continue with resume=True \(--resume\)"
    ):
        train()
