"""Attack certificates and count those that break. docs/certification.md has the results.

    python benchmarks/soundness.py resnet18-standard gaussian-050 --sigma 0.5 --alpha 0.8 --images 1000 --out ...
    python benchmarks/soundness.py resnet18-standard lipschitz-8 --alpha 0.8 --images 1000 --norm Linf --out ...

The script certifies test images for the mixture of a hardmax G and H, and attacks every certified image inside its
radius (benchmarks/challenge.py). Certificates may break as often as their failure probability allows: two of 2,000 at
0.001.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from challenge import challenge

from adaptive_smoothing.certification.certify import certify
from adaptive_smoothing.certification.options import RUNNERS_UP, SmoothingOptions
from adaptive_smoothing.certification.sampling import PRECISIONS
from adaptive_smoothing.data import datasets
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Hardmax
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.zoo import model_facts
from adaptive_smoothing.results import write_json, write_rows
from adaptive_smoothing.runs.folder import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("standard")
    parser.add_argument("robust")
    parser.add_argument("--alpha", type=float, default=0.8)
    parser.add_argument("--sigma", type=float, help="noise of smoothing; leave it out for a Lipschitz H")
    parser.add_argument("--soft", action="store_true")
    parser.add_argument("--runner-up", choices=RUNNERS_UP, help="default: by the votes")
    parser.add_argument("--norm", default="L2")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--look", type=int, default=10_000, help="samples of each moved image")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = datasets.load(args.data, "test", root=args.data_root).take(slice(args.images))
    g, h = (zoo.load(name, device=args.device) for name in (args.standard, args.robust))
    options = None
    if args.sigma is not None:
        h = SmoothedClassifier(h, args.sigma, hard=not args.soft)
        options = SmoothingOptions(samples=args.samples, precision=args.precision, runner_up=args.runner_up)
    mixed = MixedClassifier(Hardmax(g), h, alpha=args.alpha).to(args.device)
    began = time.perf_counter()
    found = certify(mixed, data, device=args.device, options=options)
    certified_s = time.perf_counter() - began
    attacked = challenge(
        mixed,
        data,
        found,
        device=args.device,
        norm=args.norm,
        steps=args.steps,
        samples=args.look,
        batch=args.batch,
    )
    summary = {"norm": args.norm, "steps": args.steps, "look": args.look, "batch": args.batch, **attacked.summary()}
    print(summary, flush=True)
    if args.out:
        seconds = {"certify": round(certified_s, 1), "attack": round(time.perf_counter() - began - certified_s, 1)}
        facts = {"g": model_facts(args.standard), "h": model_facts(args.robust), "alpha": args.alpha}
        result = {"challenge": summary, "certified": found.summary(), "seconds": seconds, "models": facts}
        write_json(args.out, {**result, "facts": environment(args.device)})
        write_rows(args.out.with_suffix(".npz"), attacked.rows)


if __name__ == "__main__":
    main()
