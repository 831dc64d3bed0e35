"""What people read for the key of an attack stage.

A key is stored in result files and random numbers are derived from it, so it never changes. A title may.
"""

from __future__ import annotations

import re

# g is the standard classifier, h the robust one. "targeted": one run per likely wrong class.
TITLES = {
    "apgd-ce": "APGD, cross-entropy",
    "apgd-t": "APGD, targeted DLR",
    "apgd-margin-t": "APGD, targeted margin",
    "fab-t": "FAB, targeted",
    "fab-short": "FAB, targeted, short",
    "square": "Square",
    "full-precision": "again in float32",
    "pgd-20": "PGD-20",
    "margin-pgd": "PGD, margin",
    "diverse-pgd": "diversified PGD, targeted margin",
    "diverse-pgd-p": "diversified PGD, targeted probability",
    "turning-pgd": "diversified PGD, flip g",
    "hostile-pgd": "diversified PGD, worst-case g",
    "turning-t": "APGD, flip g, targeted",
    "hostile-t": "APGD, worst-case g, targeted",
    "margin-t": "APGD, targeted margin",
    "h-t": "APGD on h, flip g, targeted",
    "gray-ce": "APGD, cross-entropy, alpha detached",
    "gray-t": "APGD, targeted DLR, alpha detached",
    "transfer-g": "transfer from g",
    "transfer-h": "transfer from h",
}
VIEWS = {"smooth-": "smoothed surrogate", "plain-": "h without its transform"}


def stage_title(key: str) -> str:
    """Return the title of an attack stage; a key that is not known is its own title."""
    for prefix, view in VIEWS.items():
        if key.startswith(prefix):
            return f"{stage_title(key.removeprefix(prefix))} ({view})"
    if found := re.fullmatch(r"apgd-(ce|t)-alpha-([\d.]+)", key):
        return f"{TITLES[f'apgd-{found[1]}']}, lower alpha with weight {found[2]}"
    if found := re.fullmatch(r"transfer-alpha-([\d.]+)", key):
        return f"transfer from alpha = {found[1]}"
    return TITLES.get(key, key)
