"""Measure how far the logits of an identity differ between devices, machines and versions of torch.

    python benchmarks/identity.py --out here.json
    python benchmarks/identity.py --compare here.json --out benchmarks/results/identity.json

The first command, on one machine, stores the identity of each model. The second, on another machine, compares: this
machine's CPU with its GPU, and both with the first machine. Loading a saved model compares logits in the same way, and
refuses a difference above `identity.TOLERANCE`. A GPU computes these logits only if the code does not run on a CPU;
here it always does. Networks of timm have random weights from a fixed seed, because they round worse than trained ones:
their logits are small sums of large numbers. A network is compared only if its weights are the same on both sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.models.identity import LARGER, TOLERANCE, Identity, _distance, _logits
from adaptive_smoothing.results import read_json, write_json
from adaptive_smoothing.runs.folder import environment

OURS = ("compact-standard", "compact-robust", "resnet18-standard", "resnet18-robust", "gaussian-025", "lipschitz-4")
TIMM = (
    *("resnet18", "resnet50", "resnetv2_50", "wide_resnet50_2", "resnext50_32x4d", "seresnet50", "densenet121"),
    *("vgg16_bn", "mobilenetv3_large_100", "efficientnet_b0", "regnety_016", "convnext_tiny", "vit_tiny_patch16_224"),
    *("deit_small_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224", "levit_128", "coatnet_0_rw_224"),
    *("beit_base_patch16_224", "xcit_nano_12_p16_224"),
)


def models() -> Iterator[tuple[str, nn.Module]]:
    """Yield the models with their names, on the CPU. Models of ours without weights here are left out."""
    for name in OURS:
        try:
            yield name, ads.load_model(name)
        except (OSError, ValueError) as error:
            print(f"{name}: left out ({str(error)[:60]} ...)", flush=True)
    for name in TIMM:
        torch.manual_seed(0)
        yield f"timm:{name}", ads.load_model(f"timm:{name}?pretrained=0&num_classes=10")


def identity_on(device: str, model: nn.Module) -> Identity:
    """Return the identity of a model, with the logits that the device computes."""
    if (found := Identity.of(model.to(device))).shape is None:
        return found
    channels, height, width = found.shape
    larger = _logits(model, (channels, height + LARGER, width + LARGER))
    return replace(found, logits=_logits(model, found.shape) or (), larger=larger or ())


def differences(name: str, here: dict[str, Identity], other: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a row for each pair of places: this CPU and this GPU, and each of them and the other machine."""
    pairs = [("CPU and GPU", here["cuda"], here["cpu"])] if "cuda" in here else []
    if other is not None:
        expected = Identity.from_json(other)
        pairs += [(f"{device.upper()} and the other machine", found, expected) for device, found in here.items()]
    return [{"model": name, "pair": pair, **compared(*identities)} for pair, *identities in pairs]


def compared(found: Identity, expected: Identity) -> dict[str, Any]:
    """Return whether two identities have the same weights, and how far their logits are apart."""
    same = found.weights == expected.weights and found.preprocessing == expected.preprocessing
    row: dict[str, Any] = {"same weights": same, "accepted": not found.differences(expected)}
    if same:
        row["apart"] = max(_distance(found.logits, expected.logits), _distance(found.larger, expected.larger))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, help="a file that this program wrote on another machine")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    other = read_json(args.compare) if args.compare else {}
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    facts = {**environment(devices[-1]), "tolerance": TOLERANCE}
    identities: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for name, model in models():
        found = {device: identity_on(device, model) for device in devices}
        identities[name] = found["cpu"].to_json()
        rows += differences(name, found, other.get("identities", {}).get(name))
        compared = {"facts": facts, "other machine": other.get("facts"), "rows": rows}
        # Written after each model, in case the time ends.
        write_json(args.out, compared if other else {"facts": facts, "identities": identities})
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()
