"""Certificates under attack, for as long as it takes: docs/results.md has the long run.

    python benchmarks/soundness.py resnet18-standard gaussian-050 --sigma 0.5 --alpha 0.8 --images 1000 --out ...
    python benchmarks/soundness.py resnet18-standard lipschitz-8 --alpha 0.8 --images 1000 --norm Linf --out ...

Certifies test images of the mixture of a certain G and H, moves every certified one to the end of its radius with
attacks on H and on the mixture, looks at it again with fresh noise, and counts what is broken: there must be none. A
certificate by sampling may be wrong with its failure probability, so that two of 2,000 would be no surprise.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from adaptive_smoothing.certification.certify import certify
from adaptive_smoothing.certification.challenge import challenge
from adaptive_smoothing.certification.smoothing import RUNNERS_UP
from adaptive_smoothing.data import datasets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.facts import model_facts
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.results import write_json, write_rows
from adaptive_smoothing.runs.environment import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("--alpha", type=float, default=0.8)
    parser.add_argument("--sigma", type=float, help="smooth H with this; none for a Lipschitz H")
    parser.add_argument("--soft", action="store_true")
    parser.add_argument("--runner-up", choices=RUNNERS_UP, help="default: what suits the votes")
    parser.add_argument("--norm", default="L2")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--look", type=int, default=10_000, help="samples of each moved image")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = datasets.load(args.data, "test", root=args.data_root).take(slice(args.images))
    g, h = (zoo.load(name, device=args.device) for name in (args.standard, args.robust))
    options = {}
    if args.sigma is not None:
        h = SmoothedClassifier(h, args.sigma, hard=not args.soft)
        options = {"samples": args.samples, "precision": args.precision, "runner_up": args.runner_up}
    mixed = MixedClassifier(Hardmax(g), h, alpha=args.alpha).to(args.device)
    began = time.perf_counter()
    found = certify(mixed, data, device=args.device, **options)
    certified_in = time.perf_counter() - began
    tried = challenge(
        mixed,
        data,
        found,
        device=args.device,
        norm=args.norm,
        steps=args.steps,
        samples=args.look,
        batch=args.batch,
    )
    summary = {"norm": args.norm, "steps": args.steps, "look": args.look, "batch": args.batch, **tried.summary()}
    print(summary, flush=True)
    if args.out:
        seconds = {"certify": round(certified_in, 1), "attack": round(time.perf_counter() - began - certified_in, 1)}
        facts = {"g": model_facts(args.standard), "h": model_facts(args.robust), "alpha": args.alpha}
        result = {"challenge": summary, "certified": found.summary(), "seconds": seconds, "models": facts}
        write_json(args.out, {**result, "facts": environment(args.device)})
        write_rows(args.out.with_suffix(".npz"), tried.rows)


if __name__ == "__main__":
    main()
