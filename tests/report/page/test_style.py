"""The sources of the page: short lines, and colours that can be read."""

import re

import pytest

from adaptive_smoothing.report.page.page import HERE, SCRIPTS, STYLE

# Text on a background, as names of colours in page.css.
TEXTS = [
    *((text, paper) for text in ("ink", "faint", "accent", "good", "bad") for paper in ("paper", "page")),
    ("on-accent", "accent"),  # a pressed button
    ("paper", "ink"),  # a message
]
# The lines of charts need less: 3 to 1.
LINES = [(line, "paper") for line in ("clean", "mix", "h", "g", "gold", "faint")]


def palettes() -> dict[str, dict[str, str]]:
    """Return the colours of each block of page.css by name: light, dark, and dark as the system wants it."""
    blocks = re.findall(r"([^{}]*)\{([^{}]*--paper:[^{}]*)\}", (HERE / STYLE).read_text(encoding="utf-8"))
    found = {}
    for selector, body in blocks:
        name = "light" if '"light"' in selector else "dark" if '"dark"' in selector else "system"
        found[name] = dict(re.findall(r"--([\w-]+): (#\w+)", body))
    return found


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_contrast_of_known_colours():
    assert contrast("#000", "#fff") == pytest.approx(21) and contrast("#777777", "#ffffff") == pytest.approx(
        4.48, abs=0.01
    )


def test_the_system_chooses_the_same_dark_colours():
    found = palettes()
    assert found["dark"] == found["system"] and found["light"].keys() == found["dark"].keys()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_lines_can_be_read(theme):
    colours = palettes()[theme]
    found = {(text, paper): contrast(colours[text], colours[paper]) for text, paper in (*TEXTS, *LINES)}
    assert not {pair: ratio for pair, ratio in found.items() if ratio < (4.5 if pair in TEXTS else 3)}


def test_every_colour_that_is_used_is_defined():
    defined = palettes()["light"].keys()
    for name in (STYLE, *SCRIPTS):
        assert set(re.findall(r"var\(--([\w-]+)\)", (HERE / name).read_text(encoding="utf-8"))) <= defined


@pytest.mark.parametrize(
    "name", sorted(path.name for path in HERE.iterdir() if path.suffix in (".js", ".css", ".html"))
)
def test_files_and_lines_are_short(name):
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250 and not [number for number, line in enumerate(lines, 1) if len(line) > 120]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_elements_from_texts_and_not_from_markup(name):
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", (HERE / name).read_text("utf-8")
    )


def test_every_script_is_part_of_the_page():
    assert set(SCRIPTS) == {path.name for path in HERE.glob("*.js")}
