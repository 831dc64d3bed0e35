"""Compare our attacks with the reference AutoAttack (`pyautoattack` on PyPI) on the same images and the same model.

    python benchmarks/attacks.py resnet18-robust --images 1000 --out benchmarks/results/attacks-h.json
    python benchmarks/attacks.py resnet18-standard resnet18-robust --alpha 0.8 ...
    python benchmarks/attacks.py small-robust --images 16 --device cpu

For each attack: seconds, forward and backward passes per image, robust accuracy, and the number of images that only
this attack fooled. The reference runs with its own defaults (batches of 250), with frozen weights, and with all images
in one batch. An attack of less than a few seconds is repeated, and the median time is reported. On a GPU ours runs at
least twice: the `first` seconds contain the compilation. The reference compiles nothing.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from clock import clocked
from torch import Tensor, nn

from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.presets import preset
from adaptive_smoothing.data import datasets
from adaptive_smoothing.data.batches import batches
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions, EvaluationRun
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.mixing.loading import LoadedModel
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.results import write_json
from adaptive_smoothing.runs.folder import environment
from adaptive_smoothing.runs.journal import Journal
from adaptive_smoothing.threat import Linf

EPS = 8 / 255
# An attack is repeated until this many seconds are measured.
ENOUGH = 6.0


class Counting(nn.Module):
    """Counts the images that pass through a model, forwards and backwards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forward_images, self.backward_images = model, 0, 0
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        self.forward_images += len(images)
        logits = self.model(images)
        if logits.requires_grad and images.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.backward_images += len(gradient)


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Repeat `work` until enough seconds are measured. Return the last result, the median time and the repetitions."""
    seconds: list[float] = []
    while sum(seconds) < ENOUGH:
        result, took = clocked(work)
        seconds.append(took)
    return result, {"seconds": statistics.median(seconds), "rounds": len(seconds)}


def ours(name: str, model: nn.Module, data: ImageData, device: torch.device) -> dict[str, Any]:
    """Run one of our presets. All rounds share an engine, which keeps the compiled model."""
    cascade, compiled = preset(name, Linf(EPS)).for_model(model), device.type == "cuda"
    engine = Engine(model, device, compiled=compiled)

    def work() -> Verdict:
        engine.passes.forward = engine.passes.backward = 0
        run = EvaluationRun(
            model=model,
            data=data,
            cascade=cascade,
            device=device,
            journal=Journal(),
            options=EvaluationOptions(alarms=False),
            engine=engine,
        )
        return run.run()

    first = {"first": clocked(work)[1]} if compiled else {}
    verdict, row = timed(work)
    row |= first | {"forwards": engine.passes.forward, "backwards": engine.passes.backward}
    return row | {"robust": verdict.index[verdict.robust_correct].tolist()}


def reference(
    model: nn.Module, data: ImageData, device: torch.device, *, freeze: bool, batch_size: int
) -> dict[str, Any]:
    """Run the reference AutoAttack."""
    from pyautoattack import AutoAttack

    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    batch = next(iter(batches(data, len(data), device=device)))
    model.requires_grad_(not freeze)
    counting = Counting(model)

    def work() -> tuple[Tensor, Tensor]:
        counting.forward_images = counting.backward_images = 0
        attack = AutoAttack(counting, norm="Linf", eps=EPS, version="standard", seed=0, device=device)
        return attack.run_standard_evaluation(batch.images, batch.labels, batch_size=batch_size)

    (images, _), row = timed(work)
    model.requires_grad_(False)
    robust = fp32_logits_chunked(model, images).argmax(1) == batch.labels
    row |= {"forwards": counting.forward_images, "backwards": counting.backward_images}
    return row | {"robust": batch.index[robust].tolist()}


def attacks(
    model: nn.Module, data: ImageData, device: torch.device, wanted: list[str]
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return functions that run the wanted attacks, by name; all of them if none is named."""
    everything = {
        "fast": lambda: ours("fast", model, data, device),
        "standard": lambda: ours("standard", model, data, device),
        "reference, frozen, one batch": lambda: reference(model, data, device, freeze=True, batch_size=len(data)),
        "reference, frozen": lambda: reference(model, data, device, freeze=True, batch_size=250),
        "reference": lambda: reference(model, data, device, freeze=False, batch_size=250),
    }
    return {name: run for name, run in everything.items() if not wanted or name in wanted}


def compared(runs: dict[str, dict[str, Any]], images: int) -> dict[str, dict[str, Any]]:
    """Return the numbers of each attack, and for ours also the differences from the reference."""
    robust = {name: set(run["robust"]) for name, run in runs.items()}
    theirs = next((name for name in ("reference", *runs) if name in runs and name.startswith("reference")), None)
    rows = {}
    for name, run in runs.items():
        row = {key: value for key, value in run.items() if key != "robust"}
        row |= {key: row[key] / images for key in ("forwards", "backwards")}
        row["robust accuracy"] = len(robust[name]) / images
        if theirs is not None and not name.startswith("reference"):
            row["only ours broke"] = len(robust[theirs] - robust[name])
            row["only theirs broke"] = len(robust[name] - robust[theirs])
            row["times as fast"] = runs[theirs]["seconds"] / row["seconds"]
        rows[name] = row
    return rows


def show(rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        cells = [f"{key} {value:.4g}" for key, value in row.items()]
        print(f"{name:30} {'   '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="MODEL, or G H with --alpha")
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--data-root")
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[], help="names of the attacks to run; default all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    loaded = LoadedModel.load(args.models[0], args.models[1] if len(args.models) > 1 else None, args.alpha, args.device)
    data = datasets.load(args.data, args.split, root=args.data_root).take(args.images)
    facts = {"models": loaded.facts, "data": data.name, "fingerprint": data.fingerprint(), "images": len(data)}
    runs: dict[str, dict[str, Any]] = {}
    for name, run in attacks(loaded.model, data, device, args.only).items():
        print(name, "...", flush=True)
        runs[name] = run()
        print(f"  {runs[name]['seconds']:.1f} s, {len(runs[name]['robust'])} of {len(data)} are robust", flush=True)
        # Written after each attack, in case the next one fails.
        if args.out:
            write_json(args.out, {"rows": compared(runs, len(data)), "facts": {**facts, **environment(device)}})
    show(compared(runs, len(data)))


if __name__ == "__main__":
    main()
