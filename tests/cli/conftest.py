"""Tiny, untrained models in the place of those of the package, with labels that one of them predicts."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli import demo, demo_models, sweep
from adaptive_smoothing.cli.main import main
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.tradeoff import save_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.report.tradeoff.report import Report

OPTIONS = {"depth": 10, "width": 0.25}


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for seed, name in enumerate((demo.STANDARD, demo.ROBUST)):
        torch.manual_seed(seed)
        model = build("wide_resnet", **OPTIONS).eval()
        with torch.no_grad():
            model.head.weight.mul_(30)  # confident enough to be worth mixing
        figures = {"test": {"images": 1234, "clean": 0.9312, "pgd20": 0.5 * seed}}
        zoo.save(model, folder, name, {"arch": "wide_resnet", "options": OPTIONS, "figures": figures})
    return folder


@pytest.fixture(scope="session")
def images(weights: Path) -> ImageData:
    """24 images. The robust model is correct on at least a third of them, the standard model on the others."""
    pixels = torch.randint(256, (24, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        g, h = (
            zoo.load(weights / f"{name}.safetensors")(pixels / 255).argmax(1) for name in (demo.STANDARD, demo.ROBUST)
        )
    labels = torch.where(torch.arange(24) % 3 == 0, h, g)
    return from_tensors(pixels, labels, name="tiny", classes=[str(i) for i in range(10)])


@pytest.fixture(scope="session")
def install(weights: Path, images: ImageData) -> Callable[[pytest.MonkeyPatch, Path], Callable[..., ImageData]]:
    """Return `install(patch, folder)`: tiny models and images in the place of the package's own, in this folder."""
    tiny = images

    def load(name: str, split: str = "test", *, images: int | None = None, **options: object) -> ImageData:
        data = from_tensors(tiny.images, tiny.labels, name=f"{name}/{split}", classes=tiny.classes)
        return data.take(slice(images))

    def at(patch: pytest.MonkeyPatch, folder: Path) -> Callable[..., ImageData]:
        patch.setattr(zoo, "BUILTIN", weights)
        patch.delenv(zoo.ZOO_VARIABLE, raising=False)
        patch.setattr(demo_models, "STORED", folder / "stored")
        patch.setattr(demo_models, "COMPARED", folder / "compared")
        patch.setattr(datasets, "load", load)
        patch.chdir(folder)
        return load

    return at


@pytest.fixture
def package(
    install: Callable[[pytest.MonkeyPatch, Path], Callable[..., ImageData]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., ImageData]:
    """Puts the tiny models and images in the place of the package's own; runs are written to an empty folder."""
    return install(monkeypatch, tmp_path)


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Returns the exit code of a command as the shell runs it."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["adaptive-smoothing", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    return run


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the eleventh attack."""
    attack, calls = PGD.__call__, 0

    def interrupted(self: PGD, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return attack(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PGD, "__call__", interrupted)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes no figures and no page, which take seconds; tests/report checks them."""

    def write(folder: str | Path, report: Report, title: str = "") -> Path:
        choice = {"choice": asdict(report.choice)} if report.choice else {}
        save_tradeoff(folder, report.main, {**choice, **report.facts})
        return Path(folder) / "page.html"

    monkeypatch.setattr(sweep, "write_run", write)
