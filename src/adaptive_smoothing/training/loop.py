"""The training loop of base classifiers and mixers: epochs, optimizer steps, averaged weights, checkpoints.

A subclass defines the training step. Random numbers are keyed by (seed, epoch, step), so that a resumed run ends with
the weights of an uninterrupted one.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.data.batches import augment, cutout, shuffled, steps_per_epoch
from adaptive_smoothing.data.datasets import ImageData, to_floats
from adaptive_smoothing.data.policies import apply_policy
from adaptive_smoothing.noise import generator, keyed_seed
from adaptive_smoothing.runs.progress import CountCallback
from adaptive_smoothing.training import checkpoints
from adaptive_smoothing.training.monitor import TrainingMonitor
from adaptive_smoothing.training.options import Stopped, TrainingOptions
from adaptive_smoothing.training.recipe import CommonRecipe
from adaptive_smoothing.training.weights import MovingAverage, WeightPerturbation, restored


class TrainingBatch(NamedTuple):
    """Images in [0, 1], their labels, their positions in the training set, and the generator of this step.

    Args:
        progress: the share of the training that is done.
        second: the same images with the augmentation of the second stream, if the recipe has one.
    """

    images: Tensor
    labels: Tensor
    positions: Tensor
    epoch: int
    noise: torch.Generator
    progress: float = 1.0
    second: Tensor | None = None


class DivergedError(RuntimeError):
    """The loss or a weight is no longer a finite number."""


class Loop(ABC):
    """Trains `model` by a recipe. `run` returns the model with averaged weights.

    `weight_perturbation` is the strength of adversarial weight perturbation (AWP).
    """

    # Least seconds between two checkpoints. They are written at the end of an epoch or on an interrupt.
    save_every: float = 30.0

    def __init__(
        self,
        recipe: CommonRecipe,
        model: nn.Module,
        train: ImageData,
        val: ImageData,
        options: TrainingOptions,
        *,
        weight_perturbation: float,
    ) -> None:
        self.recipe, self.options, self.device = recipe, options, torch.device(options.device)
        self.train_data, self.val_data = train.to(self.device), val.to(self.device)
        self.monitor = TrainingMonitor(
            options.folder, title=recipe.name, quiet=options.quiet, tensorboard=options.tensorboard
        )
        self.cuda = self.device.type == "cuda"
        self.compiled = self.cuda if options.compiled is None else options.compiled
        # Channels last is twice as fast on CUDA, and slower on CPUs.
        self.layout = torch.channels_last if self.cuda else torch.contiguous_format
        self.model = model.to(self.device, memory_format=self.layout).requires_grad_()  # type: ignore[call-overload]
        self.average = MovingAverage(self.model, recipe.optimizer.ema)
        self.weight_perturbation = WeightPerturbation(self.model, weight_perturbation)
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
    def measure_batch_norm(self, batches: int) -> None:
        """Set the batch-norm statistics of the current weights, from the examples of this number of batches."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimizer, each with a factor for its learning rate."""
        return [{"params": list(self.model.parameters()), "lr_factor": 1.0}]

    def state(self) -> dict[str, Tensor]:
        """Return further tensors to store in checkpoints; `resume` copies the stored values into them."""
        return {}

    def run(self) -> nn.Module:
        """Train to the end, or until an interrupt; return the averaged model in evaluation mode."""
        self.monitor.begin(self.step)
        with (
            self.monitor.show(self.total_steps, self.step) as advance,
            checkpoints.delayed_interrupts() as signals,
        ):
            if self.step and self.step % self.steps_per_epoch == 0 and self.sums.any():
                self._finish_epoch()  # of an epoch whose last step was interrupted
            while not self.finished:
                self._epoch(signals, advance)
                if signals:
                    self.save()
                    raise Stopped
        return self.finish()

    @property
    def finished(self) -> bool:
        """Return whether all steps were taken."""
        return self.step >= self.total_steps

    def _epoch(self, signals: list[int], advance: CountCallback) -> None:
        """Take the remaining steps of the current epoch, or those until a signal is received."""
        epoch, first = divmod(self.step, self.steps_per_epoch)
        began = time.perf_counter()
        for batch in self.batches(epoch, first):
            loss, accuracy = self.train_step(batch)
            self.sums += torch.stack([loss, accuracy])
            self.step += 1
            advance(self.step)
            if signals:
                break
        self._check_finite(epoch)
        seconds = time.perf_counter() - began
        self.seconds += seconds
        # A validation takes long, so after a signal it is left to the run that continues.
        if self.step % self.steps_per_epoch == 0 and not signals:
            self._finish_epoch(seconds)

    def _check_finite(self, epoch: int) -> None:
        """Check the loss of the epoch, and the weights: a bad last step shows in the weights only."""
        weights = torch.stack(torch._foreach_norm(list(self.model.parameters())))
        if not (self.sums.isfinite().all() and weights.isfinite().all()):
            path = self.options.checkpoint
            kept = f"the last good checkpoint is kept at {path}" if path.exists() else "nothing was saved yet"
            found = f"the loss or a weight is no longer a finite number in epoch {epoch + 1}"
            hint = "lower optimizer.lr or set optimizer.gradient_clip in the recipe"
            raise DivergedError(f"{found}; {kept}: {hint}")

    def _finish_epoch(self, seconds: float | None = None) -> None:
        """Log the epoch, with a validation if it is due, and write a checkpoint if the last one is old enough."""
        epoch = self.step // self.steps_per_epoch - 1
        loss, accuracy = (self.sums / self.steps_per_epoch).tolist()
        self.sums.zero_()
        lr = self.recipe.optimizer.lr * self.recipe.lr_factor(self.step - 1, self.total_steps)
        row = {"epoch": epoch + 1, "step": self.step, "lr": lr, "loss": loss, "accuracy": accuracy}
        row |= {} if seconds is None else {"seconds": round(seconds, 3)}
        if (epoch + 1) % self.recipe.evaluate_every == 0 and not self.finished:
            row |= self.validate()
        self.monitor.log(row)
        if self.finished or time.perf_counter() - self.saved_at >= self.save_every:
            self.save()

    def descend(
        self,
        loss: Callable[[], tuple[Tensor, Tensor]],
        *,
        perturb: bool = True,
        perturbation_loss: Callable[[], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Take a step along the gradient at the perturbed weights, and update the average; return loss and logits.

        Args:
            perturb: whether to perturb the weights in this step.
            perturbation_loss: the loss that the perturbation increases; by default `loss`.
        """
        with self.weight_perturbation.applied(perturbation_loss or (lambda: loss()[0]), active=perturb):
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
        policies = {recipe.seed: recipe.data.policy}
        if recipe.data.second_policy:
            policies[keyed_seed(recipe.seed, "second stream")] = recipe.data.second_policy
        sources = {seed: self._after_policy(policy, seed, epoch) for seed, policy in policies.items()}
        order = shuffled(self.train_data, size, seed=recipe.seed, epoch=epoch, start=first)
        for step, (_, labels, positions) in enumerate(order, start=first):
            images, *second = (self._augmented(all_[positions], seed, epoch, step) for seed, all_ in sources.items())
            noise = generator(recipe.seed, "training", epoch, step, device=self.device)
            progress = (epoch * self.steps_per_epoch + step) / self.total_steps
            yield TrainingBatch(images, labels, positions, epoch, noise, progress, *second)

    def _after_policy(self, policy: str, seed: int, epoch: int) -> Tensor:
        """Return all training images, changed by an augmentation policy if there is one."""
        images = self.train_data.images
        return apply_policy(images, policy, seed=seed, epoch=epoch) if policy else images

    def _augmented(self, raw: Tensor, seed: int, epoch: int, step: int) -> Tensor:
        """Return images in [0, 1], shifted, mirrored and with a square removed."""
        data = self.recipe.data
        shifted = augment(raw, pad=data.pad, flip=data.flip, seed=seed, epoch=epoch, step=step)
        images = cutout(to_floats(shifted), data.cutout, seed=seed, epoch=epoch, step=step)
        return images.contiguous(memory_format=self.layout)

    @contextmanager
    def averaged_weights(self, batches: int) -> Iterator[None]:
        """Use the averaged weights, with batch-norm statistics of this number of batches, inside of the context."""
        with restored(self.model):
            self.average.copy_to_model()
            self.measure_batch_norm(batches)
            self.model.eval()
            yield

    def finish(self) -> nn.Module:
        """Return the model with averaged weights and their batch-norm statistics."""
        self.average.copy_to_model()
        self.measure_batch_norm(batches=self.steps_per_epoch)
        return self.model.eval().requires_grad_(False)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        settings = self.recipe.optimizer
        common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": self.cuda}
        groups = self.parameter_groups()
        if not settings.decay_norms:
            groups = [part for group in groups for part in _decay_matrices_only(group)]
        if settings.kind == "adamw":
            return torch.optim.AdamW(groups, **common)
        return torch.optim.SGD(groups, momentum=settings.momentum, nesterov=settings.momentum > 0, **common)

    def save(self) -> None:
        """Write a checkpoint."""
        tensors = {f"model.{name}": tensor for name, tensor in self._weights().items()}
        tensors |= {f"average.{number}": tensor for number, tensor in enumerate(self.average.values)}
        tensors |= {f"state.{name}": tensor for name, tensor in self.state().items()}
        for number, parameter in enumerate(self.model.parameters()):
            kept = self.optimizer.state[parameter].items()
            tensors |= {f"optimizer.{number}.{name}": value for name, value in kept if isinstance(value, Tensor)}
        tensors["epoch.sums"] = self.sums
        facts = {"step": self.step, "seconds": self.seconds, **self._identity()}
        checkpoints.save(self.options.checkpoint, tensors, facts)
        self.saved_at = time.perf_counter()

    def _weights(self) -> dict[str, Tensor]:
        """Return the parameters and the stored buffers of the model; one that two streams share has one name."""
        named = dict(chain(self.model.named_parameters(), self.model.named_buffers()))
        return {name: named[name] for name in self.model.state_dict() if name in named}

    def _identity(self) -> dict[str, Any]:
        """Return the facts, as JSON, in which a checkpoint must agree with this run."""
        return {"recipe": json.loads(json.dumps(asdict(self.recipe))), "training set": self.train_data.fingerprint()}

    def resume(self) -> bool:
        """Load the checkpoint in the folder; return False if there is none."""
        path = self.options.checkpoint
        if not path.exists():
            return False
        tensors, facts = checkpoints.load(path)
        for name, fact in self._identity().items():
            if facts.get(name) != fact:
                hint = "choose another folder (--out), or delete it to start again"
                raise checkpoints.CheckpointError(f"{path} was made with another {name}: {hint}")
        self._load(tensors)
        self.step, self.seconds = facts["step"], facts["seconds"]
        return True

    def _load(self, tensors: dict[str, Tensor]) -> None:
        """Copy the tensors of a checkpoint into the model, the average, the optimizer and the state."""
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in ("model", "average", "state", "optimizer", "epoch")}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            parts[part][key] = tensor.to(self.device)
        with torch.no_grad():
            for name, tensor in self._weights().items():
                tensor.copy_(parts["model"][name])
        for number, tensor in enumerate(self.average.values):
            tensor.copy_(parts["average"][str(number)])
        for key, tensor in self.state().items():
            tensor.copy_(parts["state"][key])
        self.sums.copy_(parts["epoch"]["sums"])
        parameters = list(self.model.parameters())
        for name, tensor in parts["optimizer"].items():
            position, _, key = name.partition(".")
            parameter = parameters[int(position)]
            # Keep the memory layout of the parameter: another one would be slower.
            kept = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor
            self.optimizer.state[parameter][key] = kept


def _decay_matrices_only(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Return two groups of parameters: matrices and kernels, which decay, and batch norms and biases, which do not."""
    matrices, vectors = ([p for p in group["params"] if (p.dim() > 1) == wanted] for wanted in (True, False))
    return [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
