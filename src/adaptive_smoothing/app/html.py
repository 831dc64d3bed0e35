"""The HTML and the sentences that the application shows for a state."""

from __future__ import annotations

from html import escape

from adaptive_smoothing.app.pictures import data_uri, perturbation
from adaptive_smoothing.app.session import ROLES, Answers, Attacked, Shown, answers
from adaptive_smoothing.app.subject import ALONE, Subject
from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.classifier import MixedClassifier

# Classes with a bar.
BARS = 5
# Images with fewer pixels per side are enlarged without interpolation, so that single pixels can be seen.
SMALL = 128
TITLES = {"g": "g (standard)", "h": "h (robust)", "mixture": "mixture", ALONE: "model"}
SUBJECTS = {"g": "g", "h": "h", "mixture": "the mixture", ALONE: "the model"}


def pictures(shown: Shown) -> str:
    """Return the image, the perturbation and the attacked image."""
    found = [_picture("Image", shown.name, data_uri(shown.clean), shown)]
    if shown.attack is None:
        empty = '<div class="ads-empty">after an attack</div>'
        found += [f"<figure>{empty}<figcaption><b>{name}</b></figcaption></figure>" for name in _OTHERS]
    else:
        delta, factor = perturbation(shown.clean, shown.attack.images, shown.attack.options.eps)
        change = f"magnified {factor} times; grey: no change"
        found.append(_picture(_OTHERS[0], change, data_uri(delta), shown))
        largest = (shown.attack.images - shown.clean).abs().max().item() * 255
        found.append(_picture(_OTHERS[1], f"largest change {largest:.1f}/255", data_uri(shown.attack.images), shown))
    return f'<div class="ads-pictures">{"".join(found)}</div>'


_OTHERS = ("Perturbation", "Attacked image")


def _picture(title: str, caption: str, address: str, shown: Shown) -> str:
    pixelated = " ads-pixels" if max(shown.clean.shape[-2:]) < SMALL else ""
    image = f'<img class="{pixelated.strip()}" src="{address}" alt="{escape(f"{title}: {caption}")}">'
    return f"<figure>{image}<figcaption><b>{title}</b><span>{escape(caption)}</span></figcaption></figure>"


def panels(subject: Subject, shown: Shown, setting: float | None) -> str:
    """Return the bars of the most likely classes for each classifier, with its verdict in words."""
    now, before = _answers(subject, shown, setting)
    rows = _rows(now, shown.label)
    found = "".join(_panel(subject, shown, role, rows, now, before) for role in subject.roles)
    return f'<div class="ads-panels">{found}</div>'


def _answers(subject: Subject, shown: Shown, setting: float | None) -> tuple[Answers, Answers | None]:
    """Return the answers for the image that is shown and, if it is attacked, for the image without the attack."""
    clean = answers(subject, shown.clean, shown.outputs, setting)
    if shown.attack is None:
        return clean, None
    return answers(subject, shown.attack.images, shown.attack.outputs, setting), clean


def _rows(found: Answers, label: int) -> list[int]:
    """Return the classes with a bar: the correct one, then those with the largest probability in any classifier."""
    each = iter(found.probabilities.values())
    largest = next(each).clone()
    for probabilities in each:
        largest = largest.maximum(probabilities)
    largest[label] = 2.0
    return largest.topk(min(BARS, len(largest))).indices.tolist()


def _panel(subject: Subject, shown: Shown, role: str, rows: list[int], now: Answers, before: Answers | None) -> str:
    probabilities = now.probabilities[role]
    bars = "".join(_bar(subject.classes[row], probabilities[row].item(), row == shown.label) for row in rows)
    rest = 1 - sum(probabilities[row].item() for row in rows)
    others = len(subject.classes) - len(rows)
    more = f'<div class="ads-rest">{others} other classes: {_share(max(0.0, rest))}</div>' if others > 0 else ""
    name = f"<span>{escape(subject.names[role])}</span>"
    if now.alpha is not None:
        weight = {"g": 1 - now.alpha, "h": now.alpha}
        text = f"alpha of this image {now.alpha:.3f}" if role == "mixture" else f"weight {weight[role]:.3f}"
        name += f'<span class="ads-alpha">{text}</span>'
    was = ""
    if before is not None:
        was = f'<div class="ads-was">Without the attack: {_verdict(subject, before, role, shown.label)}</div>'
    head = f"<h3>{TITLES[role]}</h3><div class='ads-name'>{name}</div>"
    right = now.predicted(role) == shown.label
    verdict = f'<div class="ads-verdict {"ads-right" if right else "ads-wrong"}">'
    verdict += f"{'✓' if right else '✗'} {_verdict(subject, now, role, shown.label)}</div>"
    kind = f'class="ads-panel ads-{role}" data-role="{role}"'
    return f"<section {kind}>{head}{verdict}{was}<div class='ads-bars'>{bars}</div>{more}</section>"


def _verdict(subject: Subject, found: Answers, role: str, label: int) -> str:
    predicted = found.predicted(role)
    share = _share(found.probabilities[role][predicted].item())
    return f"{'correct' if predicted == label else 'wrong'}, {escape(subject.classes[predicted])} ({share})"


def _bar(name: str, probability: float, correct: bool) -> str:
    mark = ' <span class="ads-mark">correct</span>' if correct else ""
    return (
        f'<div class="ads-row" data-class="{escape(name)}" data-probability="{probability:.6f}">'
        f'<div class="ads-label">{escape(name)}{mark}</div>'
        f'<div class="ads-track"><div class="ads-fill" style="width:{probability:.2%}"></div></div>'
        f'<div class="ads-share">{_share(probability)}</div></div>'
    )


def _share(probability: float) -> str:
    """Return a probability in percent."""
    return f"{100 * probability:.1f}\N{NO-BREAK SPACE}%"


def summary(subject: Subject, shown: Shown, setting: float | None, running: bool = False) -> str:
    """Return the sentences about the image and its attack."""
    now, _ = _answers(subject, shown, setting)
    wrong = [SUBJECTS[role] for role in subject.roles if now.predicted(role) != shown.label]
    right = [SUBJECTS[role] for role in subject.roles if now.predicted(role) == shown.label]
    image = "The image" if shown.attack is None else "The attacked image"
    outcome = f"{image} is misclassified by {_listed(wrong)}" if wrong else f"{image} is classified correctly"
    if right:
        outcome += f" and classified correctly by {_listed(right)}" if wrong else f" by {_listed(right)}"
    lines = [f'<p class="ads-outcome">{outcome}.</p>']
    if shown.attack is not None:
        lines.append(f"<p>{escape(attack_sentence(subject, shown.attack, setting, running))}</p>")
        if running:
            lines.append(_progress(shown.attack))
        if shown.attack.finished and bool((shown.attack.images == shown.clean).all()):
            lines.append(f"<p>{_NOT_MOVED}</p>")
    lines += [f"<p>{escape(notice)}</p>" for notice in shown.notices]
    return f'<div class="ads-summary" role="status">{"".join(lines)}</div>'


_NOT_MOVED = (
    "No step found an image with a wider margin than the original. This does not show that the image is robust: the "
    "gradient may be zero, for example in a saturated softmax."
)


def attack_sentence(subject: Subject, attack: Attacked, setting: float | None, running: bool = False) -> str:
    """Return a sentence about an attack: how far it is, what it attacks, and whether the mixture was moved since."""
    options = attack.options
    done = f"{attack.step} of {options.steps} steps"
    if attack.finished:
        done = f"{options.steps} steps"
    elif not running:
        done += ", then stopped"
    text = f"PGD on {SUBJECTS[options.on]}, {done}, eps {255 * options.eps:g}/255."
    if subject.dial is None or options.on in ROLES or attack.setting is None:
        if options.on in ROLES and subject.dial is not None:
            text += f" It does not depend on {'alpha' if subject.dial.parameter == 'alpha' else 'the shift'}."
        return text
    made = subject.dial.text(attack.setting)
    if setting is None or setting == attack.setting:
        return f"{text} It was made at {made}."
    again = f"press Attack again for one made at {subject.dial.text(setting)}"
    return f"{text} This attack was made at {made}; {again}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _progress(attack: Attacked) -> str:
    share = attack.step / attack.options.steps
    return f'<div class="ads-progress"><div style="width:{share:.0%}"></div></div>'


def dial_text(subject: Subject, setting: float | None) -> str:
    """Return the clean accuracy at a setting, from the stored validation curve, or why there is none."""
    dial = subject.dial
    if dial is None or setting is None:
        return ""
    if dial.curve is None:
        hint = "the folder of a mixture that <code>mix</code> has written holds them"
        return f"The clean accuracy at this {dial.parameter} is not known: no validation results are stored; {hint}."
    images = len(dial.curve.low)
    return (
        f"Clean accuracy at {dial.text(setting)}: <b>{100 * dial.curve(setting):.2f} %</b> "
        f"of {images:,} validation images."
    )


def about(subject: Subject) -> str:
    """Return what is shown, in one or two sentences."""
    count = len(subject.classes)
    if not subject.is_mixture:
        return (
            f"<p><b>{escape(subject.title)}</b> is one classifier of {count} classes, not a mixture: there is no alpha "
            "to move. Name two models and an alpha, or a stored mixture, to see how a mixture responds.</p>"
        )
    g, h = (escape(subject.names[role]) for role in ROLES)
    name = f"<b>{escape(subject.title)}</b>" if subject.title == subject.names["mixture"] else "This mixture"
    move = "each image has an alpha of its own, and the shift moves them all"
    if subject.dial is None:
        move = "alpha is a module of your own, which nothing here moves"
    elif subject.dial.parameter == "alpha":
        move = "alpha is one number for all images"
    return (
        f"<p>{name} mixes the probabilities of g (<b>{g}</b>, accurate, easy to attack) and "
        f"h (<b>{h}</b>, robust, less accurate): (1 − alpha) · g + alpha · h. In this mixture {move}.</p>"
        f"{_changed(subject)}"
    )


def _changed(subject: Subject) -> str:
    """Return a sentence if the mixture does not mix the probabilities of g and h as they are shown."""
    mixed = subject.model
    assert isinstance(mixed, MixedClassifier)
    scales = {role: getattr(mixed, f"{kind}_scale").item() for role, kind in ROLES.items()}
    found = [f"the logits of {role} are multiplied by {scale:g}" for role, scale in scales.items() if scale != 1]
    if isinstance(mixed.alpha, Mixer):
        mixer = escape(getattr(mixed.alpha, "title", type(mixed.alpha).__name__))
        found.append(f"the mixer ({mixer}) may change those of h")
    if not found:
        return ""
    return f"<p>Before they are mixed, {_listed(found)}. The bars of g and h show the two classifiers alone.</p>"


def problem(text: str) -> str:
    """Return an error message."""
    return f'<div class="ads-error" role="alert"><b>Problem:</b> {escape(text)}</div>'
