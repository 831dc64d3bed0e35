"""List the commands of the documents that made the stored results, or run them again.

    python docs/commands.py                                        # all of them
    python docs/commands.py verdicts attacks-h                     # those that contain one of the words
    python docs/commands.py verdicts attacks-h --run --data DIR    # run these, one after the other

The commands are the indented ones with `--out` in the pages of docs/. In them, DATA is the folder of CIFAR-10.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = tuple(DOCS / name for name in ("results.md", "attacks.md", "certification.md", "guides/page.md"))
# A variable of the environment before a command.
VARIABLE = re.compile(r"[A-Z_]+=\S*")
PLACE = "DATA"


def commands(page: Path) -> list[str]:
    """Return the indented commands of a page that have `--out`, each as one line without its comment."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]
    return [shlex.join(words) for words in lines if "--out" in words]


def run(command: str, data: Path | None) -> int:
    """Run a command with the Python of this process, and return its exit code."""
    words = [word if word != PLACE else str(data) for word in shlex.split(command)]
    variables = dict(word.split("=", 1) for word in words if VARIABLE.fullmatch(word))
    program, *rest = [word for word in words if not VARIABLE.fullmatch(word)]
    start = [sys.executable, "-m", "adaptive_smoothing"] if program == "adaptive-smoothing" else [sys.executable]
    environment = {**os.environ, **variables} | ({"ADAPTIVE_SMOOTHING_DATA": str(data)} if data else {})
    return subprocess.run([*start, *rest], cwd=DOCS.parent, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="commands that contain one of these; default: all")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    arguments = parser.parse_args()
    every = [command for page in PAGES for command in commands(page)]
    chosen = [command for command in every if any(word in command for word in arguments.words or [""])]
    failed = 0
    for command in chosen:
        print(command, flush=True)
        if arguments.run:
            began = time.perf_counter()
            failed += bool(code := run(command, arguments.data))
            print(f"exit code {code}, {time.perf_counter() - began:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
