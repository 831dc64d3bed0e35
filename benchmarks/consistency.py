"""Check that verdicts do not depend on batches: the same evaluation in batches of 1, 32 and 256, and on two processes.

    python benchmarks/consistency.py small-robust --images 256 --out benchmarks/results/consistency.json

The attacks are those of `fast` without its audit, in fp32 on the CPU. For each arrangement: the images whose verdict,
attack or number of queries differs from the first arrangement, and the largest difference of a margin.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.threat import Linf

IN_FLOAT32 = EvaluationOptions(precise=True, alarms=False)
ARRANGEMENTS: dict[str, tuple[EvaluationOptions, tuple[str, ...]]] = {
    "batches of 256": (replace(IN_FLOAT32, batch_size=256, shard_size=256), ()),
    "batches of 32": (replace(IN_FLOAT32, batch_size=32), ()),
    "two processes": (IN_FLOAT32, ("cpu", "cpu")),
    "batches of 1": (replace(IN_FLOAT32, batch_size=1, shard_size=8), ()),
}


def difference(mine: Verdict, first: Verdict) -> dict[str, Any]:
    """Return the images on which two verdicts differ, and the largest difference of a margin."""
    other = {
        "verdict": mine.robust_correct != first.robust_correct,
        "fooled by": mine.fooled_by != first.fooled_by,
        "queries": mine.queries != first.queries,
    }
    found: dict[str, Any] = {name: mine.index[rows].tolist() for name, rows in other.items()}
    return found | {"margin, largest difference": (mine.margin - first.margin).abs().max().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model, data = zoo.load(args.model), datasets.load("builtin", "test").take(args.images)
    cascade = replace(preset("fast", Linf(8 / 255)), audit=())
    rows: dict[str, dict[str, Any]] = {}
    first: Verdict | None = None
    for name, (options, devices) in ARRANGEMENTS.items():
        began = time.perf_counter()
        verdict = evaluate(model, data, cascade, device="cpu", devices=devices, options=options)
        first = first or verdict
        rows[name] = {"robust accuracy": verdict.robust, "seconds": round(time.perf_counter() - began, 1)}
        rows[name] |= difference(verdict, first)
        print(name, rows[name], flush=True)
        if args.out:
            facts = {"model": model_facts(args.model), "data": data.name, "images": len(data)}
            write_json(args.out, {"rows": rows, "facts": {**facts, **environment("cpu")}})


if __name__ == "__main__":
    main()
