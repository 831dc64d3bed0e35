"""The training loop, for subclasses that define the model and the training step.

Random numbers are keyed by (seed, epoch, step), so that a resumed run ends with the weights of an uninterrupted one.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.data.batches import augment, cutout, shuffled, steps_per_epoch
from adaptive_smoothing.data.datasets import ImageData, to_floats
from adaptive_smoothing.noise import generator
from adaptive_smoothing.training import checkpoints
from adaptive_smoothing.training.averaging import MovingAverage, WeightPerturbation
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.recipe import CommonRecipe

CHECKPOINT = "checkpoint.safetensors"


class TrainingBatch(NamedTuple):
    """Images in [0, 1], their labels, their positions in the training set, and the generator of this step."""

    images: Tensor
    labels: Tensor
    positions: Tensor
    epoch: int
    noise: torch.Generator


class DivergedError(RuntimeError):
    """The loss or a weight is no longer a finite number."""


class Stopped(KeyboardInterrupt):
    """Training was interrupted and has written a checkpoint."""


class Loop(ABC):
    """Trains `model` by a recipe into a folder. `run` returns the model with averaged weights."""

    # Least seconds between two checkpoints. They are written at the end of an epoch or on an interrupt.
    save_every: float = 30.0
    weight_perturbation: WeightPerturbation

    def __init__(
        self,
        recipe: CommonRecipe,
        model: nn.Module,
        train: ImageData,
        val: ImageData,
        folder: Path,
        *,
        device: str = "cpu",
        monitor: TrainingMonitor | None = None,
    ) -> None:
        self.recipe, self.folder, self.device = recipe, folder, torch.device(device)
        self.checkpoint = folder / CHECKPOINT
        self.train_data, self.val_data = train.to(device), val.to(device)
        self.monitor = monitor or TrainingMonitor(folder)
        self.cuda = self.device.type == "cuda"
        # Channels last is twice as fast on CUDA, and slower on CPUs.
        self.layout = torch.channels_last if self.cuda else torch.contiguous_format
        self.model = model.to(self.device, memory_format=self.layout).requires_grad_()  # type: ignore[call-overload]
        self.average = MovingAverage(self.model, recipe.optimizer.ema)
        self.optimizer = self._make_optimizer()
        size = recipe.optimizer.batch_size
        self.steps_per_epoch = steps_per_epoch(train, size)
        if self.steps_per_epoch == 0:
            raise ValueError(f"expected at least {size} training images, got {len(train)}: lower optimizer.batch_size")
        self.total_steps = self.steps_per_epoch * recipe.optimizer.epochs
        self.step, self.seconds, self.saved_at = 0, 0.0, float("-inf")
        self.sums = torch.zeros(2, device=self.device)  # loss and accuracy of the epoch so far

    @abstractmethod
    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Take one optimizer step on a batch; return the loss and the accuracy on its examples."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return accuracies of the averaged weights on validation images."""

    @abstractmethod
    def measure(self, batches: int) -> None:
        """Set the batch-norm statistics of the current weights, on training examples of so many batches."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimizer, each with a factor for its learning rate."""
        return [{"params": list(self.model.parameters()), "lr_factor": 1.0}]

    def state(self) -> dict[str, Tensor]:
        """Return further tensors that checkpoints store; `resume` copies into them."""
        return {}

    def run(self) -> nn.Module:
        """Train to the end, or until an interrupt; return the averaged model in evaluation mode."""
        self.monitor.rewind(self.step)
        with self.monitor.show(self.total_steps, self.step), checkpoints.delayed_interrupts() as signals:
            while not self.finished:
                self._epoch(signals)
                if signals:
                    self.save()
                    raise Stopped
        return self.finish()

    @property
    def finished(self) -> bool:
        return self.step >= self.total_steps

    def _epoch(self, signals: list[int]) -> None:
        epoch, first = divmod(self.step, self.steps_per_epoch)
        began = time.perf_counter()
        for batch in self.batches(epoch, first):
            loss, accuracy = self.train_step(batch)
            self.sums += torch.stack([loss, accuracy])
            self.step += 1
            self.monitor.advance(self.step)
            if signals:
                break
        self._check_finite(epoch)
        self.seconds += time.perf_counter() - began
        if self.step % self.steps_per_epoch == 0:
            self._finish_epoch(epoch, time.perf_counter() - began)

    def _check_finite(self, epoch: int) -> None:
        """Check the loss of the epoch, and the weights: a bad last step shows in the weights only."""
        weights = torch.stack(torch._foreach_norm(list(self.model.parameters())))
        if not (self.sums.isfinite().all() and weights.isfinite().all()):
            saved = self.checkpoint.exists()
            kept = f"the last good checkpoint is kept at {self.checkpoint}" if saved else "nothing was saved yet"
            raise DivergedError(
                f"the loss or a weight is no longer a finite number in epoch {epoch + 1}; {kept}: "
                "lower optimizer.lr or set optimizer.gradient_clip in the recipe"
            )

    def _finish_epoch(self, epoch: int, seconds: float) -> None:
        loss, accuracy = (self.sums / self.steps_per_epoch).tolist()
        self.sums.zero_()
        row = {"epoch": epoch + 1, "step": self.step, "lr": self.optimizer.param_groups[0]["lr"]}
        row |= {"loss": loss, "accuracy": accuracy, "seconds": round(seconds, 3)}
        if (epoch + 1) % self.recipe.evaluate_every == 0 and not self.finished:
            row |= self.validate()
        self.monitor.log(row)
        if self.finished or time.perf_counter() - self.saved_at >= self.save_every:
            self.save()

    def descend(self, loss: Callable[[], tuple[Tensor, Tensor]], *, perturb: bool = True) -> tuple[Tensor, Tensor]:
        """Take a step along the gradient at the perturbed weights, and update the average; return loss and logits."""
        with self.weight_perturbation.applied(lambda: loss()[0], active=perturb):
            value, logits = loss()
            self.optimizer.zero_grad(set_to_none=True)
            value.backward()
        lr = self.recipe.optimizer.lr * self.recipe.lr_factor(self.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        if self.recipe.optimizer.gradient_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.gradient_clip)
        self.optimizer.step()
        self.average.update(self.step)
        return value.detach(), logits.detach()

    def batches(self, epoch: int, first: int = 0) -> Iterator[TrainingBatch]:
        """Yield the augmented batches of an epoch, from the step `first` on."""
        recipe, size = self.recipe, self.recipe.optimizer.batch_size
        order = shuffled(self.train_data, size, seed=recipe.seed, epoch=epoch, start=first)
        for step, (raw, labels, positions) in enumerate(order, start=first):
            shifted = augment(raw, pad=recipe.data.pad, flip=recipe.data.flip, seed=recipe.seed, epoch=epoch, step=step)
            images = cutout(to_floats(shifted), recipe.data.cutout, seed=recipe.seed, epoch=epoch, step=step)
            noise = generator(recipe.seed, "training", epoch, step, device=self.device)
            yield TrainingBatch(images.contiguous(memory_format=self.layout), labels, positions, epoch, noise)

    def finish(self) -> nn.Module:
        """Return the model with averaged weights and their batch-norm statistics."""
        self.average.copy_to_model()
        self.measure(batches=self.steps_per_epoch)
        return self.model.eval().requires_grad_(False)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        settings = self.recipe.optimizer
        common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": self.cuda}
        if settings.kind == "adamw":
            return torch.optim.AdamW(self.parameter_groups(), **common)
        nesterov = settings.momentum > 0
        return torch.optim.SGD(self.parameter_groups(), momentum=settings.momentum, nesterov=nesterov, **common)

    def save(self) -> None:
        """Write a checkpoint."""
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{number}": tensor for number, tensor in enumerate(self.average.average)}
        tensors |= {f"state.{k}": v for k, v in self.state().items()}
        for number, parameter in enumerate(self.model.parameters()):
            kept = self.optimizer.state[parameter].items()
            tensors |= {f"optimizer.{number}.{k}": v for k, v in kept if isinstance(v, Tensor)}
        tensors["epoch.sums"] = self.sums
        checkpoints.save(self.checkpoint, tensors, {"step": self.step, "seconds": self.seconds, **self._identity()})
        self.saved_at = time.perf_counter()

    def _identity(self) -> dict[str, Any]:
        """Return the facts, as JSON, in which a checkpoint must agree with this run."""
        return {"recipe": json.loads(json.dumps(asdict(self.recipe))), "training set": self.train_data.fingerprint()}

    def resume(self) -> bool:
        """Load the checkpoint of the folder; return False if there is none."""
        if not self.checkpoint.exists():
            return False
        tensors, facts = checkpoints.load(self.checkpoint)
        for name, fact in self._identity().items():
            if facts.get(name) != fact:
                raise checkpoints.CheckpointError(
                    f"{self.checkpoint} was made with another {name}: use another --out, or delete it to start again"
                )
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in ("model", "average", "state", "optimizer", "epoch")}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            parts[part][key] = tensor.to(self.device)
        self.model.load_state_dict(parts["model"])
        for number, tensor in enumerate(self.average.average):
            tensor.copy_(parts["average"][str(number)])
        for key, tensor in self.state().items():
            tensor.copy_(parts["state"][key])
        self.sums.copy_(parts["epoch"]["sums"])
        parameters = list(self.model.parameters())
        for name, tensor in parts["optimizer"].items():
            place, _, key = name.partition(".")
            parameter = parameters[int(place)]
            # Keep the memory layout of the parameter: another one would be slower.
            kept = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor
            self.optimizer.state[parameter][key] = kept
        self.step, self.seconds = facts["step"], facts["seconds"]
        return True
