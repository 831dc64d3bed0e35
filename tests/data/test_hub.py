"""Data sets of Hugging Face are read by name, by split and by key; nothing is downloaded here."""

import builtins
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from adaptive_smoothing.data.conversion import from_dataset
from adaptive_smoothing.data.datasets import load
from adaptive_smoothing.data.find_source import validation_positions


def make(hf, count: int, *, image: str = "image", label: str = "label", size: int = 8, seed: int = 0):
    """Return a table of gray and coloured photographs with names of classes."""
    levels = np.random.default_rng(seed).integers(0, 256, (count, size, size + 2, 3), np.uint8)
    images = [Image.fromarray(pixels) for pixels in levels]
    features = hf.Features({image: hf.Image(), label: hf.ClassLabel(names=["no", "yes"])})
    return hf.Dataset.from_dict({image: images, label: [k % 2 for k in range(count)]}, features=features)


@pytest.fixture
def hf():
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


def test_a_table_becomes_the_same_images(hf) -> None:
    table = make(hf, 4)
    data = from_dataset(table, name="table")
    expected = np.stack([np.asarray(item["image"]).transpose(2, 0, 1) for item in table])
    assert np.array_equal(data.images.numpy(), expected)
    assert (data.labels.tolist(), data.classes) == ([0, 1, 0, 1], ("no", "yes"))
    as_tensors = from_dataset(table.with_format("torch"), name="table")
    assert as_tensors.fingerprint() == data.fingerprint() and as_tensors.classes == data.classes
    with pytest.raises(TypeError, match="expected one dataset, got a dictionary of train, test: pass one of them"):
        from_dataset(hf.DatasetDict(train=table, test=table))


def test_saved_data_sets_have_splits_and_hold_out_validation_images(hf, tmp_path: Path) -> None:
    train, test = make(hf, 30, image="img", label="fine_label"), make(hf, 5, image="img", label="fine_label", seed=1)
    hf.DatasetDict(train=train, test=test).save_to_disk(tmp_path / "both")
    found = load(f"hf:{tmp_path}/both?crop=7")
    assert (found.name, found.classes, found.images.shape) == ("both/test", ("no", "yes"), (5, 3, 7, 7))
    assert found.fingerprint() == from_dataset(test, crop=7).fingerprint()
    assert load(f"hf:{tmp_path}/both", "val").index.tolist() == validation_positions(30).tolist()
    assert load(f"hf:{tmp_path}/both", "train", images=3).index.tolist()[0] >= 0
    assert len(load(f"hf:{tmp_path}/both?split=train")) == 30
    test.save_to_disk(tmp_path / "one")
    assert torch.equal(load(f"hf:{tmp_path}/one").images, from_dataset(test).images)
    with pytest.raises(ValueError, match="no splits"):
        load(f"hf:{tmp_path}/one", "val")


def test_a_name_is_passed_to_the_package(hf, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(path, config=None, *, split, revision):
        calls.append((path, config, split, revision))
        return make(hf, 4, image="picture", label="answer")

    monkeypatch.setattr(hf, "load_dataset", load_dataset)
    monkeypatch.setattr(hf, "get_dataset_split_names", lambda path, config_name, revision: ["train", "validation"])
    data = load("hf:someone/things?config=small&label=answer&revision=v1", "val", crop=4)
    assert calls == [("someone/things", "small", "validation", "v1")]
    assert (data.name, len(data)) == ("things/val", 4)
    with pytest.raises(ValueError, match="expected one of the splits of things, got 'test': it has train, val"):
        load("hf:someone/things?label=answer")
    with pytest.raises(ValueError, match=r"expected a key such as label, labels, .* got picture, answer: pass label="):
        load("hf:someone/things", "val")
    with pytest.raises(
        ValueError, match=r"expected label= to be a key of the items, got 'anwser': did you mean 'answer'"
    ):
        load("hf:someone/things?label=anwser", "val")


def test_errors_of_the_package_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments, **options):
        raise ConnectionError("no network")

    names = dict.fromkeys(("load_dataset", "get_dataset_split_names"), fail)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(**names))
    with pytest.raises(
        ValueError, match="expected the data set a/b of Hugging Face, got ConnectionError: no network; check"
    ):
        load("hf:a/b")
    monkeypatch.delitem(sys.modules, "datasets")
    real = builtins.__import__

    def without_datasets(name, *arguments, **options):
        if name == "datasets":
            raise ImportError("No module named 'datasets'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(ImportError, match=r"expected the package datasets for hf:a/b, .*pip install"):
        load("hf:a/b")


@pytest.mark.parametrize(
    ("labels", "message"), [([-1, -1], "got -1: this split has none"), (["a", "b"], "got 'a': call")]
)
def test_splits_without_usable_labels_are_explained(tmp_path: Path, hf, labels: list, message: str) -> None:
    images = [Image.new("RGB", (4, 4))] * 2
    hf.Dataset.from_dict({"image": images, "label": labels}).save_to_disk(tmp_path / "table")
    with pytest.raises(ValueError, match=message):
        load(f"hf:{tmp_path}/table")


def test_floats_between_levels_are_rounded_if_asked(hf, tmp_path: Path) -> None:
    rows = {"image": [np.full((3, 4, 4), 0.501, np.float32)] * 2, "label": [0, 1]}
    features = hf.Features({"image": hf.Array3D((3, 4, 4), "float32"), "label": hf.ClassLabel(names=["no", "yes"])})
    hf.Dataset.from_dict(rows, features=features).with_format("torch").save_to_disk(tmp_path / "floats")
    for data in (f"hf:{tmp_path}/floats", f"hf:{tmp_path}/floats?round=0"):
        with pytest.raises(ValueError, match=r"256 levels .* pass round=True"):
            load(data)
    with pytest.warns(UserWarning, match="the images of floats were rounded to the 256 levels"):
        assert (load(f"hf:{tmp_path}/floats", round=True).images == 128).all()
    with pytest.warns(UserWarning, match="were rounded to the 256 levels"):
        assert (load(f"hf:{tmp_path}/floats?round=1").images == 128).all()
    with pytest.raises(ValueError, match="expected round= with a Hugging Face data set only, got it with builtin"):
        load("builtin", round=True)
