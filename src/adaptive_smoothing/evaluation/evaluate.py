"""`evaluate`: clean and robust accuracy of a model on a data set, image by image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.cascade import Cascade, PlainAttack
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import PRESETS, preset
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation.cascade_run import DEFAULT_OPTIONS, EvaluationOptions, evaluate_cascade
from adaptive_smoothing.evaluation.verdict import Evaluation, Verdict, attack_title
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.runs.progress import Progress, RunProgress, ignore_progress
from adaptive_smoothing.threat import Threat

# Images per batch when the attack is a function or there is none.
BATCH = 1000


@overload
def evaluate(
    model: nn.Module,
    data: ImageData,
    attack: str | Cascade,
    threat: Threat | None = None,
    *,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    progress: RunProgress | None = None,
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Verdict: ...
@overload
def evaluate(
    model: nn.Module,
    data: ImageData,
    attack: PlainAttack | None = None,
    *,
    device: torch.device | str | None = None,
    progress: RunProgress | None = None,
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Evaluation: ...
def evaluate(
    model: nn.Module,
    data: ImageData,
    attack: str | Cascade | PlainAttack | None = None,
    threat: Threat | None = None,
    *,
    device: torch.device | str | None = None,
    devices: Sequence[str] = (),
    journal: str | Path | None = None,
    overwrite: bool = False,
    progress: RunProgress | None = None,
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Evaluation | Verdict:
    """Return the clean accuracy of a model and its robust accuracy under an attack, image by image.

        evaluate(model, data, "fast", Linf(8 / 255)).robust

    Args:
        attack: the name of a preset, a cascade, any function `attack(model, images, labels) -> images`, or None for
            clean accuracy only.
        threat: what the attacker may do; needed with the name of a preset, and only there.
        device: where to compute; default: the device of the model.
        devices: several devices, with one process each; for presets and cascades, as `journal` and `overwrite`.
        journal: a folder for finished parts; after an interruption the same call continues from it.
        overwrite: replace the journal of a different run.
        options: batch sizes, precision and alarms; with a function only `batch_size` applies.
    """
    if isinstance(attack, str):
        if threat is None:
            example = f"evaluate(model, data, {attack!r}, Linf(8 / 255))"
            raise TypeError(f"expected a threat with the preset {attack!r}, got none: {example}")
        attack, threat = preset(attack, threat), None
    if isinstance(attack, Cascade):
        if threat is not None:
            raise TypeError(f"expected no threat with a cascade, which has its own ({attack.threat}), got {threat}")
        return evaluate_cascade(
            model,
            data,
            attack,
            device=device,
            devices=devices,
            journal=journal,
            overwrite=overwrite,
            progress=progress,
            options=options,
        )
    if (name := next((name for name, make in PRESETS.items() if make is attack), None)) is not None:
        example = f"evaluate(model, data, {name!r}, threat)"
        raise TypeError(f"expected an attack, got the function that makes one: pass its name, {example}")
    if threat is not None or devices or journal is not None or overwrite:
        raise TypeError(
            "expected threat, devices, journal and overwrite with a preset or a cascade only, got one of them with "
            f"{attack_title(attack)}: leave them out, or pass Cascade(name, threat, (Stage(key, attack),))"
        )
    check_data(data)
    check_eval(model)
    parts = batches(data, options.batch_size or BATCH, device=device_of(model, data, device))
    return _evaluate_plain(model, parts, len(data), attack, progress or ignore_progress)


def _evaluate_plain(
    model: nn.Module, parts: Iterator[Batch], images: int, attack: PlainAttack | None, progress: RunProgress
) -> Evaluation:
    """Predict every image, attack those that are classified correctly, predict again."""
    columns, done, correct, title = [], 0, 0, attack_title(attack)
    for batch in parts:
        logits = fp32_logits(model, batch.images)
        check_labels(batch.labels, batch.images, logits.shape[1])
        clean = logits.argmax(1)
        final = clean if attack is None else _attacked_predictions(model, batch, clean, attack, done)
        columns.append([column.cpu() for column in (batch.index, batch.labels, clean, final)])
        done += len(batch.labels)
        correct += int((final == batch.labels).sum())
        progress(Progress(images, done, done, correct, title))
    index, labels, clean, final = (torch.cat(column) for column in zip(*columns, strict=True))
    return Evaluation(index, labels, clean, None if attack is None else final, attack=title)


def _attacked_predictions(model: nn.Module, batch: Batch, clean: Tensor, attack: PlainAttack, done: int) -> Tensor:
    """Return the predictions after the attack, which is not run on images that are misclassified already."""
    attacked = clean.clone()
    if len(correct := (clean == batch.labels).nonzero().squeeze(1)):
        # PGD may have a radius for each image of the data.
        attack = attack.take(done + correct) if isinstance(attack, PGD) else attack
        adversarial = attack(model, batch.images[correct], batch.labels[correct])
        attacked[correct] = fp32_logits(model, adversarial).argmax(1)
    return attacked
