"""Digests change with tensors, settings and source text, and are the same in every process."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.models.digest import describe, model_digest, weights_digest
from adaptive_smoothing.models.resnet import Normalize


def network(seed=0, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    for name, value in settings.items():
        setattr(model, name, value)
    return model


def with_other_bias():
    model = network()
    model[3].bias.data[2] += 1e-6
    return model


class Identity(nn.Module):
    def forward(self, images):
        return images


class Rounding(nn.Module):
    def forward(self, images):
        return images.round()


# Two classes with one name and other code, as after an edit of the file.
ROUNDING_TWICE = type("Rounding", (Identity,), {})


def adding(k):
    def forward(logits):
        return logits + k

    return forward


@lru_cache
def cached(logits):
    return logits


@lru_cache
def cached_negative(logits):
    return -logits


DIFFERENT = {
    "network": network,
    "other weights": lambda: network(1),
    "one other number": with_other_bias,
    "half precision": lambda: network().half(),
    "inside another": lambda: nn.Sequential(network()),
    "train mode": lambda: network().train(),
    "a setting": lambda: network(temperature=2.0),
    "another setting": lambda: network(temperature=3.0),
    "nan": lambda: network(temperature=float("nan")),
    "a tuple": lambda: network(size=(16, 16)),
    "another tuple": lambda: network(size=(64, 64)),
    "a private setting": lambda: network(_temperature=2.0),
    "a tensor": lambda: network(mean=[torch.zeros(3)]),
    "another tensor": lambda: network(mean=[torch.ones(3)]),
    "an array": lambda: network(mean={"r": np.zeros(3)}),
    "another array": lambda: network(mean={"r": np.ones(3)}),
    "a function": lambda: network(then=lambda logits: logits),
    "another function": lambda: network(then=lambda logits: -logits),
    "a built-in function": lambda: network(then=torch.sin),
    "another built-in function": lambda: network(then=torch.cos),
    "a closure": lambda: network(then=adding(1)),
    "another closure": lambda: network(then=adding(2)),
    "a cached function": lambda: network(then=cached),
    "another cached function": lambda: network(then=cached_negative),
    "a hidden module": lambda: network(parts=[network()]),
    "another hidden module": lambda: network(parts=[network(1)]),
    "a device": lambda: network(where=torch.device("cpu")),
    "another device": lambda: network(where=torch.device("meta")),
    "a number as key": lambda: network(then={1: 2}),
    "a text as key": lambda: network(then={"1": 2}),
    "a class": Identity,
    "another class": Rounding,
    "a class that inherits": ROUNDING_TWICE,
    "normalised": lambda: nn.Sequential(Normalize((0.0,) * 3, (1.0,) * 3), network()),
    "normalised with another mean": lambda: nn.Sequential(Normalize((0.5,) * 3, (1.0,) * 3), network()),
    "mixed": lambda: ads.MixedClassifier(network(), network(1), 0.5),
    "mixed with another alpha": lambda: ads.MixedClassifier(network(), network(1), 0.6),
    "resized": lambda: ads.wrap(network(), size=8, shape=(3, 16, 16)),
    "resized, with another output": lambda: ads.wrap(
        network(), size=8, shape=(3, 16, 16), output=lambda logits: 2 * logits
    ),
}


def test_different_models_have_different_digests_and_the_same_model_the_same():
    digests = {name: model_digest(make()) for name, make in DIFFERENT.items()}
    assert len(set(digests.values())) == len(DIFFERENT)
    assert {name: model_digest(make()) for name, make in DIFFERENT.items()} == digests


def test_sparse_buffers_are_compared():
    digests = []
    for number in (0, 1, 1):
        model = network()
        model.register_buffer("mask", torch.tensor([[1.0, number], [0, 1]]).to_sparse())
        digests.append(model_digest(model))
    assert digests[0] != digests[1] == digests[2]


def test_the_image_size_of_a_wrapped_model_is_in_its_digest():
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 5))
    small, large = (ads.wrap(pooled, size=size, shape=(3, 16, 16)) for size in (8, 24))
    assert model_digest(small) != model_digest(large)


def test_a_tag_changes_the_digest():
    """A user sets this attribute after a change that the digest cannot detect."""
    assert len({model_digest(model) for model in (network(), network(tag="v1"), network(tag="v2"))}) == 3


def test_a_model_that_refers_to_itself_has_a_digest():
    model = network()
    model.parts = [model, {"again": model}]
    assert model_digest(model) != model_digest(network())


def test_a_forward_pass_does_not_change_the_digest():
    images = torch.rand(2, 3, 8, 8)
    mixer = ads.MixingNetwork.between(network(), network(1), standard_taps="02", robust_taps="02", shape=(3, 8, 8))
    for model in (ads.SmoothedClassifier(network(), 0.5, samples=2), ads.MixedClassifier(network(), network(1), mixer)):
        before = model_digest(model)
        model(images)
        assert model_digest(model) == before


def test_weights_include_buffers_that_the_state_dict_lacks():
    one, other = (nn.Sequential(Normalize((mean,) * 3, (1.0,) * 3), network()) for mean in (0.0, 0.5))
    assert weights_digest(one) != weights_digest(other)
    assert weights_digest(one, persistent_only=True) == weights_digest(other, persistent_only=True)
    assert weights_digest(network()) == weights_digest(network(temperature=2.0))
    assert weights_digest(network()) == weights_digest(network(), persistent_only=True)


# --- attacks --------------------------------------------------------------------------------------------


def attack_with(eps):
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


def one_of_two(steps):
    if steps == 1:
        return lambda model, images, labels: images
    return lambda model, images, labels: labels


@pytest.mark.parametrize(
    "make",
    [
        attack_with,
        Attack,
        lambda steps: Attack(steps).perturb,
        Numbers,
        lambda steps: partial(with_steps, steps=steps),
        lambda steps: {"a set": {steps, "x"}, "bytes": bytes([steps])},
        lambda steps: ads.Linf(torch.full((3,), steps / 255)),
        lambda steps: PGD(ads.Linf(0.1), steps=steps),
        one_of_two,
    ],
)
def test_two_settings_of_an_attack_have_two_descriptions(make):
    assert describe(make(1)) == describe(make(1)) != describe(make(2))
    json.dumps(describe(make(1)), allow_nan=False)


def test_attacks_of_the_package_are_described_by_name_and_settings():
    found = describe(PGD(ads.Linf(0.1), steps=7))
    assert (found[""], found["steps"], found["threat"]) == ("PGD", 7, "Linf:0.1")
    assert "source" not in found and isinstance(describe(PGD), str)


MINE = """
import json, threading
import torch
from torch import nn
from adaptive_smoothing.models.digest import describe
from adaptive_smoothing.models.digest import model_digest

KINDS = {torch.float16, torch.bfloat16, torch.float32, len, max, nn.Linear}

def helper(x, start=object(), levels={"a", "b", "c", "d", "e"}):
    return x + 0

KINDS.add(helper)

class Own(nn.Module):
    def forward(self, x):
        return helper(x)

own = Own()
own.kinds, own.lock = {"k", "l", "m", "n"}, threading.Lock()
own.by = {helper: 1, torch.float16: 2}
found = json.dumps([describe([own, helper, Own, KINDS]), model_digest(own)])
print(found)
"""


def test_a_description_is_the_same_in_every_process_and_follows_the_source(tmp_path, monkeypatch):
    """Sets have another order in each process, and objects another address."""

    def found_here(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module.found

    here = found_here("mine", MINE)
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, str(tmp_path / "mine.py")]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert here == there != found_here("changed", MINE.replace("x + 0", "x + 1"))
