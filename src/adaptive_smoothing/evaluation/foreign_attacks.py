"""Attacks of other libraries in `evaluate`: torchattacks, ART (adversarial-robustness-toolbox) and AutoAttack.

Their attacks are made for one model and are called without it. None of these libraries is imported here: an attack is
recognised by its attributes. An attack of foolbox has no radius before it is called, so it needs a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Attack = TypeVar("Attack")


@dataclass(frozen=True)
class ForeignAttack:
    """An attack of another library as a function `attack(model, images, labels) -> images`.

    Args:
        name: the library and the name of the attack.
        of: the attack.
        call: a function from the attack, images and labels to attacked images.
    """

    name: str
    of: Any
    call: Callable[[Any, Tensor, Tensor], Tensor]

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return self.call(self.of, images, labels).detach().to(images)


def adapted(attack: Attack, model: nn.Module) -> Attack | ForeignAttack:
    """Return an attack of another library as a `ForeignAttack`, and any other attack unchanged.

    An error is raised if the attack was made for another model, or cannot be called in a known way.
    """
    library, title = type(attack).__module__.partition(".")[0], type(attack).__name__
    if library == "foolbox":
        example = "lambda m, x, y: attack(foolbox.PyTorchModel(m, bounds=(0, 1)), x, y, epsilons=8 / 255)[1]"
        raise TypeError(f"expected an attack with a radius, got {title} of foolbox, which has none: pass {example}")
    if (call := _call(attack)) is None:
        return attack
    own = getattr(attack, "model", None) or getattr(getattr(attack, "estimator", None), "model", None)
    if own is None:
        expected = "expected attack(model, images, labels) -> images, or an attack object with its model as .model"
        raise TypeError(f"{expected}, got {_title(attack)} without a model: add the argument model")
    if own is not model:
        found = f"{title} on another {type(own).__name__}"
        raise ValueError(f"expected an attack on the model that is evaluated, got {found}: make it for this model")
    return ForeignAttack(f"{library} {title}", attack, call)


def _call(attack: object) -> Callable[[Any, Tensor, Tensor], Tensor] | None:
    """Return how to call an attack that is not given the model; None if it is given the model."""
    if hasattr(attack, "run_standard_evaluation"):
        return _run_autoattack
    if hasattr(attack, "generate") and hasattr(attack, "estimator"):
        return _generate
    if isinstance(attack, type) or not callable(attack):
        return None
    required, accepted = _argument_counts(attack)
    # In the style of torchattacks, an attack has its model. A function whose labels have a default is given the model.
    if 0 < required < 3 and (hasattr(attack, "model") or accepted < 3):
        return lambda attack, images, labels: attack(images, labels)
    return None


def _run_autoattack(attack: Any, images: Tensor, labels: Tensor) -> Tensor:
    found = attack.run_standard_evaluation(images, labels)
    return found[0] if isinstance(found, tuple) else found  # pyautoattack also returns predictions


def _generate(attack: Any, images: Tensor, labels: Tensor) -> Tensor:
    return torch.from_numpy(attack.generate(x=images.cpu().numpy(), y=labels.cpu().numpy()))


def _argument_counts(attack: Callable[..., Any]) -> tuple[int, int]:
    """Return how many positional arguments an attack needs, and how many it has names for; zeros if unknown."""
    try:
        arguments = inspect.signature(attack).parameters.values()
    except (TypeError, ValueError):  # built in
        return 0, 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [argument for argument in arguments if argument.kind in kinds]
    return sum(argument.default is argument.empty for argument in named), len(named)


def _title(attack: object) -> str:
    return str(getattr(attack, "__name__", type(attack).__name__))
