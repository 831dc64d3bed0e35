"""The version of the package, and of the code that computes results."""

import ast
import hashlib
from functools import cache
from pathlib import Path

VERSION = "0.1.0"
# Packages that only print, plot or parse: a change of them changes no result.
WITHOUT_RESULTS = ("cli", "report")


@cache
def code_version() -> str:
    """Return the version and a digest of the code that computes results, installed or not, with or without git."""
    return f"{VERSION}+{code_digest(Path(__file__).parent)[:10]}"


def code_digest(folder: Path) -> str:
    """Return a sha256 of the Python code in a folder. Comments, docstrings and layout do not change it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if name.parts[0] not in WITHOUT_RESULTS:
            digest.update(name.as_posix().encode() + b"\0" + _without_docstrings(path.read_text()).encode())
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
