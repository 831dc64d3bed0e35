"""docs/faq.md: its Python blocks run, its commands have options that exist, and every question has an answer."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.cli.main import VERBS, load
from adaptive_smoothing.models.architectures import build

PAGE = Path(__file__).parents[1] / "docs" / "faq.md"


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the models by small untrained ones, and the labels by what they predict."""
    models = {}
    for seed, name in enumerate(("compact-standard", "compact-robust")):
        torch.manual_seed(seed)
        models[name] = build("wide_resnet", depth=10, width=0.25).eval()
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        labels = models["compact-robust"](images / 255).argmax(1)
    monkeypatch.setattr(ads, "load_model", models.__getitem__)
    monkeypatch.setattr(ads, "load_data", lambda name, split: ads.from_tensors(images, labels, classes=[*"0123456789"]))


def test_the_python_blocks_run_in_order(text: str, tiny_models: None, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torchattacks")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, names)
    assert names["binary"].num_classes == 2
    assert names["result"].robust <= names["result"].clean
    assert "0.8500" in capsys.readouterr().out  # the alpha of each image


def test_every_option_that_the_page_names_belongs_to_a_verb(text: str):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert {"--images", "--resume", "--loader"} <= named
    assert named <= _options(), f"no verb has {sorted(named - _options())}"


def test_every_question_has_an_answer(text: str):
    questions = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(questions) > 25
    for question in questions:
        title, _, answer = question.partition("\n")
        assert len(re.sub(r"^## .*", "", answer, flags=re.MULTILINE).split()) > 10, f"{title!r} has no answer"


def _options() -> set[str]:
    """Return the options of all verbs."""
    return {option for verb in VERBS for parameter in load(verb).params for option in parameter.opts}
