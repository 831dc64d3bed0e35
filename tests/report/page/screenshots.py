"""Write screenshots of a page: python tests/report/page/screenshots.py PAGE.html OUT [--guide].

By default they show the whole page in three widths, light and dark. With --guide they are the three pictures of
docs/guides/page.md: the slider and the images, on a desktop, on a phone and on a dark background. They need Playwright
and Debian's Chromium, like test_in_browser.py.
"""

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTHS, THEMES = (390, 1280, 1920), ("light", "dark")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
# The pictures of the guide: name, width, theme, and the section at whose end the picture ends; or that section alone.
GUIDE = (("page", 1280, "light", "#images", False), ("page-phone", 390, "light", "#dial", True))
GUIDE += (("page-dark", 1280, "dark", "#images", True),)
COLOURS = 192


@contextmanager
def opened(page: Path, width: int, theme: str) -> Iterator[Any]:
    """Yield the page in a tab of a width."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        tab = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)
        tab.goto(page.resolve().as_uri())
        if tab.locator("#images").is_visible():
            tab.locator("#image-detail canvas").first.wait_for()
        yield tab
        browser.close()


def write_screenshots(page: Path, out: Path) -> list[Path]:
    """Write NAME-WIDTH-THEME.png of the whole page for each width and theme, and return their paths."""
    written = []
    for width in WIDTHS:
        for theme in THEMES:
            with opened(page, width, theme) as tab:
                path = out / f"{page.stem}-{width}-{theme}.png"
                tab.screenshot(path=path, full_page=True)
                written.append(path)
    return written


def write_guide(page: Path, out: Path) -> list[Path]:
    """Write the pictures of the guide with few colours, which take a fifth of the space, and return their paths."""
    written = []
    for name, width, theme, section, alone in GUIDE:
        with opened(page, width, theme) as tab:
            tab.add_style_tag(content="nav { position: static !important }")
            box = tab.locator(section).bounding_box()
            top = box["y"] if alone else 0
            clip = {"x": 0, "y": top, "width": width, "height": box["y"] + box["height"] + 8 - top}
            shot = Image.open(io.BytesIO(tab.screenshot(full_page=True, clip=clip))).convert("RGB")
            path = out / f"{name}.png"
            shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
            written.append(path)
    return written


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--guide"]
    if len(names) != 2:
        sys.exit("expected PAGE.html OUT: python tests/report/page/screenshots.py runs/demo/page.html shots")
    Path(names[1]).mkdir(parents=True, exist_ok=True)
    write = write_guide if "--guide" in sys.argv else write_screenshots
    for path in write(Path(names[0]), Path(names[1])):
        print(path)
