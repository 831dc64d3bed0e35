"""Pages in Chromium: what they show is what Python computes, and they work with a mouse, with keys and offline.

A browser takes a second to start. Run all of these tests in one process: `pytest tests/report/page/test_in_browser.py`.
"""

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.sweep import tradeoff
from adaptive_smoothing.evaluation.tradeoff import save_tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.page.dials import Dial, dials
from adaptive_smoothing.report.page.page import write_page
from adaptive_smoothing.report.page.runs import PageRun, read_runs
from adaptive_smoothing.results import difference
from adaptive_smoothing.threat import Linf

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
RESULTS = Path(__file__).parents[3] / "results"
WIDTHS = (390, 1280, 1920)
ALPHAS, SHIFTS = (0.4, 0.763), (-1.0, 0.5)


@dataclass(frozen=True)
class Made:
    """A page, and what is on it."""

    path: Path
    runs: list[PageRun]
    dial: Dial | None = None
    verdicts: tuple[Verdict, ...] = ()

    @classmethod
    def of(cls, folders: list[Path], path: Path, *verdicts: Verdict) -> "Made":
        runs = read_runs(folders)
        return cls(write_page(path, runs), runs, next(iter(dials(runs)), None), verdicts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, toys: Any, data: ads.ImageData) -> dict[str, Made]:
    """Pages by name: of a fixed and of a learned alpha, a certification, a plain model, a sweep, stored runs."""
    root = tmp_path_factory.mktemp("pages")
    fixed = [toys.write(root / "fixed" / f"{alpha}", toys.mixture(alpha), data, alpha) for alpha in ALPHAS]
    learned = [toys.write(root / "learned" / f"{shift}", toys.learned(shift), data, {"x": 1}) for shift in SHIFTS]
    plain = toys.write(root / "plain" / "run", toys.mixture(0.5).robust, data)
    radii = torch.rand(48, generator=torch.Generator().manual_seed(0)) - 0.2
    certificates = toys.certificates(radii.clamp(min=0).tolist(), [k % 5 > 0 for k in range(48)])
    toys.write_certificates(root / "certified" / "run", certificates, data)
    g, h = toys.mixture(0.5).standard, toys.mixture(0.5).robust
    sweep = tradeoff(g, h, data, PGD(Linf(0.02), steps=2), mix_alphas=(0, 0.5, 1), batch_size=48, pictures=10)
    save_tradeoff(root / "sweep", sweep, {})
    verdicts = {"fixed": fixed, "learned": learned, "plain": [plain]}
    names = ("fixed", "learned", "plain", "certified", "sweep")
    pages = {name: Made.of([root / name], root / f"{name}.html", *verdicts.get(name, ())) for name in names}
    stored = [RESULTS / name for name in ("verdicts", "resnet18", "mixtures/resnet18-frontier", "certified/hard")]
    return {**pages, "stored": Made.of(stored, root / "stored.html")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield started.new_context()
        started.close()


@pytest.fixture
def show(browser: Any, made: dict[str, Made]) -> Iterator[Callable[..., Any]]:
    """Return `show(name)`, which opens a page. At the end no page may have a message, or a request to elsewhere."""
    opened, messages, requests = [], [], []

    def at(name: str) -> Any:
        page = browser.new_page()
        page.set_viewport_size({"width": 1280, "height": 900})
        page.set_default_timeout(5000)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(made[name].path.as_uri())
        opened.append(page)
        return page

    yield at
    for page in opened:
        page.close()
    assert not messages
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)


def move(page: Any, setting: int, slider: str = "dial-slider") -> None:
    page.evaluate(
        "([id, value]) => { const slider = document.getElementById(id); slider.value = value;"
        " slider.dispatchEvent(new Event('input')); }",
        [slider, setting],
    )


def numbers(page: Any) -> list[tuple[str, int]]:
    """Return the titles and the counts below the slider."""
    found = page.evaluate(
        "[...document.querySelectorAll('.numbers dd[data-count]')].map((dd) =>"
        " [dd.previousSibling.textContent, Number(dd.dataset.count)])"
    )
    return [(title, count) for title, count in found]


def chip_counts(page: Any) -> dict[str, int]:
    return page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.chips button')].map((chip) =>"
        " [chip.dataset.filter, Number(chip.querySelector('small').textContent)]))"
    )


@pytest.mark.parametrize("name", ["fixed", "learned"])
def test_the_numbers_follow_the_slider(show: Callable, made: dict[str, Made], name: str) -> None:
    page, dial = show(name), made[name].dial
    attacked = [at for at, _ in dial.runs]
    assert int(page.locator("#dial-slider").input_value()) == dial.start
    settings = [0, 7, attacked[0] - 1, attacked[0], attacked[1], attacked[1] + 1, 150, len(dial.grid) - 1]
    for at in settings:
        move(page, at)
        (clean, count), (title, robust) = numbers(page)
        assert clean == "clean accuracy" and count == dial.clean.at(at).sum()
        assert title == ("robust accuracy" if at in attacked else "upper bound of the robust accuracy")
        assert robust == (dial.robust(at) if at in attacked else dial.transferred(at)).sum()
        assert ("was attacked" in page.locator("#dial-controls .note").inner_text()) == (at in attacked)
        before, now = dial.clean.at(dial.start), dial.clean.at(at)
        sides = page.locator("dd[data-gained]")
        assert int(sides.get_attribute("data-gained")) == (now & ~before).sum()
        assert int(sides.get_attribute("data-lost")) == (before & ~now).sum()
    digits = 2 if name == "learned" else 3
    assert page.locator("#dial-label").inner_text().endswith(f"= {dial.grid[settings[-1]]:.{digits}f}")


def test_dragging_snaps_to_attacked_settings_and_keys_reach_those_between(
    show: Callable, made: dict[str, Made]
) -> None:
    page, dial = show("fixed"), made["fixed"].dial
    slider, target = page.locator("#dial-slider"), dial.runs[1][0]
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()

    def place(at: int) -> float:
        return box["x"] + 8 + at / (len(dial.grid) - 1) * (box["width"] - 16)

    page.mouse.move(place(dial.start), box["y"] + box["height"] / 2)
    page.mouse.down()
    for at in (target - 20, target + 2):
        page.mouse.move(place(at), box["y"] + box["height"] / 2, steps=3)
        value = int(slider.input_value())
        assert value == target if at > target else abs(value - at) <= 2
    page.mouse.up()
    slider.press("ArrowRight")
    assert int(slider.input_value()) == target + 1 and numbers(page)[1][0].startswith("upper bound")
    slider.press("ArrowLeft")
    assert numbers(page)[1][0] == "robust accuracy"
    spoken = slider.get_attribute("aria-valuetext")
    assert re.fullmatch(r"α = 0\.763, clean accuracy [\d.]+ %, robust accuracy [\d.]+ %", spoken)
    page.locator(f'.snap[data-setting="{dial.start}"]').click()
    assert int(slider.input_value()) == dial.start
    assert [each.get_attribute("aria-pressed") for each in page.locator(".snap").all()] == ["true", "false"]


@pytest.mark.parametrize("name", ["fixed", "learned"])
def test_a_wanted_clean_accuracy_is_reached_at_the_largest_setting(
    show: Callable, made: dict[str, Made], name: str
) -> None:
    page, dial = show(name), made[name].dial
    shares = [dial.clean.at(at).mean() for at in range(len(dial.grid))]
    for wanted in (min(shares), (min(shares) + max(shares)) / 2, max(shares)):
        shown = int(1000 * wanted) / 10
        move(page, shown, "dial-wanted")
        at = int(page.locator("#dial-slider").input_value())
        assert at == max(k for k, share in enumerate(shares) if share >= shown / 100)
        assert f"Wanted clean accuracy: {shown:.1f} % on these images" in page.locator("#dial-controls").inner_text()


@pytest.mark.parametrize("name", ["fixed", "learned"])
def test_bars_are_the_probabilities_of_the_mixture(show: Callable, made: dict, toys: Any, data: Any, name: str) -> None:
    page, dial, run = show(name), made[name].dial, made[name].runs[0]
    at, row = 111, int(run.pictures.rows[4])
    move(page, at)
    page.locator("#image-4").click()
    page.get_by_role("heading", name=f"Image {int(data.index[row])}: ").wait_for()
    mixed = (toys.mixture if name == "fixed" else toys.learned)(float(dial.grid[at]))
    for version, images in (("clean", data.floats()), ("attacked", made[name].verdicts[0].adversarial)):
        with torch.no_grad():
            expected = mixed.mix(images[row : row + 1])
        for part, logits in (("model", expected.logits), ("g", expected.g), ("h", expected.h)):
            for label, share in enumerate(logits.softmax(1)[0].tolist()):
                shown = page.locator(f'[data-bar="{version}-{part}-{label}"]').get_attribute("data-share")
                assert float(shown) == pytest.approx(share, abs=1e-3)
        alpha = expected.alpha.expand(1).item()
        line = page.locator(".says li", has_text=version.capitalize())
        assert float(re.search(r"α = ([\d.]+)\.$", line.inner_text()).group(1)) == pytest.approx(alpha, abs=1e-3)
        said = re.findall(r"says (\w+)", line.inner_text())
        predictions = (expected.g, expected.h, expected.logits)
        assert said == [toys.classes[int(logits.argmax())] for logits in predictions]


@pytest.mark.parametrize("name", ["fixed", "learned"])
def test_filters_count_what_python_counts(show: Callable, made: dict, toys: Any, data: Any, name: str) -> None:
    page, dial, rows = show(name), made[name].dial, made[name].runs[0].pictures.rows
    labels, make = data.labels[rows], toys.mixture if name == "fixed" else toys.learned
    clean, attacked = data.floats()[rows], made[name].verdicts[0].adversarial[rows]

    def correct(model: Any, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(images).argmax(1) == labels

    for at in (dial.start, 40, 160):
        move(page, at)
        mixed, first = make(float(dial.grid[at])), make(float(dial.grid[dial.start]))
        base = {
            version: [correct(each, images) for each in (mixed.standard, mixed.robust)]
            for version, images in (("clean", clean), ("attacked", attacked))
        }
        right, still = correct(mixed, clean), correct(mixed, attacked)
        expected = {
            "all": torch.ones_like(right),
            "disagree": base["clean"][0] & ~base["clean"][1],
            "saved": right & still & ~base["attacked"][0],
            "lost": base["attacked"][1] & ~still,
            "fooled": right & ~still,
            "robust": right & still,
            "wrong": ~right,
            "moved": right != correct(first, clean),
        }
        assert chip_counts(page) == {key: int(which.sum()) for key, which in expected.items()}
        page.locator('[data-filter="fooled"]').click()
        assert page.locator(".thumb").count() == int(expected["fooled"].sum())
        assert page.locator(".thumb[aria-label$=incorrect]").count() == int(expected["fooled"].sum())
        page.locator('[data-filter="all"]').click()
    page.locator("#image-class").select_option("2")
    assert page.locator(".thumb").count() == int((labels == 2).sum())
    page.locator("#image-class").select_option("")
    fooled_by = made[name].runs[0].result.fooled_by[rows]
    for stage in fooled_by[fooled_by >= 0].unique().tolist():
        page.locator("#image-attack").select_option(stage_title(f"pgd-{(1, 5)[stage]}"))
        assert page.locator(".thumb").count() == int((fooled_by == stage).sum())


def test_the_images_that_change_sides_are_shown(show: Callable, made: dict[str, Made]) -> None:
    page = show("learned")
    move(page, len(made["learned"].dial.grid) - 1)
    page.get_by_role("button", name="Show those on the page").click()
    assert page.locator('[data-filter="moved"]').get_attribute("aria-pressed") == "true"
    assert page.locator(".thumb").count() == chip_counts(page)["moved"] > 0


def test_keys_move_through_the_grid(show: Callable) -> None:
    page = show("fixed")
    page.locator('[data-filter="all"]').click()
    page.locator("#image-grid").focus()
    columns = (
        page.evaluate("getComputedStyle(document.getElementById('image-grid')).gridTemplateColumns").count(" ") + 1
    )

    def press(key: str) -> int:
        page.keyboard.press(key)
        chosen = page.locator("#image-grid").get_attribute("aria-activedescendant")
        assert page.locator('.thumb[aria-selected="true"]').get_attribute("id") == chosen
        return int(chosen.partition("-")[2])

    assert [press(key) for key in ("Home", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End", "ArrowRight")] == [
        0,
        1,
        1 + columns,
        columns,
        0,
        19,
        19,
    ]


def test_a_certificate_moves_along_the_radius(show: Callable, made: dict[str, Made]) -> None:
    page, (run,) = show("certified"), made["certified"].runs
    dial, rows = made["certified"].dial, run.pictures.rows
    assert page.locator("#dial h2").inner_text() == "Move the radius"
    for at in (0, 57, 200, 399, 400):
        move(page, at)
        radius = float(dial.grid[at])
        assert numbers(page) == [("certified accuracy", round(48 * run.result.accuracy(radius)))]
        inside = (run.result.correct & run.result.certified & (run.result.rows["radius"] >= radius))[rows]
        counts = chip_counts(page)
        assert counts["certified"] == inside.sum() and counts["uncertified"] == (~inside).sum()
        assert counts["wrong"] == (~run.result.correct[rows]).sum()
        assert page.locator("#dial-label").inner_text() == f"L2 radius = {radius:.3f}"


def test_a_sweep_has_a_slider_and_images(show: Callable, made: dict[str, Made]) -> None:
    page, dial = show("sweep"), made["sweep"].dial
    for at in (0, 33, 50, 100):
        move(page, at)
        assert numbers(page)[0][1] == dial.clean.at(at).sum()
        title, count = numbers(page)[1]
        assert count == (dial.robust(at) if at in (0, 50, 100) else dial.transferred(at)).sum()
        assert title == ("" if at in (0, 50, 100) else "upper bound of the ") + "accuracy under PGD-2"
    assert page.locator(".thumb").count() == 10
    page.locator("#image-version").select_option("rob")
    page.locator(".pictures figcaption", has_text="attacked through h (ROB)").wait_for()


def test_another_mixture_is_chosen(show: Callable, made: dict[str, Made]) -> None:
    """On the page of stored runs: the slider of a sweep, then those of certificates; other classifiers are points."""
    page, found = show("stored"), dials(made["stored"].runs)
    assert page.locator("#dial-choice option").all_inner_texts() == [dial.name for dial in found]
    assert page.locator("#dial-chart .legend li").count() > 5
    for number in (2, 0):
        page.locator("#dial-choice").select_option(str(number))
        move(page, 40)
        assert numbers(page)[0][1] == found[number].clean.at(40).sum()
        assert page.locator(".snap").count() == len({at for at, _ in found[number].runs if number == 0})
    assert page.locator("#chart-run option").count() == 7
    for number in range(7):
        page.locator("#chart-run").select_option(str(number))
    assert page.locator(".charts figure").count() == 3  # certificates, attacks, margins


def test_two_runs_are_compared_on_the_same_images(show: Callable, made: dict[str, Made]) -> None:
    page, (first, second) = show("fixed"), made["fixed"].verdicts
    cells = page.locator("#differences tbody tr").all_inner_texts()
    expected = []
    for what in ("clean_correct", "robust_correct"):
        change, half = difference(getattr(second, what).numpy(), getattr(first, what).numpy())
        expected.append(f"{'+' if change >= 0 else '−'}{abs(100 * change):.2f} ± {100 * half:.2f}")
    assert cells == ["\t".join([made["fixed"].runs[1].name, *expected, "48", first.attack])]


def test_tables_are_copied_as_markdown_csv_and_latex(show: Callable) -> None:
    page = show("fixed")
    figure = page.locator("#tables figure.table").nth(1)
    cells = figure.evaluate(
        "(figure) => [...figure.querySelectorAll('tr')].map((row) =>"
        " [...row.cells].map((cell) => cell.textContent.replaceAll('\\u00a0', ' ')))"
    )
    text = {}
    for kind in ("Markdown", "CSV", "LaTeX"):
        figure.get_by_role("button", name=re.compile(f"as {kind}$")).click()
        page.locator("#message", has_text=f"Copied as {kind}").wait_for()
        text[kind] = page.evaluate("copy.last")
    lines = text["Markdown"].splitlines()
    assert set(lines[1]) == set("| -:") and len({line.count("|") for line in lines}) == 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [rows[0], *rows[2:]] == cells
    assert list(csv.reader(text["CSV"].splitlines())) == cells
    body = text["LaTeX"].splitlines()
    assert body[0] == f"\\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}" and body[-1] == "\\end{tabular}"
    table = [line for line in body if line.endswith(" \\\\")]
    assert len(table) == len(cells) and all(line.count(" & ") == len(cells[0]) - 1 for line in table)
    assert not re.search(r"(?<!\\)[%#_]", text["LaTeX"]) and "α" not in text["LaTeX"]


def test_charts_are_saved_as_svg_and_png(show: Callable) -> None:
    page = show("learned")
    page.locator("#theme").select_option("light")
    for figure in (page.locator("#dial-chart figure"), page.locator(".charts figure.chart").first):
        with page.expect_download() as download:
            figure.get_by_role("button", name=re.compile("as SVG$")).click()
        root = ElementTree.fromstring(Path(download.value.path()).read_text(encoding="utf-8"))
        assert root.tag.endswith("svg") and len(list(root.iter())) > 10
        values = [value for each in root.iter() for value in each.attrib.values()]
        assert not any("var(" in value for value in values) and root[0].attrib["fill"] == "#fff"
        with page.expect_download() as download:
            figure.get_by_role("button", name=re.compile("as PNG$")).click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_the_theme_is_chosen(show: Callable) -> None:
    page = show("plain")
    colours = {}
    for theme in ("light", "dark", "auto"):
        page.locator("#theme").select_option(theme)
        colours[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colours["light"] == colours["auto"] == "rgb(244, 244, 241)" and colours["dark"] == "rgb(18, 19, 22)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours["dark"]


NAMELESS = """
[...document.querySelectorAll('input, select, button, canvas, img, svg[role=img], [role=listbox], [role=option]')]
  .filter((each) => !(each.ariaLabel || each.alt || each.labels?.length && [...each.labels].every((label) =>
    label.textContent.trim()) || each.tagName === 'BUTTON' && each.textContent.trim()))
  .map((each) => each.outerHTML.slice(0, 100))
"""


# The smallest size of the text of a chart, in pixels of the screen.
TEXT_SIZES = """
Math.min(...[...document.querySelectorAll('figure.chart > svg')]
  .map((svg) => 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))
"""
# Menus, sliders and texts of charts that are outside of their card.
CUT_OFF = """
[...document.querySelectorAll('section select, section input, figure.chart text')].filter((each) => {
  const [inner, outer] = [each, each.closest('section')].map((one) => one.getBoundingClientRect());
  return inner.left < outer.left || inner.right > outer.right;
}).map((each) => each.id || each.textContent)
"""


@pytest.mark.parametrize("name", ["fixed", "learned", "plain", "certified", "sweep", "stored"])
def test_a_page_fits_every_width_and_has_names_for_its_parts(show: Callable, name: str) -> None:
    page = show(name)
    if name != "stored":  # many runs with long names, and no images
        page.locator("#image-detail canvas").first.wait_for()
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(
        "[...document.querySelectorAll('svg:not([aria-hidden])')].every((svg) => svg.getAttribute('role') === 'img')"
    )
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
        assert page.evaluate(TEXT_SIZES) >= 10, width
        assert page.evaluate(CUT_OFF) == [], width
    shown = page.evaluate("[...document.querySelectorAll('nav a:not([hidden])')].map((link) => link.hash)")
    assert all(page.locator(hash_).is_visible() for hash_ in shown) and "#tables" in shown
