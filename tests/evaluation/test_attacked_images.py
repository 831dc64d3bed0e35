"""Images that an attack returns count only inside the threat model; distances are those of the images that count."""

import copy
import warnings

import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.attacks import cascade as cascade_module
from adaptive_smoothing.attacks.cascade import Cascade, Stage
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.threat import L2, Linf


@pytest.fixture
def forty(linear):
    """Forty images of middle levels, all classified correctly."""
    pixels = torch.randint(100, 150, (40, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ads.from_tensors(pixels, linear(pixels / 255).argmax(1))


def mine(attack):
    """Return a cascade of one attack."""
    return Cascade("one", Linf(1.0), (Stage("mine", attack),))


class Shift:
    """Moves every image by a given distance in each pixel, against the label, so that a large shift fools the model."""

    def __init__(self, *distances: float) -> None:
        self.distances, self.seen = distances, 0

    def __call__(self, model, images, labels):
        others = model.linear.weight.sum(0) - 4 * model.linear.weight[labels]
        steps = torch.tensor([self.distances[(self.seen + k) % len(self.distances)] for k in range(len(images))])
        self.seen += len(images)
        return images + steps.view(-1, 1, 1, 1) * others.sign().view_as(images)


def test_images_outside_the_ball_do_not_count(linear, forty):
    everything = ads.evaluate(linear, forty, Shift(0.3))
    inside = ads.evaluate(linear, forty, Shift(0.02), Linf(0.02))
    assert everything.robust == 0 and inside.robust > 0 and not inside.outside.any()
    message = r"Shift: 10 of 40 .* farther than Linf 0.02 from the original or leave \[0, 1\], and .*: project them"
    with pytest.warns(UserWarning, match=message):
        mixed = ads.evaluate(linear, forty, Shift(0.02, 0.02, 0.02, 0.3), Linf(0.02))
    assert mixed.outside.nonzero().flatten().tolist() == list(range(3, 40, 4))
    assert mixed.robust_correct[mixed.outside].all()
    assert torch.equal(mixed.robust_correct[~mixed.outside], inside.robust_correct[~mixed.outside])
    assert mixed.largest_distances["Linf"] == pytest.approx(0.02) and mixed.distances["Linf"].max() > 0.29
    assert "10 of 40 attacked images are farther than Linf 0.02" in repr(mixed) and "farther" not in repr(inside)


def test_the_same_images_are_outside_whatever_the_batch_size(linear, forty):
    attack = (0.02, 0.3, 0.02)
    with pytest.warns(UserWarning, match="13 of 40"):
        found = [
            ads.evaluate(linear, forty, Shift(*attack), Linf(0.02), options=EvaluationOptions(batch_size=size))
            for size in (7, 40)
        ]
    assert torch.equal(found[0].outside, found[1].outside)
    assert torch.equal(found[0].attacked_predictions, found[1].attacked_predictions)


def test_an_attack_that_is_mostly_outside_is_an_error(linear, forty):
    message = r"expected attacked images within L2 0.5 and \[0, 1\], got 2\d of 40 outside: project them"
    with pytest.raises(ValueError, match=message):
        ads.evaluate(linear, forty, Shift(0.3), L2(0.5), options=EvaluationOptions(batch_size=7))


def test_with_a_threat_images_outside_the_range_are_counted(linear, forty):
    def attack(model, images, labels):
        images = images.clone()
        images[:3, 0, 0, 0] = 1.5
        return images

    with pytest.warns(UserWarning, match="3 of 40 attacked images are farther than Linf 1 from the original or leave"):
        found = ads.evaluate(linear, forty, attack, Linf(1.0))
    assert found.outside.sum() == 3 and found.robust == 1


def test_distances_are_reported_without_a_threat(linear, forty):
    found = ads.evaluate(linear, forty, Shift(0.25))
    assert not found.outside.any() and found.threat is None
    assert found.largest_distances == pytest.approx({"Linf": 0.25, "L2": 0.25 * 192**0.5})
    assert repr(found).endswith(
        "largest distance of an attacked image: Linf 0.25, L2 3.464; not checked against a threat"
    )


def test_misclassified_images_have_no_distance(linear, forty):
    wrong = ads.from_tensors(forty.images, (forty.labels + (torch.arange(40) < 5)) % 4)
    found = ads.evaluate(linear, wrong, Shift(0.01))
    assert (found.distances["L2"][:5] == 0).all() and (found.distances["L2"][5:] > 0).all()


def test_an_attack_with_a_threat_of_its_own_is_checked_against_it(linear, forty):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        radii = torch.linspace(0, 0.1, 40)
        own = ads.evaluate(linear, forty, PGD(Linf(radii), steps=3), options=EvaluationOptions(batch_size=7))
        given = ads.evaluate(linear, forty, PGD(Linf(radii), steps=3), Linf(radii))
        euclidean = ads.evaluate(linear, forty, PGD(L2(0.5), steps=3))
    assert torch.equal(own.attacked_predictions, given.attacked_predictions)
    assert (own.distances["Linf"] <= radii + 1e-6).all() and own.threat.norm == "Linf" and not own.outside.any()
    assert euclidean.largest_distances["L2"] <= 0.5 + 1e-5
    with pytest.raises(ValueError, match=r"expected attacked images within Linf 0\.001"):
        ads.evaluate(linear, forty, PGD(Linf(0.1), steps=3), Linf(0.001))


def test_an_attack_that_changes_its_arguments_in_place_hides_nothing(linear, forty):
    with pytest.warns(UserWarning, match="more likely on 39 of 40 images"):
        found = ads.evaluate(linear, forty, lambda model, images, labels: images.add_(0.25))
    assert found.largest_distances["Linf"] == pytest.approx(0.25)
    assert torch.equal(found.labels, forty.labels)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda x: x * torch.nan, "expected finite images from the attack, got NaN or infinite values in 40 of 40"),
        (lambda x: x / 0, "NaN or infinite values"),
        (lambda x: x[:7], r"expected attacked images of shape \(40, 3, 8, 8\).*, got shape \(7, 3, 8, 8\)"),
        (lambda x: x.double(), "got shape .* torch.float64"),
        (lambda x: (x * 255).byte(), "returned something else than images: expected images as floats .* / 255"),
        (lambda x: x.numpy(), "returned something else than images: expected images as a tensor, got ndarray"),
        (lambda x: x.permute(0, 2, 3, 1), r"looks like \(N, H, W, C\)"),
        (lambda x: (x, x), r"expected one tensor of images from the attack, got 2 objects"),
        (lambda x: None, "got NoneType"),
        (lambda x: x - 1, r"left the range of images: expected images in \[0, 1\], got \[-0"),
    ],
)
def test_output_of_another_form_is_an_error(linear, forty, attack, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ads.evaluate(linear, forty, lambda model, images, labels: attack(images))


def test_an_attack_that_leaves_the_model_in_train_mode_is_an_error(linear, forty):
    model = torch.nn.Sequential(linear, torch.nn.Dropout(0.5)).eval()
    with pytest.raises(
        ValueError,
        match=r"expected an attack that leaves .* in eval mode, got .*: call model.eval\(\) at its end, or .* copy",
    ):
        ads.evaluate(model, forty, lambda model, images, labels: (model.train(), images)[1])


def toward_the_label(model, images, labels):
    """An attack as a targeted one is by mistake, if it is given the labels as its targets."""
    return Shift(-0.02)(model, images, labels)


def test_an_attack_that_makes_images_easier_is_doubted(linear, forty):
    with pytest.warns(UserWarning, match="the correct class more likely on 40 of 40 images: check that .* targeted"):
        found = ads.evaluate(linear, forty, toward_the_label, Linf(0.02))
    assert found.easier.all() and "more likely on 40 of 40" in repr(found)
    against = ads.evaluate(linear, forty, Shift(0.001), Linf(0.02))
    assert not against.easier.any() and not against.warnings


def test_images_that_are_easier_or_outside_raise_alarms_in_a_cascade(linear, forty):
    def alarms(attack):
        cascade = Cascade("one", Linf(0.02), (Stage("mine", attack),))
        with warnings.catch_warnings(action="ignore"):
            verdict = ads.evaluate(linear, forty, cascade)
        return [alarm.name for alarm in verdict.alarms], verdict.rows()["outside"].sum()

    assert alarms(toward_the_label) == (["easier-images"], 0)
    assert alarms(Shift(0.001, 0.001, 0.3)) == (["outside-threat"], 13)
    assert alarms(Shift(0.001)) == ([], 0)
    assert alarms(lambda model, images, labels: images) == ([], 0)


def test_images_outside_are_no_alarm_if_another_attack_fools_them(linear, forty):
    """PGD fools all images, or as many as it can; only those that are left could be robust because Shift failed."""

    def run(eps):
        stages = (Stage("mine", Shift(0.0, 0.0, 0.0, 0.5)), Stage("pgd", PGD(Linf(eps), steps=5)))
        with warnings.catch_warnings(action="ignore"):
            verdict = ads.evaluate(linear, forty, Cascade("two", Linf(eps), stages))
        return verdict, [alarm.observation for alarm in verdict.alarms if alarm.name == "outside-threat"]

    verdict, found = run(0.3)
    assert verdict.robust == 0 and verdict.rows()["outside"].sum() == 10 and not found
    verdict, found = run(0.02)
    left = int((verdict.robust_correct.numpy() & verdict.rows()["outside"]).sum())
    assert 1 < left < 10
    assert found == [
        f"{left} images that no attack fooled have an attacked version "
        "farther than Linf 0.02 from the original or outside [0, 1]"
    ]


def test_images_that_are_easier_raise_an_alarm_for_a_model_whose_probabilities_are_all_1(linear, forty):
    for weight in linear.parameters():
        weight.data *= 1000
    assert (linear(forty.floats()).softmax(1).amax(1) == 1).all()
    with warnings.catch_warnings(action="ignore"):
        verdict = ads.evaluate(linear, forty, mine(toward_the_label))
    assert "easier-images" in [alarm.name for alarm in verdict.alarms]


def test_images_outside_are_found_in_an_audit(linear, forty):
    """Also if the stages of the audit are the only ones that are users' attack functions."""
    stages = (Stage("pgd", PGD(Linf(0.0), steps=1)),)
    audit = (Stage("mine", Shift(0.0, 0.0, 0.3)),)
    with warnings.catch_warnings(action="ignore"):
        verdict = ads.evaluate(linear, forty, Cascade("audited", Linf(0.0), stages, audit, audit_share=1.0))
    assert [alarm.name for alarm in verdict.alarms] == ["outside-threat"]
    assert verdict.rows()["outside"].sum() == 13 and "easier" not in verdict.rows()


def test_without_a_users_function_no_images_are_checked(linear, forty):
    cascade = Cascade("pgd", Linf(0.02), (Stage("pgd", PGD(Linf(0.02), steps=1)),))
    assert not {"outside", "easier"} & set(ads.evaluate(linear, forty, cascade).rows())


both_ways = pytest.mark.parametrize("through", [lambda attack: attack, mine])
BATCHES_OF_10 = EvaluationOptions(batch_size=10, shard_size=40)


@both_ways
def test_the_weights_are_hashed_at_first_and_after_the_first_and_the_last_batch(linear, forty, through, monkeypatch):
    calls = []
    monkeypatch.setattr(cascade_module, "weights_digest", lambda model: calls.append(model) or "same")
    ads.evaluate(linear, forty, through(Shift(0.001)), options=BATCHES_OF_10)
    assert len(calls) == 3
    ads.evaluate(linear, forty, through(Shift(0.001)), options=EvaluationOptions(batch_size=40, shard_size=40))
    assert len(calls) == 5  # the first batch is the last


@both_ways
@pytest.mark.parametrize(("changes", "called"), [(1, 1), (2, 4), (4, 4)])
def test_an_attack_that_changes_the_model_is_refused(linear, forty, through, changes, called):
    """A change in the first batch is an error at once; one in a later batch is an error at the end."""
    calls = []

    def attack(model, images, labels):
        calls.append(len(images))
        if len(calls) == changes:
            model.linear.bias.data.add_(1)  # the same for all classes, so that predictions do not change
        return images

    message = "expected an attack that leaves weights, buffers and hooks as they are, got others .*: attack copy"
    with pytest.raises(ValueError, match=message):
        ads.evaluate(linear, forty, through(attack), options=BATCHES_OF_10)
    assert len(calls) == called


@both_ways
def test_a_model_that_counts_its_queries_in_a_buffer_is_refused(linear, forty, through):
    def attack(model, images, labels):
        model(images)
        return images

    def count(model, images, logits):
        model.queries += 1

    linear.register_buffer("queries", torch.zeros(()))
    linear.register_forward_hook(count)
    with pytest.raises(ValueError, match=r"got others afterwards: .* or keep counters outside of buffers"):
        ads.evaluate(linear, forty, through(attack), options=BATCHES_OF_10)


@both_ways
def test_a_buffer_that_the_first_pass_fills_is_no_change_by_the_attack(linear, forty, through):
    def fill(model, images, logits):
        model.mask = torch.ones(()) if model.mask is None else model.mask

    linear.register_buffer("mask", None)
    linear.register_forward_hook(fill)
    found = ads.evaluate(linear, forty, through(lambda model, images, labels: images))
    assert found.robust == found.clean


@both_ways
def test_an_attack_that_leaves_a_hook_or_another_forward_is_refused(linear, forty, through):
    def hooks(model, images, labels):
        model.register_forward_hook(lambda module, inputs, logits: -logits)
        return images

    def replaces(model, images, labels):
        model.forward = lambda images: -linear.linear(images.flatten(1))
        return images

    def hooks_gradients(model, images, labels):
        model.register_full_backward_hook(lambda module, inputs, outputs: None)
        return images

    for attack in (hooks, replaces, hooks_gradients):
        with pytest.raises(ValueError, match="leaves weights, buffers and hooks as they are"):
            ads.evaluate(copy.deepcopy(linear), forty, through(attack))


def test_the_images_of_a_function_are_kept_on_request(linear, forty):
    options = EvaluationOptions(save_adversarial=10, batch_size=7)
    with pytest.warns(UserWarning, match="10 of 40"):
        found = ads.evaluate(linear, forty, Shift(0.02, 0.02, 0.02, 0.3), Linf(0.02), options=options)
    expected = Shift(0.02, 0.02, 0.02, 0.3)(linear, forty.floats(), forty.labels)[:10]
    outside = torch.arange(10) % 4 == 3
    torch.testing.assert_close(found.adversarial[~outside], expected[~outside])
    assert torch.equal(found.adversarial[outside], forty.floats()[:10][outside])
    assert ads.evaluate(linear, forty, Shift(0.01), Linf(0.02)).adversarial is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.parametrize("attack", [Shift(0.02), None])
def test_a_limit_of_memory_without_a_gpu_is_an_error(linear, forty, attack):
    with pytest.raises(ValueError, match="expected a GPU for memory='6G'"):
        ads.evaluate(linear, forty, attack, options=EvaluationOptions(memory="6G"))
