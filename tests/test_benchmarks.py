"""Benchmarks on linear models, whose optimal attacks are known."""

import copy
import importlib.util
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaptive_smoothing.attacks.engine.arithmetic import FULL_PRECISION, TOLERANCE, Arithmetic
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.mixing.base_classifiers import Mixer, MixerOutput
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.transforms import Nonlinear
from adaptive_smoothing.models import zoo
from adaptive_smoothing.results import read_json
from adaptive_smoothing.settings.tables import from_table
from adaptive_smoothing.threat import Linf
from adaptive_smoothing.training.options import TrainingOptions
from adaptive_smoothing.training.recipe import Recipe

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# A linear model gives random images of middle levels the same label.
pytestmark = pytest.mark.filterwarnings("ignore:all .* have the label")


def benchmark(name):
    if str(BENCHMARKS) not in sys.path:  # for `import clock`
        sys.path.append(str(BENCHMARKS))
    file = BENCHMARKS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks.{name}", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def candidates():
    return benchmark("candidates")


def test_a_candidate_is_measured_at_the_wanted_accuracies(candidates, linear):
    robust = type(linear)(seed=1).eval()
    pixels = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, linear(pixels / 255).argmax(1))
    figures, robust_images = candidates.measure(linear, robust, data, [0.5, 0.9], steps=2, size=25)
    assert figures["clean"] == evaluate(robust, data).clean
    low, high = figures["at"]
    assert low["alpha"] > high["alpha"] and robust_images.shape == (2, 60)
    assert [low["robust accuracy"], high["robust accuracy"]] == robust_images.mean(1).tolist()


def test_each_objective_is_run_alone_and_compared_with_the_others(linear):
    objectives = benchmark("objectives")
    robust = type(linear)(seed=1).eval()
    model = MixedClassifier(linear, robust, 0.6)
    pixels = torch.randint(100, 156, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, model(pixels / 255).argmax(1))
    stages = objectives.attacks(Linf(0.01))
    short = {name: replace(stage, attack=replace(stage.attack, steps=3)) for name, stage in stages.items()}
    *_, (rows, _) = objectives.measure(model, data, short, "cpu")
    together = rows.pop("all of them")["stands"]
    assert {"APGD-CE", "FAB-T", "APGD-T, flip g", "APGD-T, flip g, 5 restarts"} < set(rows) < set(stages)
    assert all(round(20 * (row["stands"] - together)) == row["fell to another"] for row in rows.values())
    assert max(row["fell to another"] for row in rows.values()) > 0
    assert together == min(row["stands"] for row in rows.values()) < 1


class Gap(Mixer):
    """Gives h a larger weight the more confident it is."""

    def forward(self, base_outputs):
        first, second = base_outputs.h.topk(2).values.unbind(1)
        return MixerOutput(first - second, base_outputs.h)


def test_a_learned_alpha_gets_more_attacks(linear):
    """A very steep alpha has no gradient; a less steep one has a gradient and the same centre."""
    objectives = benchmark("objectives")
    model = MixedClassifier(linear, type(linear)(seed=1).eval(), Gap(), alpha_scale=1000.0, alpha_shift=-1000.0)
    images = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    soft = objectives.LessSteep(2.0)(model)
    assert (soft.alpha_scale.item(), soft.alpha_shift.item()) == (2.0, -2.0)
    assert not torch.autograd.grad(model.mix(images).alpha.sum(), images)[0].any()
    loss, _ = objectives.GiveWay()(soft, images, torch.zeros(20, dtype=torch.long), torch.ones(20, dtype=torch.long))
    moved = images + 0.0005 * torch.autograd.grad(loss.sum(), images)[0].sign()
    assert (soft.mix(moved).alpha < soft.mix(images).alpha).float().mean() > 0.9
    data = from_tensors((images.detach() * 255).to(torch.uint8), linear(images).argmax(1))
    stages = objectives.attacks(Linf(0.001))
    short = {name: replace(stage, attack=replace(stage.attack, steps=1)) for name, stage in stages.items()}
    *_, (rows, robust_by) = objectives.measure(model, data, short, "cpu")
    met = set(rows)
    assert all(rows[name]["stands"] == robust_by[name].mean() for name in robust_by)
    assert met - set(robust_by) == {"all of them"}
    for_transforms = {name for name in stages if name.endswith("h without its transform")}
    assert set(stages) - met == {"APGD-T, flip g, 5 restarts"} | for_transforms and len(for_transforms) == 5
    transformed = Nonlinear(model.robust, scale=5.0, power=4.0, shift=-0.5)
    sharper = MixedClassifier(linear, transformed, Gap(), alpha_scale=1000.0, alpha_shift=-1000.0)
    *_, (rows, _) = objectives.measure(sharper, data, short, "cpu")
    assert for_transforms <= set(rows)
    soft = objectives.less_steep_plain(sharper)
    assert (soft.alpha_scale.item(), soft.robust) == (1.0, model.robust)


def test_mixtures_are_named_and_changed():
    mixtures = benchmark("mixtures")
    assert mixtures.named("fixed") == ("fixed", "fixed", [])
    assert mixtures.named("the best: fixed standard_scale=2 search") == (
        "the best",
        "fixed",
        ["standard_scale=2", "search"],
    )
    assert mixtures.numbers(["scale=2", "low=0.5"]) == {"scale": 2.0, "low": 0.5}


def test_robustness_to_all_attacks_is_counted_on_images_that_met_all(linear):
    mixtures = benchmark("mixtures")
    robust = type(linear)(seed=1).eval()
    model = MixedClassifier(linear, robust, 0.6)
    pixels = torch.randint(100, 156, (40, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    bench = object.__new__(mixtures.Bench)
    bench.measured = from_tensors(pixels, model(pixels / 255).argmax(1))
    bench.options = SimpleNamespace(images=16, alarms=False)
    bench.threat = Linf(0.01)
    bench.attacks = [bench._attack("MIX:40"), bench._attack("STD")]
    found, columns = bench.measure(model)
    assert {name: attack["images"] for name, attack in found["attacks"].items()} == {"MIX": 40, "STD": 16}
    both = columns["MIX"][:16] & columns["STD"]
    assert len(columns["clean"]) == 40 and found["clean"] == 1 and found["of"] == 16
    assert found["stands_all"] == both.mean() and 0 < both.mean() < 1


MEASURED = {"clean": 0.5, "stands_all": 0.5, "of": 2, "attacks": {"MIX": {"robust": 0.5}}}


def test_a_comparison_of_mixtures_is_continued(tmp_path, monkeypatch, capsys):
    """The second call measures what the first did not; with other settings it is an error."""
    mixtures = benchmark("mixtures")
    fixed = ["mixtures.py", "compact-standard", "compact-robust", "--data", "builtin", "--preset", "MIX"]
    fixed += ["--predicted", "8", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(mixtures.Bench, "measure", lambda self, mixed: ({**MEASURED}, {"MIX": np.ones(2)}))
    monkeypatch.setattr(mixtures.Bench, "facts", lambda self, mixed: {"clean_val": 0.5})
    monkeypatch.setattr(mixtures, "tune", lambda mixed, data, **options: mixed)

    def run(*words):
        monkeypatch.setattr(sys, "argv", [*fixed, *words])
        mixtures.main()
        found = read_json(tmp_path / "result.json")["mixtures"]
        return [(point["mixture"], point["wanted"]) for point in found], capsys.readouterr().out

    assert run("--clean", "0.9", "--images", "4", "a: fixed")[0] == [("a", 0.9)]
    found, _ = run("--clean", "0.8", "0.9", "--images", "4", "a: fixed", "b: fixed")
    assert found == [("a", 0.9), ("a", 0.8), ("b", 0.8), ("b", 0.9)]
    assert "measured before: a" in run("--clean", "0.8", "0.9", "--images", "4", "a: fixed")[1]
    with pytest.raises(SystemExit, match="expected a to be made from fixed standard_scale=12"):
        run("--clean", "0.7", "--images", "4", "a: fixed standard_scale=12")
    with pytest.raises(SystemExit, match="got others: pass another --out"):
        run("--clean", "0.9", "--images", "6", "a: fixed")


def test_samples_per_second_counts_all_samples(linear, monkeypatch):
    sampling = benchmark("sampling")
    images, ticks = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)), iter((0, 1, 1, 3, 3, 7))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    row = sampling.measure(sampling.Sampler(linear, 0.1, hard=True, batch_size=16), images, linear.num_classes, 40)
    # 120 samples of three images in two seconds; seven whole batches of the network alone in four.
    assert (row["first, s"], row["samples a second"], row["network alone"]) == (1, 60, 28)


def test_the_error_of_an_arithmetic_is_its_rounding_error(linear):
    """Rounding to whole numbers changes a logit by up to one half; the error is a share of the spread."""
    arithmetic = benchmark("arithmetic")
    images = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    class Rounding(Arithmetic):
        def error(self, model, images, logits):
            return (logits.round() - logits).abs().amax(1)

    logits = linear(images)
    expected = (logits.round() - logits).abs().amax(1) / (logits.amax(1) - logits.amin(1))
    found = arithmetic.errors(linear, Rounding("whole numbers"), images)
    assert found["largest"] == pytest.approx(expected.max().item())
    assert found["above_bound"] == (expected > TOLERANCE).double().mean().item() > 0
    assert arithmetic.errors(linear, FULL_PRECISION, images) == {"median": 0, "largest": 0, "above_bound": 0}
    names = list(arithmetic.models(linear, type(linear)(seed=1).eval()))
    assert names == ["g", "h", "one alpha, 0.85", "MixedNUTS"]
    assert arithmetic.images_per_second(linear, FULL_PRECISION, images, torch.zeros(40, dtype=torch.long)) > 0


def test_identities_are_compared_with_those_of_another_machine(tmp_path, monkeypatch, linear):
    identity = benchmark("identity")
    for number, out in enumerate(("here.json", "compared.json")):
        changed = copy.deepcopy(linear)
        changed.linear.weight.data[0, 0] += number  # the second model has other weights on the other machine
        monkeypatch.setattr(
            identity, "models", lambda changed=changed: iter({"same": linear, "other": changed}.items())
        )
        compare = ["--compare", str(tmp_path / "here.json")] * number
        monkeypatch.setattr(sys, "argv", ["identity.py", *compare, "--out", str(tmp_path / out)])
        identity.main()
    rows = {(row["model"], row["pair"]): row for row in read_json(tmp_path / "compared.json")["rows"]}
    assert rows["same", "CPU and the other machine"] | {"apart": 0} == {
        "model": "same",
        "pair": "CPU and the other machine",
        "same weights": True,
        "accepted": True,
        "apart": 0,
    }
    assert not rows["other", "CPU and the other machine"]["same weights"]


TINY = {
    "name": "tiny",
    "model": {"arch": "wide_resnet", "options": {"depth": 10, "width": 0.25}},
    "data": {"pad": 1},
    "method": {"name": "at", "steps": 1},
    "optimizer": {"epochs": 3, "batch_size": 8, "ema": 0.9},
}


@pytest.fixture
def variant(tmp_path):
    """A function that makes the training of a variant, in a folder of its own."""
    pixels = torch.randint(0, 256, (16, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = from_tensors(pixels, torch.arange(16) % 2)

    def make(trainer, folder, *arguments, method=(), optimizer=(), **options):
        changed = {"method": {**TINY["method"], **dict(method)}, "optimizer": {**TINY["optimizer"], **dict(optimizer)}}
        training = TrainingOptions(tmp_path / folder, quiet=True, tensorboard=False)
        return trainer(from_table(Recipe, TINY | changed), data, data, training, *arguments, **options)

    return make


def test_each_average_is_that_of_a_training_of_its_own(variant):
    """Also if the training was finished before."""
    variants = benchmark("variants")
    alone = variant(variants.SeveralAverages, "alone", [], optimizer={"ema": 0.5})
    list(variants.measure(alone, images=0))
    for _ in range(2):
        together = variant(variants.SeveralAverages, "together", [0.5])
        rows = {row["name"]: row for row in variants.measure(together, images=0)}
        assert rows["tiny-ema-0.5"]["recipe"]["optimizer"] == asdict(alone.recipe.optimizer)
        for found, wanted in zip(together.averages[0.5].values, alone.average.values, strict=True):
            assert torch.equal(found, wanted)
        folders = (together.options.folder / "tiny-ema-0.5.safetensors", alone.options.folder / "tiny.safetensors")
        found, wanted = (zoo.load(str(path)).state_dict() for path in folders)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_variant_that_differs_late_can_begin_from_the_first_epochs_of_another(variant):
    variants = benchmark("variants")
    late = {"weight_perturbation": 0.1, "perturbation_warmup": 0.5}
    alone = variant(variants.SeveralAverages, "alone", [0.5], method=late)
    list(variants.measure(alone, images=0))
    first = variant(variants.FirstEpochs, "first", [0.5], epochs=1)
    first.run()
    assert first.step == alone.steps_per_epoch
    start = first.options.checkpoint
    begun = variant(variants.SeveralAverages, "begun", [0.5], method=late)
    list(variants.measure(begun, images=0, start=start))
    assert begun.step == begun.total_steps
    for found, wanted in zip(begun.average.values, alone.average.values, strict=True):
        assert torch.equal(found, wanted)
    longer = variant(variants.SeveralAverages, "longer", [0.5], optimizer={"epochs": 4})
    with pytest.raises(ValueError, match=r"optimizer.epochs = 3 .*got 4"):
        longer.begin_from(start)
