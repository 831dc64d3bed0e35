"""The pictures of a run: which images, their versions as bytes, and their file."""

import numpy as np
import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.evaluation import pictures as pictures_file
from adaptive_smoothing.evaluation.pictures import SIDE, Pictures, pictured_rows
from adaptive_smoothing.evaluation.radii import evaluate_radii
from adaptive_smoothing.threat import Linf

ALL = 10**6


def random_data(images=40, channels=3, side=8):
    pixels = torch.randint(256, (images, channels, side, side), generator=torch.Generator().manual_seed(0))
    return ads.from_tensors(pixels.to(torch.uint8), torch.arange(images) % 4, classes=list("abcd"))


def attacked_bytes(verdict, rows):
    return (verdict.adversarial[rows] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def test_equal_data_have_the_same_pictures_and_a_part_has_those_that_are_in_it():
    data = random_data()
    rows = pictured_rows(data, 10)
    assert len(rows) == 10 and torch.equal(rows, pictured_rows(data, 10)) and torch.equal(rows, rows.sort().values)
    assert set(pictured_rows(data, 4).tolist()) < set(rows.tolist())
    part = data.take(torch.arange(5, 35))
    inside = [row for row in rows.tolist() if 5 <= row < 35]
    assert part.index[pictured_rows(part, len(inside))].tolist() == inside
    assert len(pictured_rows(data, 1000)) == 40 and len(pictured_rows(data, 0)) == 0


def test_images_with_other_channels_and_huge_images_have_none(monkeypatch):
    assert len(pictured_rows(random_data(channels=1), 5)) == 5
    assert len(pictured_rows(random_data(channels=4), 5)) == len(pictured_rows(random_data(channels=2), 5)) == 0
    monkeypatch.setattr(pictures_file, "MOST_BYTES", 3 * 4 * 3 * 8 * 8)
    assert len(pictured_rows(random_data(), 5)) == 3


def test_a_run_keeps_the_worst_versions_of_its_pictures(model, data, toys):
    verdict = toys.run(model, data, pictures=7, save_adversarial=ALL)
    found = Pictures.of(verdict, data)
    assert len(found.rows) == 7 and found.classes == tuple("abcd") and found.factor == 1
    assert np.array_equal(found.versions["clean"], data.images[found.rows].permute(0, 2, 3, 1).numpy())
    assert np.array_equal(found.versions["attacked"], attacked_bytes(verdict, found.rows))
    assert (found.versions["attacked"] != found.versions["clean"]).any()


def test_pictures_do_not_change_a_verdict(model, data, toys, verdict):
    without = toys.run(model, data, pictures=0)
    assert without.pictured is None and Pictures.of(without, data) is None and "pictures" not in without.settings
    assert verdict.settings["pictures"] == 20  # as many as there are, of the 200 that are wanted
    assert toys.content(without)[1] == toys.content(verdict)[1]


def test_the_audit_replaces_a_picture_by_a_worse_version(model, data, toys):
    verdict = toys.run(model, data, toys.cascade(audit_random=15, audit_closest=5), save_adversarial=ALL)
    late = (verdict.fooled_by >= 2).numpy()  # by a stage of the audit
    found = Pictures.of(verdict, data)
    assert late.sum() > 2 and np.array_equal(found.versions["attacked"], attacked_bytes(verdict, found.rows))
    with torch.no_grad():
        predictions = model(verdict.pictured).argmax(1)
    assert torch.equal(predictions, verdict.attacked_predictions[found.rows])


def test_a_picture_is_that_of_the_smallest_radius_that_fools(model, data, toys):
    options = ads.EvaluationOptions(alarms=False, shard_size=6, pictures=12, save_adversarial=len(data))
    curve = evaluate_radii(model, data, toys.cascade, Linf, [0.004, 0.012], options=options)
    small, large = (Pictures.of(verdict, data) for verdict in curve.verdicts)
    assert np.array_equal(small.rows, large.rows) and len(small.rows) == 12
    early = ~curve.verdicts[0].robust_correct.numpy()[small.rows]
    assert 0 < early.sum() < 12
    assert np.array_equal(small.versions["attacked"][early], large.versions["attacked"][early])
    moved = np.abs(large.versions["attacked"].astype(int) - large.versions["clean"]).max((1, 2, 3))
    assert moved[early].max() == 1 and (moved[~early] >= 2).all()
    for verdict, found in zip(curve.verdicts, (small, large), strict=True):
        assert np.array_equal(found.versions["attacked"], attacked_bytes(verdict, found.rows))


def test_large_images_are_reduced_by_a_whole_factor():
    side = 2 * SIDE + 1
    images = torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(0))
    found = Pictures.made(torch.arange(2), {"clean": images}, ())
    assert found.factor == 3 and found.versions["clean"].shape == (2, side // 3, side // 3, 1)
    block = images[1, 0, 3:6, 6:9].mean().item()
    assert found.versions["clean"][1, 1, 2, 0] == round(255 * block)
    assert Pictures.made(torch.arange(2), {"clean": images[:, :, :SIDE, :SIDE]}, ()).factor == 1


@pytest.mark.parametrize("classes", [("a", "b"), ()])
def test_what_is_saved_is_loaded(tmp_path, classes):
    images = torch.rand(3, 3, 4, 4)
    found = Pictures.made(torch.tensor([1, 4, 6]), {"clean": images, "attacked": images / 2}, classes)
    shares = np.random.default_rng(0).dirichlet(np.ones(2), 3).astype(np.float16)
    found = Pictures(found.rows, found.versions, found.factor, found.classes, {"clean_g": shares})
    assert Pictures.load(tmp_path) is None
    found.save(tmp_path)
    loaded = Pictures.load(tmp_path)
    assert loaded.classes == classes and loaded.factor == 1 and loaded.rows.tolist() == [1, 4, 6]
    assert list(loaded.versions) == ["clean", "attacked"] and list(loaded.probabilities) == ["clean_g"]
    assert np.array_equal(loaded.versions["attacked"], found.versions["attacked"])
    assert np.array_equal(loaded.probabilities["clean_g"], shares)
    assert loaded.take(slice(1, 3)).rows.tolist() == [4, 6]
