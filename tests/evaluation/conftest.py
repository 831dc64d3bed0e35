"""A small network, its data, and a short cascade that misses some adversarial examples."""

import json
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.fab import FAB
from adaptive_smoothing.attacks.objectives import targeted_margin
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.threat import Linf, Threat

EPS = 0.01


def make_network(seed: int = 0) -> nn.Sequential:
    """Non-linear enough that short attacks miss adversarial examples that longer ones find."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.SiLU(), nn.Linear(24, 4))
    for layer in (model[1], model[3]):
        layer.weight.data *= 4
    return model.eval()


def make_cascade(threat: Threat | None = None, seed: int = 0, **audit: Any) -> Cascade:
    """Two stages that miss something, and an audit of half of the survivors."""
    threat = threat or Linf(EPS)
    stages = (
        Stage("pgd", DiversifiedPGD(threat, steps=1, first_step=0.3, seed=seed)),
        Stage("pgd-t", DiversifiedPGD(threat, 1, targeted_margin, target_classes=2, first_step=0.6, seed=seed)),
    )
    audits = (
        Stage("fab-t", FAB(threat, steps=8, target_classes=2, seed=seed)),
        Stage("square", Square(threat, queries=10, seed=seed)),
    )
    sizes = {"audit_random": 5, "audit_closest": 3, "audit_share": 1.0} | audit
    return Cascade("brief", threat, stages, audits, **sizes)


class Toys:
    """Functions that the tests share."""

    network = staticmethod(make_network)
    cascade = staticmethod(make_cascade)

    @staticmethod
    def run(model: nn.Module, data: ads.ImageData, cascade: Cascade | None = None, **arguments: Any) -> Verdict:
        """Evaluate in shards of six images without alarms; other options are keywords like those of `evaluate`."""
        given = {field.name for field in fields(EvaluationOptions)} & arguments.keys()
        options = {"shard_size": 6, "alarms": False} | {name: arguments.pop(name) for name in given}
        return ads.evaluate(model, data, cascade or make_cascade(), **arguments, options=EvaluationOptions(**options))

    @staticmethod
    def content(verdict: Verdict) -> tuple[str, dict[str, list]]:
        """Return what a verdict writes to result.json and rows.npz."""
        return json.dumps(verdict.summary()), {name: column.tolist() for name, column in verdict.rows().items()}


@pytest.fixture(scope="session")
def toys() -> Toys:
    return Toys()


@pytest.fixture
def model() -> nn.Sequential:
    return make_network()


@pytest.fixture(scope="session")
def data() -> ads.ImageData:
    """Twenty images, of which the model gets 18 right; their positions are those of another data set."""
    pixels = torch.randint(0, 256, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = make_network()(pixels / 255).argmax(1)
    labels[[3, 11]] = (labels[[3, 11]] + 1) % 4
    return ads.from_tensors(pixels, labels, classes=list("abcd"), index=torch.arange(20) * 7 + 3)


@pytest.fixture(scope="session")
def verdict(data: ads.ImageData) -> Verdict:
    """The verdict of an undisturbed run."""
    return Toys.run(make_network(), data)
