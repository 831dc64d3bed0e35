"""Titles of attack stages.

The key of a stage is stored in result files, and random numbers are derived from it, so a key never changes.
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
    "full-precision": "APGD, margin, in full precision",
    "pgd-20": "PGD-20",
    "margin-pgd": "PGD, margin",
    "diverse-pgd": "diversified PGD, targeted margin",
    "diverse-pgd-p": "diversified PGD, targeted probability",
    "turning-pgd": "diversified PGD, flip g",
    "hostile-pgd": "diversified PGD, worst-case g",
    "turning-t": "APGD, flip g",
    "hostile-t": "APGD, worst-case g",
    "margin-t": "APGD, targeted margin",
    "h-t": "APGD on h alone, flip g",
    "gray-ce": "APGD, cross-entropy, gray-box",
    "gray-t": "APGD, targeted DLR, gray-box",
    "transfer-g": "transfer from g",
    "transfer-h": "transfer from h",
}
VIEWS = {"smooth-": "smoothed surrogate", "plain-": "without transforms"}


def stage_title(key: str) -> str:
    """Return the title of an attack stage; an unknown key is its own title."""
    for prefix, view in VIEWS.items():
        if key.startswith(prefix):
            return f"{stage_title(key.removeprefix(prefix))} ({view})"
    if found := re.fullmatch(r"apgd-(ce|t)-alpha-([\d.]+)", key):
        return f"{TITLES[f'apgd-{found[1]}']}, lower alpha, weight {found[2]}"
    if found := re.fullmatch(r"transfer-alpha-([\d.]+)", key):
        return f"transfer from alpha = {found[1]}"
    return TITLES.get(key, key)
