"""The version of the package, and of the code that computes results; the folder of its cache. Imports nothing heavy."""

import ast
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

VERSION = "0.2.0"
# Packages that only print, plot or parse: a change of them changes no result.
WITHOUT_RESULTS = ("cli", "report")
CACHE_VARIABLE = "ADAPTIVE_SMOOTHING_CACHE"


@cache
def code_version() -> str:
    """Return the version and a digest of the code that computes results, installed or not, with or without git."""
    return f"{VERSION}+{_cached_digest(Path(__file__).parent)[:10]}"


def _cached_digest(folder: Path) -> str:
    """Return the code digest from the cache, if it is of the same files, or compute it, which takes a second."""
    # The digest of the same code differs between versions of Python.
    key = f"{file_digest(folder)}-{sys.hexversion:x}"
    with suppress(OSError, ValueError):
        known, digest = (cache_folder() / "code-digest").read_text().split()
        if known == key and len(digest) == hashlib.sha256().digest_size * 2:
            return digest
    digest = code_digest(folder)
    with suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        (cache_folder() / "code-digest").write_text(f"{key} {digest}")
    return digest


def file_digest(folder: Path) -> str:
    """Return a sha256 of the Python files in a folder. It takes milliseconds."""
    return _digest(folder, lambda source: source)


def code_digest(folder: Path) -> str:
    """Return a sha256 of the Python code in a folder. Comments, docstrings and layout do not change it."""
    return _digest(folder, _without_docstrings)


def _digest(folder: Path, text: Callable[[str], str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if name.parts[0] not in WITHOUT_RESULTS:
            digest.update(name.as_posix().encode() + b"\0" + text(path.read_text("utf-8")).encode())
    return digest.hexdigest()


def _without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Strings alone on a line have no effect: docstrings, and comments written as strings.
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def cache_folder() -> Path:
    """Return the folder of the cache: $ADAPTIVE_SMOOTHING_CACHE, or the one that the platform has for caches."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    platform = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if Path(platform).is_absolute():
        return Path(platform) / "adaptive_smoothing"
    try:
        return Path.home() / ".cache" / "adaptive_smoothing"
    except RuntimeError as error:
        raise OSError(f"expected a home folder for the cache, got none: set {CACHE_VARIABLE}") from error
