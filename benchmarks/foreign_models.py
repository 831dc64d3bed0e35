"""Two models that are not ours, for measurements: a hand-written WRN-16-4, and a ResNet-18 of timm for small images.

    python benchmarks/foreign_models.py wrn-16-4 --data-root DATA --out wrn-16-4.safetensors

trains one of them with PGD adversarial training. timm's ResNet-18 can also take the weights of `resnet18-robust`, which
then runs in timm's code. `load` returns a model as a user would load it, with `ads.wrap`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import adaptive_smoothing as ads
from adaptive_smoothing.data.batches import augment, shuffled
from adaptive_smoothing.data.datasets import to_floats
from adaptive_smoothing.models.contract import frozen

EPS, STEP, STEPS = 8 / 255, 2 / 255, 7
BATCH = 256


class Block(nn.Module):
    """The pre-activation block of a Wide ResNet, as most repositories write it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x), inplace=True)
        rest = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(F.relu(self.bn2(self.conv1(out)), inplace=True)) + rest


class WideResNet(nn.Module):
    """WRN-16-4."""

    def __init__(self, classes: int = 10, width: int = 4, blocks: int = 2) -> None:
        super().__init__()
        widths = [16, 16 * width, 32 * width, 64 * width]
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        layers = []
        for stage in range(3):
            for number in range(blocks):
                inputs = widths[stage] if number == 0 else widths[stage + 1]
                layers.append(Block(inputs, widths[stage + 1], 2 if stage and number == 0 else 1))
        self.layers, self.bn = nn.Sequential(*layers), nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.layers(self.conv(x))), inplace=True)
        return self.fc(F.adaptive_avg_pool2d(out, 1).flatten(1))


def timm_resnet() -> nn.Module:
    """Return timm's pre-activation ResNet-18 with the stem that is usual for images of 32 x 32 pixels."""
    import timm

    model = timm.create_model("resnetv2_18", num_classes=10, act_layer="silu")
    model.stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    return model


# What timm calls the parts of our ResNet-18, by regular expression.
TIMM_NAMES = {
    r"stage(\d)\.(\d)\.": lambda found: f"stages.{int(found[1]) - 1}.blocks.{found[2]}.",
    r"norms\.(\d)": lambda found: f"norm{int(found[1]) + 1}",
    r"convolutions\.(\d)": lambda found: f"conv{int(found[1]) + 1}",
    "shortcut": "downsample.conv",
    r"^head": "head.fc",
}


def timm_weights(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of our ResNet-18 for timm's, whose last layer is a convolution."""
    weights = {}
    for name, value in ours.items():
        for pattern, theirs in TIMM_NAMES.items():
            name = re.sub(pattern, theirs, name)
        weights[name] = value[:, :, None, None] if name == "head.fc.weight" else value
    return weights


MODELS = {"wrn-16-4": WideResNet, "timm-resnet18": timm_resnet}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def load(name: str, weights: str | Path, device: str = "cuda") -> nn.Module:
    """Return the model as a classifier on a device; its weights are in a file, or for timm's those of our model."""
    model = MODELS[name]()
    if Path(weights).suffix == ".safetensors":
        model.load_state_dict(load_file(weights))
    else:
        model.load_state_dict(timm_weights(ads.load_model(str(weights)).state_dict()))
    return ads.wrap(model.float().eval(), mean=MEAN, std=STD, shape=(3, 32, 32)).to(device)


def train(name: str, root: str, epochs: int, device: str) -> nn.Module:
    """Return the network after PGD adversarial training."""
    torch.manual_seed(0)
    data = ads.load_data("cifar10", "train", root=root).to(device)
    network = MODELS[name]().to(device, memory_format=torch.channels_last)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    compiled = torch.compile(network)

    def logits(images: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return compiled(((images - mean) / std).contiguous(memory_format=torch.channels_last)).float()

    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * (len(data) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps, pct_start=0.3)
    for epoch in range(epochs):
        for step, (raw, labels, _) in enumerate(shuffled(data, BATCH, seed=0, epoch=epoch)):
            images = to_floats(augment(raw, pad=4, flip=True, seed=0, epoch=epoch, step=step))
            attacked = images + torch.empty_like(images).uniform_(-EPS, EPS)
            network.eval()
            with frozen(network):
                for _ in range(STEPS):
                    attacked = attacked.clamp(0, 1).detach().requires_grad_()
                    (gradient,) = torch.autograd.grad(F.cross_entropy(logits(attacked), labels), attacked)
                    attacked = attacked.detach() + STEP * gradient.sign()
                    attacked = torch.min(torch.max(attacked, images - EPS), images + EPS)
            network.train()
            loss = F.cross_entropy(logits(attacked.clamp(0, 1)), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    network = train(args.name, args.data_root, args.epochs, args.device)
    # In half precision, which halves the size of the file.
    save_file(
        {
            name: value.half() if value.is_floating_point() else value
            for name, value in {k: v.contiguous().cpu() for k, v in network.state_dict().items()}.items()
        },
        args.out,
    )


if __name__ == "__main__":
    main()
