"""`train_mixing` and `fit_adaptive`: from two classifiers to a trained mixture."""

from dataclasses import replace

import pytest
import torch

from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.mixing.recipe import MixerSettings, default_recipe
from adaptive_smoothing.training.mixing.train import fit_adaptive, train_mixing, untrained_mixture
from adaptive_smoothing.training.mixing.trainer import MixingTrainer
from adaptive_smoothing.tuning.tune import tune

SETTINGS = ["A", "B", "C", "flip-standard"]


def test_a_trained_mixture_keeps_the_range_of_training_unless_it_has_its_own(toy, tmp_path):
    recipe, data = toy.recipe("flip-standard", epochs=1, operating_point={"low": 0.5}), toy.data(64)
    mixed = toy.mixture(recipe, h=toy.unconfident_h).with_alpha_range(0.7, 0.9)
    own = train_mixing(mixed, data, data, Linf(toy.EPS), recipe=recipe, folder=tmp_path / "own", quiet=True)
    assert own.alpha_range.tolist() == pytest.approx([0.7, 0.9])
    for number, (robust, low) in enumerate(((toy.unconfident_h, 0.5), (toy.h, 0.25))):
        trained = fit_adaptive(toy.g, robust, data, data, recipe, toy.options(tmp_path / str(number)))
        assert trained.alpha_range.tolist() == pytest.approx([low, 1.0], abs=0.01)


def test_a_run_is_not_overwritten(toy, tmp_path):
    recipe, data = toy.recipe("flip-standard", epochs=1), toy.data(64)
    fit_adaptive(toy.g, toy.h, data, data, recipe, toy.options(tmp_path))
    with pytest.raises(
        FileExistsError, match=r"expected a folder without a run, got .*: continue with resume=True \(--resume\)"
    ):
        fit_adaptive(toy.g, toy.h, data, data, recipe, toy.options(tmp_path))


def test_the_default_recipe_fits_the_mixer(toy, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(MixingTrainer, "run", lambda self: asked.append(self.recipe))
    data = toy.data(512)
    for setting in ("B", "flip-standard"):
        mixed = toy.mixture(toy.recipe(setting))
        train_mixing(mixed, data, data, Linf(toy.EPS), folder=tmp_path / setting, quiet=True)
    assert [found.attack.setting for found in asked] == ["C", "flip-standard"] and asked[0].attack.eps == toy.EPS
    assert asked[1].data.cutout == 2  # a quarter of the height


@pytest.mark.parametrize(
    ("eps", "clean_accuracy", "message"),
    [
        (0.03, 0.0, r"the threat of the recipe, Linf\(eps=0\.06\), got Linf\(eps=0\.03\): pass recipe\.attack\.threat"),
        (0.06, 0.9, r"the clean accuracy of the recipe, 0\.8, got 0\.9: leave it out"),
    ],
)
def test_arguments_that_contradict_the_recipe_are_errors(toy, tmp_path, eps, clean_accuracy, message):
    recipe = toy.recipe("flip-standard", operating_point={"clean_accuracy": 0.8})
    with pytest.raises(ValueError, match=message):
        train_mixing(
            toy.mixture(recipe),
            toy.data(64),
            toy.data(64),
            Linf(eps),
            recipe=recipe,
            clean_accuracy=clean_accuracy,
            folder=tmp_path,
        )


def test_a_mixing_network_is_trained_for_the_requested_clean_accuracy(toy, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(MixingTrainer, "run", lambda self: seen.append(self.operating_point.target))
    mixed, options = toy.mixture(toy.recipe("B")), {"folder": tmp_path, "quiet": True}
    train_mixing(mixed, toy.data(512), toy.data(64), Linf(toy.EPS), clean_accuracy=0.8, **options)
    assert seen == [0.8]


def test_the_scale_of_g_is_that_of_the_recipe_unless_the_mixture_has_one(toy, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(MixingTrainer, "run", lambda self: asked.append(self.mixed.standard_scale.item()))
    for number, scale in enumerate((1.0, 2.0)):
        mixed = toy.mixture(toy.recipe("flip-standard")).with_scales(scale)
        options = {"clean_accuracy": 0.8, "folder": tmp_path / str(number), "quiet": True}
        train_mixing(mixed, toy.data(512), toy.data(64), Linf(toy.EPS), **options)
    assert asked == [3.0, 2.0]


def test_the_default_recipe_trains_any_pair(toy, tmp_path):
    """ResNets here, with images of another size than CIFAR's."""
    torch.manual_seed(0)
    g, h = (build("wide_resnet", depth=10, width=0.25, num_classes=2).eval() for _ in range(2))
    recipe = default_recipe(Linf(0.03), "tiny")
    optimizer = replace(recipe.optimizer, epochs=1, batch_size=16)
    recipe = replace(recipe, optimizer=optimizer, data=toy.recipe().data, attack=replace(recipe.attack, steps=2))
    data = toy.data(32)
    mixed = untrained_mixture(recipe, g, h, shape=(3, 8, 8))
    run = toy.trainer(tmp_path, recipe, data, mixed)
    start = toy.weights(mixed.alpha).clone()
    assert run.run() is mixed.alpha and not torch.equal(toy.weights(mixed.alpha), start)
    best = min(run.operating_point.target, max(evaluate(model, data).clean for model in (g, h)))
    assert evaluate(run.mixed, data).clean >= best - 0.1


@pytest.mark.parametrize("kind", ["network", "fine-tuned-tail"])
def test_transformers_and_convnexts_are_mixed_saved_and_loaded(toy, tmp_path, kind):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    g = timm.create_model("convnext_atto", num_classes=2, depths=(1, 1, 2, 1), dims=(8, 16, 24, 32)).eval()
    small = {"img_size": 32, "depth": 4, "embed_dim": 48}
    h = timm.create_model("vit_tiny_patch16_224", num_classes=2, **small).eval()
    recipe = toy.recipe("C" if kind == "network" else "flip-standard", epochs=1)
    recipe = replace(
        recipe,
        mixer=MixerSettings(kind=kind, width=4, hidden=8),
        attack=replace(recipe.attack, steps=1, vary_steps=False),
        optimizer=replace(recipe.optimizer, batch_size=4),
    )
    data = toy.data(4)
    data = replace(data, images=data.images.repeat(1, 1, 4, 4))
    mixed = fit_adaptive(g, h, data, data, recipe, toy.options(tmp_path / "run"))
    mixed.save_pretrained(tmp_path / "mine")
    loaded = MixedClassifier.from_pretrained(tmp_path / "mine", standard=g, robust=h)
    assert torch.equal(loaded(data.floats()), mixed(data.floats()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_training_on_a_gpu(toy, tmp_path, setting, compiled):
    g, h = (build("preact_resnet18", width=8).eval() for _ in range(2))
    pixels, index = torch.randint(256, (128, 3, 32, 32), dtype=torch.uint8), torch.arange(128)
    data = ImageData(pixels, index % 10, tuple("abcdefghij"), "noise", index)
    recipe = toy.recipe(setting, epochs=1, evaluate_every=1, mixer={"robust_taps": [], "standard_taps": []})
    mixed = untrained_mixture(recipe, g, h)
    options = {"folder": tmp_path, "device": "cuda", "compiled": compiled, "quiet": True}
    trained = train_mixing(mixed, data, data, Linf(toy.EPS), recipe=recipe, **options)
    assert evaluate(tune(trained, data, clean_accuracy=0.01), data).clean >= 0.01
