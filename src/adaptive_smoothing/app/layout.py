"""The page of the application in Gradio: components, and the events that call `session` and `html`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from adaptive_smoothing.app import html
from adaptive_smoothing.app.pictures import read_image
from adaptive_smoothing.app.session import AttackOptions, Running, Shown, attack, first_image, show
from adaptive_smoothing.app.subject import Dial, Subject

STYLE = Path(__file__).with_name("style.css")
MOST_EPS, MOST_STEPS = 16, 100
ENDS = {"alpha": "0: g alone, 1: h alone", "shift": "a larger shift gives h more weight"}
# The slider of a model that nothing moves, which is not visible.
NO_DIAL = Dial("alpha", 0.0, (0.0, 1.0))
# Fonts of the system: those of a theme of Gradio would be fetched from another host.
FONT, MONO = ["system-ui", "-apple-system", "Segoe UI", "sans-serif"], ["ui-monospace", "monospace"]


def theme() -> gr.themes.Base:
    """Return a theme that needs no file of another host."""
    return gr.themes.Base(
        font=FONT, font_mono=MONO, primary_hue="blue", neutral_hue="zinc", radius_size="md", text_size="md"
    )


def build(subject: Subject) -> gr.Blocks:
    """Return the page for a model."""
    with gr.Blocks(title=f"Attack {subject.title}", analytics_enabled=False) as page:
        Page(subject).connect()
    return page


class Page:
    """Makes the components, from top to bottom, and connects them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.start = None if subject.dial is None else subject.dial.start
        self.position = None if subject.gallery is None else first_image(subject, self.start)
        first = None if self.position is None else self._from_gallery(self.position, self.start)
        self.shown, self.running = gr.State(first), gr.State(Running())
        gr.HTML(
            f"<h1>Attack an image, and see which classifier is fooled</h1>{html.about(subject)}", elem_id="ads-about"
        )
        with gr.Row():
            with gr.Column(scale=4, min_width=300):
                self._choose(first)
            with gr.Column(scale=7, min_width=320):
                pictures, summary, panels, problem = self.values(first, self.start)
                shown_problem = gr.HTML(problem, elem_id="ads-problem")
                shown_pictures = gr.HTML(pictures, elem_id="ads-pictures")
                self._attack()
                shown_summary = gr.HTML(summary, elem_id="ads-summary")
                self._dial()
                shown_panels = gr.HTML(panels, elem_id="ads-panels")
        self.views: list[Any] = [shown_pictures, shown_summary, shown_panels, shown_problem]

    def _choose(self, first: Shown | None) -> None:
        subject = self.subject
        gr.HTML('<h2 class="ads-section">1. Choose an image</h2>')
        self.gallery = None
        if subject.gallery is not None:
            arrays, labels = subject.gallery.images.cpu().permute(0, 2, 3, 1).numpy(), subject.gallery.labels.tolist()
            items = [
                (Image.fromarray(pixels.squeeze()), subject.classes[label])
                for pixels, label in zip(arrays, labels, strict=True)
            ]
            self.gallery = gr.Gallery(
                items,
                label="Images to choose from",
                show_label=False,
                columns=4,
                height="auto",
                allow_preview=False,
                selected_index=self.position,
                object_fit="contain",
                format="png",
                buttons=[],
                interactive=False,
                elem_id="ads-gallery",
            )
        drop = "Drop an image" if self.gallery is None else "Or drop an image of yours"
        self.file = gr.File(label=drop, height=130, elem_id="ads-file")
        choices = [(name, number) for number, name in enumerate(subject.classes)]
        self.label = gr.Dropdown(
            choices, value=None if first is None else first.label, label="Correct class", elem_id="ads-class"
        )

    def _attack(self) -> None:
        gr.HTML('<h2 class="ads-section">2. Attack it</h2>')
        roles = self.subject.roles
        choices = [(html.SUBJECTS[role], role) for role in (roles[-1], *roles[:-1])]
        with gr.Row(equal_height=True):
            self.on = gr.Radio(
                choices,
                value=roles[-1],
                label="PGD on",
                visible=len(roles) > 1,
                scale=4,
                min_width=280,
                elem_id="ads-on",
            )
            sliders: dict[str, Any] = {"step": 1, "buttons": [], "min_width": 130, "scale": 3}
            self.eps = gr.Slider(1, MOST_EPS, value=8, label="eps × 255", elem_id="ads-eps", **sliders)
            self.steps = gr.Slider(1, MOST_STEPS, value=20, label="Steps", elem_id="ads-steps", **sliders)
        with gr.Row():
            self.press = gr.Button("Attack", variant="primary", min_width=80, elem_id="ads-attack")
            self.stop = gr.Button("Stop", interactive=False, min_width=80, elem_id="ads-stop")

    def _dial(self) -> None:
        dial = self.subject.dial or NO_DIAL
        moves, curve = self.subject.dial is not None, dial.curve
        gr.HTML('<h2 class="ads-section">3. Move the mixture between g and h</h2>', visible=moves)
        with gr.Group(visible=moves):
            least, most = (0.0, 1.0) if curve is None else (min(map(curve, curve.limits)), curve.best())
            self.wanted = gr.Slider(
                math.floor(1000 * least) / 10,
                math.floor(1000 * most) / 10,
                value=None if curve is None else _percent(curve(dial.start)),
                step=0.1,
                label="Wanted clean accuracy, %",
                visible=curve is not None,
                buttons=[],
                elem_id="ads-wanted",
            )
            self.dial = gr.Slider(
                math.floor(dial.limits[0] / dial.step) * dial.step,
                math.ceil(dial.limits[1] / dial.step) * dial.step,
                value=dial.rounded(dial.start),
                step=dial.step,
                label=f"{dial.parameter} ({ENDS[dial.parameter]})",
                buttons=[],
                elem_id="ads-dial",
            )
        self.accuracy = gr.HTML(html.dial_text(self.subject, dial.start), visible=moves, elem_id="ads-accuracy")

    def connect(self) -> None:
        """Connect the events. A new attack, image or class stops a running attack, which is over before it is shown."""
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        state, views = [self.shown, self.dial], [*self.views, self.stop, self.dial, self.wanted]
        end: dict[str, Any] = {"fn": Running.stop, "inputs": self.running, "outputs": None, **quiet}
        settings = [self.running, *state, self.on, self.eps, self.steps]
        # "multiple": Gradio would ignore a press while it still ends the attack before.
        again: dict[str, Any] = {"trigger_mode": "multiple", **quiet}
        self.press.click(**end).then(self.attack, settings, [self.shown, *views], **again)
        self.stop.click(**end).then(self.halt, state, views, **quiet)
        image = [self.shown, self.label, *views]
        if self.gallery is not None:
            position = gr.State(self.position)
            picked = self.gallery.select(_position, self.running, position, **quiet)
            chosen = picked.then(self.choose, [position, self.dial], image, **quiet)
            chosen.then(lambda: None, None, self.file, **quiet)
        dropped = self.file.upload(**end).then(self.drop, [self.file, *state], image, **quiet)
        if self.gallery is not None:
            dropped.then(_unselected, self.shown, self.gallery, **quiet)
        self.label.input(**end).then(self.relabel, [self.label, *state], [self.shown, *views], **quiet)
        last: dict[str, Any] = {"trigger_mode": "always_last", **quiet}
        self.dial.input(self.move, state, [self.accuracy, self.wanted, *self.views], **last)
        self.wanted.input(self.want, [self.wanted, self.shown], [self.dial, self.accuracy, *self.views], **last)

    def values(self, shown: Shown | None, setting: float | None, running: bool = False, problem: str = "") -> list[Any]:
        """Return the pictures, the summary, the panels and the error message of a state."""
        subject = self.subject
        if shown is None:
            empty = "<p>Drop an image, or choose one, to see what the model predicts.</p>"
            return ["", f'<div class="ads-summary">{empty}</div>', "", problem]
        setting = self._setting(setting)
        return [
            html.pictures(shown),
            html.summary(subject, shown, setting, running),
            html.panels(subject, shown, setting),
            problem,
        ]

    def everything(
        self, shown: Shown | None, setting: float | None, running: bool = False, problem: str = ""
    ) -> list[Any]:
        """Return `values`, and which controls can be used: while an attack runs, the mixture cannot be moved."""
        can_stop, can_move = gr.update(interactive=running), gr.update(interactive=not running)
        return [*self.values(shown, setting, running, problem), can_stop, can_move, can_move]

    def halt(self, shown: Shown | None, setting: float) -> list[Any]:
        """Show how far an attack came that was stopped."""
        return self.everything(shown, setting)

    def _setting(self, setting: float | None) -> float | None:
        """Return the setting that a value of the slider stands for."""
        return None if self.subject.dial is None or setting is None else self.subject.dial.setting(setting)

    def choose(self, position: int, setting: float) -> list[Any]:
        """Show an image of the gallery."""
        found = self._from_gallery(position, setting)
        return [found, found.label, *self.everything(found, setting)]

    def _from_gallery(self, position: int, setting: float | None) -> Shown:
        assert self.subject.gallery is not None
        one = self.subject.gallery.take([position])
        label = int(one.labels)
        name = f"{self.subject.classes[label]}, {one.name}, image {int(one.index)}"
        return show(self.subject, one.floats(), name, label, self._setting(setting))

    def drop(self, path: str, shown: Shown | None, setting: float) -> list[Any]:
        """Show a file, or say why it cannot be shown."""
        try:
            images, changes = read_image(path, self.subject.shape)
            found = show(self.subject, images, Path(path).name, None, self._setting(setting))
        except ValueError as error:
            label = None if shown is None else shown.label
            return [shown, label, *self.everything(shown, setting, problem=html.problem(str(error)))]
        found = replace(found, notices=(*changes, *found.notices))
        return [found, found.label, *self.everything(found, setting)]

    def relabel(self, label: int, shown: Shown | None, setting: float) -> list[Any]:
        """Change the correct class. An attack was made for the class before, so it is dropped."""
        if shown is not None and label is not None:
            shown = replace(shown, label=label, attack=None, notices=())
        return [shown, *self.everything(shown, setting)]

    def move(self, shown: Shown | None, setting: float) -> list[Any]:
        """Mix the same image at another setting."""
        assert self.subject.dial is not None
        curve, exact = self.subject.dial.curve, self.subject.dial.setting(setting)
        wanted = gr.skip() if curve is None else _percent(curve(exact))
        return [html.dial_text(self.subject, exact), wanted, *self.values(shown, setting)]

    def want(self, percent: float, shown: Shown | None) -> list[Any]:
        """Move the mixture to the largest setting with this clean accuracy."""
        assert self.subject.dial is not None and self.subject.dial.curve is not None
        setting = self.subject.dial.rounded(self.subject.dial.curve.largest_setting(percent / 100))
        return [setting, *self.move(shown, setting)[:1], *self.values(shown, setting)]

    def attack(
        self, running: Running, shown: Shown | None, setting: float, on: str, eps: float, steps: int
    ) -> Iterator[list[Any]]:
        """Show each step of an attack, until it is stopped."""
        if shown is None:
            yield [
                None,
                *self.everything(None, setting, problem=html.problem("expected an image, got none: choose one")),
            ]
            return
        options = AttackOptions(on, int(steps), eps / 255)
        found = attack(self.subject, replace(shown, attack=None), options, self._setting(setting))
        for step in running.steps_of(found):
            unfinished = step.attack is not None and not step.attack.finished
            yield [step, *self.everything(step, setting, unfinished)]


def _unselected(shown: Shown | None) -> Any:
    """Mark no image of the gallery if a file is shown: only files have notices. Gradio ignores None as a selection."""
    return gr.update(selected_index=-1) if shown is not None and shown.notices else gr.skip()


def _position(running: Running, chosen: gr.SelectData) -> int:
    """Stop the attack, and return the position of the image that was chosen."""
    running.stop()
    return int(chosen.index)


def _percent(share: float) -> float:
    """Return a share in percent, rounded down as the limits of the slider are."""
    return math.floor(1000 * share) / 10
