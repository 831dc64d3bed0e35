"""Warnings about a model and data that probably do not belong together, although nothing about them is invalid."""

from __future__ import annotations

from torch import Tensor, nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.models.contract import are_probabilities
from adaptive_smoothing.settings.checks import warn_user

# The number of classes that a message names.
NAMED = 4
# If only labels are known: images per output from which all classes should occur, even rare ones, and the share of the
# outputs that the labels then have to reach.
IMAGES_PER_OUTPUT, SHARE = 10, 0.75


def warn_if_unfit(model: nn.Module, data: ImageData, logits: Tensor | None = None) -> None:
    """Warn about another number of classes, images of one class only, and probabilities instead of logits.

    Args:
        logits: of some images; without them, the number of classes is the declared one, if there is one.
    """
    warn_classes(data, getattr(model, "num_classes", None) if logits is None else logits.shape[1])
    warn_one_class(data)
    if logits is not None:
        warn_probabilities(logits)
        warn_log_probabilities(model, logits)


def warn_classes(data: ImageData, outputs: int | None) -> None:
    """Warn if the data has another number of classes than the model, or many images and only small labels."""
    if outputs is None or outputs == data.num_classes:
        return
    if not data.classes_known and (len(data) < IMAGES_PER_OUTPUT * outputs or data.num_classes > SHARE * outputs):
        return
    named = f"{data.num_classes} classes ({class_names(data)})"
    found = named if data.classes_known else f"{len(data):,} images and no label above {data.num_classes - 1}"
    warn_user(
        f"{data.name} has {found}, but the model has {outputs} outputs: the "
        f"accuracy is wrong unless label k means output k of the model; pass the model's class names in its order as "
        "classes= to ads.load_data, ads.from_dataset or ads.from_tensors, or as --data 'PATH?classes=FILE'"
    )


def warn_one_class(data: ImageData) -> None:
    """Warn about several images that all have the same label."""
    if len(data) > 1 and bool((data.labels == data.labels[0]).all()):
        label = int(data.labels[0])
        warn_user(
            f"all {len(data):,} images of {data.name} have the label {label} ({data.classes[label]}): a constant "
            "prediction would have an accuracy of 0 % or 100 %; use images of all classes"
        )


def warn_probabilities(logits: Tensor) -> None:
    """Warn about rows of probabilities, which a model without a softmax does not return."""
    if are_probabilities(logits):
        warn_user(
            "the model returns probabilities (non-negative rows that sum to 1), whose gradients vanish where it is "
            "confident: attacks fail although the model is not robust; return the logits before softmax"
        )


def warn_log_probabilities(model: nn.Module, logits: Tensor) -> None:
    """Warn about rows of log-probabilities, unless a module inside the model is known to return them."""
    if not logits.numel() or logits.detach().logsumexp(1).abs().max() > 1e-3:
        return
    if any(getattr(module, "log_probabilities_known", False) for module in model.modules()):
        return
    found = "the model returns log-probabilities (the exponentials of a row sum to 1), which are valid logits"
    smallest = logits.min(1, keepdim=True).values
    if logits.shape[1] > 2 and bool(((logits == smallest).sum(1) > 1).all()):
        warn_user(
            f"{found}, but small probabilities were clipped and have no gradient: return the logits before softmax"
        )
    else:
        warn_user(f"{found}: probabilities, predictions and attacks are those of the logits before softmax")


def class_names(data: ImageData) -> str:
    """Return the first names of the classes for a message."""
    return ", ".join(data.classes[:NAMED]) + (", ..." if data.num_classes > NAMED else "")
