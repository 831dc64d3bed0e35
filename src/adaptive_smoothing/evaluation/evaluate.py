"""`evaluate`: clean and robust accuracy of a model on a data set, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.cascade import Cascade, PlainAttack
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import PRESETS, preset
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation.cascade_run import DEFAULT_OPTIONS, EvaluationOptions, EvaluationRun
from adaptive_smoothing.evaluation.verdict import Evaluation, Verdict, attack_title
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.runs.journal import journal_at
from adaptive_smoothing.runs.progress import Progress, RunProgress, ignore_progress
from adaptive_smoothing.threat import Threat

# Images per batch without a cascade.
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
) -> Evaluation:
    """Return the clean accuracy of a model and its robust accuracy under an attack, image by image.

        evaluate(model, data, "fast", Linf(8 / 255)).robust

    The result of a preset or a cascade is a `Verdict`, which names the attack that fooled each image. `threat` applies
    to presets only; `devices`, `journal` and `overwrite` apply to presets and cascades.

    Args:
        attack: the name of a preset, a cascade, any function `attack(model, images, labels) -> images`, or None for
            clean accuracy only.
        threat: the norm and the radius of a preset.
        device: where to compute; default: the device of the model.
        devices: several devices, which get one process each.
        journal: a folder for finished shards; after an interruption the same call continues from it.
        overwrite: replace the journal of a different run.
        progress: called with a `Progress` after each step of the work.
        options: batch sizes, precision and alarms.
    """
    attack = _find_attack(attack, threat)
    for_cascades = threat is not None or devices or journal is not None or overwrite
    if for_cascades and not isinstance(attack, Cascade):
        expected = "threat, devices, journal and overwrite with a preset or a cascade only"
        found = f"one of them with {attack_title(attack) or 'no attack'}"
        hint = "leave them out, or pass Cascade(name, threat, (Stage(key, attack),))"
        raise TypeError(f"expected {expected}, got {found}: {hint}")
    check_data(data)
    check_eval(model)
    where, report = device_of(model, data, device), progress or ignore_progress
    if not isinstance(attack, Cascade):
        return _evaluate_plain(model, data, attack, options.batch_size or BATCH, where, report)
    with journal_at(journal, overwrite, devices) as kept:
        run = EvaluationRun(
            model=model,
            data=data,
            cascade=attack.for_model(model),
            device=where,
            journal=kept,
            shard_size=options.shard_size,
            options=options,
        )
        return run.run(devices, report)


def _find_attack(attack: str | Cascade | PlainAttack | None, threat: Threat | None) -> Cascade | PlainAttack | None:
    """Return the cascade of a preset's name and a threat; return any other attack unchanged."""
    if isinstance(attack, str):
        if threat is None:
            example = f"evaluate(model, data, {attack!r}, Linf(8 / 255))"
            raise TypeError(f"expected a threat with the preset {attack!r}, got none: {example}")
        return preset(attack, threat)
    if isinstance(attack, Cascade) and threat is not None:
        raise TypeError(f"expected no threat with a cascade, which has its own ({attack.threat}), got {threat}")
    for name, make_preset in PRESETS.items():
        if attack is make_preset:
            example = f"evaluate(model, data, {name!r}, threat)"
            raise TypeError(f"expected an attack, got the function that makes one: pass its name, {example}")
    _check_plain(attack)
    return attack


def _check_plain(attack: object) -> None:
    """Raise an error for anything but a function or an object that can be called, for example for a threat."""
    if attack is None or isinstance(attack, Cascade):
        return
    found = f"the class {attack.__name__}" if isinstance(attack, type) else repr(attack)
    if isinstance(attack, Threat) or (isinstance(attack, type) and issubclass(attack, Threat)):
        hint = 'name the attacks first, evaluate(model, data, "fast", ads.Linf(8 / 255))'
        raise TypeError(f"expected an attack, got {found}, which is a threat: {hint}")
    if isinstance(attack, type) or not callable(attack):
        hint = "pass an object or a function attack(model, images, labels) -> images"
        raise TypeError(f"expected the name of a preset, a cascade or an attack, got {found}: {hint}")


def _evaluate_plain(
    model: nn.Module,
    data: ImageData,
    attack: PlainAttack | None,
    batch_size: int,
    device: torch.device,
    progress: RunProgress,
) -> Evaluation:
    """Predict every image, attack those that are classified correctly, predict these again."""
    columns, done, correct, title = [], 0, 0, attack_title(attack)
    for batch in batches(data, batch_size, device=device):
        logits = fp32_logits(model, batch.images)
        check_labels(batch.labels, batch.images, logits.shape[1])
        clean = logits.argmax(1)
        final = clean if attack is None else _attacked_predictions(model, batch, clean, attack, first=done)
        columns.append([column.cpu() for column in (batch.index, batch.labels, clean, final)])
        done += len(batch.labels)
        correct += int((final == batch.labels).sum())
        progress(Progress(len(data), done, done, correct, title))
    index, labels, clean, final = (torch.cat(column) for column in zip(*columns, strict=True))
    return Evaluation(index, labels, clean, None if attack is None else final, attack=title)


def _attacked_predictions(model: nn.Module, batch: Batch, clean: Tensor, attack: PlainAttack, first: int) -> Tensor:
    """Return the predictions after the attack, which is not run on images that are misclassified already.

    Args:
        clean: the predictions before the attack.
        first: position of the batch in the data.
    """
    attacked = clean.clone()
    if len(correct := (clean == batch.labels).nonzero().squeeze(1)):
        # PGD may have a radius for each image of the data.
        attack = attack.take(first + correct) if isinstance(attack, PGD) else attack
        adversarial = attack(model, batch.images[correct], batch.labels[correct])
        attacked[correct] = fp32_logits(model, adversarial).argmax(1)
    return attacked
