"""The guides run as they are printed: their commands and Python blocks are read from the pages, and made small."""

import ast
import re
import runpy
import shlex
import shutil
import sys
import threading
import urllib.error
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import adaptive_smoothing as ads
from adaptive_smoothing.cli import evaluate
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.cli.sweep import write_run
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.report import run_folder
from adaptive_smoothing.settings.tables import read_toml
from adaptive_smoothing.training.mixing.recipe import MixingRecipe, default_recipe
from adaptive_smoothing.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
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
# The same for the guides on the models of the package, which become tiny ones. A page has all of its own texts.
WIDE, FEW_STEPS = "255 / 255", " --set optimizer.epochs=1 --set optimizer.batch_size=4"
TINY_RECIPE = f"{FEW_STEPS} --set model.options.width=4 --set method.steps=1 --no-compile --test-images 4"
TINY = {
    "../quick-start.md": {
        "adaptive-smoothing demo\n": "",  # tests/cli/test_demo.py
        "8 / 255": WIDE,
        "take(20)": "take(4)",
        "take(4), samples": "take(1), samples",
        "--images 20": "--images 4 --threat Linf:255/255 --set alarms=false",
    },
    "training-a-pair.md": {
        "train recipes/resnet18-standard.toml": f"train recipes/resnet18-standard.toml{TINY_RECIPE}",
        "train recipes/resnet18-robust.toml": f"train recipes/resnet18-robust.toml{TINY_RECIPE}",
        "--set optimizer.lr=0.1": f"--set optimizer.lr=0.1{TINY_RECIPE.replace('width=4', 'width=1')}",
        # After one epoch neither has an accuracy worth mixing.
        "runs/g/resnet18-standard.safetensors": "compact-standard",
        "runs/h/resnet18-robust.safetensors": "compact-robust",
        "--mode adaptive": f"--mode adaptive{FEW_STEPS} --set attack.steps=1",
        "clean_accuracy=0.9)": "clean_accuracy=0.9, recipe=small)",
        "--images 1000": "--images 4 --threat Linf:255/255 --set alarms=false",
    },
    "choosing-alpha.md": {
        "--images 100": "--images 8 --set steps=1",
        "PGD(ads.Linf(8 / 255), steps=5, stop": "PGD(ads.Linf(0.001), steps=1, stop",  # some images have to be robust
        "8 / 255": WIDE,
        "steps=5": "steps=1",
        "take(100)": "take(4)",
        "attacked=4": "attacked=1",
    },
    "evaluating.md": {
        "--images": "--set alarms=false --images",
        "compact-standard compact-robust": "compact-standard compact-robust --threat Linf:128/255",
        "--eps 8/255,16/255": "--eps 64/255,128/255",
    },
    "page.md": {"--images 8": "--images 4 --threat Linf:255/255 --set alarms=false"},
    "certifying.md": {"--images 4": "--images 1", "--images 20": "--images 1", "take(4)": "take(1)"},
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
        elif language in ("python", "toml") and (file := re.match(r"# (\w+\.(?:py|toml))\n", text)):
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImageData]:
    """Return a folder of tiny models with the names of stored ones, and 12 images with the labels that g predicts."""
    folder = tmp_path_factory.mktemp("weights")
    colours = torch.randint(256, (12, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = colours.repeat_interleave(16, 2).repeat_interleave(16, 3)
    options = {"depth": 10, "width": 0.25}
    for name in ("compact-standard", "resnet18-standard", "compact-robust", "gaussian-025", "gaussian-050"):
        torch.manual_seed(0)
        model = build("wide_resnet", **options).eval()
        with torch.no_grad():
            if "standard" not in name:  # like g, but less accurate
                model.head.weight.add_(torch.randn_like(model.head.weight), alpha=0.05)
            model.head.weight.mul_(30)  # confident enough to be worth mixing
            model.head.bias.sub_(model(pixels / 255).mean(0))  # not always the same class
        recipe = asdict(read_toml(ROOT / "recipes" / f"{name}.toml", Recipe))
        zoo.save(model, folder, name, {"arch": "wide_resnet", "options": options, "recipe": recipe})
    options = {"width": 4, "blocks": [1, 1, 1], "hidden": 16, "size": 32}
    lipschitz = build("lipschitz_net", **options).eval()
    zoo.save(lipschitz, folder, "lipschitz-8", {"arch": "lipschitz_net", "options": options})
    with torch.no_grad():
        labels = zoo.load(folder / "compact-standard.safetensors")(pixels / 255).argmax(1)
    return folder, ads.from_tensors(pixels, labels, classes=[str(label) for label in range(10)])


@pytest.fixture
def tiny_package(tiny: tuple[Path, ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the tiny models and images in the place of those of the package, in a copy of what guides use."""
    folder, data = tiny

    def load(name: str, split: str = "test", *, images: int | None = None, **options: object) -> ImageData:
        return replace(data, name=f"{name}/{split}").take(slice(images))

    # The name of the package first: it is imported from the module when it is first used.
    for module, name in ((ads, "load_data"), (datasets, "load")):
        monkeypatch.setattr(module, name, load)
    monkeypatch.setattr(zoo, "BUILTIN", folder)
    # Pictures and the cost of a prediction take seconds.
    monkeypatch.setattr(run_folder, "png", lambda figure: b"")
    for name, empty in (("png", b""), ("svg", ""), ("page", "")):
        monkeypatch.setattr(sys.modules[write_run.__module__], name, lambda *given, empty=empty: empty, raising=False)
    monkeypatch.setattr(evaluate, "_costs", lambda *arguments: {})
    monkeypatch.chdir(tmp_path)
    for name in ("results", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)


@pytest.mark.parametrize("page", TINY)
def test_guides_on_models_of_the_package_run(page: str, tiny_package: None):
    reader = Reader()
    reader.names["small"] = small_recipe()
    texts = blocks(page)
    printed = "".join(text for language, text in texts if language in ("bash", "python", "toml"))
    assert not [text for text in TINY[page] if text not in printed], "the test replaces what the guide does not say"
    for language, text in texts:
        for old, new in TINY[page].items():
            text = text.replace(old, new)
        reader.follow(language, text)
    assert reader.printed and reader.names


def small_recipe() -> MixingRecipe:
    recipe = default_recipe(ads.Linf(8 / 255), clean_accuracy=0.9)
    attack, optimizer = replace(recipe.attack, steps=1), replace(recipe.optimizer, epochs=1, batch_size=4)
    return replace(recipe, attack=attack, optimizer=optimizer)


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
    serve, _, _, run, metadata = python_blocks("export.md")
    names: dict[str, Any] = {}
    exec(serve, names)
    exec(run.replace("64, 64", "8, 8"), names)
    exec(metadata, names)
    assert names["alphas"].shape == (8,) and names["facts"]["shape"] == [3, 8, 8]


def test_the_web_service_of_the_export_guide_answers(reader: Reader):
    shutil.copy("mixed.onnx", "model.onnx")
    _, serve, client, _, _ = python_blocks("export.md")
    names: dict[str, Any] = {}
    exec(serve.replace("8000", "0"), names)
    server = names["server"]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answers: list[dict[str, Any]] = []
    try:
        exec(client.replace("8000", str(server.server_port)), {"print": answers.append})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            exec(client.replace("8000", str(server.server_port)).replace("0.95", "1.5"), {})
    finally:
        server.shutdown()
        server.server_close()
    assert [len(answer["classes"]) for answer in answers] == [2, 2]
    assert answers[1]["alphas"] == pytest.approx([0.95, 0.95])


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
