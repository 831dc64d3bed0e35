"""A damaged `mixture.json` is refused with the place of the damage; files of older versions are accepted."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_smoothing.mixing.mixture_format import check

IDENTITY = {"weights": "0" * 64, "preprocessing": [{"size": [32, 32]}], "shape": [3, 32, 32], "logits": [1.5, -2]}
WRAP = {"output": None, "num_classes": 7, "shape": [3, 32, 32], "mean": [0.5], "std": [0.5], "size": [32, 32]}
BUILD = {"wrap": WRAP, "of": {"function": "my_models:make", "arguments": []}}
HELD = {"held": "standard.safetensors", "sha256": "0" * 64, "build": BUILD, "identity": IDENTITY}
NONLINEAR = {"scale": 2.0, "power": 1.5, "shift": 0, "top": 250}
NUMBERS = {"alpha_range": [0, 1.0], "alpha_scale": 1, "alpha_shift": 0.0, "standard_scale": 3.0, "robust_scale": 1.0}
MIXTURE = {
    "format": 1,
    "standard": HELD,
    "robust": {"transform": "nonlinear", "options": NONLINEAR, "of": {"type": "Network", "identity": IDENTITY}},
    "alpha": 0.5,
    "numbers": NUMBERS,
    "card": {},
}
FILE = Path("mixed", "mixture.json")


def changed(place: str, value: Any = None, *, remove: bool = False) -> dict[str, Any]:
    mixture = copy.deepcopy(MIXTURE)
    *keys, last = place.split(".")
    part: Any = mixture
    for key in keys:
        part = part[key]
    if remove:
        del part[last]
    else:
        part[last] = value
    return json.loads(json.dumps(mixture))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("standard", {"name": "timm:resnet18"}),
        ("standard", {"name": "compact-robust", "sha256": "0" * 64}),
        ("standard", {"held": "standard.safetensors"}),
        ("standard", {"weights": "0" * 64}),
        ("standard", {"type": "Network", "identity": IDENTITY}),
        ("standard", {"name": "mine", "build": BUILD, "identity": IDENTITY}),
        ("standard.build", {"arch": "wide_resnet", "options": {"depth": 10}}),
        ("standard.build", {"library": "timm:resnet18"}),
        ("standard.build", {"library": "hf:mine", "config": {"hidden": True}}),
        ("alpha", {"kind": "second-ending", "options": {}, "sha256": "0" * 64}),
        ("card", {"anything": [True]}),
    ],
)
def test_mixtures_of_every_kind_and_age_are_accepted(place, value):
    check(changed(place, value), FILE)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("standard", None),
        ("alpha", True),
        ("alpha", "0.5"),
        ("numbers.standard_scale", "x"),
        ("numbers.alpha_range", [0]),
        ("numbers.alpha_range", None),
        ("standard.identity", None),
        ("standard.identity.logits", ["1"]),
        ("standard.identity.logits", [1.5, float("nan")]),
        ("standard.identity.shape", []),
        ("standard.identity.shape", [-1, 32, 32]),
        ("standard.identity.shape", [3, "32"]),
        ("standard.held", None),
        ("standard.build", "x"),
        ("standard.build.wrap.shape", [3]),
        ("standard.build.wrap.num_classes", True),
        ("standard.build.of.arguments", "x"),
        ("standard.name", 5),
        ("standard.build.wrap.shape", [3, 0, 32]),
        ("robust.options.scale", "2"),
        ("robust.options.scale", float("inf")),
        ("card", [1]),
    ],
)
def test_an_entry_of_another_type_is_refused(place, value):
    with pytest.raises(ValueError, match=f"expected '{place}' of a mixture in .*mixture.json, got .*: it was damaged"):
        check(changed(place, value), FILE)


@pytest.mark.parametrize(
    "place",
    [
        *("numbers.standard_scale", "numbers.robust_scale", "alpha", "standard.identity", "standard.identity.weights"),
        *("standard.identity.preprocessing", "standard.sha256", "standard.build.wrap.shape", "standard.build.of"),
        *("standard.build.wrap.output", "standard.build.of.function", "robust.options", "robust.of.identity"),
        *("robust.options.power", "robust.of"),
    ],
)
def test_an_entry_that_is_missing_is_refused(place):
    with pytest.raises(ValueError, match=f"expected '{place}' of a mixture in .*mixture.json, got nothing: it was dam"):
        check(changed(place, remove=True), FILE)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("numbers.robust_scal", 1, r"unknown entry 'numbers.robust_scal' of a mixture in .*: did you mean 'robust_sca"),
        ("standrad", {}, r"unknown entry 'standrad' of a mixture in .*mixture.json: did you mean 'standard'\?"),
        ("robust.options.zz", 1, "unknown entry 'robust.options.zz' of a mixture"),
        ("robust.transform", "foo", "expected the transform of a base classifier to be one of hardmax, nonlinear, got"),
        ("standard", {}, "expected 'standard.identity' of a mixture in .*, got nothing"),
        ("standard.build", {}, "expected 'standard.build.function' of a mixture in .*, got nothing"),
        ("standard.build.wrap", {}, "expected 'standard.build.wrap.shape' of a mixture in .*, got nothing"),
        ("format", "1", "expected a mixture of format 1 in .*, got format '1': it was written by another version"),
    ],
)
def test_other_damage_is_explained(place, value, words):
    with pytest.raises(ValueError, match=words):
        check(changed(place, value), FILE)
