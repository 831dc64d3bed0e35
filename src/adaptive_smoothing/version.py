"""The version of the package and of the code itself."""

import hashlib
from functools import cache
from pathlib import Path

VERSION = "0.1.0"


@cache
def code_version() -> str:
    """Version and a digest of the package's source, which says exactly what ran, installed or not, git or no git."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()[:10]}"
