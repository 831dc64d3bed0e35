"""What the application computes: predictions at any alpha, and PGD step by step. No function changes its arguments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from adaptive_smoothing.app.subject import ALONE, Subject
from adaptive_smoothing.attacks.objectives import cross_entropy, logit_margin
from adaptive_smoothing.attacks.pgd import STEP_FACTOR, ascend
from adaptive_smoothing.attacks.views import Base
from adaptive_smoothing.mixing.base_classifiers import BaseOutputs
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.contract import check_logits
from adaptive_smoothing.models.inference import fp32_logits, full_precision
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.threat import Linf

# What a model returns for an image at every alpha: outputs of g and h, or the logits of a classifier alone.
Outputs = BaseOutputs | Tensor
ROLES = {"g": "standard", "h": "robust"}
# Seconds to wait for the end of an attack that was stopped. It ends after its current step.
PATIENCE = 20.0


@dataclass(frozen=True)
class AttackOptions:
    """PGD on the mixture, on g, on h, or on the model alone (`on`), in the Linf ball of radius eps."""

    on: str
    steps: int = 20
    eps: float = 8 / 255

    def __post_init__(self) -> None:
        check_choice("on", self.on, (*ROLES, "mixture", ALONE))
        Linf(self.eps)  # checks the radius
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise ValueError(f"expected a whole number of at least 1 step, got {self.steps!r}: the paper uses 20")


@dataclass(frozen=True, eq=False)
class Attacked:
    """An image after some steps of an attack that was made at a setting of the mixture."""

    options: AttackOptions
    setting: float | None
    images: Tensor
    outputs: Outputs
    step: int

    @property
    def finished(self) -> bool:
        return self.step == self.options.steps


@dataclass(frozen=True, eq=False)
class Shown:
    """An image, its class, what the model returns for it, and its attacked version.

    Args:
        notices: sentences about the image.
    """

    name: str
    clean: Tensor
    outputs: Outputs
    label: int
    notices: tuple[str, ...] = ()
    attack: Attacked | None = None

    @property
    def images(self) -> Tensor:
        """The attacked image, or the image if there is none."""
        return self.clean if self.attack is None else self.attack.images


@dataclass(frozen=True, eq=False)
class Answers:
    """The probabilities of the classes by role, and the alpha of the image if the model is a mixture."""

    probabilities: dict[str, Tensor]
    alpha: float | None = None

    def predicted(self, role: str) -> int:
        return int(self.probabilities[role].argmax())


def show(subject: Subject, images: Tensor, name: str, label: int | None, setting: float | None) -> Shown:
    """Return the state for a new image. Without a label, it gets the class that the model predicts."""
    images = images.to(subject.device)
    outputs = run(subject, images)
    if label is not None:
        return Shown(name, images, outputs, label)
    role = subject.roles[-1]
    guess = answers(subject, images, outputs, setting).predicted(role)
    model = "the mixture" if subject.is_mixture else "the model"
    notice = (
        f"The correct class of your image is not known. It was set to the prediction of {model}, "
        f"{subject.classes[guess]}; choose another one if that is wrong."
    )
    return Shown(name, images, outputs, guess, (notice,))


def run(subject: Subject, images: Tensor) -> Outputs:
    """Return what the model computes for images at every setting."""
    with subject.lock, torch.no_grad(), full_precision():
        if not isinstance(subject.model, MixedClassifier):
            return fp32_logits(subject.model, images)
        outputs = subject.model.base_outputs(images)
    for logits in (outputs.g, outputs.h):
        check_logits(logits, images)
    return outputs


@torch.no_grad()
def first_image(subject: Subject, setting: float | None) -> int:
    """Return the image of the gallery that is shown first, for which it is open what an attack does.

    Of the images that the model, g and h classify correctly, the lead of the correct class is neither large nor small.
    """
    assert subject.gallery is not None
    images, labels = subject.gallery.floats(), subject.gallery.labels
    outputs, model = run(subject, images), subject.at(setting)
    if isinstance(outputs, Tensor):
        each = [outputs]
    else:
        assert isinstance(model, MixedClassifier)
        each = [outputs.g, outputs.h, model.combine(outputs, images).logits]
    margins = torch.stack([logit_margin(logits, labels) for logits in each])
    correct = (margins < 0).all(0)
    by_lead = [position for position in margins[-1].argsort().tolist() if correct[position]]
    return by_lead[len(by_lead) // 2] if by_lead else 0


@torch.no_grad()
def answers(subject: Subject, images: Tensor, outputs: Outputs, setting: float | None) -> Answers:
    """Return the probabilities of an image for g, h and the mixture at this setting, or for the model alone."""
    if isinstance(outputs, Tensor):
        return Answers({ALONE: outputs.softmax(1)[0]})
    mixed = subject.at(setting)
    assert isinstance(mixed, MixedClassifier)
    g, h = mixed.transformed(outputs.g, outputs.h, images)
    mixture = mixed.combine(outputs, images)
    each = {"g": g, "h": h, "mixture": mixture.logits}
    return Answers({role: logits.softmax(1)[0] for role, logits in each.items()}, mixture.alpha.item())


def attack(subject: Subject, shown: Shown, options: AttackOptions, setting: float | None) -> Iterator[Shown]:
    """Yield the state after each step of PGD. The last one has the iterate with the widest margin, as `PGD` returns."""
    model, label = attacked_model(subject, options.on, setting), torch.tensor([shown.label], device=shown.clean.device)
    threat, step_size = Linf(options.eps), STEP_FACTOR * options.eps / options.steps
    current = worst = Attacked(options, setting, shown.clean, shown.outputs, 0)
    widest = _margin(subject, current, label)
    for step in range(1, options.steps + 1):
        with subject.lock:
            iterate = ascend(cross_entropy, model, shown.clean, label, threat, 1, current.images, step_size)
        current = replace(current, images=iterate, outputs=run(subject, iterate), step=step)
        if (margin := _margin(subject, current, label)) > widest:
            widest, worst = margin, current
        if step < options.steps:
            yield replace(shown, attack=current)
    yield replace(shown, attack=replace(worst, step=options.steps))


class Running:
    """The attack that runs in a browser tab, which another event of that tab can stop.

    Gradio can cancel an event, but a cancellation that arrives late also ends an attack that was started after it, and
    the tab then waits for that attack for ever.
    """

    def __init__(self) -> None:
        self.active = self.stopped = False

    def steps_of(self, attack: Iterator[Shown]) -> Iterator[Shown]:
        """Yield the steps of an attack until it is stopped."""
        self.active, self.stopped = True, False
        try:
            for step in attack:  # at least one: Gradio empties the page after a function that yields nothing
                yield step
                if self.stopped:
                    return
        finally:
            self.active = False

    def stop(self) -> None:
        """Stop the attack, and return when its last step is on the page: Gradio asks for the next one only then."""
        self.stopped, latest = True, time.monotonic() + PATIENCE
        while self.active and time.monotonic() < latest:
            time.sleep(0.01)


def attacked_model(subject: Subject, on: str, setting: float | None) -> nn.Module:
    """Return the model that an attack follows: the mixture at a setting, or one of its networks."""
    return Base(ROLES[on])(subject.model) if on in ROLES else subject.at(setting)


def _margin(subject: Subject, attacked: Attacked, label: Tensor) -> float:
    """Return the margin of the attacked model."""
    outputs = attacked.outputs
    if isinstance(outputs, Tensor):
        logits = outputs
    elif attacked.options.on in ROLES:
        logits = getattr(outputs, attacked.options.on)
    else:
        mixed = subject.at(attacked.setting)
        assert isinstance(mixed, MixedClassifier)
        with torch.no_grad():
            logits = mixed.combine(outputs, attacked.images).logits
    return logit_margin(logits, label).item()
