"""Certification of whole data sets: methods, options, journal, refusals, soundness."""

import pickle

import numpy as np
import pytest
import torch
from half_spaces import AlwaysOne
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.certification.certify import make_certifier
from adaptive_smoothing.certification.options import LipschitzOptions, LocalOptions, SmoothingOptions
from adaptive_smoothing.certification.target import CertificationTarget, NotCertifiableError
from adaptive_smoothing.models.architectures import build


def smoothed(plane, **options):
    return ads.SmoothedClassifier(plane, 0.5, **{"hard": True, **options})


def assert_same_rows(one, other):
    for name, column in one.rows.items():
        assert np.array_equal(column, other.rows[name]), name


def test_the_method_follows_from_h(plane, data):
    assert ads.certify(plane, data).settings["method"] == "lipschitz"
    found = ads.certify(smoothed(plane), data, samples=300)
    assert found.settings["method"] == "smoothing" and found.settings["votes"] == "hard"
    assert ads.certify(smoothed(plane, hard=False), data, samples=300).settings["bound"] == "betting"


def test_keywords_are_shorthands_for_options(plane, data):
    options = SmoothingOptions(samples=300, failure_probability=0.01, radius=0.02, norm="Linf", selection=50)
    long = ads.certify(smoothed(plane), data, options=options)
    given = {"samples": 300, "failure_probability": 0.01, "radius": 0.02, "norm": "linf"}
    short = ads.certify(smoothed(plane), data, options=SmoothingOptions(selection=50), **given)
    assert short.settings == long.settings
    assert_same_rows(long, short)
    names = ("samples", "failure probability", "norm", "selection")
    assert [short.settings[name] for name in names] == [300, 0.01, "Linf", 50]
    assert short.settings["wanted radius"] == pytest.approx(0.02 * np.sqrt(48))


def test_options_of_another_method_are_refused(plane, data):
    with pytest.raises(TypeError, match="samples applies to the method 'smoothing' only, got LipschitzOptions"):
        ads.certify(plane, data, samples=100)
    with pytest.raises(TypeError, match="expected LipschitzOptions for the method 'lipschitz', got SmoothingOptions"):
        ads.certify(plane, data, method="lipschitz", options=SmoothingOptions())
    with pytest.raises(NotCertifiableError, match="smoothed classifier as h"):
        ads.certify(plane, data, options=SmoothingOptions())
    with pytest.raises(TypeError, match="sampels"):
        ads.certify(plane, data, sampels=10)


def test_certified_images_keep_the_prediction_with_the_worst_g(plane, data):
    for h, samples in ((plane, None), (smoothed(plane), 2000)):
        found = ads.certify(ads.MixedClassifier(AlwaysOne(), h, alpha=0.6), data, samples=samples)
        certified = found.certified
        assert 0 < certified.sum() < len(certified)
        assert (found.rows["prediction"][certified] == found.rows["robust_class"][certified]).all()
        # Without a certificate, the worst g changes predictions.
        assert found.clean < 1


def test_linf_radii_are_those_of_the_cube_inside_the_ball(plane, data):
    l2, linf = (ads.certify(plane, data, norm=norm) for norm in ("L2", "Linf"))
    assert linf.rows["radius"] == pytest.approx(l2.rows["radius"] / np.sqrt(48), rel=1e-6)
    assert linf.settings["pixels"] == 48 and "pixels" not in l2.settings
    corner = linf.rows["radius"].astype(np.float32)[:, None, None, None] * np.sign(
        plane.normal.view(1, 3, 4, 4).numpy()
    )
    toward = torch.from_numpy(corner) * -torch.sign(plane.distance(data.floats()))[:, None, None, None]
    assert (plane(data.floats() + toward).argmax(1).numpy() == l2.rows["robust_class"])[l2.certified].all()


def test_an_interrupted_run_continues_from_its_journal(plane, data, tmp_path, stop_certifying):
    options, journal = SmoothingOptions(samples=200, shard_size=3), tmp_path / "journal"
    once = ads.certify(smoothed(plane), data, options=options)
    done = stop_certifying(at=2)
    with pytest.raises(KeyboardInterrupt):
        ads.certify(smoothed(plane), data, options=options, journal=journal)
    found = ads.certify(smoothed(plane), data, options=options, journal=journal)
    assert len(done) == 4  # the first shard was read from the journal
    assert_same_rows(once, found)
    with pytest.raises(ValueError, match="another"):
        ads.certify(smoothed(plane), data, options=options, journal=journal, samples=300)


def test_several_devices_give_the_result_of_one(plane, data):
    mixed = ads.MixedClassifier(AlwaysOne(), smoothed(plane), alpha=0.9)
    options, reported = SmoothingOptions(samples=200, shard_size=5), []
    once = ads.certify(mixed, data, options=options)
    found = ads.certify(mixed, data, options=options, devices=("cpu", "cpu"), progress=reported.append)
    assert found.settings == once.settings and reported[-1].finished == len(data)
    assert_same_rows(once, found)


@pytest.mark.parametrize("options", [LipschitzOptions(), LocalOptions(steps=2)], ids=["lipschitz", "local"])
def test_a_certifier_gives_the_same_result_in_another_process(plane, data, options):
    """Processes receive pickled copies."""
    certifier = make_certifier(CertificationTarget.of(plane), options)
    images, index = data.floats(), torch.arange(9)
    once = certifier.certify(images, index)
    again = pickle.loads(pickle.dumps(certifier)).certify(images, index)
    for name, column in once.items():
        assert np.array_equal(column, again[name]), name


@pytest.mark.parametrize("size", ["shard_size", "batch_size"])
def test_a_size_is_at_least_one(plane, data, size):
    with pytest.raises(ValueError, match=f"{size} of at least 1"):
        ads.certify(smoothed(plane), data, options=SmoothingOptions(**{size: 0}))


def test_progress_is_reported(plane, data):
    reported = []
    ads.certify(smoothed(plane), data, options=SmoothingOptions(samples=300, shard_size=5), progress=reported.append)
    finished = [progress.finished for progress in reported]
    assert finished[-1] == 9 and finished == sorted(finished) and len(set(finished)) > 2


def test_a_wanted_radius_is_in_the_given_norm(plane, data):
    full = ads.certify(smoothed(plane), data, samples=3000, norm="Linf")
    early = ads.certify(smoothed(plane), data, samples=3000, norm="Linf", radius=0.02)
    assert abs(early.accuracy(0.02) - full.accuracy(0.02)) <= 1 / 9
    assert early.rows["samples"].sum() < full.rows["samples"].sum()


def test_a_model_has_the_same_digest_after_it_was_used(plane, data, tmp_path):
    """A smoothed classifier keeps its noise after the first call; that must not invalidate a journal."""
    h = smoothed(plane)
    before = ads.certify(h, data, samples=50, journal=tmp_path / "journal")
    h(data.floats())
    again = ads.certify(h, data, samples=50, journal=tmp_path / "journal")
    assert again.settings["model"] == before.settings["model"]
    assert np.array_equal(again.rows["radius"], before.rows["radius"])


def test_a_method_needs_a_suitable_h(plane, data):
    with pytest.raises(NotCertifiableError, match="smoothed classifier as h"):
        ads.certify(plane, data, method="smoothing")
    with pytest.raises(NotCertifiableError, match="proves its Lipschitz constant"):
        ads.certify(smoothed(plane), data, method="lipschitz")
    with pytest.raises(NotCertifiableError, match="votes"):
        ads.certify(smoothed(plane), data, method="local")
    with pytest.raises(ValueError, match="sigma > 0"):
        ads.certify(ads.SmoothedClassifier(plane, 0.0), data)
    with pytest.raises(ValueError, match="method to be one of"):
        ads.certify(plane, data, method="magic")
    with pytest.raises(ValueError, match="norm to be one of"):
        ads.certify(plane, data, norm="L3")


# --- soundness ----------------------------------------------------------------------------------------


def test_no_certificate_is_broken_by_an_attack():
    """PGD at the certified radius, on a network with a proven constant mixed with a g that is easy to attack."""
    torch.manual_seed(0)
    images = ads.load_data("builtin", "test").take(slice(12)).floats()[..., ::2, ::2]
    h = build("lipschitz_net", width=8, blocks=[1, 1, 1], hidden=32, scale=60.0, size=16).eval().requires_grad_(False)
    g = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)).eval()
    mixed = ads.MixedClassifier(ads.Hardmax(g), h, alpha=0.7)
    predictions = mixed(images).argmax(1)
    found = ads.certify(mixed, ads.from_tensors(images, predictions))
    certified = np.flatnonzero(found.certified)
    assert len(certified) >= 4 and found.clean == 1
    x, y = images[certified], predictions[certified]
    for norm in (ads.L2, ads.Linf):
        radius = found.rows["radius"][certified] / (1 if norm is ads.L2 else np.sqrt(768))
        for times in (1, 30):
            threat = norm(times * torch.from_numpy(radius).float())
            fooled = torch.zeros(len(x), dtype=torch.bool)
            for model in (mixed, mixed.smooth(), h):
                attacked = ads.PGD(threat, steps=10)(model, x, y)
                assert (threat.distance(attacked, x) <= threat.eps + 1e-6).all()
                fooled |= mixed(attacked).argmax(1) != y
            # The attacks succeed at larger radii.
            assert fooled.any() == (times > 1)
