"""The index in the package equals the zoo of the repository."""

from pathlib import Path

import pytest

from adaptive_smoothing.models import zoo_index
from adaptive_smoothing.models.zoo_index import ZooFile
from adaptive_smoothing.results import read_json, write_json

ZOO = Path(__file__).parents[2] / "zoo"


@pytest.mark.skipif(not ZOO.is_dir(), reason="needs the zoo of the repository")
def test_the_index_is_that_of_the_zoo():
    command = "python -m adaptive_smoothing.models.zoo_index zoo"
    assert read_json(zoo_index.INDEX) == zoo_index.make(ZOO), f"after a change of the zoo, run {command}"
    listed = {
        file.path for kind in (zoo_index.models(), zoo_index.mixtures()) for x in kind.values() for file in x.files
    }
    assert listed | {"manifest.json"} == {path.relative_to(ZOO).as_posix() for path in ZOO.rglob("*") if path.is_file()}


def test_loading_needs_the_card_and_the_weights():
    needed = [file.path for file in zoo_index.mixtures()["resnet18-mixed"].needed]
    assert needed == ["resnet18-mixed/mixer.safetensors", "resnet18-mixed/mixture.json"]
    assert zoo_index.mixtures()["resnet18-mixed"].bases == ("resnet18-standard", "resnet18-robust")
    assert zoo_index.models()["resnet18-robust"].figures["test"]["clean"] == 0.8304


def test_the_base_classifier_is_found_below_any_number_of_transforms(tmp_path):
    once = {"transform": "nonlinear", "options": {}, "of": {"name": "a"}}
    twice = {"transform": "hardmax", "options": {}, "of": once}
    write_json(tmp_path / "manifest.json", {"models": {}})
    (tmp_path / "mixed").mkdir()
    write_json(tmp_path / "mixed/mixture.json", {"standard": {"held": "g"}, "robust": twice, "card": {}})
    assert zoo_index.make(tmp_path)["mixtures"]["mixed"]["bases"] == ["a"]


def test_a_file_with_other_content_is_not_the_file(tmp_path):
    sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of "hello"
    file = ZooFile("a", 5, sha256)
    assert not file.is_at(tmp_path)
    for content, right in ((b"hello", True), (b"hallo", False), (b"hello ", False)):
        (tmp_path / "a").write_bytes(content)
        assert file.is_at(tmp_path) is right
