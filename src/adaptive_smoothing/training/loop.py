"""The training loop of base classifiers: resumable, repeatable, watched.

Whatever is random is keyed by (seed, epoch, step), so that a run continued from a checkpoint ends with the
weights of an uninterrupted one.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_smoothing import checkpoints
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.data.batches import augment, shuffled, steps_per_epoch
from adaptive_smoothing.data.cutout import cutout
from adaptive_smoothing.data.datasets import ImageData, to_floats
from adaptive_smoothing.evaluation.accuracy import evaluate
from adaptive_smoothing.models import architectures
from adaptive_smoothing.noise import generator
from adaptive_smoothing.training.averaging import MovingAverage, measure_statistics, statistics_kept
from adaptive_smoothing.training.methods import TrainingBatch, make_method
from adaptive_smoothing.training.recipe import Recipe
from adaptive_smoothing.training.watching import Watcher
from adaptive_smoothing.training.weight_perturbation import WeightPerturbation


class DivergedError(RuntimeError):
    """The loss is no longer a number."""


class Trainer:
    """Trains one recipe into one folder: `Trainer(recipe, train, val, folder).run()` -> the averaged model."""

    def __init__(
        self,
        recipe: Recipe,
        train: ImageData,
        val: ImageData,
        folder: Path,
        *,
        device: str = "cpu",
        compiled: bool | None = None,
        watcher: Watcher | None = None,
        save_every: float = 30.0,
    ) -> None:
        """`save_every`: seconds between checkpoints, which are made at the end of an epoch and when interrupted."""
        self.recipe, self.folder, self.device = recipe, folder, torch.device(device)
        self.train_data, self.val_data = train.to(device), val.to(device)
        self.watcher = watcher or Watcher(folder)
        self.cuda = self.device.type == "cuda"
        torch.manual_seed(recipe.seed)
        model = architectures.build(recipe.model.arch, **recipe.model.options_for(train.num_classes))
        # Channels last is twice as fast on CUDA and slower on CPUs.
        self.layout = torch.channels_last if self.cuda else torch.contiguous_format
        self.model = model.to(self.device, memory_format=self.layout)  # type: ignore[call-overload]
        self.network = self._network(self.cuda if compiled is None else compiled)
        self.method = make_method(recipe.method, len(train), self.device)
        self.average = MovingAverage(self.model, recipe.optimizer.ema)
        self.adversary = WeightPerturbation(self.model, recipe.method.weight_perturbation)
        settings = recipe.optimizer
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.momentum > 0,
            fused=self.cuda,
        )
        self.steps_per_epoch = steps_per_epoch(train, settings.batch_size)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"expected at least one full batch of {settings.batch_size} training images, got {len(train)}: "
                "lower optimizer.batch_size in the recipe"
            )
        self.total_steps = self.steps_per_epoch * settings.epochs
        self.step = 0
        self.seconds = 0.0
        self.save_every, self.saved_at = save_every, float("-inf")
        self.sums = torch.zeros(2, device=self.device)  # loss and accuracy of the epoch so far

    # -- running ---------------------------------------------------------------------------------------------

    def run(self) -> nn.Module:
        """Train to the end, or to an interrupt; returns the averaged model, in evaluation mode."""
        self.watcher.rewind(self.step)
        with self.watcher.watching(self.total_steps, self.step), _interrupts() as interrupt:
            while not self.finished:
                self._epoch(interrupt)
                if interrupt.raised:
                    self.save()
                    raise KeyboardInterrupt
        return self.finish()

    @property
    def finished(self) -> bool:
        """Whether every epoch is done."""
        return self.step >= self.total_steps

    def _epoch(self, interrupt: _Interrupt) -> None:
        epoch, first = divmod(self.step, self.steps_per_epoch)
        began = time.perf_counter()
        for batch in self.batches(epoch, first):
            loss, right = self.train_step(batch)
            self.sums += torch.stack([loss, right])
            self.step += 1
            self.watcher.advance(self.step)
            if interrupt.raised:
                break
        self._check_finite(epoch)
        self.seconds += time.perf_counter() - began
        if self.step % self.steps_per_epoch == 0:
            self._finish_epoch(epoch, time.perf_counter() - began)

    def _check_finite(self, epoch: int) -> None:
        """The loss of the epoch and the weights it left: a bad last step shows in the weights only."""
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
        row: dict[str, Any] = {
            "epoch": epoch + 1,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "loss": loss,
            "accuracy": accuracy,
            "seconds": round(seconds, 3),
        }
        if (epoch + 1) % self.recipe.evaluate_every == 0 and not self.finished:
            row |= self.validate()
        self.watcher.log(row)
        if self.finished or time.perf_counter() - self.saved_at >= self.save_every:
            self.save()

    def train_step(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """One step of SGD on one batch; returns the loss and the share of examples classified right."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.optimizer.lr * self.recipe.lr_factor(self.step, self.total_steps)
        examples = self.examples(batch)
        self.model.train()
        with self.adversary.pushed(lambda: self._loss(batch, examples)[0], active=self._adversary_active()):
            loss, logits = self._loss(batch, examples)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        if self.recipe.optimizer.gradient_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.gradient_clip)
        self.optimizer.step()
        self.average.update(self.step)
        return loss.detach(), (logits.detach().argmax(1) == batch.labels).float().mean()

    def _loss(self, batch: TrainingBatch, examples: Tensor) -> tuple[Tensor, Tensor]:
        return self.method.loss(self.network, batch, examples)

    def _adversary_active(self) -> bool:
        return self.step >= self.recipe.method.perturbation_warmup * self.total_steps

    def examples(self, batch: TrainingBatch) -> Tensor:
        """Attack (or otherwise prepare) a batch, with the network frozen and in evaluation mode."""
        self.model.eval()
        self.model.requires_grad_(False)
        try:
            return self.method.examples(self.network, batch)
        finally:
            self.model.requires_grad_(True)

    def batches(self, epoch: int, first: int = 0) -> Iterator[TrainingBatch]:
        recipe, size = self.recipe, self.recipe.optimizer.batch_size
        order = shuffled(self.train_data, size, seed=recipe.seed, epoch=epoch, start=first)
        for step, (raw, labels, positions) in enumerate(order, start=first):
            seed, pad, flip = recipe.seed, recipe.data.pad, recipe.data.flip
            shifted = to_floats(augment(raw, seed=seed, epoch=epoch, step=step, pad=pad, flip=flip))
            images = cutout(shifted, recipe.data.cutout, seed=seed, epoch=epoch, step=step)
            noise = generator(seed, "training", epoch, step, device=self.device)
            yield TrainingBatch(images.contiguous(memory_format=self.layout), labels, positions, epoch, noise)

    def _network(self, compiled: bool) -> Any:
        """The model as the steps call it: bf16 on CUDA, compiled where asked.

        CUDA graphs ("reduce-overhead") pay because a batch of 512 small images is launched slower than it runs:
        4.46 s an epoch instead of 5.8 s for adversarial training of a ResNet-18 (docs/log.md). Their outputs live in a
        buffer that the next call overwrites, so what a method keeps from one call to the next, it clones.
        """
        inner = torch.compile(self.model, dynamic=False, mode="reduce-overhead") if compiled else self.model
        if not self.cuda:
            return inner

        def network(images: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return inner(images)

        return network

    # -- watching --------------------------------------------------------------------------------------------

    def validate(self, images: int = 1000) -> dict[str, float]:
        """Clean and PGD-10 accuracy of the averaged weights on validation images."""
        with statistics_kept(self.model), self.average.swapped_in():
            self.measure(batches=40)
            self.model.eval()
            data = self.val_data.take(slice(images))
            clean = evaluate(self.model, self.val_data).clean
            if self.recipe.method.name in ("standard", "gaussian"):
                return {"val_clean": clean}
            robust = evaluate(self.model, data, PGD(self.recipe.method.threat, steps=10, stop_when_fooled=True))
            return {"val_clean": clean, "val_pgd10": robust.robust}

    def measure(self, batches: int) -> None:
        """Batch-norm statistics of the weights now in the model, on examples such as training makes."""
        epoch = self.recipe.optimizer.epochs  # an order of its own, that training never uses
        # The attack on the first batch needs statistics that are roughly right.
        measure_statistics(self.model, (batch.images for batch in islice(self.batches(epoch), 4)))
        memory = {key: value.clone() for key, value in self.method.state().items()}
        chosen = islice(self.batches(epoch), batches)
        measure_statistics(self.model, (self.method.inputs(b, self.examples(b)) for b in chosen))
        for key, value in self.method.state().items():
            value.copy_(memory[key])  # to look is not to train

    def finish(self) -> nn.Module:
        """The averaged weights with statistics of their own: the model that is kept."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.model.parameters()), self.average.average)
        self.measure(batches=self.steps_per_epoch)
        return self.model.eval().requires_grad_(False)

    # -- checkpoints -----------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def save(self) -> None:
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.state().items()}
        tensors |= {f"method.{k}": v for k, v in self.method.state().items()}
        for number, parameter in enumerate(self.model.parameters()):
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{number}"] = momentum
        tensors["epoch.sums"] = self.sums
        facts = {"step": self.step, "seconds": self.seconds, **self._identity()}
        checkpoints.save(self.checkpoint, tensors, facts)
        self.saved_at = time.perf_counter()

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be gone on from, as JSON says it."""
        return {"recipe": json.loads(json.dumps(asdict(self.recipe))), "data": self.train_data.fingerprint()}

    def resume(self) -> bool:
        """Go on from the folder's checkpoint; False when there is none."""
        if not self.checkpoint.exists():
            return False
        tensors, facts = checkpoints.load(self.checkpoint)
        for what, here in self._identity().items():
            if facts[what] != here:
                raise checkpoints.CheckpointError(
                    f"{self.checkpoint} was made with another {'recipe' if what == 'recipe' else 'training set'}: "
                    "use another --out, or delete it to start again"
                )
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in ("model", "average", "method", "momentum", "epoch")}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            parts[part][key] = tensor.to(self.device)
        self.model.load_state_dict(parts["model"])
        self.average.load(parts["average"])
        for key, tensor in self.method.state().items():
            tensor.copy_(parts["method"][key])
        for number, parameter in enumerate(self.model.parameters()):
            if str(number) in parts["momentum"]:
                buffer = torch.empty_like(parameter)
                buffer.copy_(parts["momentum"][str(number)])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        self.sums.copy_(parts["epoch"]["sums"])
        self.step, self.seconds = facts["step"], facts["seconds"]
        return True


class _Interrupt:
    raised = False


@contextmanager
def _interrupts() -> Iterator[_Interrupt]:
    """The first Ctrl-C lets the step finish, so that what is saved is whole; a second one stops at once."""
    interrupt = _Interrupt()
    try:
        previous = signal.getsignal(signal.SIGINT)

        def handler(number: int, frame: Any) -> None:
            interrupt.raised = True
            signal.signal(signal.SIGINT, previous)

        signal.signal(signal.SIGINT, handler)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
