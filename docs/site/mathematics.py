"""Hook of the site: formulas become MathML, which browsers show without a script or a font from elsewhere."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>', re.DOTALL)


def on_page_content(text: str, **more: Any) -> str:
    """Replace the formulas that the Markdown extension `arithmatex` has marked."""
    text = INLINE.sub(lambda found: convert(html.unescape(found[1])), text)
    return BLOCK.sub(
        lambda found: f'<div class="formula">{convert(html.unescape(found[1]).strip(), display="block")}</div>', text
    )
