"""Try wrong commands and wrong Python calls, as a new user would type them, and write what each was answered.

    python benchmarks/bad_inputs.py          writes docs/bad-inputs.md
    python benchmarks/bad_inputs.py --check  only checks the answers

An answer is good if it is an error of this package, raised on purpose, that says what was expected and what was given.
Anything else is a failure: a traceback, an error of torch or of Python that merely passed through, or no error at all.
The inputs are in bad_inputs.toml, next to this file.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import io
import linecache
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.cli.main import app, is_explained
from adaptive_smoothing.models import zoo

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "adaptive_smoothing"
PAGE = ROOT / "docs" / "bad-inputs.md"
# What `main` prints as one sentence, with explained type errors. Another error would be printed as a traceback.
PRINTED = (ValueError, OSError, RuntimeError, ImportError)
# A message says what was expected and what was given, or names what is unknown, missing or superfluous.
STRUCTURE = re.compile(
    r"expected\b.*\b(got|found)\b|unknown (key|option|name)|missing key|applies to|not valid TOML|[Dd]id you mean|"
    r"(No such (command|option)|Invalid value|Missing (argument|option)|requires an argument|unexpected extra)|"
    r"was made with another|does not exist|stopped: ",
    re.DOTALL,
)

# The inputs, by section, and the files that they name.
INPUTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


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
        for kind, section, typed in _inputs():
            if not sections or section in sections:
                found.append(_answer(section, typed, names if kind == "calls" else None))
        if interrupt:
            stopped = INPUTS["interrupted"]
            found.append(_answer(stopped["section"], stopped["command"], None, stopped["after"]))
    return sorted(found, key=lambda each: list(_sections()).index(each.section))


def _inputs() -> Iterator[tuple[str, str, str]]:
    """Yield the kind of each input, `commands` or `calls`, its section, and what is typed."""
    for kind in ("commands", "calls"):
        for section, lines in INPUTS[kind].items():
            for line in lines:
                yield kind, section, line


def _sections() -> tuple[str, ...]:
    return (*INPUTS["commands"], *INPUTS["calls"])


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
    if command and not isinstance(error, PRINTED) and not (isinstance(error, TypeError) and is_explained(error)):
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
    Path("empty").mkdir()
    for name, text in INPUTS["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    _write_models()
    _write_data()


def _write_models() -> None:
    """Write good weights next to each bad card."""
    card = {"arch": "wide_resnet", "options": {"depth": 10, "width": 0.25}}
    zoo.save(zoo.build("wide_resnet", **card["options"]).eval(), ".", "tiny", card)
    for name in ("card-missing", "broken-card", "list-card", "no-arch", "other-arch", "wrong-option"):
        shutil.copy("tiny.safetensors", f"{name}.safetensors")


def _write_data() -> None:
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    np.savez("no-labels.npz", images=images)
    np.savez("zero.npz", images=images[:0], labels=labels[:0], classes=[str(k) for k in range(10)])
    np.save("array.npy", images)
    np.savez("few-labels.npz", images=images, labels=labels[:2])
    np.savez("float-images.npz", images=images.astype(np.float32) + 0.123, labels=labels)
    np.savez("hundred.npz", images=images, labels=labels + 96)
    splits = ("train", "val", "test")
    columns = {f"{split}_images": images for split in splits} | {f"{split}_labels": labels for split in splits}
    np.savez("small.npz", **columns)
    for label in ("cat", "dog"):
        Path("pictures", label).mkdir(parents=True)
        Image.fromarray(images[0]).save(Path("pictures", label, "1.png"))
    Path("utf-16.txt").write_text("cat\ndog\n", encoding="utf-16")
    Path("broken.npz").write_bytes(b"PK\x03\x04 and nothing else")


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
