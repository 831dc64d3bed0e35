"""`adaptive-smoothing certify MODEL`: how far every image can be moved without another answer, with a proof."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from adaptive_smoothing.certification import certifying
from adaptive_smoothing.certification.deterministic import LipschitzLogits
from adaptive_smoothing.certification.methods import METHODS
from adaptive_smoothing.certification.parts import Parts
from adaptive_smoothing.certification.sampling import PRECISIONS
from adaptive_smoothing.certification.smoothing import BOUNDS, RUNNERS_UP, THEOREMS
from adaptive_smoothing.cli.devices import pick_device
from adaptive_smoothing.cli.evaluate import JOURNAL, Subject, Watching, run_folder
from adaptive_smoothing.cli.printing import TimeBar, screen
from adaptive_smoothing.cli.sweep import check_classes
from adaptive_smoothing.data import datasets
from adaptive_smoothing.evaluation.journal import Journal, room_for
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.report.certified import WRITTEN, certified_sentences, certified_table, write_certificates
from adaptive_smoothing.report.facts import environment
from adaptive_smoothing.report.tables import rich_table
from adaptive_smoothing.threat import parse_number

VOTES = ("hard", "soft")


def certify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="See `models`, or a path; a mixture; G of G H")],
    robust: Annotated[str | None, typer.Argument(metavar="[H]", help="Mix MODEL with this robust one")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, max=1, help="Weight of H in the mixture, from 1/2 on")] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}; by default what H is made for")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise of smoothing; default: what H was trained with")] = None,
    votes: Annotated[str, typer.Option(help=f"What is averaged under noise: {' or '.join(VOTES)} votes")] = "hard",
    hardmax: Annotated[bool, typer.Option("--hardmax", help="Let G be certain of its prediction")] = False,
    radius: Annotated[float | None, typer.Option(help="Stop sampling as soon as this radius is decided")] = None,
    samples: Annotated[int, typer.Option(help="Samples of each image, at most")] = 10_000,
    selection: Annotated[int, typer.Option(help="Further samples that choose the class")] = 128,
    failure_probability: Annotated[float, typer.Option(help="Of each certificate, at most")] = 0.001,
    bound: Annotated[str | None, typer.Option(help=f"{', '.join(BOUNDS)}; by default what suits the votes")] = None,
    runner_up: Annotated[str, typer.Option(help=f"{' or '.join(RUNNERS_UP)} of the failure probability")] = "complement",
    theorem: Annotated[str, typer.Option(help=f"{' or '.join(THEOREMS)}, which is weaker")] = "margin",
    precision: Annotated[str, typer.Option(help=f"Of smoothing: {', '.join(PRECISIONS)}")] = "float32",
    norm: Annotated[str | None, typer.Option(help="L2, or Linf; local: default Linf")] = None,
    eps: Annotated[str, typer.Option(help="Radius of a local estimate")] = "8/255",
    steps: Annotated[int, typer.Option(min=1, help="Steps of PGD in a local estimate")] = 20,
    data: Annotated[str, typer.Option(help="builtin, cifar10, cifar100, or a path")] = "builtin",
    split: Annotated[str, typer.Option(help="test, val, or all for images that were never split")] = "test",
    images: Annotated[int | None, typer.Option(min=1, help="The first so many images; default all")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/certify-MODEL-METHOD")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another run has left there")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or several: cuda:0,cuda:1 or cpu,cpu")] = "auto",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples at a time: 4096; on a CPU 128")] = None,
    shard_size: Annotated[int | None, typer.Option(min=1, help="Images journalled together: 500; CPU 4")] = None,
    seed: Annotated[int, typer.Option(help="Of all random numbers")] = 0,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set is")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch a data set that is missing")] = False,
) -> None:
    """Certify how far each image can be moved without another answer; goes on where it was stopped."""
    devices = [pick_device(part) for part in device.split(",")]
    subject = Subject.load(model, robust, alpha, devices[0])
    kind = _method(method, subject.model, sigma, robust or model)
    options: dict[str, Any] = {"theorem": theorem}
    if kind == "smoothing":
        options |= {"radius": radius, "samples": samples, "selection": selection, "bound": bound, "seed": seed}
        options |= {"failure_probability": failure_probability, "runner_up": runner_up, "precision": precision}
        options |= {"batch_size": batch_size}
    elif kind == "local":
        options = {"eps": parse_number(eps), "steps": steps, "batch_size": batch_size}
    certified = _prepared(subject.model, kind, sigma, votes, hardmax, robust or model).to(devices[0])
    everything = datasets.load(data, split, root=data_root, download=download)
    check_classes(subject.parts, everything)
    chosen = everything.take(min(images or len(everything), len(everything)))
    folder = run_folder(out or Path("runs") / f"certify-{subject.short}-{kind}", overwrite)
    console, started = screen(), time.perf_counter()
    with TimeBar(console) as bar:
        found = certifying.certify(
            certified,
            chosen,
            method=kind,
            norm=norm,
            device=devices[0],
            devices=devices if len(devices) > 1 else (),
            journal=folder / JOURNAL,
            overwrite=overwrite,
            watch=Watching(bar, "certified and right"),
            shard_size=shard_size,
            **options,
        )
    facts = {"seconds": round(time.perf_counter() - started, 1), **environment(devices[0])}
    with room_for(folder):
        write_certificates(folder, found, {**subject.facts, "hardmax": hardmax}, facts)
    Journal(folder / JOURNAL).clear()
    for text in certified_sentences(found):
        console.print(f"\n{text}", markup=False)
    if kind != "local":
        console.print()
        console.print(rich_table(certified_table(found)))
    console.print(f"\nIn {folder}: {', '.join(WRITTEN)}", markup=False)


def _method(method: str | None, model: nn.Module, sigma: float | None, name: str) -> str:
    """What was asked for, or what h is made for."""
    h = model.robust if isinstance(model, MixedClassifier) else model
    if method is not None:
        return method
    if sigma is None and isinstance(h, LipschitzLogits):
        return "lipschitz"
    if sigma is None and _trained_sigma(name) is None:
        raise ValueError(
            f"expected a network with a proven Lipschitz constant, or one trained under noise, got {name}: smooth it with "
            "--sigma 0.25, or ask for an estimate with --method local"
        )
    return "smoothing"


def _prepared(
    model: nn.Module, kind: str, sigma: float | None, votes: str, hardmax: bool, name: str
) -> nn.Module:
    """The classifier that is certified: h smoothed, g certain, as was asked for."""
    if hardmax:
        if not isinstance(model, MixedClassifier):
            raise ValueError("expected a mixture for --hardmax, got one model alone: it is about G")
        model = model.with_standard(Hardmax(model.standard))
    if kind != "smoothing":
        return model
    if votes not in VOTES:
        raise ValueError(f"expected votes to be one of {', '.join(VOTES)}, got {votes!r}")
    noise = sigma if sigma is not None else _trained_sigma(name)
    if noise is None:
        raise ValueError(f"expected --sigma, got none, and {name} was not trained under noise: try 0.25, 0.5 or 1")
    if not noise > 0:
        raise ValueError(f"expected --sigma above 0, got {noise:g}: without noise there is nothing to certify with")
    if isinstance(model, MixedClassifier):
        Parts.of(model)  # what cannot be certified cannot be smoothed either
        return model.with_robust(SmoothedClassifier(model.robust, noise, hard=votes == "hard"))
    return SmoothedClassifier(model, noise, hard=votes == "hard")


def _trained_sigma(name: str) -> float | None:
    """That of a base for randomized smoothing, which its card says."""
    try:
        card = zoo.find_card(name)
    except (ValueError, OSError):  # a mixture
        return None
    method = {} if card is None else card.card.get("recipe", {}).get("method", {})
    return method.get("sigma") if method.get("name") == "gaussian" else None
