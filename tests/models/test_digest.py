"""A model or an attack that differs in anything has another description, and the same one in every process."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.models.digest import describe, model_digest
from adaptive_smoothing.models.resnet import Normalize


def network(seed=0, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    for name, value in settings.items():
        setattr(model, name, value)
    return model


# --- models ---------------------------------------------------------------------------------------------


def nudged():
    model = network()
    model[3].bias.data[2] += 1e-6
    return model


def own(function, **values):
    """A module of a class with these values."""
    return type("Own", (nn.Module,), {"forward": function, **values})()


def inheriting(function):
    """A class with the name of the one it is made from."""
    return type("Own", (type(own(lambda self, images: images)),), {"forward": function})()


@lru_cache
def cached(logits):
    return logits


@lru_cache
def cached_otherwise(logits):
    return -logits


class Named(NamedTuple):
    steps: int


class Slotted:
    __slots__ = ("steps",)

    def __init__(self, steps):
        self.steps = steps


DIFFERENT = {
    "network": network,
    "other weights": lambda: network(1),
    "one number": nudged,
    "half": lambda: network().half(),
    "inside another": lambda: nn.Sequential(network()),
    "training": lambda: network().train(),
    "a setting": lambda: network(temperature=2.0),
    "another setting": lambda: network(temperature=3.0),
    "nan": lambda: network(temperature=float("nan")),
    "a tuple": lambda: network(size=(16, 16)),
    "another tuple": lambda: network(size=(64, 64)),
    "a tensor": lambda: network(mean=[torch.zeros(3)]),
    "another tensor": lambda: network(mean=[torch.ones(3)]),
    "an array": lambda: network(mean={"r": np.zeros(3)}),
    "another array": lambda: network(mean={"r": np.ones(3)}),
    "a function": lambda: network(then=lambda logits: logits),
    "another function": lambda: network(then=lambda logits: -logits),
    "a builtin": lambda: network(then=torch.sin),
    "another builtin": lambda: network(then=torch.cos),
    "a hidden module": lambda: network(parts=[network()]),
    "another hidden module": lambda: network(parts=[network(1)]),
    "a device": lambda: network(where=torch.device("cpu")),
    "another device": lambda: network(where=torch.device("meta")),
    "code": lambda: own(lambda self, images: images),
    "other code": lambda: own(lambda self, images: images.round()),
    "a closure": lambda: own((lambda k: lambda self, images: images + k)(1)),
    "another closure": lambda: own((lambda k: lambda self, images: images + k)(2)),
    "a value of the class": lambda: own(lambda self, images: images, mean=(0.4, 0.5)),
    "another value of the class": lambda: own(lambda self, images: images, mean=(0.4, 0.6)),
    "a tensor of the class": lambda: own(lambda self, images: images, mean=torch.ones(3)),
    "how it is indexed": lambda: own(lambda self, images: images, __getitem__=lambda self, k: 1),
    "inherited": lambda: inheriting(lambda self, images: 2 * images),
    "inherited otherwise": lambda: inheriting(lambda self, images: 3 * images),
    "a property": lambda: own(lambda self, images: images, scale=property(lambda self: 1)),
    "another property": lambda: own(lambda self, images: images, scale=property(lambda self: 2)),
    "a cached function": lambda: network(then=cached),
    "another cached function": lambda: network(then=cached_otherwise),
    "a method of a tensor": lambda: network(then=torch.zeros(2).add),
    "a method of another tensor": lambda: network(then=torch.ones(2).add),
    "slots": lambda: network(then=Slotted(1)),
    "other slots": lambda: network(then=Slotted(2)),
    "a named tuple": lambda: network(then=Named(1)),
    "a plain tuple": lambda: network(then=(1,)),
    "a number as key": lambda: network(then={1: 2}),
    "a text as key": lambda: network(then={"1": 2}),
    "a generator": lambda: network(noise=torch.Generator().manual_seed(1)),
    "another generator": lambda: network(noise=torch.Generator().manual_seed(2)),
    "normalised": lambda: nn.Sequential(Normalize((0.0,) * 3, (1.0,) * 3), network()),
    "otherwise normalised": lambda: nn.Sequential(Normalize((0.5,) * 3, (1.0,) * 3), network()),
    "mixed": lambda: ads.MixedClassifier(network(), network(1), 0.5),
    "mixed otherwise": lambda: ads.MixedClassifier(network(), network(1), 0.6),
    "resized": lambda: ads.wrap(network(), size=8, shape=(3, 16, 16)),
    "resized, another output": lambda: ads.wrap(network(), size=8, shape=(3, 16, 16), output=lambda logits: 2 * logits),
}


def test_no_two_models_have_the_same_digest_and_each_has_one():
    digests = {name: model_digest(make()) for name, make in DIFFERENT.items()}
    assert len(set(digests.values())) == len(DIFFERENT)
    assert {name: model_digest(make()) for name, make in DIFFERENT.items()} == digests


def test_the_size_of_an_image_that_a_wrapped_model_is_given_is_in_its_digest():
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 5))
    small, large = (ads.wrap(pooled, size=size, shape=(3, 16, 16)) for size in (8, 24))
    assert model_digest(small) != model_digest(large)


def test_a_model_that_knows_of_itself_has_a_digest():
    model = network()
    model.parts = [model, {"again": model}]
    assert model_digest(model) != model_digest(network())


# --- attacks --------------------------------------------------------------------------------------------


def closing_over(eps):
    def attack(model, images, labels):
        return PGD(ads.Linf(eps))(model, images, labels)

    return attack


class Attack:
    def __init__(self, steps):
        self.steps, self.start = steps, torch.zeros(steps)

    def __call__(self, model, images, labels):
        return images

    def perturb(self, model, images, labels):
        return images


@dataclass
class Numbers:
    steps: int


def with_steps(model, images, labels, steps=1):
    return images


@pytest.mark.parametrize(
    "make",
    [
        closing_over,
        Attack,
        lambda steps: Attack(steps).perturb,
        Numbers,
        lambda steps: partial(with_steps, steps=steps),
        lambda steps: {"a set": {steps, "x"}, "bytes": bytes([steps])},
        lambda steps: ads.Linf(torch.full((3,), steps / 255)),
        lambda steps: (lambda model, images, labels: images) if steps == 1 else (lambda model, images, labels: labels),
    ],
)
def test_two_settings_of_an_attack_are_two_attacks(make):
    assert describe(make(1)) == describe(make(1)) != describe(make(2))
    json.dumps(describe(make(1)), allow_nan=False)


def test_a_description_is_the_same_in_every_process_and_follows_the_files_it_names(tmp_path):
    """Sets have another order in each, and objects another place. Code in another file is code, too."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import json, threading, time
            import torch
            from torch import nn
            from adaptive_smoothing.models.digest import describe, model_digest
            import helpers

            LEVELS, NOTHING, data = {"a", "b", "c", "d", "e"}, object(), time.time()
            KINDS = {torch.float16, torch.bfloat16, torch.float32, len, max, nn.Linear}

            def helper(x, start=NOTHING):
                return x.data in {"p", "q", "r", "s", "t"}, KINDS, helpers.project(x)

            KINDS.add(helper)

            class Own(nn.Module):
                names = "x"
                lock = threading.Lock()

                def forward(self, x):
                    return helper(x) or x in LEVELS

            own = Own()
            own.kinds = {"k", "l", "m", "n"}
            own.by = {helper: 1, torch.float16: 2}
            print(json.dumps(describe([own, helper, Own, KINDS])), model_digest(own))
            """
        )
    )

    def said(seed, change=0):
        (tmp_path / "helpers.py").write_text(f"def project(x):\n    return x + {change}\n")
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert said("1") == said("2") != said("2", change=1)
