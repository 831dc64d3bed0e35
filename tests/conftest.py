"""Shared by all tests: one thread per process, an import of torchvision that works, a linear classifier, Ctrl-C."""

import importlib
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from adaptive_smoothing.certification.smoothing import Smoothing
from adaptive_smoothing.models import download, zoo_index
from adaptive_smoothing.results import write_json, write_rows
from adaptive_smoothing.runs.journal import Journal

# Tests run in one process per core (pytest-xdist); more threads than cores make them several times slower.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

# A shell starts jobs in the background with Ctrl-C ignored, also for the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests neither read nor fill the user's cache of weights, and fetch none. The folder lives as long as this object.
CACHE = tempfile.TemporaryDirectory()
os.environ["ADAPTIVE_SMOOTHING_CACHE"] = CACHE.name
os.environ.pop("ADAPTIVE_SMOOTHING_ZOO_URL", None)


def _define_missing_torchvision_operators() -> torch.library.Library | None:
    """Declare the operators of torchvision if it was built for another torch, so that it and timm can be imported.

    Such a torchvision fails on import, at the first operator that it registers. No test uses the operators.
    """
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        importlib.import_module("torchvision")
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# The operators live as long as this object.
TORCHVISION = _define_missing_torchvision_operators()


class LinearClassifier(nn.Module):
    """Logits are a fixed linear map of the pixels, so gradients and optimal attacks are known exactly."""

    def __init__(self, classes: int = 4, shape: tuple[int, int, int] = (3, 8, 8), seed: int = 0) -> None:
        super().__init__()
        self.num_classes = classes
        self.linear = nn.Linear(shape[0] * shape[1] * shape[2], classes)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(self.linear.weight.shape, generator=generator) / 4)
            self.linear.bias.copy_(torch.randn(classes, generator=generator))
        self.eval().requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(images.flatten(1))


@pytest.fixture
def linear() -> LinearClassifier:
    return LinearClassifier()


@pytest.fixture
def images() -> torch.Tensor:
    """Six images of 3 x 8 x 8 in [0, 1], always the same."""
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def ctrl_c_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return `at(k)`: Ctrl-C comes when the k-th entry of a journal is written."""
    write = Journal.write

    def at(k: int) -> None:
        written: list[str] = []

        def writes(self: Journal, name: str, columns: dict) -> None:
            written.append(name)
            if len(written) == k:
                raise KeyboardInterrupt
            write(self, name, columns)

        monkeypatch.setattr(Journal, "write", writes)

    return at


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return `install(entry_points, code)`, which puts a package named other_package on the path of modules."""

    def install(entry_points: str, code: str) -> None:
        information = tmp_path / "site" / "other_package-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(entry_points)
        (tmp_path / "site" / "other_package.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.delitem(sys.modules, "other_package", raising=False)

    return install


@pytest.fixture
def stop_certifying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Return `stop(at)`: Ctrl-C comes with the at-th shard that is sampled. It returns the sizes of all shards."""
    certify = Smoothing.certify

    def stop(at: int) -> list[int]:
        done: list[int] = []

        def stops(self, images, index, tell):
            done.append(len(images))
            if len(done) == at:
                raise KeyboardInterrupt
            return certify(self, images, index, tell)

        monkeypatch.setattr(Smoothing, "certify", stops)
        return done

    return stop


@pytest.fixture
def write_comparison() -> Callable[[Path], Path]:
    """Return `write(folder)`, which stores two mixtures at two clean accuracies: 8 images, 4 attacked with C."""

    def write(folder: Path) -> Path:
        rows, found = {"index": np.arange(8), "label": np.zeros(8, int)}, []
        right = {
            0: "11111110 11110000 1100",
            1: "11111111 11000000 1000",
            2: "11111110 11110000 1110",
            3: "11111111 11100000 1100",
        }
        for number, (mixture, wanted) in enumerate((name, at) for name in ("fixed", "ours") for at in (0.8, 0.9)):
            columns = dict(zip(("clean", "B", "C"), right[number].split(), strict=True))
            rows |= {f"{number}.{name}": np.array(list(bits), int).astype(bool) for name, bits in columns.items()}
            attacks = {
                name: {"robust": rows[f"{number}.{name}"].mean(), "images": len(columns[name])} for name in ("B", "C")
            }
            found.append({"mixture": mixture, "wanted": wanted, "attacks": attacks, "of": 4})
        write_rows(folder / "rows.npz", rows)
        facts = {"models": {"g": "a", "h": "b"}, "settings": {"split": "test", "preset": ["B:8", "C:4"]}, "images": 8}
        write_json(folder / "result.json", facts | {"mixtures": found})
        return folder

    return write


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return `publish(zoo)`: the index of the package is that of this folder, which is fetched from; an empty cache."""

    def at(zoo: Path) -> None:
        write_json(tmp_path / "index.json", zoo_index.make(zoo))
        monkeypatch.setattr(zoo_index, "INDEX", tmp_path / "index.json")
        monkeypatch.setenv(download.URL_VARIABLE, zoo.resolve().as_uri())
        monkeypatch.setenv(download.CACHE_VARIABLE, str(tmp_path / "cache"))

    return at


@pytest.fixture(scope="session")
def docs_tables() -> Callable[[str], ModuleType]:
    """Return a function that imports a module of docs/tables by name, as `python docs/tables` does."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(Path(__file__).parents[1] / "docs" / "tables")
            return importlib.import_module(name)

    return load
