"""A toy pair of classifiers with known answers, its images and recipes, shared by the tests of mixing networks."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.settings.tables import from_table
from adaptive_smoothing.training.loop import TrainingBatch
from adaptive_smoothing.training.mixing.recipe import MixingRecipe
from adaptive_smoothing.training.mixing.train import untrained_mixture
from adaptive_smoothing.training.mixing.trainer import MixingTrainer
from adaptive_smoothing.training.options import TrainingOptions

EPS = 0.06


class ChannelClassifier(nn.Module):
    """Logits of two classes from the mean of one channel: scale * softsign(gain * (mean - 1/2))."""

    def __init__(self, channel: int, gain: float, scale: float) -> None:
        super().__init__()
        self.num_classes = 2
        self.early = nn.Conv2d(3, 2, 8)
        self.later = nn.Conv2d(2, 2, 1)
        self.saturate, self.flat, self.head = nn.Softsign(), nn.Flatten(), nn.Linear(2, 2)
        with torch.no_grad():
            self.early.weight.zero_()
            self.early.weight[:, channel] = torch.tensor([-1.0, 1.0])[:, None, None] / 64
            self.early.bias.copy_(torch.tensor([0.5, -0.5]))
            self.later.weight.copy_(gain * torch.eye(2)[:, :, None, None])
            self.later.bias.zero_()
            self.head.weight.copy_(scale * torch.eye(2))
            self.head.bias.zero_()
        self.eval().requires_grad_(False)

    def forward(self, images):
        return self.head(self.flat(self.saturate(self.later(self.early(images)))))


def make_data(images: int = 128, seed: int = 0) -> ImageData:
    """Channel 0 shows the class by 0.15, beyond the reach of an attack, or in one image of four the other class by
    0.015. Channel 1 always shows the class by 0.03, which an attack can invert.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (images,), generator=generator)
    sign = (2 * labels - 1).float()
    misleading = torch.rand(images, generator=generator) < 0.25
    pixels = torch.full((images, 3, 8, 8), 0.5)
    pixels[:, 0] += (sign * torch.where(misleading, -0.015, 0.15))[:, None, None]
    pixels[:, 1] += (sign * 0.03)[:, None, None]
    pixels += 0.02 * torch.randn(pixels.shape, generator=generator)
    return ImageData(
        images=(255 * pixels.clamp(0, 1)).round().to(torch.uint8),
        labels=labels,
        classes=("dark", "light"),
        name="toy",
        index=torch.arange(images),
    )


def make_recipe(setting: str = "B", epochs: int = 2, **changes) -> MixingRecipe:
    """A small recipe: a fine-tuned tail for `flip-standard`, the paper's network for the other settings."""
    tail = setting == "flip-standard"
    both = {f"{role}_taps": ["early", "later"] for role in ("standard", "robust")}
    table = {
        "name": "toy",
        "data": {"pad": 0, "flip": False},
        "mixer": {"kind": "fine-tuned-tail", "hidden": 8, "robust_taps": ["early"]}
        if tail
        else {"kind": "network", "width": 4, **both},
        "attack": {"setting": setting, "eps": EPS, "steps": 4},
        "optimizer": {"epochs": epochs, "batch_size": 64, "lr": 0.01},
        "operating_point": {"scale": 1.0, "recover": 0.5, "every": 2} if tail else {},
        "evaluate_every": 100,
    }
    for name, value in changes.items():
        table[name] = {**table.get(name, {}), **value} if isinstance(value, dict) else value
    return from_table(MixingRecipe, table)


# g reads channel 1, which every attack inverts. h reads channel 0, which is misleading in one image of four.
G, H = ChannelClassifier(1, gain=200.0, scale=8.0), ChannelClassifier(0, gain=200.0, scale=10.0)


def mixture(recipe: MixingRecipe, g: nn.Module = G, h: nn.Module = H):
    return untrained_mixture(recipe, g, h, shape=(3, 8, 8))


def trainer(folder, recipe: MixingRecipe, data: ImageData | None = None, mixed=None) -> MixingTrainer:
    data = data or make_data()
    run = MixingTrainer(recipe, mixed or mixture(recipe), data, data.take(slice(64)), options(folder))
    run.save_every = 0.0
    return run


def options(folder) -> TrainingOptions:
    return TrainingOptions(folder, quiet=True, tensorboard=False)


def first_batch(run: MixingTrainer) -> TrainingBatch:
    return next(iter(run.batches(0)))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()])


@pytest.fixture(scope="session")
def toy():
    """The toy pair and functions that make its images, recipes, mixtures and trainers."""
    return SimpleNamespace(
        EPS=EPS,
        g=G,
        h=H,
        unconfident_h=ChannelClassifier(0, gain=200.0, scale=2.0),
        other_g=ChannelClassifier(1, gain=100.0, scale=8.0),
        data=make_data,
        recipe=make_recipe,
        mixture=mixture,
        trainer=trainer,
        options=options,
        first_batch=first_batch,
        weights=weights,
    )
