"""Whole data sets: what is refused, what is kept, and that nothing inside a radius changes the answer."""

import numpy as np
import pytest
import torch
from half_spaces import AgainstMargin, HalfSpaces
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.certification.target import NotCertifiableError
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput
from adaptive_smoothing.mixing.network import MixingNetwork


@pytest.fixture(scope="module")
def plane():
    return HalfSpaces(steep=4.0)


@pytest.fixture(scope="module")
def data(plane):
    return plane.data(9)


def smoothed(plane, **options):
    return ads.SmoothedClassifier(plane, 0.5, **{"hard": True, **options})


def test_the_method_follows_from_h(plane, data):
    assert ads.certify(plane, data).settings["method"] == "lipschitz"
    found = ads.certify(smoothed(plane), data, samples=300)
    assert found.settings["method"] == "smoothing" and found.settings["votes"] == "hard"
    assert ads.certify(smoothed(plane, hard=False), data, samples=300).settings["bound"] == "betting"


def test_certified_images_keep_the_answer_of_the_mixture_with_the_worst_g(plane, data):
    for h in (plane, smoothed(plane)):
        mixed = ads.MixedClassifier(AgainstMargin(), h, alpha=0.6)
        options = {} if h is plane else {"samples": 2000}
        found = ads.certify(mixed, data, **options)
        sure = found.certified
        assert 0 < sure.sum() < len(sure)
        assert (found.rows["prediction"][sure] == found.rows["robust_class"][sure]).all()
        # Where nothing is certified the worst g has its way.
        assert found.clean < 1


def test_linf_radii_are_those_of_the_cube_inside_the_ball(plane, data):
    l2, linf = (ads.certify(plane, data, norm=norm) for norm in ("L2", "Linf"))
    assert linf.rows["radius"] == pytest.approx(l2.rows["radius"] / np.sqrt(48), rel=1e-6)
    corner = linf.rows["radius"].astype(np.float32)[:, None, None, None] * np.sign(
        plane.normal.view(1, 3, 4, 4).numpy()
    )
    toward = torch.from_numpy(corner) * -torch.sign(plane.distance(data.floats()))[:, None, None, None]
    assert (plane(data.floats() + toward).argmax(1).numpy() == l2.rows["robust_class"])[l2.certified].all()


def test_the_summary_adds_up(plane, data):
    found = ads.certify(plane, data)
    summary = found.summary()
    assert summary["images"] == 9 and summary["certified"]["images"] == int(found.certified.sum())
    assert summary["accuracy"][0]["certified"] == found.accuracy(0.0)
    radii, left = found.curve()
    assert left[0] == found.accuracy(0.0) and left[-1] == 0
    for radius, share in zip(radii[1:], left[:-1], strict=True):
        assert found.accuracy(radius) == pytest.approx(share)


def test_a_run_is_journalled_and_goes_on(plane, data, tmp_path, stop_certifying):
    options = {"samples": 200, "shard_size": 3, "journal": tmp_path / "journal"}
    once = ads.certify(smoothed(plane), data, samples=200, shard_size=3)
    done = stop_certifying(at=2)
    with pytest.raises(KeyboardInterrupt):
        ads.certify(smoothed(plane), data, **options)
    found = ads.certify(smoothed(plane), data, **options)
    assert len(done) == 4  # the first shard was read, not done again
    for name, column in once.rows.items():
        assert np.array_equal(column, found.rows[name]), name
    with pytest.raises(ValueError, match="another"):
        ads.certify(smoothed(plane), data, **{**options, "samples": 300})


def test_several_devices_give_what_one_gives(plane, data):
    for h, options in ((smoothed(plane), {"samples": 200}), (plane, {})):
        mixed = ads.MixedClassifier(AgainstMargin(), h, alpha=0.9)
        once = ads.certify(mixed, data, shard_size=4, **options)
        told = []
        found = ads.certify(mixed, data, shard_size=4, devices=("cpu", "cpu"), watch=told.append, **options)
        assert found.settings == once.settings and told[-1].finished == len(data)
        for name, column in once.rows.items():
            assert np.array_equal(column, found.rows[name]), name


@pytest.mark.parametrize("size", ["shard_size", "batch_size"])
def test_a_size_is_at_least_one(plane, data, size):
    with pytest.raises(ValueError, match=f"{size} of at least 1"):
        ads.certify(smoothed(plane), data, **{size: 0})


def test_progress_is_told(plane, data):
    told = []
    ads.certify(smoothed(plane), data, samples=300, shard_size=5, watch=told.append)
    assert told[-1].finished == 9 and [p.finished for p in told] == sorted(p.finished for p in told)


def test_a_wanted_radius_is_in_the_norm_that_is_asked_for(plane, data):
    full = ads.certify(smoothed(plane), data, samples=3000, norm="Linf")
    early = ads.certify(smoothed(plane), data, samples=3000, norm="Linf", radius=0.02)
    assert abs(early.accuracy(0.02) - full.accuracy(0.02)) <= 1 / 9
    assert early.rows["samples"].sum() < full.rows["samples"].sum()


def test_what_a_classifier_keeps_to_be_faster_is_no_part_of_it(plane, data, tmp_path):
    """A journal is about the same model after it was used."""
    h = smoothed(plane)
    before = ads.certify(h, data, samples=50, journal=tmp_path / "journal")
    h(data.floats())
    again = ads.certify(h, data, samples=50, journal=tmp_path / "journal")
    assert again.settings["model"] == before.settings["model"]
    assert np.array_equal(again.rows["radius"], before.rows["radius"])


# --- refusals -----------------------------------------------------------------------------------------


class Learned(nn.Module):
    def forward(self, images):
        return images.mean((1, 2, 3))


class Replacing(Mixer):
    def forward(self, base_outputs):
        return MixerOutput(base_outputs.h[:, 0], 2 * base_outputs.h)


class Network(MixingNetwork):
    """A child of the paper's network, which may do anything."""

    def __init__(self):
        nn.Module.__init__(self)
        self.standard_taps = self.robust_taps = ()


class Wild(nn.Module):
    def forward(self, images):
        return 1.5 + 0 * images.mean((1, 2, 3))


def test_a_mixture_without_numbers_is_not_certified(plane, data):
    mixed = ads.MixedClassifier(AgainstMargin(), plane, alpha=Wild(), alpha_range=(0.8, 1.0))
    with pytest.raises(ValueError, match="NaN"):
        ads.certify(mixed, data)


@pytest.mark.parametrize("alpha", [Learned(), nn.Parameter(torch.tensor(0.8))], ids=["no width", "parameter"])
def test_alphas_that_are_numbers_in_disguise(plane, data, alpha):
    span = (0.8, 0.8) if isinstance(alpha, nn.Module) else (0.0, 1.0)
    found = ads.certify(ads.MixedClassifier(AgainstMargin(), plane, alpha=alpha, alpha_range=span), data)
    plain = ads.certify(ads.MixedClassifier(AgainstMargin(), plane, alpha=0.8), data)
    assert np.allclose(found.rows["radius"], plain.rows["radius"])
    assert np.array_equal(found.rows["prediction"], plain.rows["prediction"])


def test_a_learned_alpha_certifies_with_the_lower_end_of_its_range(plane, data):
    mixed = ads.MixedClassifier(AgainstMargin(), plane, alpha=Learned(), alpha_range=(0.8, 1.0))
    fixed = ads.MixedClassifier(AgainstMargin(), plane, alpha=0.8)
    learned, number = ads.certify(mixed, data), ads.certify(fixed, data)
    assert np.allclose(learned.rows["radius"], number.rows["radius"])
    assert learned.settings["alpha"] == pytest.approx(0.8, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g, h: ads.MixedClassifier(g, h, alpha=Learned()), "learned alpha"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=0.45), "below 1/2"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=torch.full((9,), 0.8)), "one per image"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=Replacing(), alpha_range=(0.8, 1)), "logits of its own"),
        (lambda g, h: ads.GradientMixedClassifier(g, h, gamma=4.0, on="logits"), "logits are not bounded"),
        (lambda g, h: ads.MixedClassifier(g, ads.Hardmax(h), alpha=0.9), "not in the Lipschitz constant"),
        (lambda g, h: ads.MixedClassifier(g, smoothed(h), alpha=0.9, robust_scale=2.0), "times 2"),
        (lambda g, h: g, "as h"),
        (lambda g, h: ads.MixedClassifier(g, h, alpha=Network(), alpha_range=(0.8, 1)), "logits of its own"),
    ],
)
def test_what_cannot_be_certified_is_refused_with_the_reason(plane, data, change, reason):
    with pytest.raises(NotCertifiableError, match=reason):
        ads.certify(change(AgainstMargin(), plane), data)


def test_a_method_is_for_its_h(plane, data):
    with pytest.raises(NotCertifiableError, match="smoothed classifier as h"):
        ads.certify(plane, data, method="smoothing")
    with pytest.raises(NotCertifiableError, match="proves its Lipschitz constant"):
        ads.certify(smoothed(plane), data, method="lipschitz")
    with pytest.raises(ValueError, match="method among"):
        ads.certify(plane, data, method="magic")
    with pytest.raises(NotCertifiableError, match="votes"):
        ads.certify(smoothed(plane), data, method="local")
    with pytest.raises(ValueError, match="eps above 0"):
        ads.certify(plane, data, method="local", eps=0.0)
    with pytest.raises(ValueError, match="norm among"):
        ads.certify(plane, data, norm="L3")
    with pytest.raises(TypeError, match="option of the method"):
        ads.certify(plane, data, sampels=10)


# --- soundness ----------------------------------------------------------------------------------------


def test_no_certificate_is_broken_by_an_attack(data):
    """A network with a proven constant, mixed with a g that an attacker has in his hand: PGD at the very radius."""
    torch.manual_seed(0)
    images = ads.load_data("builtin", "test").take(slice(24))
    h = ads.models.architectures.build("lipschitz_net", width=8, blocks=[1, 1, 1], hidden=32, scale=60.0).eval()
    g = ads.load_model("compact-standard")
    mixed = ads.MixedClassifier(ads.Hardmax(g), h.requires_grad_(False), alpha=0.7)
    relabelled = ads.from_tensors(images.floats(), torch.from_numpy(ads.certify(mixed, images).rows["prediction"]))
    found = ads.certify(mixed, relabelled)
    sure = np.flatnonzero(found.certified)
    assert len(sure) >= 4
    x, y = relabelled.floats()[sure], relabelled.labels[sure]
    for norm in (ads.L2, ads.Linf):
        radius = found.rows["radius"][sure] / (1 if norm is ads.L2 else np.sqrt(3072))
        threat = norm(torch.from_numpy(radius).float())
        for model in (mixed, mixed.smooth(), h):
            attacked = ads.PGD(threat, steps=15)(model, x, y)
            assert (threat.distance(attacked, x) <= threat.eps + 1e-6).all()
            assert (mixed(attacked).argmax(1) == y).all()
