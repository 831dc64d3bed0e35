"""Options that cannot be used are refused as soon as they are made."""

import pytest

from adaptive_smoothing.certification.options import LipschitzOptions, LocalOptions, SmoothingOptions


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (SmoothingOptions, {"samples": 0}, "at least 1 sample"),
        (SmoothingOptions, {"selection": 0}, "at least 1 sample"),
        (SmoothingOptions, {"failure_probability": 0.0}, "failure probability"),
        (SmoothingOptions, {"failure_probability": 1.0}, "failure probability"),
        (SmoothingOptions, {"give_up": 0.0}, "failure probability"),
        (SmoothingOptions, {"runner_up": "guess"}, "runner_up to be one of"),
        (SmoothingOptions, {"theorem": "best"}, "theorem to be one of"),
        (SmoothingOptions, {"precision": "int8"}, "precision to be one of"),
        (SmoothingOptions, {"radius": -1.0}, "wanted radius"),
        (SmoothingOptions, {"radius": 0.0}, "wanted radius"),
        (SmoothingOptions, {"radius": float("nan")}, "wanted radius"),
        (SmoothingOptions, {"radius": 0.1, "runner_up": "split"}, "stop early"),
        (LipschitzOptions, {"theorem": "lipschitz"}, "theorem to be one of"),
        (LipschitzOptions, {"norm": "L3"}, "norm to be one of L"),
        (LocalOptions, {"shard_size": 0}, "shard_size of at least 1"),
        (LocalOptions, {"eps": 0.0}, "eps above 0"),
        (LocalOptions, {"steps": 0}, "at least 1 step"),
        (LocalOptions, {"batch_size": 0}, "batch_size of at least 1"),
    ],
)
def test_impossible_options_are_refused(options, change, message):
    with pytest.raises(ValueError, match=message):
        options(**change)


def test_a_norm_has_one_spelling():
    assert [LocalOptions(norm=norm).norm for norm in ("linf", "LINF", "l2", None)] == ["Linf", "Linf", "L2", None]
