"""Runs on two small linear networks, in memory and in run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.report import run_folder
from adaptive_smoothing.report.certified import write_certificates
from adaptive_smoothing.report.page.runs import PageRun
from adaptive_smoothing.report.verdicts import write_verdict
from adaptive_smoothing.threat import Linf

CLASSES = ("airplane", "bird", "cat", "dog")
EPS = 0.02


class Linear(nn.Module):
    """Logits are a linear map of the pixels."""

    def __init__(self, seed: int, size: float) -> None:
        super().__init__()
        self.num_classes = len(CLASSES)
        self.linear = nn.Linear(192, self.num_classes)
        with torch.no_grad():
            self.linear.weight.copy_(size * torch.randn(4, 192, generator=torch.Generator().manual_seed(seed)))
            self.linear.bias.copy_(-self.linear.weight.sum(1) / 2)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.flatten(1))


class Gap(Mixer):
    """A score that grows with the lead of the first class of h over the second."""

    def forward(self, base_outputs: BaseOutputs) -> MixerOutput:
        first, second = base_outputs.h.topk(2, dim=1).values.T
        return MixerOutput(first - second, 1.5 * base_outputs.h)


class Toys:
    """Functions that the tests share."""

    classes = CLASSES

    @staticmethod
    def mixture(alpha: float) -> ads.MixedClassifier:
        return ads.MixedClassifier(Linear(0, 0.5), Linear(1, 0.2), alpha)

    @staticmethod
    def learned(shift: float) -> ads.MixedClassifier:
        g, h = Linear(0, 0.5), Linear(1, 0.2)
        return ads.MixedClassifier(g, h, Gap(), alpha_range=(0.1, 0.95), alpha_scale=2.0, alpha_shift=shift)

    @staticmethod
    def data(images: int = 48, classes: Sequence[str] = CLASSES) -> ads.ImageData:
        """Images whose labels are those of g, of h, or of neither; their positions are those of another data set."""
        pixels = torch.randint(256, (images, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            g, h = (model(pixels / 255).argmax(1) for model in (Linear(0, 0.5), Linear(1, 0.2)))
        at = torch.arange(images)
        labels = torch.where(at % 3 == 0, h, torch.where(at % 7 == 1, (g + 1) % 4, g))
        return ads.from_tensors(pixels, labels, name="toy/test", classes=list(classes), index=at * 5 + 2)

    @staticmethod
    def attacked(model: nn.Module, data: ads.ImageData, **options: Any) -> Verdict:
        """Evaluate under two short attacks; all attacked images are kept."""
        steps = [Stage(f"pgd-{n}", DiversifiedPGD(Linf(EPS), steps=n, first_step=0.3)) for n in (1, 5)]
        options = {"alarms": False, "pictures": 20, "save_adversarial": len(data), **options}
        cascade = Cascade("short", Linf(EPS), tuple(steps))
        return ads.evaluate(model, data, cascade, options=EvaluationOptions(**options))

    @staticmethod
    def facts(alpha: object = None) -> dict[str, Any]:
        """Return facts about the models of a mixture, or about a single model, like those in result.json."""
        g, h = {"name": "toy-g", "sha256": "0"}, {"name": "toy-h", "sha256": "1"}
        return {"model": g} if alpha is None else {"g": g, "h": h, "alpha": alpha}

    @classmethod
    def run(cls, verdict: Verdict, data: ads.ImageData | None = None, name: str = "run", **facts: Any) -> PageRun:
        """Return a run for a page."""
        pictures = None if data is None else Pictures.of(verdict, data)
        return PageRun(name, verdict, facts or cls.facts(0.5), pictures=pictures, folder=name)

    @classmethod
    def write(cls, folder: Path, model: nn.Module, data: ads.ImageData, alpha: object = None) -> Verdict:
        """Evaluate a model and write its run folder without figures, which take seconds."""
        verdict = cls.attacked(model, data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_folder, "png", lambda figure: b"")
            folder.mkdir(parents=True, exist_ok=True)
            write_verdict(folder, verdict, cls.facts(alpha), {"device": "a <b>test</b>"}, data)
        return verdict

    @staticmethod
    def certificates(radius: Sequence[float], correct: Sequence[bool], **settings: Any) -> Certificates:
        """Return certificates with these radii; a radius of 0 certifies nothing."""
        radii, label = np.asarray(radius, float), np.zeros(len(radius), int)
        prediction = np.where(np.asarray(correct, bool), 0, 1)
        rows = {"index": np.arange(len(label)), "label": label, "prediction": prediction, "radius": radii}
        rows |= {"certified": radii > 0, "estimate": radii, "samples": np.full(len(label), 100)}
        rows |= {"probabilities": np.full((len(label), 4), 0.25)}
        about = {"method": "smoothing", "theorem": "margin", "alpha": 0.8, "sigma": 0.25, "norm": "L2"}
        about |= {"data": "toy/test", "failure probability": 0.001, "fingerprint": "f", "votes": "hard"}
        about |= {"bound": "none", "samples": 100, "precision": "float32", "runner-up": "all"}
        return Certificates(rows, {**about, **settings})

    @staticmethod
    def write_certificates(folder: Path, found: Certificates, data: ads.ImageData) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_folder, "png", lambda figure: b"")
            folder.mkdir(parents=True, exist_ok=True)
            write_certificates(folder, found, {"model": {"name": "toy"}}, {}, data)


@pytest.fixture(scope="session")
def toys() -> Toys:
    return Toys()


@pytest.fixture(scope="session")
def data() -> ads.ImageData:
    return Toys.data()


@pytest.fixture(scope="session")
def verdicts(data: ads.ImageData) -> dict[float, Verdict]:
    """One mixture that was attacked at two alphas."""
    return {alpha: Toys.attacked(Toys.mixture(alpha), data) for alpha in (0.4, 0.763)}


@pytest.fixture(scope="session")
def learned(data: ads.ImageData) -> dict[float, Verdict]:
    """One mixture with a learned alpha that was attacked at two shifts."""
    return {shift: Toys.attacked(Toys.learned(shift), data) for shift in (-1.0, 0.5)}
