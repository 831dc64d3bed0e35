from dataclasses import replace
from itertools import count
from threading import Event, Thread

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.app import html
from adaptive_smoothing.app.session import AttackOptions, Running, Shown, answers, attack, first_image, run, show
from adaptive_smoothing.app.subject import ALONE, GALLERY, Subject, select
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels
from adaptive_smoothing.tuning.curves import at_setting

EPS = 8 / 255


def shown_image(subject: Subject, position: int = 6) -> Shown:
    one = subject.gallery.take([position])
    return show(subject, one.floats(), "an image", int(one.labels), subject.dial.start)


def test_the_gallery_has_two_images_of_each_class(subject: Subject):
    labels = subject.gallery.labels.tolist()
    assert labels == sorted(2 * [*range(10)]) and len(labels) == GALLERY
    assert subject.classes[0] == "airplane"


def test_every_classifier_is_right_about_the_first_image(subject: Subject):
    shown = shown_image(subject, first_image(subject, subject.dial.start))
    found = answers(subject, shown.clean, shown.outputs, subject.dial.start)
    assert {found.predicted(role) for role in subject.roles} == {shown.label}


def test_a_gallery_of_many_classes_has_as_many_of_them_as_possible():
    pixels = torch.zeros(90, 3, 4, 4, dtype=torch.uint8)
    data = ads.from_tensors(pixels, torch.arange(90) % 30, classes=[str(i) for i in range(30)])
    assert select(data).labels.tolist() == [*range(20)]


def test_probabilities_are_those_of_the_library(subject: Subject):
    shown = shown_image(subject)
    found = answers(subject, shown.clean, shown.outputs, subject.dial.start)
    mixed = ads.MixedClassifier.from_pretrained("compact-mixed")
    models = {"g": mixed.standard, "h": mixed.robust, "mixture": mixed}
    for role, model in models.items():
        torch.testing.assert_close(found.probabilities[role], model(shown.clean).softmax(1)[0])
    assert found.alpha == pytest.approx(mixed.mix(shown.clean).alpha.item())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_a_moved_alpha_gives_the_mixture_at_that_alpha(pair: Subject, alpha: float):
    shown = shown_image(pair)
    found = answers(pair, shown.clean, shown.outputs, alpha)
    mixed = ads.MixedClassifier(ads.load_model("compact-standard"), ads.load_model("compact-robust"), alpha)
    torch.testing.assert_close(found.probabilities["mixture"], mixed(shown.clean).softmax(1)[0])
    assert found.alpha == pytest.approx(alpha)


def test_a_moved_shift_gives_the_mixture_at_that_shift_without_another_pass(subject: Subject):
    shown, shift = shown_image(subject), subject.dial.curve.largest_setting(0.92)
    found = answers(subject, shown.clean, shown.outputs, shift)
    expected = at_setting(subject.model, shift).mix(shown.clean)
    torch.testing.assert_close(found.probabilities["mixture"], expected.logits.softmax(1)[0])
    assert found.alpha == pytest.approx(expected.alpha.item()) and subject.dial.curve(shift) >= 0.92


@pytest.mark.parametrize("on", ["mixture", "g", "h"])
def test_the_last_step_is_the_image_that_pgd_returns(pair: Subject, on: str):
    shown = shown_image(pair)
    *before, last = attack(pair, shown, AttackOptions(on, steps=3, eps=EPS), 0.85)
    model = {"mixture": pair.model, "g": pair.model.standard, "h": pair.model.robust}[on]
    expected = PGD(ads.Linf(EPS), steps=3)(model, shown.clean, torch.tensor([shown.label]))
    torch.testing.assert_close(last.attack.images, expected)
    assert [state.attack.step for state in before] == [1, 2] and last.attack.finished
    assert shown.attack is None and not torch.equal(before[0].images, before[1].images)


def test_the_perturbation_is_inside_eps(pair: Subject):
    shown = shown_image(pair)
    for state in attack(pair, shown, AttackOptions("mixture", steps=3, eps=4 / 255), 0.5):
        assert (state.images - shown.clean).abs().max() <= 4 / 255 + 1e-6
        assert 0 <= state.images.min() <= state.images.max() <= 1
        torch.testing.assert_close(state.attack.outputs.g, run(pair, state.images).g)


def test_an_attack_on_g_fools_g_but_not_h(pair: Subject):
    *_, last = attack(pair, shown_image(pair), AttackOptions("g", steps=5, eps=EPS), 0.85)
    found = answers(pair, last.images, last.attack.outputs, 0.85)
    assert found.predicted("g") != last.label == found.predicted("h")
    text = html.summary(pair, last, 0.85)
    assert "The attacked image is misclassified by g and classified correctly by h and the mixture." in text
    assert "PGD on g, 5 steps, eps 8/255. It does not depend on alpha." in text


def test_a_sentence_says_that_the_mixture_was_moved_after_the_attack(pair: Subject):
    first, *_, last = attack(pair, shown_image(pair), AttackOptions("mixture", steps=2), 0.85)
    moved = html.attack_sentence(pair, last.attack, 0.3)
    assert moved.endswith("This attack was made at alpha = 0.850; press Attack again for one made at alpha = 0.300.")
    assert html.attack_sentence(pair, last.attack, 0.85).endswith("It was made at alpha = 0.850.")
    assert "1 of 2 steps, then stopped" in html.attack_sentence(pair, first.attack, 0.85)


def test_an_attack_is_over_when_stop_returns():
    running, begun, seen = Running(), Event(), []
    running.stop()  # ends no later attack

    def follow():
        for step in running.steps_of(count()):
            seen.append(step)
            begun.set()

    thread = Thread(target=follow)
    thread.start()
    begun.wait()
    running.stop()
    number = len(seen)
    thread.join(10)
    assert not thread.is_alive() and seen == [*range(number)]
    assert list(running.steps_of(iter("abc"))) == ["a", "b", "c"]


def test_a_page_that_was_closed_runs_no_attack():
    running = Running()
    steps = running.steps_of(count())
    next(steps)
    assert running.active
    steps.close()
    assert not running.active


def test_an_image_without_a_class_gets_the_prediction_and_says_so(pair: Subject):
    shown = show(pair, torch.full((1, 3, 32, 32), 0.5), "grey.png", None, 0.85)
    assert shown.label == pair.model(shown.clean).argmax()
    assert f"set to the prediction of the mixture, {pair.classes[shown.label]}" in shown.notices[0]


def test_a_classifier_alone_has_one_panel_and_no_alpha():
    alone = Subject.of(LoadedModel.load("compact-robust", None, None, "cpu"))
    one = alone.gallery.take([3])
    shown = show(alone, one.floats(), "an image", int(one.labels), None)
    *_, last = attack(alone, shown, AttackOptions(ALONE, steps=2), None)
    found = answers(alone, last.images, last.attack.outputs, None)
    torch.testing.assert_close(found.probabilities[ALONE], ads.load_model("compact-robust")(last.images).softmax(1)[0])
    assert alone.dial is None and html.panels(alone, last, None).count("<section") == 1
    assert "one classifier of 10 classes, not a mixture" in html.about(alone)


def test_a_model_of_other_classes_starts_without_images(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def load(name):\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 12))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = LoadedModel.load("mine", None, None, "cpu", OwnModels("own:load", {"size": "48", "mean": "0", "std": "1"}))
    with pytest.warns(UserWarning, match="without images to choose from, and classes are numbers"):
        own = Subject.of(loaded)
    assert own.gallery is None and own.shape == (3, 48, 48) and own.classes[-1] == "class 11"
    shown = show(own, torch.rand(1, 3, 48, 48), "noise", None, None)
    assert "7 other classes" in html.panels(own, shown, None)


def test_class_names_and_file_names_cannot_add_html(pair: Subject):
    shown = replace(shown_image(pair), name="<script>alert(1)</script>.png")
    named = replace(pair, classes=("<b>x</b>", *pair.classes[1:]))
    text = html.pictures(shown) + html.panels(named, shown, 0.85) + html.problem("<i>")
    assert "<script" not in text and "<b>x" not in text and "<i>" not in text


def test_bad_attacks_are_refused():
    with pytest.raises(ValueError, match=r"expected on to be one of g, h, mixture, model, got 'f'"):
        AttackOptions("f")
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        AttackOptions("g", steps=0)
