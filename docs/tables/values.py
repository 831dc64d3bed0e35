"""Single figures in sentences, between <!-- value: KIND ARGUMENTS --> and <!-- -->."""

from __future__ import annotations

import numpy as np
from base_tables import chosen_alpha
from headline import COMPARED, correct_images
from places import BENCHMARKS, RESULTS, comparison, percent, sweep

from adaptive_smoothing.evaluation.tradeoff import load_tradeoff
from adaptive_smoothing.models import zoo
from adaptive_smoothing.results import difference, read_json
from adaptive_smoothing.runs.folder import RESULT

# Short names of the mixtures of a comparison.
SHORT = {"fixed": "best fixed alpha", "nuts": "MixedNUTS", "ours": "ours"}


def clean(model: str) -> str:
    """Return the clean accuracy of g, h, `fixed`, `nuts` or `ours` in the headline."""
    return _percent(correct_images()[SHORT.get(model, model)][0].mean())


def robust(model: str) -> str:
    """Return the robust accuracy of g, h, `fixed`, `nuts` or `ours` in the headline."""
    return _percent(correct_images()[SHORT.get(model, model)][1].mean())


def lead(mine: str, theirs: str, wanted: str = "0.9", run: str = COMPARED) -> str:
    """Return by how many points one mixture leads another at the same clean accuracy on validation images."""
    points = {point.mixture: point for point in comparison(run).points if point.wanted == float(wanted)}
    ahead, half = difference(points[SHORT[mine]].robust_correct, points[SHORT[theirs]].robust_correct)
    return f"{100 * ahead:.1f} ± {100 * half:.1f}"


def curve(pair: str, name: str, at: str, images: str = "") -> str:
    """Return an accuracy of a sweep at an alpha or at the `chosen` one: of all images, or of the first ones.

    The names are clean, std, rob, mix, and `worst` for the three attacks together.
    """
    run = load_tradeoff(sweep(pair))
    alpha = chosen_alpha(pair).alpha if at == "chosen" else float(at)
    (row,) = np.flatnonzero(np.abs(run.alphas_of(name) - alpha) < 1e-6)
    return _percent(run.correct(name)[row][: int(images) if images else None].mean())


def alpha(pair: str) -> str:
    """Return the alpha that a sweep chose."""
    return f"{chosen_alpha(pair).alpha:.3f}"


def verdict(run: str) -> str:
    """Return the robust accuracy of an evaluation."""
    return _percent(read_json(RESULTS / run / RESULT)["robust"]["accuracy"])


def seconds(measured: str, attack: str) -> str:
    """Return the seconds of an attack on 1,000 images (benchmarks/attacks.py)."""
    return f"{read_json(BENCHMARKS / f'attacks-{measured}.json')['rows'][attack]['seconds']:.1f}"


def card(name: str, key: str) -> str:
    """Return the accuracy of a base classifier on test images (`clean` or `pgd20`), or its GPU `minutes`."""
    facts = zoo.names()[name].card
    return f"{facts['seconds'] / 60:.1f}" if key == "minutes" else percent(facts["figures"]["test"][key])


def gap(pair: str, model: str, images: str, kind: str) -> str:
    """Return a confidence gap of g or h on `clean` or `pgd` images: `right_mean`, `right_median`, `wrong_mean`."""
    return f"{load_tradeoff(sweep(pair)).gaps()[f'{model} {images}'][kind]:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


KINDS = (clean, robust, lead, curve, alpha, verdict, seconds, card, gap)
VALUES = {value.__name__: value for value in KINDS}
