"""Measure the time of certification with early stopping, and that of a plain implementation of Cohen's procedure.

    python benchmarks/certify.py gaussian-050 --sigma 0.5 --radius 0.5 --images 500 --plain-images 20 --device cuda \
        --data cifar10 --out benchmarks/results/certify.json

Cohen et al. 2019 process one image after the other: 100 samples choose a class, 100,000 others bound its probability
by Clopper-Pearson (scipy), with a failure probability of 0.001. Early stopping samples an image until one radius is
decided. The certified accuracy of Cohen's test on all images is computed in our batches, because one image after the
other would take hours.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, norm
from torch import Tensor, nn

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.certify import certify
from adaptive_smoothing.certification.options import SmoothingOptions
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.contract import trusted_images
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.results import difference, write_json
from adaptive_smoothing.runs.folder import environment

# Samples that choose the class, samples that bound its probability, and the failure probability of Cohen et al.
N0, N, CHANCE = 100, 100_000, 0.001
# Samples per batch of the plain implementation.
BATCH = 1000


# --- Cohen's procedure --------------------------------------------------------------------------------


@torch.no_grad()
def votes(base: nn.Module, image: Tensor, sigma: float, count: int, classes: int) -> np.ndarray:
    """Return the votes of `count` noisy samples of one image."""
    found = np.zeros(classes, dtype=int)
    while count > 0:
        size = min(count, BATCH)
        count -= size
        noisy = image.repeat((size, 1, 1, 1))
        with trusted_images():
            predictions = base(noisy + sigma * torch.randn_like(noisy)).argmax(1)
        found += np.bincount(predictions.cpu().numpy(), minlength=classes)
    return found


def cohen(base: nn.Module, image: Tensor, sigma: float, classes: int, n: int) -> tuple[int, float]:
    """Return the class and its radius, or -1 and 0 if nothing is certified."""
    chosen = int(votes(base, image, sigma, N0, classes).argmax())
    agreeing = int(votes(base, image, sigma, n, classes)[chosen])
    lower = float(beta.ppf(CHANCE, agreeing, n - agreeing + 1))
    return (chosen, sigma * float(norm.ppf(lower))) if lower >= 0.5 else (-1, 0.0)


def measure_cohen(base: nn.Module, data: ImageData, sigma: float, radius: float, device: str, n: int) -> dict[str, Any]:
    """Return the row of Cohen's procedure."""
    images, labels = data.to(device).floats(), data.labels
    cohen(base, images[:1], sigma, data.num_classes, min(n, 5000))  # the first pass is slower
    began = time.perf_counter()
    found = [cohen(base, image[None], sigma, data.num_classes, n) for image in images]
    seconds = time.perf_counter() - began
    right = [said == int(label) and r >= radius for (said, r), label in zip(found, labels, strict=True)]
    return _row(len(data), seconds, (N0 + n) * len(data), float(np.mean(right)))


# --- ours --------------------------------------------------------------------------------------------


def timed_certify(
    base: nn.Module, data: ImageData, sigma: float, device: str, options: SmoothingOptions
) -> tuple[Certificates, float]:
    """Return the certificates and the seconds that they took."""
    smooth = SmoothedClassifier(base, sigma, hard=True)
    warm_up = SmoothingOptions(samples=200, precision=options.precision)
    certify(smooth, data.take(slice(2)), device=device, options=warm_up)
    began = time.perf_counter()
    found = certify(smooth, data, device=device, options=options)
    return found, time.perf_counter() - began


def _row(images: int, seconds: float, samples: int, accuracy: float) -> dict[str, Any]:
    return {
        "images": images,
        "seconds": round(seconds, 2),
        "images a second": images / seconds,
        "samples an image": samples / images,
        "samples a second": samples / seconds,
        "certified accuracy": accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sigma", type=float, required=True)
    parser.add_argument("--radius", type=float, required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--plain-images", type=int, default=20)
    parser.add_argument("--samples", type=int, default=N)
    parser.add_argument("--precisions", nargs="+", default=["float32"])
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    base = zoo.load(args.model, device=args.device)
    data = datasets.load(args.data, "test", root=args.data_root).take(slice(args.images))
    rows: dict[str, dict[str, Any]] = {}

    def keep(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        print(name, row, flush=True)
        if args.out:
            facts = {"model": model_facts(args.model), "data": data.name, **environment(args.device)}
            setting = {"sigma": args.sigma, "radius": args.radius, "samples": args.samples}
            write_json(args.out, {"setting": setting, "rows": rows, "facts": facts})

    few = data.take(slice(args.plain_images))
    keep("Cohen, plainly", measure_cohen(base, few, args.sigma, args.radius, args.device, args.samples))
    stopped: dict[str, Certificates] = {}
    for precision in args.precisions:
        options = SmoothingOptions(radius=args.radius, samples=args.samples, precision=precision)
        stopped[precision], seconds = timed_certify(base, data, args.sigma, args.device, options)
        spent = int(stopped[precision].rows["samples"].sum())
        accuracy = stopped[precision].accuracy(args.radius)
        keep(f"stopping early, {precision}", _row(len(data), seconds, spent, accuracy))
    precision = args.precisions[-1]
    options = SmoothingOptions(samples=args.samples, selection=N0, precision=precision)
    full, seconds = timed_certify(base, data, args.sigma, args.device, options)
    spent, reached = int(full.rows["samples"].sum()), full.correct & (full.rows["radius"] >= args.radius)
    row = _row(len(data), seconds, spent, float(reached.mean()))
    for name, found in stopped.items():
        early = found.correct & (found.rows["radius"] >= args.radius)
        row[f"{name}: behind by"], row[f"{name}: give or take"] = difference(reached, early)
    keep(f"Cohen's test in our batches, {precision}", row)


if __name__ == "__main__":
    main()
