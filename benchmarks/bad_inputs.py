"""Try wrong commands and wrong Python calls, as a new user would type them, and write what each was answered.

    python benchmarks/bad_inputs.py          writes docs/bad-inputs.md
    python benchmarks/bad_inputs.py --check  only checks the answers

An answer is good if it is an error of this package, raised on purpose, that says what was expected and what was given.
Anything else is a failure: a traceback, an error of torch or of Python that merely passed through, or no error at all.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import io
import json
import linecache
import os
import re
import shlex
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.cli.main import app
from adaptive_smoothing.models import zoo

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "adaptive_smoothing"
PAGE = ROOT / "docs" / "bad-inputs.md"
# What `main` prints as one sentence. Another type of error would be printed as a traceback.
PRINTED = (ValueError, OSError, RuntimeError, ImportError)
# A message says what was expected and what was given, or names what is unknown, missing or superfluous.
STRUCTURE = re.compile(
    r"expected\b.*\b(got|found)\b|unknown (key|option|name)|missing key|applies to|not valid TOML|[Dd]id you mean|"
    r"(No such (command|option)|Invalid value|Missing (argument|option)|requires an argument|unexpected extra)|"
    r"was made with another|does not exist|stopped: ",
    re.DOTALL,
)

COMMANDS = {
    "Verbs and options": [
        "evalute compact-standard",
        "evaluate",
        "evaluate compact-standard --preste fast",
        "evaluate compact-standard --images",
        "evaluate compact-standard --images ten",
        "evaluate compact-standard --images 0",
        "evaluate compact-standard compact-robust compact-mixed",
        "mix compact-standard",
        "models compact-standard",
    ],
    "Names of models": [
        "evaluate compact-standrad",
        "evaluate resnet19",
        "evaluate timm:",
        "evaluate timm:resnet18?pretrain=0",
        "evaluate timm:resnet18?pretrained=maybe",
        "evaluate tim:resnet18",
        "evaluate no/such/file.safetensors",
        "evaluate card-missing.safetensors",
        "evaluate empty.safetensors",
        "evaluate broken-card.safetensors",
        "evaluate list-card.safetensors",
        "evaluate no-arch.safetensors",
        "evaluate other-arch.safetensors",
        "evaluate wrong-option.safetensors",
        "evaluate .",
        "evaluate broken-mixture",
        "evaluate old-mixture",
        "evaluate compact-standard compact-robust",
        "evaluate compact-standard --alpha 0.5",
        "evaluate compact-standard compact-robust --alpha 1.5",
        "evaluate compact-mixed compact-robust --alpha 0.5",
    ],
    "Attacks, threats and settings": [
        "evaluate compact-standard --preset standrd",
        "evaluate compact-standard --preset STD",
        "evaluate compact-standard --threat Linf",
        "evaluate compact-standard --threat Linf:8",
        "evaluate compact-standard --threat L1:0.5",
        "evaluate compact-standard --threat L2:half",
        "evaluate compact-standard --threat Linf:8/0",
        "evaluate compact-standard --threat L2:-1",
        "evaluate compact-standard --seed one",
        "evaluate compact-standard --check binarisation",
        "evaluate compact-standard --set precize=true",
        "evaluate compact-standard --set precise",
        "evaluate compact-standard --set precise=perhaps",
        "evaluate compact-standard --set batch_size=0",
        "evaluate compact-standard --device gpu",
        "evaluate compact-standard --device cuda:99",
        "evaluate compact-standard --device cpu,gpu",
    ],
    "Data": [
        "evaluate compact-standard --data cifr10",
        "evaluate compact-standard --data cifar10 --data-root nowhere",
        "evaluate compact-standard --data builtin --split train",
        "evaluate compact-standard --data builtin --split tset",
        "evaluate compact-standard --data empty",
        "evaluate compact-standard --data text.txt",
        "evaluate compact-standard --data broken.npz",
        "evaluate compact-standard --data no-labels.npz",
        "evaluate compact-standard --data few-labels.npz",
        "evaluate compact-standard --data float-images.npz",
        "evaluate compact-standard --data hundred.npz",
        "evaluate compact-standard --data broken-images",
    ],
    "Folders and interrupted runs": [
        "evaluate compact-standard --out text.txt",
        "evaluate compact-standard --out text.txt/run",
        "evaluate compact-standard --out /proc/run",
        "evaluate compact-standard --out finished-other --images 2",
        "evaluate compact-standard --out damaged-journal --images 2",
        "train recipe.toml --out text.txt",
        "train recipe.toml --out finished-training",
        "train recipe.toml --out damaged-training --resume",
        "mix compact-standard compact-robust --alpha 0.5 --out has-mixture",
        "mix compact-standard compact-robust --alpha 0.5 --out text.txt",
        "certify compact-standard --sigma 0.25 --out text.txt",
        "sweep compact-standard compact-robust --out text.txt",
    ],
    "Recipes": [
        "train no-such.toml",
        "train empty.toml",
        "train broken.toml",
        "train recipe.toml --set optimizer.epoch=3",
        "train recipe.toml --set optimizer.epochs=three",
        "train recipe.toml --set optimizer.epochs=-1",
        "train recipe.toml --set method.name=trade",
        "train recipe.toml --set model.arch=resnet",
        "train recipe.toml --set optimizer.batch_size=9999",
        "train recipe.toml --set epochs",
        "train text.txt",
        "train empty",
        "mix compact-standard compact-robust --recipe no-such.toml",
    ],
    "Mixing, certificates and sweeps": [
        "mix compact-standard compact-robust --mode adaptiv",
        "mix compact-standard compact-robust --clean-accuracy 0.9 --alpha 0.5",
        "mix compact-standard compact-robust --clean-accuracy 5",
        "mix compact-standard compact-robust --alpha 2",
        "mix compact-standard compact-robust --mode fixed --resume",
        "mix compact-standard compact-robust --mode nonlinear --robust-accuracy 0.4",
        "mix compact-standard compact-robust --set serch=true",
        "certify compact-standard",
        "certify compact-standard compact-robust --sigma 0.25 --alpha 0.2",
        "certify compact-standard --sigma 0",
        "certify compact-standard --sigma 0.25 --samples 0",
        "certify compact-standard --sigma 0.25 --votes medium",
        "certify compact-standard --method smoth",
        "certify compact-standard --method lipschitz",
        "certify compact-standard --sigma 0.25 --hardmax",
        "certify compact-standard --sigma 0.25 --set radus=0.5",
        "sweep compact-standard compact-robust --alphas 0,half,1",
        "sweep compact-standard compact-robust --alphas 0,2",
        "sweep compact-standard compact-robust --set steps=0",
        "demo --clean-accuracy 0",
        "demo --images -3",
    ],
}

CALLS = {
    "Names and files": [
        'ads.load_model("compact-standrad")',
        'ads.load_model("torchvision:resnet18?weight=0")',
        "ads.load_model(5)",
        'ads.load_model("robustbench:Carmon2019Unlabeled")  # without network',
        'ads.load_model("compact-standard", device="cuda")',
        'ads.load_model("compact-standard", device="gpu")',
        'ads.load_data("cifr10")',
        'ads.load_data("builtin", "train")',
        'ads.load_data("broken.npz")',
        'ads.MixedClassifier.from_pretrained("no-such-mixture")',
        'ads.MixedClassifier.from_pretrained("broken-mixture")',
        'ads.MixedClassifier(g, h, 0.5).save_pretrained("text.txt")',
    ],
    "Threats and attacks": [
        'ads.Linf("8/255")',
        "ads.Linf(8)",
        "ads.L2(-0.5)",
        "ads.Linf(None)",
        "ads.evaluate(g, data, ads.Linf)",
        "ads.evaluate(g, data, ads.Linf(8 / 255))",
        'ads.evaluate(g, data, "fast")',
        'ads.evaluate(g, data, "fast", ads.Linf)',
        'ads.evaluate(g, data, "fast", 8 / 255)',
        'ads.evaluate(g, data, "fast", "Linf:8/255")',
        'ads.evaluate(g, data, "fst", ads.Linf(8 / 255))',
        "ads.evaluate(g, data, ads.PGD)",
        "ads.evaluate(g, data, ads.fast_attack)",
        "ads.evaluate(g, data, 20)",
        "ads.PGD(8 / 255)",
        "ads.PGD(ads.Linf(8 / 255), steps=0)",
        "ads.PGD(ads.Linf(8 / 255))(g, images, labels.float())",
        "ads.PGD(ads.Linf(torch.tensor([0.1, 0.2])))(g, images, labels)",
    ],
    "Models": [
        "ads.evaluate(lambda x: x, data)",
        "ads.evaluate(trained, data)",
        "ads.evaluate(g, (images, labels))",
        "ads.wrap(lambda x: x)",
        "ads.wrap(Probabilities(), mean=0.0, std=1.0)",
        "ads.wrap(g, mean=(0.5, 0.5), std=(0.5, 0.5))",
        "ads.wrap(g, mean=0.5, std=0)",
        "ads.wrap(g, mean=124, std=58)",
        'ads.wrap(g, mean=0.5, std=0.5, size="large")',
        "ads.wrap(nn.Linear(5, 2), mean=0.5, std=0.5)",
        "ads.wrap(OneLogit(), mean=0.0, std=1.0)",
    ],
    "Images and labels": [
        "mixed(images.mul(255))",
        "mixed(images.mul(255).byte())",
        "mixed(images[0])",
        "mixed(images.permute(0, 2, 3, 1))",
        "mixed(images.numpy())",
        "mixed(images * torch.nan)",
        "ads.from_tensors(images * 3 - 1, labels)",
        "ads.from_tensors(images, labels[:2])",
        "ads.from_tensors(images, nn.functional.one_hot(labels))",
        "ads.from_tensors(images, -labels - 1)",
        "ads.from_tensors(images[:, 0], labels)",
        "ads.from_dataset([1, 2, 3])",
        "ads.evaluate(g, data.take(slice(0)))",
        "ads.evaluate(g, hundred)",
    ],
    "Mixtures": [
        "ads.MixedClassifier(g, h, 1.5)",
        'ads.MixedClassifier(g, h, "0.5")',
        'ads.MixedClassifier("compact-standard", h, 0.5)',
        "ads.MixedClassifier(g, seven, 0.5)(images)",
        "ads.MixedClassifier(g, h, 0.5, standard_scale=0)",
        "ads.MixedClassifier(g, h, 0.5, alpha_range=(0.9, 0.1))",
        "ads.tune(mixed, data)",
        "ads.tune(mixed, data, clean_accuracy=90)",
        "ads.tune(g, data, clean_accuracy=0.9)",
        "ads.train_mixing(mixed, data, data, ads.Linf(8 / 255))",
        "ads.certify(g, data)",
        "ads.certify(ads.MixedClassifier(g, ads.SmoothedClassifier(h, sigma=0.5), 0.3), data)",
        "ads.SmoothedClassifier(h, sigma=-1)",
        "ads.EvaluationOptions(batch_size=0)",
        "ads.tradeoff(g, h, data, ads.Linf(8 / 255))",
    ],
}

# A command that is stopped by Ctrl-C after this number of seconds.
INTERRUPTED, AFTER = "evaluate compact-robust --images 8 --set alarms=false --out stopped", 1.0


@dataclass(frozen=True)
class Answer:
    """What was typed, what was answered, and why the answer is not good enough; empty if it is."""

    section: str
    typed: str
    text: str
    failure: str = ""


def answers(*, sections: tuple[str, ...] = (), interrupt: bool = True) -> list[Answer]:
    """Return the answers to all bad inputs, or to those of some sections, tried in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_files()
        names, found = python_names(), []
        sys.modules.update(_robustbench_without_network())
        for tried, section, typed in _inputs():
            if not sections or section in sections:
                found.append(_answer(section, typed, names if tried == "call" else None))
        if interrupt:
            found.append(_answer("Folders and interrupted runs", INTERRUPTED, None, AFTER))
    return sorted(found, key=lambda each: list(_sections()).index(each.section))


def _inputs() -> Iterator[tuple[str, str, str]]:
    for kind, inputs in (("command", COMMANDS), ("call", CALLS)):
        for section, lines in inputs.items():
            for line in lines:
                yield kind, section, line


def _sections() -> tuple[str, ...]:
    return (*COMMANDS, *CALLS)


def _answer(section: str, typed: str, names: dict[str, Any] | None, after: float = 0.0) -> Answer:
    """Return what a command, or a call if names are given, is answered."""
    printed = io.StringIO()
    text, failure = "", "no error"
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _ctrl_c(after):
            code = app(shlex.split(typed), standalone_mode=False) if names is None else eval(typed, names) and 0
        if code:  # the verb has printed why it stopped
            text = printed.getvalue().strip().splitlines()[-1] + f" (exit code {code})"
            failure = ""
    except Exception as error:
        text, failure = _message(error), _failure(error, command=names is None)
    if not failure and not STRUCTURE.search(text):
        failure = "does not say what was expected and what was given"
    typed = f"adaptive-smoothing {typed}" if names is None else typed
    return Answer(section, typed + (" (Ctrl-C)" if after else ""), _without_places(text), failure)


@contextlib.contextmanager
def _ctrl_c(after: float) -> Iterator[None]:
    """Press Ctrl-C after a number of seconds; never for 0."""
    timer = threading.Timer(after, _thread.interrupt_main)
    if after:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _message(error: Exception) -> str:
    return error.format_message() if _is_usage_error(error) else str(error)  # type: ignore[attr-defined]


def _failure(error: Exception, *, command: bool) -> str:
    """Return why an error is not one of this package; empty if it is."""
    if _is_usage_error(error):
        return ""
    if command and not isinstance(error, PRINTED):
        return f"a traceback: {type(error).__name__}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    raised_here = Path(last.filename).is_relative_to(PACKAGE)
    on_purpose = linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise")
    return "" if raised_here and on_purpose else f"a raw {type(error).__name__} from {Path(last.filename).name}"


def _is_usage_error(error: Exception) -> bool:
    return hasattr(error, "format_message")


def _without_places(text: str) -> str:
    """Return a text without the folders of this machine."""
    for place, name in ((Path.cwd(), "."), (PACKAGE, "adaptive_smoothing"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(place), name)
    return " ".join(text.split())


class Probabilities(nn.Module):
    """Returns probabilities where logits are expected."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :10].softmax(1)


class OneLogit(nn.Module):
    """Returns one number per image."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :1]


class Linear(nn.Module):
    """Logits of some classes for images of 3 x 8 x 8."""

    def __init__(self, classes: int, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, classes), *layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def _robustbench_without_network() -> dict[str, ModuleType]:
    """Return a stand-in for robustbench that cannot download anything."""

    def load_model(**options: str) -> nn.Module:
        raise OSError("Network is unreachable")

    utils = ModuleType("robustbench.utils")
    utils.load_model = load_model  # type: ignore[attr-defined]
    return {"robustbench": ModuleType("robustbench"), "robustbench.utils": utils}


def python_names() -> dict[str, Any]:
    """Return the names that the calls use."""
    torch.manual_seed(0)
    g, h, seven = (Linear(classes).eval() for classes in (10, 10, 7))
    images, labels = torch.randint(256, (6, 3, 8, 8)) / 255, torch.arange(6)
    data = ads.from_tensors(images, labels, classes=[str(k) for k in range(10)])
    hundred = ads.from_tensors(images, labels + 90, classes=[str(k) for k in range(100)])
    names = {"ads": ads, "torch": torch, "nn": nn, "g": g, "h": h, "seven": seven, "images": images, "labels": labels}
    names |= {"trained": Linear(10, nn.Dropout()), "mixed": ads.MixedClassifier(g, h, 0.5), "data": data}
    return names | {"hundred": hundred, "Probabilities": Probabilities, "OneLogit": OneLogit}


def write_files() -> None:
    """Write the files that the bad inputs name into the working folder."""
    Path("text.txt").write_text("This is not a data set.\n")
    Path("empty").mkdir()
    _write_models()
    _write_data()
    _write_recipes()
    _write_folders()


def _write_models() -> None:
    card = {"arch": "wide_resnet", "options": {"depth": 10, "width": 0.25}}
    zoo.save(zoo.build("wide_resnet", **card["options"]).eval(), ".", "tiny", card)
    weights = Path("tiny.safetensors").read_bytes()
    cards = {
        "card-missing": None,
        "broken-card": "{",
        "list-card": "[1, 2]",
        "no-arch": "{}",
        "other-arch": json.dumps({"arch": "resnet19"}),
        "wrong-option": json.dumps({"arch": "wide_resnet", "options": {"depth": 10, "width": 0.5}}),
    }
    for name, text in cards.items():
        Path(f"{name}.safetensors").write_bytes(weights)
        if text is not None:
            Path(f"{name}.json").write_text(text)
    Path("empty.safetensors").touch()
    Path("empty.json").write_text(json.dumps(card))


def _write_data() -> None:
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    np.savez("no-labels.npz", images=images)
    np.savez("few-labels.npz", images=images, labels=labels[:2])
    np.savez("float-images.npz", images=images.astype(np.float32) + 0.123, labels=labels)
    np.savez("hundred.npz", images=images, labels=labels + 96)
    np.savez(
        "small.npz",
        **{
            f"{split}_{key}": value
            for split in ("train", "val", "test")
            for key, value in (("images", images), ("labels", labels))
        },
    )
    Path("broken.npz").write_bytes(b"PK\x03\x04 and nothing else")
    for name in ("cat", "dog"):
        Path("broken-images", name).mkdir(parents=True)
        Path("broken-images", name, "1.png").write_bytes(b"not a picture")


def _write_recipes() -> None:
    Path("empty.toml").touch()
    Path("broken.toml").write_text("name = \n")
    Path("recipe.toml").write_text(
        'name = "tiny"\n[model]\narch = "wide_resnet"\noptions = { depth = 10, width = 0.25 }\n'
        '[data]\nname = "small.npz"\n[optimizer]\nepochs = 1\nbatch_size = 4\n'
    )


def _write_folders() -> None:
    """Write the folders of a finished run, of damaged ones, and of mixtures that cannot be read."""
    files = {
        "finished-other/result.json": "{}",
        "damaged-journal/journal/binding.json": "{",
        "finished-training/checkpoint.safetensors": "",
        "damaged-training/checkpoint.safetensors": "not a checkpoint",
        "has-mixture/mixture.json": "{}",
        "broken-mixture/mixture.json": "{",
        "old-mixture/mixture.json": json.dumps({"format": 0}),
    }
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def page(found: list[Answer]) -> str:
    """Return the table of the answers as Markdown."""
    lines = [
        "# Bad inputs",
        "",
        f"The answers to {len(found)} wrong commands and wrong Python calls. `python benchmarks/bad_inputs.py` tries",
        "them and writes this page. It fails if an answer is a traceback, or an error of torch or Python that merely",
        "passed through. In Python, `g` and `h` are classifiers of ten classes, `mixed` is their mixture, `trained` is",
        "a model in train mode, and `data` holds six images.",
    ]
    for section in _sections():
        if rows := [each for each in found if each.section == section]:
            lines += ["", f"## {section}", "", "| typed | answer |", "|---|---|"]
            lines += [f"| `{_cell(each.typed)}` | {_cell(each.text)} |" for each in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="check the answers, and write nothing")
    only_check = parser.parse_args().check
    os.environ["COLUMNS"] = "200"
    found = answers()
    for each in (each for each in found if each.failure):
        print(f"{each.failure}\n    {each.typed}\n    {each.text}")
    if not only_check:
        PAGE.write_text(page(found), encoding="utf-8")
    bad = sum(bool(each.failure) for each in found)
    print(f"{len(found)} bad inputs, {len(found) - bad} good answers" + (f", {bad} failures" if bad else ""))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
