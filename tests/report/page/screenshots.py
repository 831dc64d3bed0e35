"""Write screenshots of a page in three widths, light and dark: python tests/report/page/screenshots.py PAGE.html OUT.

It needs Playwright and Debian's Chromium, like test_in_browser.py.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS, THEMES = (390, 1280, 1920), ("light", "dark")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


def write_screenshots(page: Path, out: Path) -> list[Path]:
    """Write NAME-WIDTH-THEME.png of the whole page for each width and theme, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(ARGUMENTS))
        for width in WIDTHS:
            for theme in THEMES:
                tab = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)
                tab.goto(page.resolve().as_uri())
                if tab.locator("#images").is_visible():
                    tab.locator("#image-detail canvas").first.wait_for()
                path = out / f"{page.stem}-{width}-{theme}.png"
                tab.screenshot(path=path, full_page=True)
                tab.close()
                written.append(path)
        browser.close()
    return written


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("expected PAGE.html OUT: python tests/report/page/screenshots.py runs/demo/page.html shots")
    for path in write_screenshots(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
