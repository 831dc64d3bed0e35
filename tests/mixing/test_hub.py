"""Mixtures go to and come from a local stand-in for the Hugging Face hub, through the real client huggingface_hub."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from hub_stand_in import HubServer
from huggingface_hub import constants
from torch import nn

from adaptive_smoothing.mixing import hub
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.loading import LoadedModel, OwnModels
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.models import zoo
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.digest import weights_digest

OPTIONS = {"depth": 10, "width": 0.25}
CARD = {
    "license": "mit",
    "recipe": {"name": "r", "seed": 0, "data": {"name": "cifar10"},
               "optimizer": {"epochs": 1, "batch_size": 2, "lr": 0.1, "schedule": "cosine"}},
    "figures": {"test": {"images": 100, "clean": 0.9, "adaptive": 0.43}},
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The stand-in, which the client uses in the place of the hub; an empty cache, and no token of the user."""
    with HubServer() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        address = f"{found.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        yield found
        found.shutdown()


@pytest.fixture
def mixed(tmp_path: Path) -> MixedClassifier:
    for seed, name in enumerate(("g", "h")):
        torch.manual_seed(seed)
        zoo.save(
            build("wide_resnet", **OPTIONS).eval(),
            tmp_path / "bases",
            name,
            {"arch": "wide_resnet", "options": OPTIONS},
        )
    g, h = (zoo.load(tmp_path / "bases" / f"{name}.safetensors") for name in ("g", "h"))
    mixer = MixingNetwork.between(g, h, width=4).half().float()  # rounded as it is stored
    found = MixedClassifier(g, h, mixer)
    found.card = CARD
    return found


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_mixture_comes_back_from_the_hub(server, mixed, images, tmp_path):
    address = mixed.push_to_hub("org/our-mixed", token="hf_right")
    assert address == f"{server.url}/org/our-mixed"
    files = server.repositories["org/our-mixed"]["main"]
    weights = [f"{part}.safetensors" for part in ("mixer", "robust", "standard")]
    assert sorted(files) == sorted(["README.md", "mixture.json", *weights])
    loaded = MixedClassifier.from_pretrained("org/our-mixed")
    assert torch.equal(loaded(images), mixed(images)) and loaded.card == CARD
    cached = hub.fetch("org/our-mixed")
    assert cached.is_relative_to(tmp_path / "hub-cache") and not (cached / "README.md").exists()


def test_the_card_has_the_facts_that_the_hub_reads(server, mixed):
    mixed.push_to_hub("org/our-mixed", token="hf_right")
    card = server.repositories["org/our-mixed"]["main"]["README.md"].decode()
    _, header, text = card.split("---\n", 2)
    facts = yaml.safe_load(header)
    (model,) = facts.pop("model-index")
    assert facts == {
        "license": "mit",
        "library_name": "adaptive-smoothing",
        "pipeline_tag": "image-classification",
        "tags": hub.TAGS,
        "metrics": ["accuracy"],
    }
    assert model["name"] == "our-mixed"
    assert [metric["value"] for result in model["results"] for metric in result["metrics"]] == [0.9, 0.43]
    assert text.startswith("\n# our-mixed\n") and 'MixedClassifier.from_pretrained("org/our-mixed")' in text


def test_a_card_without_figures_and_with_another_licence(server, mixed):
    mixed.push_to_hub("org/our-mixed", token="hf_right", card={}, license="apache-2.0")
    header = server.repositories["org/our-mixed"]["main"]["README.md"].decode().split("---\n")[1]
    facts = yaml.safe_load(header)
    assert facts["license"] == "apache-2.0" and "model-index" not in facts and "metrics" not in facts


def test_branches(server, mixed, images):
    mixed.push_to_hub("org/m", token="hf_right", revision="v2")
    assert server.repositories["org/m"]["main"] == {}
    assert torch.equal(MixedClassifier.from_pretrained("org/m", revision="v2")(images), mixed(images))
    assert torch.equal(MixedClassifier.from_pretrained("hf://org/m@v2")(images), mixed(images))
    assert torch.equal(LoadedModel.load("hf://org/m@v2", None, None, "cpu").model(images), mixed(images))
    with pytest.raises(ValueError, match="expected one revision of org/m, got v2 and v3: leave one out"):
        MixedClassifier.from_pretrained("hf://org/m@v2", revision="v3")
    with pytest.raises(FileNotFoundError, match=r"expected mixture.json in the repository org/m, got none"):
        MixedClassifier.from_pretrained("org/m")
    with pytest.raises(FileNotFoundError, match=r"expected a mixture: a folder 'org/m' here, or a repository"):
        MixedClassifier.from_pretrained("org/m", revision="v3")


def test_private_repositories_need_a_token(server, mixed, images):
    mixed.push_to_hub("org/secret", token="hf_right", private=True)
    with pytest.raises(FileNotFoundError, match=r"got neither \(.*401.*\): check the name.*token= for a private one"):
        MixedClassifier.from_pretrained("org/secret")
    assert torch.equal(MixedClassifier.from_pretrained("org/secret", token="hf_right")(images), mixed(images))


def test_refused_uploads(server, mixed):
    with pytest.raises(OSError, match=r"expected to upload to org/m, got: .*401.*: check the name, the connection"):
        mixed.push_to_hub("org/m", token="hf_wrong")
    with pytest.raises(ValueError, match="expected a repository such as org/name, got 'm': name the account"):
        mixed.push_to_hub("m", token="hf_right")
    assert server.repositories == {}


def test_a_module_of_the_user_is_passed_again(server, mixed, images):
    own = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).eval()
    MixedClassifier(own, mixed.robust, 0.5).push_to_hub("org/m", token="hf_right", hold=False)
    description = json.loads(server.repositories["org/m"]["main"]["mixture.json"])
    assert "name" in description["robust"]
    description["robust"] = {"weights": weights_digest(mixed.robust)}
    server.repositories["org/m"]["main"]["mixture.json"] = json.dumps(description).encode()
    loaded = MixedClassifier.from_pretrained("org/m", standard=own, robust=mixed.robust)
    assert torch.equal(loaded(images), MixedClassifier(own, mixed.robust, 0.5)(images))


def test_the_weights_of_a_module_of_the_user_are_uploaded_with_how_to_build_it(server, mixed, images):
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))

    own = MixedClassifier(make().eval(), mixed.robust, 0.5)
    own.push_to_hub("org/m", token="hf_right", builders={"standard": make})
    with pytest.raises(ValueError, match="which is not imported because a file names it"):
        MixedClassifier.from_pretrained("org/m")
    assert torch.equal(MixedClassifier.from_pretrained("org/m", standard=make)(images), own(images))


def test_a_local_folder_comes_first(server, mixed, images):
    mixed.save_pretrained("org/m")
    server.repositories["org/m"] = {"main": {}}
    assert torch.equal(MixedClassifier.from_pretrained("org/m")(images), mixed(images))


def test_a_command_takes_the_name_of_a_repository(server, mixed, images):
    mixed.push_to_hub("org/m", token="hf_right")
    loaded = LoadedModel.load("org/m", None, None, "cpu")
    assert torch.equal(loaded.model(images), mixed(images))
    assert loaded.short == "m" and loaded.facts["standard"]["held"] == "standard.safetensors"


@pytest.mark.parametrize(
    "name",
    [
        "resnet18-mixed",
        "runs/a/b",
        "/runs/a",
        "../a",
        "./a",
        "a/",
        "a/b c",
        "a/b.pt",
        Path("org/name"),
        "hf:org/name",
        "org/name@v1",
    ],
)
def test_names_that_are_not_repositories(name):
    assert hub.find_repository(name) is None


@pytest.mark.parametrize("name", ["hf://mine", "hf://org/name/more", "hf://org/name@"])
def test_a_marked_name_that_is_no_repository_is_refused(name):
    with pytest.raises(ValueError, match=f"expected hf://ORG/NAME or hf://ORG/NAME@REVISION, got '{name}': correct"):
        hub.find_repository(name)


def test_a_missing_folder_of_a_run_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    """Nothing is asked for: there is no server."""
    monkeypatch.chdir(tmp_path)
    Path("mixtures").mkdir()
    for name in ("runs/mine", "mixtures/mine"):
        expected = f"got '{name}', a path with nothing there: correct it; a mixture of the hub is hf://"
        with pytest.raises(FileNotFoundError, match=expected):
            MixedClassifier.from_pretrained(name)
        with pytest.raises(ValueError, match=expected):
            LoadedModel.load(name, None, None, "cpu")
        assert hub.find_repository(f"hf://{name}") == name
    Path("mixtures/mine").mkdir()
    with pytest.raises(FileNotFoundError, match=r"correct it \(did you mean 'mixtures/mine'\?\); a mixture of the hub"):
        MixedClassifier.from_pretrained("mixtures/mien")
    with pytest.raises(FileNotFoundError, match=r"got 'mixtures/mine', a folder without mixture.json: name a folder"):
        MixedClassifier.from_pretrained("mixtures/mine")
    assert hub.find_repository("org/mine") == "org/mine"


def test_a_repository_can_be_marked(server, mixed, images):
    mixed.push_to_hub("org/m", token="hf_right")
    Path("org").mkdir()
    assert torch.equal(MixedClassifier.from_pretrained("hf://org/m")(images), mixed(images))
    loaded = LoadedModel.load("hf://org/m", None, None, "cpu")
    assert loaded.short == "m" and torch.equal(loaded.model(images), mixed(images))
    with pytest.raises(ValueError, match=r"got 'hf://org/m': did you mean 'hf'"):
        zoo.load("hf://org/m")


def test_a_loader_gets_the_name_before_the_hub(tmp_path, monkeypatch):
    Path(tmp_path / "my_loader.py").write_text(
        "from torch import nn\n\ndef load(name):\n    assert name == 'a/b'\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    own = OwnModels("my_loader:load")
    assert LoadedModel.load("a/b", None, None, "cpu", own).facts["model"]["loader"] == "my_loader:load"
    assert own.repository("hf://a/b") == "a/b"


@pytest.mark.parametrize(
    "base",
    [
        {"name": "robustbench:Carmon2019Unlabeled"},
        {"name": "/home/you/secret.safetensors"},
        {"name": "weights.pt"},
        {"name": "..\\weights"},
        {"name": "timm:resnet18?checkpoint=/home/you/weights.pt"},
        {"name": "timm:resnet18?%63heckpoint=/home/you/weights.pt"},
        {"name": "timm:local-dir:/home/you/model"},
        {"name": "hf:/home/you/model"},
        {"name": "hf:../model"},
        {"held": "../standard.safetensors"},
        {"held": "standard.pt"},
        {"transform": "hardmax", "options": {"scale": 1e4}, "of": {"name": "robustbench:Carmon2019Unlabeled"}},
    ],
)
def test_a_repository_cannot_name_pickles_or_files_of_this_machine(server, mixed, base):
    mixed.push_to_hub("org/m", token="hf_right")
    files = server.repositories["org/m"]["main"]
    files["mixture.json"] = json.dumps(json.loads(files["mixture.json"]) | {"standard": base}).encode()
    with pytest.raises(ValueError, match=r"standard classifier of org/m.*load it yourself and pass standard="):
        MixedClassifier.from_pretrained("org/m")
    assert hub.fetch("org/m", passed=["standard"]).is_dir()


@pytest.mark.parametrize("name", ["resnet18-robust", "timm:resnet18?num_classes=7", "torchvision:vgg11", "hf:org/name"])
def test_names_that_a_repository_may_have(name):
    hub.check_base("org/m", "standard", {"name": name})


def test_only_json_and_safetensors_are_fetched(server, mixed):
    mixed.push_to_hub("org/m", token="hf_right")
    server.repositories["org/m"]["main"] |= {"weights.pt": b"pickle", "code.py": b"code"}
    assert {path.suffix for path in hub.fetch("org/m").rglob("*") if path.is_file()} == {".json", ".safetensors"}


def test_a_repository_that_was_fetched_loads_offline(server, mixed, images, monkeypatch):
    mixed.push_to_hub("org/m", token="hf_right")
    MixedClassifier.from_pretrained("org/m")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert torch.equal(MixedClassifier.from_pretrained("org/m")(images), mixed(images))
    with pytest.raises(FileNotFoundError, match="expected a mixture: a folder 'org/other' here"):
        MixedClassifier.from_pretrained("org/other")
