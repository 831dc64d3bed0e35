"""Models are saved and loaded unchanged; damaged, unknown and malicious files raise errors that explain them."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from adaptive_smoothing.models import zoo, zoo_index
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.identity import Identity

CARD = {"arch": "wide_resnet", "options": {"depth": 10, "width": 1, "num_classes": 5}, "clean": 0.9}


def make(seed: int = 0) -> nn.Module:
    """A small network with batch-norm statistics of a batch."""
    torch.manual_seed(seed)
    model = build(CARD["arch"], **CARD["options"])
    model.train()
    with torch.no_grad():
        model(torch.rand(8, 3, 32, 32))
    return model.eval()


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the zoo of the user and of the checkout, and the index of the package."""
    monkeypatch.delenv(zoo.ZOO_VARIABLE, raising=False)
    monkeypatch.setattr(zoo, "BUILTIN", tmp_path / "builtin")
    monkeypatch.setattr(zoo, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "zoo.py"))
    monkeypatch.setattr(zoo_index, "INDEX", tmp_path / "no-index.json")
    zoo_index.INDEX.write_text('{"models": {}, "mixtures": {}}')
    (tmp_path / "work" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deeper")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The zoo that a search upward from the working directory finds."""
    return tmp_path / "work" / "zoo"


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))


# --- saving and loading


def test_round_trip(folder, images):
    model = make()
    path = zoo.save(model, folder, "tiny", CARD)
    loaded = zoo.load("tiny")
    assert torch.allclose(loaded(images), model(images), atol=1e-2)
    assert not loaded.training and not any(weight.requires_grad for weight in loaded.parameters())
    assert all(weight.dtype == torch.float32 for weight in loaded.parameters())
    expected = {key: value.half().float() for key, value in model.named_parameters()}
    assert all(torch.equal(value, expected[key]) for key, value in loaded.named_parameters())
    assert sorted(file.name for file in folder.iterdir()) == [
        "manifest.json",
        "tiny.json",
        "tiny.md",
        "tiny.safetensors",
    ]
    assert path == folder / "tiny.safetensors"


def test_the_files_of_a_model(folder):
    model = make()
    path = zoo.save(model, folder, "tiny", CARD)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    description = json.loads((folder / "tiny.json").read_text())
    assert description == {**{k: CARD[k] for k in ("arch", "options")}, "num_classes": 5, "sha256": sha256,
                           "card": {"clean": 0.9}}  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest == {"models": {"tiny": {"sha256": sha256, "bytes": path.stat().st_size}}}
    stored = safetensors.torch.load_file(path)
    assert stored["stem.weight"].dtype == torch.float16
    assert stored["norm.running_var"].dtype == torch.float32
    assert torch.equal(stored["norm.running_var"], model.norm.running_var)
    assert stored["norm.num_batches_tracked"].dtype == torch.int64


def test_saving_another_keeps_the_first(folder, images):
    zoo.save(make(0), folder, "one", CARD)
    zoo.save(make(1), folder, "two", CARD)
    zoo.save(make(2), folder, "one", CARD)
    assert list(zoo.names()) == ["one", "two"]
    assert torch.allclose(zoo.load("one")(images), make(2)(images), atol=1e-2)


def test_identity_may_come_from_the_model(folder):
    model = make()
    model.arch, model.options = CARD["arch"], CARD["options"]
    zoo.save(model, folder, "tiny", {})
    assert zoo.names()["tiny"].options == CARD["options"]


def test_saving_does_not_change_the_model(folder):
    model = make().train().requires_grad_(True)
    zoo.save(model, folder, "tiny", CARD)
    assert model.training and all(weight.requires_grad for weight in model.parameters())
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({}, "expected arch .a name. and options .a table. in the card, got None"),
        ({**CARD, "options": {"depth": 10, "width": 1}}, "expected weights for wide_resnet .*size mismatch for head"),
        (
            {**CARD, "options": {**CARD["options"], "activation": "silu"}},
            "relative difference of .*activation, mean, std",
        ),
    ],
)
def test_a_card_that_does_not_describe_the_model(folder, card, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        zoo.save(make(), folder, "tiny", card)
    assert not list(folder.iterdir())


def test_weights_too_large_for_half_precision(folder):
    model = make()
    nn.init.constant_(model.head.bias, 1e5)
    with pytest.raises(ValueError, match=r"got 1e\+05 in 'head.bias' \(limit 65504\)"):
        zoo.save(model, folder, "tiny", CARD)


def test_weights_too_small_for_half_precision_stay_whole(folder):
    model = make()
    nn.init.constant_(model.head.weight, 1e-9)
    path = zoo.save(model, folder, "tiny", CARD)
    assert safetensors.torch.load_file(path)["head.weight"].dtype == torch.float32
    assert torch.equal(zoo.load("tiny").head.weight, model.head.weight)


def test_device(folder):
    zoo.save(make(), folder, "tiny", CARD)
    assert {weight.device.type for weight in zoo.load("tiny", device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18-robust", "resnet18-robust"),
        ("my/weights.v2.safetensors", "weights.v2"),
        ("runs/mix-g-h-0.5", "mix-g-h-0.5"),
        ("hf://org/name@v1.0", "name@v1.0"),
        ("timm:resnet50.a1_in1k?num_classes=7", "timm-resnet50.a1_in1k"),
    ],
)
def test_only_the_suffix_of_a_file_is_left_out_of_a_short_name(name, expected):
    assert zoo.short_name(name) == expected


def test_a_zoo_model_guards_its_images(folder, images):
    zoo.save(make(), folder, "tiny", CARD)
    model = zoo.load("tiny")
    with pytest.raises(TypeError, match=r"got torch.uint8.*images.float\(\) / 255"):
        model((images * 255).to(torch.uint8))
    with pytest.raises(ValueError, match="expected images with 3 channels, got 1: for gray ones"):
        model(images[:, :1])
    with pytest.raises(ValueError, match=r"got 4: .* for an alpha channel images\[:, :3\]"):
        model(torch.cat([images, images[:, :1]], 1))
    with pytest.raises(ValueError, match="divide them by 255"):
        model(images * 255)
    with pytest.raises(ValueError, match=r"got \[nan, nan\]"):
        model(images * float("nan"))
    assert model(images.requires_grad_()).requires_grad


def test_loads_a_path(folder, images):
    path = zoo.save(make(), folder, "tiny", CARD)
    assert torch.equal(zoo.load(path)(images), zoo.load("tiny")(images))


# --- names and places


def test_names_have_cards(folder):
    zoo.save(make(), folder, "tiny", CARD)
    zoo.save(make(), zoo.BUILTIN, "inside", CARD)
    cards = zoo.names()
    assert list(cards) == ["inside", "tiny"]
    assert cards["tiny"].card == {"clean": 0.9} and cards["tiny"].num_classes == 5
    assert zoo.is_builtin(cards["inside"].path) and not zoo.is_builtin(cards["tiny"].path)


def test_the_package_comes_first(folder, images):
    zoo.save(make(0), folder, "tiny", CARD)
    zoo.save(make(1), zoo.BUILTIN, "tiny", CARD)
    assert zoo.is_builtin(zoo.names()["tiny"].path)


def test_places_of_the_zoo(folder, tmp_path, monkeypatch):
    assert zoo.zoo_folder() is None and zoo.names() == {}
    checkout = tmp_path / "a" / "zoo"
    zoo.save(make(), checkout, "tiny", CARD)
    assert zoo.zoo_folder() == checkout
    zoo.save(make(), folder, "tiny", CARD)
    assert zoo.zoo_folder() == folder
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv(zoo.ZOO_VARIABLE, str(elsewhere))
    with pytest.raises(FileNotFoundError, match=r"manifest.json in \$ADAPTIVE_SMOOTHING_ZOO, got .*elsewhere"):
        zoo.names()
    zoo.save(make(), elsewhere, "other", CARD)
    assert zoo.zoo_folder() == elsewhere


def test_unknown_names(folder):
    zoo.save(make(), folder, "cifar10-robust", CARD)
    with pytest.raises(ValueError, match=r"timm:NAME.*got 'cifar10_robust': did you mean 'cifar10-robust'"):
        zoo.load("cifar10_robust")
    with pytest.raises(ValueError, match=r"got 'other': choose one of cifar10-robust \(the zoo is .*zoo; what is not"):
        zoo.load("other")
    with pytest.raises(ValueError, match=r"got 'tim:resnet18': did you mean 'timm'\?"):
        zoo.load("tim:resnet18")


def test_the_names_of_mixtures_are_searched_too(folder):
    zoo.save(make(), folder, "tiny", CARD)
    (folder / "ours-mixed").mkdir()
    (folder / "ours-mixed" / "mixture.json").write_text("{}")
    with pytest.raises(ValueError, match=r"got 'ours-mixd': did you mean 'ours-mixed'\?"):
        zoo.load("ours-mixd")
    with pytest.raises(ValueError, match=r"a mixture: ads.MixedClassifier.from_pretrained\('ours-mixed'\)"):
        zoo.load("ours-mixed")


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_an_exported_file_is_not_loaded(name):
    with pytest.raises(ValueError, match=f"got '{name}': exported files are not loaded .* that it was exported from"):
        zoo.load(name)


def test_an_unknown_name_without_a_zoo_says_where_it_is_looked_for(monkeypatch):
    with pytest.raises(
        ValueError, match=r"no zoo/ here or above, nor in \$ADAPTIVE_SMOOTHING_ZOO; .*_ZOO_URL, which is"
    ):
        zoo.load("other")
    monkeypatch.setenv("ADAPTIVE_SMOOTHING_ZOO_URL", "https://example.org/zoo")
    with pytest.raises(ValueError, match=r"fetched from \$ADAPTIVE_SMOOTHING_ZOO_URL, https://example.org/zoo\)"):
        zoo.load("other")


# --- models that are not here


def test_a_model_of_the_zoo_is_fetched_once(tmp_path, publish, images, monkeypatch):
    model = make()
    published = zoo.save(model, tmp_path / "published", "tiny", CARD).parent
    publish(published)
    assert zoo.names() == {}
    loaded = zoo.load("tiny")
    assert torch.allclose(loaded(images), model(images), atol=1e-2)
    cache = tmp_path / "cache" / "zoo"
    assert zoo.names()["tiny"].path == cache / "tiny.safetensors"
    assert sorted(path.name for path in cache.iterdir()) == ["tiny.json", "tiny.safetensors"]
    shutil.rmtree(published)
    assert torch.equal(zoo.load("tiny")(images), loaded(images)) and zoo.is_as_stored(loaded, Identity.of(loaded))


def test_a_damaged_file_of_the_cache_is_fetched_again(tmp_path, publish, images):
    publish(zoo.save(make(), tmp_path / "published", "tiny", CARD).parent)
    expected = zoo.load("tiny")(images)
    weights = tmp_path / "cache" / "zoo" / "tiny.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert zoo.names() == {}
    assert torch.equal(zoo.load("tiny")(images), expected)


def test_a_zoo_on_this_machine_comes_before_the_cache(tmp_path, publish, folder, images):
    publish(zoo.save(make(0), tmp_path / "published", "tiny", CARD).parent)
    zoo.save(make(1), folder, "tiny", CARD)
    assert torch.allclose(zoo.load("tiny")(images), make(1)(images), atol=1e-2)
    assert not (tmp_path / "cache").exists()


def test_without_an_address_the_error_has_all_that_is_needed(tmp_path, publish, monkeypatch):
    path = zoo.save(make(), tmp_path / "published", "tiny", CARD)
    publish(path.parent)
    monkeypatch.delenv("ADAPTIVE_SMOOTHING_ZOO_URL")
    with pytest.raises(OSError, match="ADAPTIVE_SMOOTHING_ZOO_URL is not set") as error:
        zoo.load("tiny")
    message = str(error.value)
    assert str(tmp_path / "cache" / "zoo") in message and "tiny.json" in message
    assert f"tiny.safetensors, {path.stat().st_size:,} bytes, sha256\n    {zoo.file_sha256(path)}" in message


def test_built_in_models_load_with_a_broken_zoo(folder, images):
    zoo.save(make(), zoo.BUILTIN, "own", CARD)
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    assert zoo.load("own")(images).shape == (4, 5)
    with pytest.raises(ValueError, match="expected JSON in"):
        zoo.load("other")


def test_cards_are_found_by_name_and_by_path(folder):
    path = zoo.save(make(), folder, "tiny", CARD)
    assert zoo.find_card("tiny").sha256 == zoo.find_card(str(path)).sha256 == zoo.file_sha256(path)
    assert zoo.find_card("timm:resnet18") is None
    with pytest.raises(ValueError, match="did you mean 'tiny'"):
        zoo.find_card("tinny")


# --- damaged files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got an empty file: the download was interrupted"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "got a Git LFS pointer: run `git lfs pull`"),
        (
            b"\n<!DOCTYPE html><html>Quota exceeded</html>",
            "got a web page: the download needs a login or exceeded a quota",
        ),
        (b"something else altogether", r"expected sha256 \w{64} for .*, got \w{64}: damaged or replaced"),
    ],
)
def test_files_that_are_not_weights_are_named(folder, content, words):
    zoo.save(make(), folder, "tiny", CARD).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        zoo.load("tiny")


def test_one_changed_byte_is_an_error(folder):
    path = zoo.save(make(), folder, "tiny", CARD)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected sha256"):
        zoo.load("tiny")
    with pytest.raises(ValueError, match="expected sha256"):
        zoo.load(str(path))


def test_missing_and_malformed_descriptions(folder):
    path = zoo.save(make(), folder, "tiny", CARD)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"expected weights at .*tiny.safetensors, got no file"):
        zoo.load("tiny")
    card = folder / "tiny.json"
    card.write_text("{")
    with pytest.raises(ValueError, match=r"expected JSON in .*tiny.json"):
        zoo.load("tiny")
    card.write_text("[]")
    with pytest.raises(ValueError, match=r"expected a JSON object in .*, got list"):
        zoo.load("tiny")
    card.write_text('{"options": {}}')
    with pytest.raises(ValueError, match=r"expected \"arch\" in .*, got \['options'\]"):
        zoo.load("tiny")
    card.write_text('{"arch": "wide_resnet", "option": {}}')
    with pytest.raises(ValueError, match=r"unknown key 'option' in .*: did you mean 'options'"):
        zoo.load("tiny")
    card.unlink()
    with pytest.raises(FileNotFoundError, match=r"expected weights at .* and a card at .*tiny.json, got no file"):
        zoo.load("tiny")
    (folder / "manifest.json").write_text('{"models": {"tiny": 1}}')
    card.write_text('{"arch": "wide_resnet"}')
    with pytest.raises(ValueError, match=r"for tiny in .*manifest.json, got 1"):
        zoo.names()
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r'expected .*"models"'):
        zoo.names()


def test_options_that_are_not_a_table_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"arch": "wide_resnet", "options": [10]}')
    with pytest.raises(ValueError, match=r"expected \"options\" in .*a.json to be a table, got \[10\]"):
        zoo.load(tmp_path / "a.safetensors")


# --- local files


def describe(path: Path, **more: object) -> Path:
    path.with_suffix(".json").write_text(json.dumps({k: CARD[k] for k in ("arch", "options")} | more))
    return path


def test_local_safetensors(tmp_path, images):
    model = make()
    path = describe(tmp_path / "own.safetensors")
    safetensors.torch.save_file(model.state_dict(), path)
    assert torch.equal(zoo.load(str(path))(images), model(images))
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(ValueError, match="expected safetensors, got something else in"):
        zoo.load(str(path))


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("nest", [None, "state_dict", "model", "net", "ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod."])
def test_foreign_checkpoints(tmp_path, images, suffix, nest, prefix):
    model = make()
    weights = {prefix + key: value for key, value in model.state_dict().items()}
    path = describe(tmp_path / f"foreign{suffix}")
    torch.save({nest: weights, "epoch": 3} if nest else weights, path)
    assert torch.equal(zoo.load(str(path))(images), model(images))


def test_a_checkpoint_with_two_sets_of_weights(tmp_path, images):
    path = tmp_path / "two.pt"
    torch.save({"model": make(0).state_dict(), "ema": make(1).state_dict()}, path)
    describe(path)
    with pytest.raises(ValueError, match=r"expected one set of weights in .*, got \['model', 'ema'\]: choose one"):
        zoo.load(str(path))
    describe(path, key="ema")
    assert torch.equal(zoo.load(str(path))(images), make(1)(images))
    describe(path, key="swa")
    with pytest.raises(ValueError, match=r"expected 'swa' in .*, got \['model', 'ema'\]"):
        zoo.load(str(path))


def test_weights_that_are_missing_next_to_their_card(tmp_path):
    path = describe(tmp_path / "mine.pt")
    expected = r"expected weights at .*mine.pt, got no file: mine.json describes it, but the file itself was not copied"
    for function in (zoo.load, zoo.model_facts):
        with pytest.raises(FileNotFoundError, match=expected):
            function(str(path))
    path.with_suffix(".json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"expected weights at .*mine.pt and a card at .*mine.json, got no file"
    ):
        zoo.load(str(path))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


def test_pickles_are_not_executed(tmp_path, capsys):
    path = describe(tmp_path / "evil.pt")
    torch.save({"state_dict": Evil()}, path)
    with pytest.raises(ValueError, match=r"of tensors only in .*, got one that also holds print: save"):
        zoo.load(str(path))
    assert "executed" not in capsys.readouterr().out


def test_foreign_files_that_hold_no_weights(tmp_path):
    path = describe(tmp_path / "odd.pt")
    torch.save({"epoch": 3, "rng": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"expected a state_dict in .*, got keys \['epoch', 'rng'\]"):
        zoo.load(str(path))
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match=r"expected a state_dict in .*, got list"):
        zoo.load(str(path))
    torch.save({"other.weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"(?s)expected weights for wide_resnet .*Missing key"):
        zoo.load(str(path))
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"odd.json next to the weights"):
        zoo.load(str(path))


@pytest.mark.parametrize("junk", [b"hello junk " * 100, bytes(range(256)) * 10, b"\x80\x02"])
def test_a_damaged_checkpoint_is_refused(tmp_path, junk):
    path = describe(tmp_path / "junk.pt")
    path.write_bytes(junk)
    with pytest.raises(ValueError, match=r"of tensors only in .*junk.pt, got something else, or a damaged one: save"):
        zoo.load(path)


def test_the_error_of_a_refused_checkpoint_is_one_line(tmp_path):
    path = describe(tmp_path / "evil.pt")
    torch.save({"state_dict": Evil()}, path)
    with pytest.raises(ValueError) as caught:
        zoo.load(path)
    assert str(caught.value).isprintable()


def test_the_error_of_other_weights_is_one_line(tmp_path):
    path = describe(tmp_path / "other.pt")
    torch.save(build("wide_resnet", depth=16, width=2).state_dict(), path)
    with pytest.raises(ValueError, match=r"got others in .*other.pt: .* \.\.\. \(and \d+ more\)$") as caught:
        zoo.load(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


# --- imports


def test_models_and_their_sizes_import_neither_optional_libraries_nor_the_compiler():
    program = (
        "import sys\n"
        "for name in ('timm', 'torchvision', 'transformers', 'robustbench', 'pydantic', 'plotly'):\n"
        "    sys.modules[name] = None\n"
        "import adaptive_smoothing.models.contract, adaptive_smoothing.models.features\n"
        "import adaptive_smoothing.models.smoothed\n"
        "from adaptive_smoothing.models import zoo\n"
        "assert all(zoo.parameters(card) > 1e5 for card in zoo.names().values())\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    source = Path(build.__code__.co_filename).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=source, env={"PYTHONPATH": str(source)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
