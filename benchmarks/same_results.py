"""Check that a change of the code changes no result.

    python benchmarks/same_results.py run BEFORE --out before      # BEFORE: a checkout of the old code
    python benchmarks/same_results.py run . --out after
    python benchmarks/same_results.py compare before after

`run` executes the commands below on one CPU core with fixed seeds, using `src/` and `zoo/` of the given checkout.
`compare` compares bit by bit the arrays that they wrote and every number that describes a mixture.
With `--old`, `run` spells commands as code up to commit 255d989 expects them (`OLD_SPELLING`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

PAIR = ("compact-standard", "compact-robust")
SMALL_PAIR = ("compact-standard", "small-robust")
SMOOTHED = (*PAIR, "--alpha", "0.8", "--sigma", "0.1", "--samples", "300", "--images", "4")
TEN_STEPS = (*SMALL_PAIR, "--mode", "adaptive", "--data", "builtin", "--set", "optimizer.epochs=1")
FIFTY_IMAGES = ("--set", "optimizer.batch_size=50", "--set", "attack.steps=3")

COMMANDS: dict[str, tuple[str, ...]] = {
    "evaluate-fast": ("evaluate", "small-robust", "--images", "8"),
    "evaluate-standard": ("evaluate", "small-robust", "--images", "8", "--preset", "standard"),
    "evaluate-adaptive": ("evaluate", "compact-mixed", "--images", "4", "--preset", "adaptive"),
    "certify-hard": ("certify", *SMOOTHED),
    "certify-soft": ("certify", *SMOOTHED, "--votes", "soft"),
    "certify-radius": ("certify", *SMOOTHED, "--set", "radius=0.05"),
    "certify-lipschitz": ("certify", "compact-standard", "lipschitz-4", "--alpha", "0.7", "--images", "32"),
    "certify-local": ("certify", "compact-robust", "--method", "local", "--images", "4"),
    "sweep": ("sweep", *PAIR, "--images", "6", "--alphas", "0,0.5,0.85,1", "--clean-accuracy", "0.9"),
    "mix-fixed": ("mix", *PAIR, "--mode", "fixed", "--data", "builtin"),
    "mix-nonlinear": ("mix", *SMALL_PAIR, "--mode", "nonlinear", "--data", "builtin", "--set", "attacked=8"),
    "mix-adaptive": ("mix", *TEN_STEPS, *FIFTY_IMAGES),
    "mix-network-b": ("mix", *TEN_STEPS, *FIFTY_IMAGES, "--recipe", "recipes/mixing-b.toml"),
    "mix-network-c": ("mix", *TEN_STEPS, *FIFTY_IMAGES, "--recipe", "recipes/mixing-c.toml"),
}
OLD_SPELLING: dict[str, tuple[str, ...]] = {
    "certify-radius": ("certify", *SMOOTHED, "--radius", "0.05"),
    "mix-nonlinear": ("mix", *SMALL_PAIR, "--mode", "nonlinear", "--data", "builtin", "--attacked", "8"),
}


def run(checkout: Path, out: Path, names: list[str], old: bool) -> None:
    """Execute the commands with the code of a checkout; every command writes a folder of its own."""
    checkout, out = checkout.resolve(), out.resolve()
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "src"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    for name in names or COMMANDS:
        command = OLD_SPELLING.get(name, COMMANDS[name]) if old else COMMANDS[name]
        folder, began = out / name, time.perf_counter()
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-m", "adaptive_smoothing", *command, "--device", "cpu", "--out", str(folder)]
        done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        print(f"{name}: exit {done.returncode}, {time.perf_counter() - began:.0f} s", flush=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], flush=True)


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return every array and every number of a mixture that a command wrote, by file and name."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path, allow_pickle=False) as columns:
            found |= {f"{path.relative_to(folder)}: {name}": columns[name] for name in columns}
    for path in sorted(folder.rglob("*.safetensors")):
        if path.name != "checkpoint.safetensors":  # a checkpoint also has the state of the optimizer
            found |= {f"{path.relative_to(folder)}: {name}": value for name, value in load_file(path).items()}
    mixture = folder / "mixture.json"
    if mixture.is_file():
        numbers: dict[str, Any] = json.loads(mixture.read_text())["numbers"]
        found |= {f"mixture.json: {name}": np.asarray(value) for name, value in numbers.items()}
    return found


def compare(before: Path, after: Path) -> bool:
    """Print one line per command, and return whether every array of `before` is the same bit by bit in `after`."""
    same = True
    for name in COMMANDS:
        mine, theirs = arrays(before / name), arrays(after / name)
        different = [key for key in mine if not _equal(mine[key], theirs.get(key))]
        same &= bool(mine) and not different
        new = f"; {len(theirs.keys() - mine.keys())} new" if theirs.keys() - mine.keys() else ""
        print(f"{name}: {len(mine)} arrays, {'the same' if mine and not different else f'different: {different}'}{new}")
    return same


def _equal(mine: np.ndarray, theirs: np.ndarray | None) -> bool:
    if theirs is None or mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    return mine.tobytes() == theirs.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    runs = parts.add_parser("run")
    runs.add_argument("checkout", type=Path)
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--only", nargs="*", default=[], choices=COMMANDS)
    runs.add_argument("--old", action="store_true", help="use the spelling of code up to commit 255d989")
    compares = parts.add_parser("compare")
    compares.add_argument("before", type=Path)
    compares.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.what == "run":
        run(args.checkout, args.out, args.only, args.old)
    elif not compare(args.before, args.after):
        sys.exit(1)


if __name__ == "__main__":
    main()
