"""Measure a trade-off with a progress bar; Ctrl-C keeps the images that are done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from torch import nn

from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.cli.console import Count, TimeBar
from adaptive_smoothing.cli.options import VALIDATION
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.tradeoff import Tradeoff, attack_count, join, tradeoff_parts
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.tuning.curves import CleanAccuracyCurve, accuracy_curve


def measure_tradeoff(
    g: nn.Module,
    h: nn.Module,
    data: ImageData,
    attack: PGD,
    *,
    mix_alphas: Sequence[float],
    batch_size: int,
    console: Console,
) -> tuple[Tradeoff, bool]:
    """Return the trade-off of the images that were measured, and whether Ctrl-C ended the measurement."""
    done: list[Tradeoff] = []
    with TimeBar(console) as bar:
        count = Count(bar, attack_count(len(data), batch_size, mix_alphas), "attacks on batches of images")
        parts = tradeoff_parts(g, h, data, attack, mix_alphas=mix_alphas, batch_size=batch_size, progress=count)
        try:
            for part in parts:
                done.append(part)
        except KeyboardInterrupt:
            if not done:
                raise
            run = join(done)
            console.print(f"[yellow]stopped[/]: the result is for the {run.images:,} images that were finished")
            return run, True
    return join(done), False


def measure_clean_accuracy(
    g: nn.Module, h: nn.Module, val: ImageData, *, batch_size: int, folder: Path, console: Console
) -> CleanAccuracyCurve:
    """Return the clean accuracy at every alpha on validation images, and store it in the run folder."""
    with TimeBar(console) as bar:
        count = Count(bar, len(val), "validation images predicted")
        accuracy = accuracy_curve(MixedClassifier(g, h, 0.5), val, batch_size=batch_size, progress=count)
    accuracy.save(folder / VALIDATION)
    return accuracy
