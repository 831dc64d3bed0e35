"""List the commands in the documents that made the stored results, or run them again.

    python docs/commands.py                                          # all of them
    python docs/commands.py verdicts attacks-h                       # those that contain one of the words
    python docs/commands.py verdicts --into runs/again --data DIR    # run these, one after the other

The commands are the indented ones with `--out` in results.md, attacks.md, certification.md and guides/page.md. With
`--into FOLDER` each of them writes to FOLDER what is stored in the repository, under the same path: `results/resnet18`
becomes `FOLDER/results/resnet18`. Paths in runs/ stay: they are made by one command for the next. DATA in a command
stands for the folder of CIFAR-10.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = tuple(DOCS / name for name in ("results.md", "attacks.md", "certification.md", "guides/page.md"))
PROGRAM = "adaptive-smoothing"
# Indented lines with a command, which may begin with variables of the environment.
VARIABLE = r"[A-Z_]+=\S*"
LINE = re.compile(rf"^    ((?:{VARIABLE} )*(?:python|{PROGRAM}) \S.*)$", re.MULTILINE)
OUT, DATA = "--out", "DATA"
# Words of a command that only shows the form of several others.
OPEN = {"...", "FOLDER"}


def commands(page: Path) -> list[str]:
    """Return the commands of a page that have `--out`, each as one line without its comment."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = [shlex.split(line, comments=True) for line in LINE.findall(text)]
    return [shlex.join(words) for words in found if OUT in words and not OPEN & set(words)]


def run(command: str, into: Path, data: Path | None) -> int:
    """Run a command with the Python of this process, and return its exit code."""
    words = [str(data) if word == DATA else word for word in shlex.split(command)]
    out = words.index(OUT) + 1
    if Path(words[out]).parts[0] != "runs":
        words[out] = str(into / words[out])
    given = list(takewhile(lambda word: re.fullmatch(VARIABLE, word), words))
    program, *rest = words[len(given) :]
    start = [sys.executable, "-m", "adaptive_smoothing"] if program == PROGRAM else [sys.executable]
    environment = {**os.environ, **dict(word.split("=", 1) for word in given)}
    if data:
        environment["ADAPTIVE_SMOOTHING_DATA"] = str(data)
    return subprocess.run([*start, *rest], cwd=DOCS.parent, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="commands that contain one of these; default: all")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="run the commands, and write there")
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    arguments = parser.parse_args()
    every = [command for page in PAGES for command in commands(page)]
    chosen = [command for command in every if any(word in command for word in arguments.words or [""])]
    data = arguments.data and arguments.data.resolve()
    if arguments.into and not data and any({DATA, "cifar10"} & set(shlex.split(command)) for command in chosen):
        parser.error("expected --data with these commands, got none: pass the folder of CIFAR-10")
    failed = 0
    for command in chosen:
        print(command, flush=True)
        if arguments.into:
            began = time.perf_counter()
            failed += bool(code := run(command, arguments.into.resolve(), data))
            print(f"exit code {code}, {time.perf_counter() - began:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
