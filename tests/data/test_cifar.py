"""The official archives are read unchanged; damaged and malicious ones are refused."""

import hashlib
import io
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaptive_smoothing.data import cifar
from adaptive_smoothing.data.datasets import load


def pixels_of(seed: int) -> np.ndarray:
    """The ten images in the file with this number."""
    return np.random.default_rng(seed).integers(0, 256, (10, 3072), np.uint8)


def text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode()


def array(values: np.ndarray) -> bytes:
    """An array as Python 2 and the NumPy of 2009 pickled it, which is how the official files are written."""
    count, width = values.shape
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"K" + bytes([count]) + b"M" + struct.pack("<H", width) + b"\x86"
    return start + b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", values.size) + values.tobytes() + b"tb"


def python2_pickle(entries: dict[str, bytes]) -> bytes:
    return b"\x80\x02}" + b"".join(text(key) + value + b"s" for key, value in entries.items()) + b"."


def cifar_members(name: str) -> dict[str, bytes]:
    """A tiny data set with the official layout: ten images in each file."""
    layout = cifar.LAYOUTS[name]
    names = b"](" + b"".join(text(f"class {i}") for i in range(10)) + b"e"
    members = {layout.meta: python2_pickle({layout.label_names: names})}
    for seed, member in enumerate(file for files in layout.members.values() for file in files):
        labels = b"](" + b"".join(b"K" + bytes([(i + seed) % 10]) for i in range(10)) + b"e"
        members[member] = python2_pickle({"data": array(pixels_of(seed)), layout.labels: labels})
    return members


def write_archive(path: Path, members: dict[str, bytes], name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an archive, and make its checksum the official one."""
    layout = cifar.LAYOUTS[name]
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(f"{layout.folder}/{member}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(cifar.LAYOUTS, name, replace(layout, md5=digest))
    return path


@pytest.mark.parametrize(("name", "count"), [("cifar10", 50), ("cifar100", 10)])
def test_archive_folder_and_name_give_the_official_images(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, members = cifar.LAYOUTS[name], cifar_members(name)
    archive = write_archive(tmp_path / layout.file, members, name, monkeypatch)
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for member, content in members.items():
        (folder / member).write_bytes(content)
    train = load(name, "train", root=tmp_path)
    assert len(train) + len(load(name, "val", root=tmp_path)) == count
    first = pixels_of(0).reshape(-1, 3, 32, 32)[train.index[0]]
    assert np.array_equal(train.images[0].numpy(), first)
    assert train.classes[:2] == ("class 0", "class 1")
    assert train.name == f"{name}/train"
    for path in (archive, folder, str(folder)):
        assert load(path, "train").fingerprint() == train.fingerprint()
    (test_seed,) = {"cifar10": [5], "cifar100": [1]}[name]
    test = load(archive, "test")
    assert np.array_equal(test.images.numpy().reshape(10, -1), pixels_of(test_seed))
    assert test.labels.tolist() == [(i + test_seed) % 10 for i in range(10)]


def test_unpacked_folder_in_the_root_is_found(tmp_path: Path) -> None:
    folder = tmp_path / cifar.LAYOUTS["cifar10"].folder
    folder.mkdir()
    for member, content in cifar_members("cifar10").items():
        (folder / member).write_bytes(content)
    assert len(load("cifar10", root=tmp_path)) == 10
    (folder / "data_batch_3").unlink()
    with pytest.raises(ValueError, match="expected data_batch_3 in"):
        load("cifar10", "train", root=tmp_path)


def test_a_modern_pickle_of_arrays_is_read() -> None:
    content = cifar.read_pickle(pickle.dumps({"data": np.arange(3), "labels": [1, 2]}), "here")
    assert content["data"].tolist() == [0, 1, 2]


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    evil = pickle.dumps({"data": Evil(trace), "labels": []}, protocol=2)
    pickle.loads(evil)
    trace.rmdir()  # it exists: the pickle runs its code if it is trusted
    members = {**cifar_members("cifar10"), "test_batch": evil}
    archive = write_archive(tmp_path / "cifar-10-python.tar.gz", members, "cifar10", monkeypatch)
    with pytest.raises(ValueError, match=r"that is not read: it imports \w+\.mkdir"):
        load(archive)
    assert not trace.exists()


@pytest.mark.parametrize("call", ["os\nsystem", "builtins\neval", "numpy\nload", "numpy.testing\nrundocs"])
def test_no_other_name_gets_through_the_unpickler(call: str) -> None:
    with pytest.raises(ValueError, match="that is not read"):
        cifar.read_pickle(f"c{call}\n(S'1'\ntR.".encode(), "here")


def test_damaged_or_empty_pickles_are_explained() -> None:
    for content in (b"", b"\x80\x02}U", b"garbage"):
        with pytest.raises(ValueError, match="that is not read"):
            cifar.read_pickle(content, "here")
    with pytest.raises(ValueError, match="expected a dictionary in here, got list"):
        cifar.read_pickle(pickle.dumps([1]), "here")


def test_a_damaged_archive_is_explained(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"expected cifar-10-python\.tar\.gz .* got a file with md5"):
        load("cifar10", root=tmp_path)


def test_download_checks_and_then_names_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, root = tmp_path / "site", tmp_path / "root"
    site.mkdir()
    archive = write_archive(site / "cifar-10-python.tar.gz", cifar_members("cifar10"), "cifar10", monkeypatch)
    monkeypatch.setattr(cifar, "SITE", site.as_uri() + "/")
    assert len(load("cifar10", root=root, download=True)) == 10
    assert [path.name for path in root.iterdir()] == [archive.name]
    archive.unlink()
    assert len(load("cifar10", root=root, download=True)) == 10


def test_a_failed_download_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"altered")
    monkeypatch.setattr(cifar, "SITE", tmp_path.as_uri() + "/")
    root = tmp_path / "root"
    with pytest.raises(ValueError, match=r"expected md5 c58f.* got .* cut short or\s+altered"):
        load("cifar10", root=root, download=True)
    with pytest.raises(OSError, match="without a connection, download it elsewhere"):
        load("cifar100", root=root, download=True)
    assert list(root.iterdir()) == []
