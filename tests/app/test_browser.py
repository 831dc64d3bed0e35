"""Drives the application in Chromium. With APP_PICTURES=docs/pictures it also writes the pictures of the guide."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from adaptive_smoothing.app.session import AttackOptions, Shown, answers, attack, show
from adaptive_smoothing.app.subject import Subject

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [name for name in ("gradio", "playwright") if importlib.util.find_spec(name) is None]
MISSING += [] if CHROMIUM else ["chromium"]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")

PICTURES = os.environ.get("APP_PICTURES")
# The image of the test: a horse, which an attack on g turns into something else.
POSITION, STEPS, SECONDS = 14, 4, 60
OPTIONS = AttackOptions("g", steps=STEPS)


@pytest.fixture(scope="module")
def connections() -> Iterator[set[str]]:
    """The addresses that this process connects to. A hook cannot be removed, so it is switched off."""
    found: set[str] = set()
    watching = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "socket.connect" and isinstance(arguments[1], tuple):
            found.add(str(arguments[1][0]))
        elif watching and event == "socket.getaddrinfo":
            found.add(str(arguments[0]))

    sys.addaudithook(hook)
    yield found
    watching.clear()


@pytest.fixture(scope="module")
def url(subject: Subject, connections: set[str]) -> Iterator[str]:
    from adaptive_smoothing.app.server import Server

    with Server(subject) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def test_an_image_is_chosen_attacked_and_mixed_again(url: str, browser: Any, subject: Subject, connections: set[str]):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(1000 * SECONDS)
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("response", lambda found: messages.append(f"{found.status} {found.url}") if found.status >= 400 else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)

    page.locator("#ads-steps input[type=number]").fill("100")
    page.locator("#ads-attack").click()
    page.locator(".ads-progress").wait_for()
    page.locator("#ads-gallery button.thumbnail-lg").nth(POSITION).click()  # stops the attack
    shown = chosen(subject)
    page.get_by_text(shown.name).wait_for()
    compare(page, subject, shown, subject.dial.start)

    for _ in range(3):  # each attack begins as soon as the one before was stopped
        page.locator("#ads-attack").click()
        page.locator(".ads-progress").wait_for()
        page.locator("#ads-gallery button.thumbnail-lg").nth(POSITION).click()
        page.locator(".ads-progress").wait_for(state="detached")
    page.locator("#ads-attack").click()
    page.locator(".ads-progress").wait_for()
    page.locator("#ads-stop").click()
    page.get_by_text("of 100 steps, then stopped").wait_for()

    page.locator("#ads-on").get_by_label("g", exact=True).check()
    page.locator("#ads-steps input[type=number]").fill(str(STEPS))
    page.locator("#ads-attack").click()
    page.get_by_text(f"PGD on g, {STEPS} steps").wait_for()
    *_, attacked = attack(subject, shown, OPTIONS, subject.dial.start)
    compare(page, subject, attacked, subject.dial.start)
    assert "misclassified by g" in page.locator(".ads-outcome").inner_text()
    if PICTURES:
        take_pictures(page, Path(PICTURES))

    page.locator("#ads-wanted input[type=number]").fill("93")
    page.locator("#ads-wanted input[type=number]").press("Tab")
    setting = subject.dial.rounded(subject.dial.curve.largest_setting(0.93))
    page.locator("#ads-accuracy").get_by_text(subject.dial.text(setting)).wait_for()
    compare(page, subject, attacked, setting)

    page.locator("#ads-file input[type=file]").set_input_files(__file__)
    page.get_by_role("alert").get_by_text("test_browser.py, which is not one or is damaged").wait_for()
    selected = page.locator("#ads-gallery button.thumbnail-lg.selected")
    assert selected.count() == 1
    picture = Path(__file__).parents[2] / "docs" / "pictures" / "app.png"
    page.locator("#ads-gallery button.thumbnail-lg").nth(0).click()  # removes the file
    page.locator("#ads-file input[type=file]").set_input_files(picture)
    selected.wait_for(state="detached")
    assert not messages
    addresses = {urlsplit(request).hostname for request in requests if request.startswith(("http", "ws"))}
    assert addresses == {"127.0.0.1"}
    assert connections <= {"127.0.0.1", "localhost", "0.0.0.0", "::1"}


def chosen(subject: Subject) -> Shown:
    one = subject.gallery.take([POSITION])
    label = int(one.labels)
    name = f"{subject.classes[label]}, {one.name}, image {int(one.index)}"
    return show(subject, one.floats(), name, label, subject.dial.start)


def compare(page: Any, subject: Subject, shown: Shown, setting: float) -> None:
    """Compare the probabilities on the page with those that Python computes."""
    outputs = shown.outputs if shown.attack is None else shown.attack.outputs
    expected = answers(subject, shown.images, outputs, setting)
    for role in subject.roles:
        rows = page.locator(f".ads-panel[data-role={role}] .ads-row")
        found = rows.evaluate_all("rows => rows.map(row => [row.dataset.class, Number(row.dataset.probability)])")
        assert len(found) == 5 and found[0][0] == subject.classes[shown.label]
        for name, probability in found:
            wanted = expected.probabilities[role][subject.classes.index(name)].item()
            assert probability == pytest.approx(wanted, abs=2e-4), (role, name)


def take_pictures(page: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / "app.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.body.classList.add('dark')")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#ads-pictures").evaluate("element => element.scrollIntoView()")
    page.wait_for_timeout(500)
    page.screenshot(path=folder / "app-phone.png")
    page.evaluate("document.body.classList.remove('dark')")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})
