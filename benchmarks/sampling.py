"""Measure the noisy samples per second of a network, compiled or not, in several batch sizes and precisions.

    python benchmarks/sampling.py gaussian-050 --sigma 0.5 --device cuda --precisions bfloat16 \
        --out benchmarks/results/sampling-cuda.json

The samples are those that `certify` draws; "network alone" leaves out the noise and the counting.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from clock import clocked
from torch import Tensor

from adaptive_smoothing.certification.sampling import PRECISIONS, Sampler, Tally
from adaptive_smoothing.data import datasets
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment


def measure(sampler: Sampler, images: Tensor, classes: int, samples: int) -> dict[str, Any]:
    """Return the row of one sampler, measured after a first pass, which is slower."""
    index, size, drawn = torch.arange(len(images)), sampler.batch_size, samples * len(images)
    assert size is not None  # stored in the row
    noisy, batches = images[:1].repeat(size, 1, 1, 1), max(1, drawn // size)

    def everything(count: int) -> None:
        tally = Tally(torch.zeros(len(images), 1, dtype=torch.int64, device=images.device), classes, sampler.values)
        for rows, outputs in sampler.draw(images, index, "estimation", 0, count):
            tally.add(rows, outputs)

    _, first = clocked(lambda: everything(2 * size // len(images) + 1))
    _, whole = clocked(lambda: everything(samples))
    _, alone = clocked(lambda: [sampler.outputs(noisy) for _ in range(batches)])
    return {
        "precision": sampler.precision,
        "compiled": sampler.compiled,
        "batch": size,
        "first, s": round(first, 2),
        "samples a second": round(drawn / whole),
        "network alone": round(batches * size / alone),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sigma", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batches", nargs="+", type=int, default=[4096])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=["float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    base = zoo.load(args.model, device=args.device)
    data = datasets.load("builtin", "test").take(slice(args.images)).to(args.device)
    rows: list[dict[str, Any]] = []
    for precision in args.precisions:
        for compiled in (False, True):
            for batch in args.batches:
                torch.compiler.reset()
                sampler = Sampler(base, args.sigma, hard=True, precision=precision, compiled=compiled, batch_size=batch)
                rows.append(measure(sampler, data.floats(), data.num_classes, args.samples))
                print(rows[-1], flush=True)
                if args.out:
                    facts = {"model": model_facts(args.model), **environment(args.device)}
                    write_json(args.out, {"rows": rows, "facts": facts})


if __name__ == "__main__":
    main()
