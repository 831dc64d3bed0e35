"""The guides run as they are printed: their commands and Python blocks are read from the pages, and made small."""

import ast
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import adaptive_smoothing as ads
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.report import run_folder

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
ANIMALS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")
PHOTOS = {"train": 16, "val": 6, "test": 1}  # per class
# What makes the guide on models of your own small. The networks become thin ones as well.
SMALLER = {
    "=224": "=32",
    "--size 224": "--size 32",
    'weights="DEFAULT"': "weights=None",
    "epochs=20": "epochs=12",
    "epochs=40": "epochs=1",
    '.pt"\nH=': '.pt&size=32"\nH=',
    'h.pt"\nadaptive': 'h.pt&size=32"\nadaptive',
    # Such radii fool every image in the first attack.
    "Linf:4/255": "Linf:64/255",
    "Linf(4 / 255)": "Linf(64 / 255)",
    "--eps 1/255,4/255": "--eps 32/255,64/255 --set alarms=false",
    "--save-adversarial 100": "--save-adversarial 100 --set alarms=false",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code of a guide."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (GUIDES / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def python_blocks(page: str) -> list[str]:
    return [text for language, text in blocks(page) if language == "python"]


def draw_photographs(folder: Path) -> None:
    """Write photographs of several sizes. A class is a colour."""
    noise = np.random.default_rng(0)
    for split, count in PHOTOS.items():
        for label, name in enumerate(ANIMALS):
            (folder / split / name).mkdir(parents=True)
            colour = 128 + 40 * np.cos(2 * np.pi * (label / len(ANIMALS) + np.arange(3) / 3))
            for number in range(count):
                pixels = noise.normal(colour, 8, (*noise.integers(40, 56, 2), 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.jpg")


def thin(resnet: Any) -> type[nn.Module]:
    """Return a class of ResNets with two stages of one block, and with an eighth of the channels."""

    class ThinResNet(resnet.ResNet):
        def __init__(self, block, layers, num_classes=1000, **options):
            super().__init__(block, layers, num_classes, **options)
            self.fc = nn.Linear(self.fc.in_features // 8 // 4, num_classes)

        def _make_layer(self, block, planes, blocks, *arguments, **options):
            last = planes > 128
            return nn.Identity() if last else super()._make_layer(block, planes // 8, 1, *arguments, **options)

    return ThinResNet


class Reader:
    """Follows a guide: runs its commands and its Python, and writes the files that it prints."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self.printed: list[str] = []

    def follow(self, language: str, text: str) -> None:
        if language == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                self.command(Template(line).safe_substitute(self.variables))
        elif language == "python" and (file := re.match(r"# (\w+\.py)\n", text)):
            Path(file[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, "guide", "exec"), self.names)

    def command(self, line: str) -> None:
        verb, *arguments = shlex.split(line)
        if variable := re.fullmatch(r"([A-Z]+)=(.*)", verb):
            self.variables[variable[1]] = variable[2]
        elif verb == "python":
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            assert verb == "adaptive-smoothing", line
            self.printed.append(CliRunner().invoke(app, arguments, catch_exceptions=False).output)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Follow the guide on models of your own in an empty folder, which stays the working folder."""
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    resnet = pytest.importorskip("torchvision.models.resnet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "ResNet", thin(resnet))
        patch.setattr(run_folder, "png", lambda figure: b"")  # takes seconds
        patch.chdir(folder := tmp_path_factory.mktemp("guide"))
        patch.syspath_prepend(folder)
        draw_photographs(folder / "photos")
        found = Reader()
        for language, text in blocks("own-models.md"):
            for printed, small in SMALLER.items():
                text = text.replace(printed, small)
            found.follow(language, text)
        yield found
        sys.modules.pop("my_models", None)


@pytest.mark.parametrize("page", [page.name for page in sorted(GUIDES.glob("*.md"))])
def test_python_blocks_can_be_compiled(page: str):
    assert python_blocks(page)
    for text in python_blocks(page):
        compile(text, page, "exec")


def test_blocks_about_other_tools_import_what_they_use():
    """They need four libraries and minutes; tests/evaluation/test_foreign_attacks.py runs such attacks."""
    nodes = [*ast.walk(ast.parse("\n".join(python_blocks("other-tools.md"))))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    assert {node.id for node in names} - bound == set()


def test_the_test_makes_the_guide_smaller_where_it_says():
    page = (GUIDES / "own-models.md").read_text(encoding="utf-8")
    assert not [printed for printed in SMALLER if printed not in page]


def test_own_models_from_photographs_to_onnx(reader: Reader):
    mixed, logits, test = (reader.names[name] for name in ("mixed", "logits", "test"))
    assert len(test) == len(ANIMALS) and test.classes == ANIMALS
    assert ads.evaluate(mixed, reader.names["val"]).clean >= 0.9
    assert reader.names["result"].robust <= reader.names["result"].clean
    stored = ads.MixedClassifier.from_pretrained("runs/mixed")
    assert stored.alpha == mixed.alpha  # Python and the command line find the same
    np.testing.assert_allclose(logits, stored(test.floats()).numpy(), atol=1e-4, rtol=1e-4)
    assert np.abs(reader.names["robust"] - logits).max() > 1e-3  # alpha was moved
    assert len(reader.names["run"].adversarial) == len(test)


def test_own_models_commands_say_what_the_guide_says(reader: Reader):
    mixed, fast, exported, own, curve, again = reader.printed
    assert "clean accuracy of 9" in mixed or "clean accuracy of 100" in mixed
    assert "Written to runs/fast" in fast and "finished before" in again
    assert "The input alpha moves it between g and h" in exported
    assert "at alpha 0.8" in own and "Written to" in curve


def test_export_blocks_run_on_the_file_of_the_guide(reader: Reader, linear: nn.Module):
    shutil.copy("mixed.onnx", "model.onnx")
    ads.export(ads.MixedClassifier(linear, linear, 0.5), "model.pt2", shape=(3, 8, 8))
    serve, run, metadata = python_blocks("export.md")
    names: dict[str, Any] = {}
    exec(serve, names)
    exec(run.replace("64, 64", "8, 8"), names)
    exec(metadata, names)
    assert names["alphas"].shape == (8,) and names["facts"]["shape"] == [3, 8, 8]


def test_the_commands_of_the_export_guide_write_different_files():
    """They are run one after the other, and none replaces a file. tests/cli/test_export.py runs such commands."""
    written = re.findall(r"^adaptive-smoothing export .*--out (\S+)", blocks("export.md")[0][1], re.MULTILINE)
    assert written == ["model.onnx", "learned.onnx", "model.pt2"]


def test_own_data_blocks_run(reader: Reader):
    order, attack = python_blocks("own-data.md")
    names: dict[str, Any] = {"ads": ads, "names": [*reversed(ANIMALS)], "model": reader.names["g"]}
    exec(order.replace("224", "32"), names)
    assert names["data"].labels.tolist() == [6, 5, 4, 3, 2, 1, 0]
    exec(attack, names | {"my_attack": lambda model, images, labels: images})


def test_weights_blocks_run_with_models_of_the_package():
    load, push = python_blocks("weights.md")
    names: dict[str, Any] = {"ads": ads}
    exec(load.replace("resnet18", "compact"), names)
    assert names["mixed"].robust.num_classes == names["h"].num_classes == 10
    assert "push_to_hub" in push  # tests/mixing/test_hub.py
