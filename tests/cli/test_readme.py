import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.data.datasets import ImageData

README = Path(__file__).parents[2] / "README.md"


def test_the_notebook_block_runs(monkeypatch: pytest.MonkeyPatch, package: Callable[..., ImageData]) -> None:
    """As it stands, on the tiny models, with labels that g knows, so that 90 % can be reached."""

    def load(name: str, split: str) -> ImageData:
        data = package(name, split)
        with torch.no_grad():
            return replace(data, labels=ads.load_model("compact-standard")(data.floats()).argmax(1))

    monkeypatch.setattr(ads, "load_data", load)
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["x_adv"].shape == names["x"].shape
    assert 0 <= names["result"].robust <= names["result"].clean <= 1
