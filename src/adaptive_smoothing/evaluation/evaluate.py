"""`evaluate`: clean and robust accuracy of a model on a data set, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.attack_input import check_share_outside
from adaptive_smoothing.attacks.cascade import Cascade, PlainAttack, is_user_function, with_unchanged_model
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.attacks.presets import PRESETS, preset
from adaptive_smoothing.data.batches import Batch, batches
from adaptive_smoothing.data.datasets import ImageData, check_data, device_of
from adaptive_smoothing.evaluation.attacked_images import AttackedImages, attack_images, own_threat
from adaptive_smoothing.evaluation.cascade_run import DEFAULT_OPTIONS, EvaluationOptions, EvaluationRun
from adaptive_smoothing.evaluation.foreign_attacks import adapted
from adaptive_smoothing.evaluation.verdict import AttackEvaluation, Evaluation, Verdict, attack_title
from adaptive_smoothing.models.contract import check_eval, check_labels
from adaptive_smoothing.models.fit import warn_if_unfit
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.models.memory import limited_memory, memory_given_back
from adaptive_smoothing.runs.journal import journal_at
from adaptive_smoothing.runs.progress import Progress, RunProgress, ignore_progress
from adaptive_smoothing.settings.checks import check_options, warn_user
from adaptive_smoothing.threat import NORMS, Threat, check_threat

# Images per batch without a cascade.
BATCH = 1000
# Images that show the number of classes and the kind of output of a model.
PROBES = 4


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
    threat: Threat | None = None,
    *,
    device: torch.device | str | None = None,
    progress: RunProgress | None = None,
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> Evaluation: ...
@memory_given_back()
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

    The result of a preset or a cascade is a `Verdict`, which names the attack that fooled each image. `devices`,
    `journal` and `overwrite` apply to presets and cascades.

    Args:
        model: a classifier, or any mixture.
        data: the images that are classified and attacked.
        attack: the name of a preset, a cascade, a user's attack function `attack(model, images, labels) -> images`,
            an attack of torchattacks, ART or AutoAttack made for this model, or None for clean accuracy only.
        threat: the norm and the radius of a preset. Every image that a function returns is checked against it; images
            outside do not count as fooled, and if most are outside, that is an error. Without it, the result reports
            the largest distances.
        device: where to compute; default: the device of the model.
        devices: several devices, which get one process each.
        journal: a folder for finished shards; after an interruption the same call continues from it.
        overwrite: replace the journal of a different run.
        progress: called with a `Progress` after each step of the work.
        options: batch sizes, precision and alarms.

    Examples:
        >>> verdict = ads.evaluate(mixed, data, "fast", threat)  # or "standard" (AutoAttack), "adaptive"
        >>> verdict.robust <= verdict.clean
        True
        >>> low, high = verdict.interval  # of the robust accuracy, 95 %
        >>> ads.evaluate(mixed, data, lambda model, images, labels: images, threat).outside.sum()  # an attack of yours
        tensor(0)
    """
    attack = adapted(_find_attack(attack, threat), model)
    _check_plain(attack)
    _check_threat(attack, threat)
    if devices or journal is not None or overwrite:
        _check_cascade(attack)
    check_data(data)
    check_options(options, EvaluationOptions)
    if (used := threat or own_threat(attack)) is not None:
        used.check_count(len(data))
    check_eval(model)
    where, report = device_of(model, data, device), progress or ignore_progress
    if not isinstance(attack, Cascade):
        with limited_memory(options.memory, where):
            return _evaluate_plain(model, data, attack, threat, options, where, report)
    # Without alarms, a finished run needs no forward pass.
    warn_if_unfit(model, data, _first_logits(model, data) if options.alarms else None)
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
        found = f"{threat}: leave it out"
        raise TypeError(f"expected no threat with a cascade, which has its own ({attack.threat}), got {found}")
    for name, make_preset in PRESETS.items():
        if attack is make_preset:
            example = f"evaluate(model, data, {name!r}, threat)"
            raise TypeError(f"expected an attack, got the function that makes one: pass its name, {example}")
    return attack


def _first_logits(model: nn.Module, data: ImageData) -> Tensor:
    """Return the logits of some images, where the model is."""
    return fp32_logits(model, data.take(slice(PROBES)).to(device_of(model, data)).floats())


def _check_threat(attack: Cascade | PlainAttack | None, threat: Threat | None) -> None:
    """Raise an error for a threat that is none, or that has no attack."""
    if threat is None:
        return
    check_threat(threat)
    if attack is None:
        raise TypeError('expected an attack with the threat, got none: pass "fast", or a function')


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


def _check_cascade(attack: Cascade | PlainAttack | None) -> None:
    """Raise an error for an attack to which devices, journal and overwrite do not apply."""
    if not isinstance(attack, Cascade):
        expected = "devices, journal and overwrite with a preset or a cascade only"
        found = f"one of them with {attack_title(attack) or 'no attack'}"
        hint = "leave them out, or pass Cascade(name, threat, (Stage(key, attack),)) from"
        raise TypeError(f"expected {expected}, got {found}: {hint} {Cascade.__module__}")


def _evaluate_plain(
    model: nn.Module,
    data: ImageData,
    attack: PlainAttack | None,
    threat: Threat | None,
    options: EvaluationOptions,
    device: torch.device,
    progress: RunProgress,
) -> Evaluation:
    """Predict every image, attack those that are classified correctly, predict these again."""
    title, threat = attack_title(attack), threat if threat is not None else own_threat(attack)
    clean, attacked, done, correct, kept = [], [], 0, 0, len(data)
    if is_user_function(attack):
        _first_logits(model, data)  # a first pass may fill buffers, which is no change by the attack
    for batch in with_unchanged_model(batches(data, options.batch_size or BATCH, device=device), attack, model):
        logits = fp32_logits(model, batch.images)
        check_labels(batch.labels, batch.images, logits.shape[1])
        if not done:
            warn_if_unfit(model, data, logits)
        before = after = AttackedImages.without_attack(batch.images, logits.argmax(1))
        if attack is not None:
            after = _attack_correct(model, batch, logits, before, attack, threat, first=done)
        clean.append(before.predictions.cpu())
        saved = max(0, options.save_adversarial - done)
        # A copy, because a view would keep the whole batch.
        attacked.append(after._replace(images=after.images[:saved].clone()).cpu())
        done += len(batch.labels)
        correct += int((after.predictions == batch.labels).sum())
        kept -= int((before.predictions != batch.labels).sum())  # images that were or may still be attacked
        check_share_outside(sum(int(part.outside.sum()) for part in attacked), kept, threat)
        progress(Progress(len(data), done, done, correct, title))
    found, index, labels = AttackedImages.cat(attacked), data.index.cpu(), data.labels.cpu()
    if attack is None:
        return Evaluation(index, labels, torch.cat(clean))
    result = AttackEvaluation(
        index=index,
        labels=labels,
        clean_predictions=torch.cat(clean),
        attacked_predictions=found.predictions,
        attack=title,
        threat=threat,
        outside=found.outside,
        easier=found.easier,
        distances=dict(zip(NORMS, found.distances.unbind(1), strict=True)),
        adversarial=found.images if options.save_adversarial else None,
    )
    for warning in result.warnings:
        warn_user(f"{title}: {warning}")
    return result


def _attack_correct(
    model: nn.Module,
    batch: Batch,
    logits: Tensor,
    before: AttackedImages,
    attack: PlainAttack,
    threat: Threat | None,
    first: int,
) -> AttackedImages:
    """Attack the images of a batch that are classified correctly.

    Args:
        logits, before: of the images before the attack.
        first: position of the batch in the data.
    """
    correct = (before.predictions == batch.labels).nonzero().squeeze(1)
    if not len(correct):
        return before
    # PGD and the threat may have a radius for each image of the data.
    attack = attack.take(first + correct) if isinstance(attack, PGD) else attack
    threat = None if threat is None else threat.take(first + correct)
    images, labels = batch.images[correct], batch.labels[correct]
    return before.replaced(correct, attack_images(model, images, labels, logits[correct], attack, threat))
