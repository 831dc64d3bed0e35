"""Run every Python block of the README on tiny models."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.cli import demo
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.training.mixing.recipe import default_recipe

README = Path(__file__).parents[2] / "README.md"
OPTIONS = {"depth": 10, "width": 0.25}
THREAT = ads.Linf(8 / 255)


@pytest.fixture
def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ImageData]:
    """Replace the models and data sets of the package by tiny ones; return the function that loads data.

    The models react to the smallest change of an image, so attacks end after a few steps. The labels are what g
    predicts, so 90 % clean accuracy can be reached.
    """
    for seed, name in enumerate((demo.STANDARD, demo.ROBUST)):
        torch.manual_seed(seed)
        model = build("wide_resnet", **OPTIONS).eval()
        with torch.no_grad():
            next(model.parameters()).mul_(20)
            model.head.weight.mul_(30)
        zoo.save(model, tmp_path / "weights", name, {"arch": "wide_resnet", "options": OPTIONS, "figures": {}})
    monkeypatch.setattr(zoo, "BUILTIN", tmp_path / "weights")
    monkeypatch.delenv(zoo.ZOO_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    pixels = torch.randint(256, (24, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = zoo.load(demo.STANDARD)(pixels / 255).argmax(1)

    def load(name: str, split: str) -> ImageData:
        return from_tensors(pixels, labels, name=f"{name}/{split}", classes=[str(i) for i in range(10)])

    monkeypatch.setattr(ads, "load_data", load)
    return load


def test_every_python_block_of_the_readme_runs(
    tiny_package: Callable[..., ImageData], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = default_recipe(THREAT, clean_accuracy=0.9, size=8)
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, epochs=1, batch_size=12))
    monkeypatch.setattr(ads, "train_mixing", partial(ads.train_mixing, recipe=recipe, quiet=True))
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3 and not re.search(r"^```py\n", text, re.MULTILINE)
    names: dict[str, Any] = {}

    exec(blocks[0], names)
    verdict = names["verdict"]
    assert 0 <= verdict.robust <= verdict.clean and verdict.clean >= 0.8
    assert verdict.interval[0] <= verdict.robust <= verdict.interval[1]

    exec(blocks[1], names)
    images, val = tiny_package("cifar10", "val").floats(), names["val"]
    again = ads.tune(ads.MixedClassifier.from_pretrained("mine"), val, clean_accuracy=0.91)
    assert torch.equal(again(images), names["mixed"](images))
    assert ads.evaluate(again, val).clean >= 0.91

    exec(blocks[2], names)
    found = names["found"]
    assert len(found.rows["radius"]) == len(names["data"])
    assert found.accuracy(0.1) <= found.clean
