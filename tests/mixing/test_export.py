"""Exported graphs: the values of the model for any batch and any alpha, the facts in the file, and errors."""

import copy
import json
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing.mixing.export as exporting
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.mixing.export import export
from adaptive_smoothing.mixing.export_formats import FACTS
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.gradient_mixture import GradientMixedClassifier
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.mixing.transforms import Hardmax, Nonlinear
from adaptive_smoothing.models.digest import model_digest
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.models.wrap import wrap

SHAPE = (3, 16, 16)
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")


def network(seed: int, width: int = 4) -> nn.Module:
    """A network that is fast to export, with predictions confident enough that alpha matters."""
    torch.manual_seed(seed)
    first, second = nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
    layers = [first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    head = nn.Linear(2 * width, 5)
    nn.init.normal_(head.weight, std=10.0)
    return nn.Sequential(*layers, head).eval()


G, H = network(0), network(1)


def learned(mixer: nn.Module) -> MixedClassifier:
    torch.manual_seed(2)
    for weight in mixer.parameters():
        nn.init.normal_(weight, std=0.3)  # an untrained mixer gives every image the same alpha
    return MixedClassifier(G, H, mixer.eval(), alpha_scale=2.0, alpha_shift=0.4)


MIXTURES = {
    # A mixture without transforms is among the models of other libraries below.
    "nonlinear": lambda: MixedClassifier(
        Hardmax(G), Nonlinear(H, scale=5.0, power=4.0, shift=-0.3), 0.7, alpha_range=(0.1, 1.0)
    ),
    "network": lambda: learned(MixingNetwork.between(G, H, shape=SHAPE, width=4)),
    "tail": lambda: learned(FineTunedTail.of(H, shape=SHAPE, hidden=8)),
}


@pytest.fixture(scope="module", params=MIXTURES)
def onnx(request, tmp_path_factory):
    """A mixture, what was exported, and a session of onnxruntime."""
    mixed = MIXTURES[request.param]()
    written = mixed.export(tmp_path_factory.mktemp("onnx") / f"{request.param}.onnx", shape=SHAPE)
    return mixed, written, session(written.path)


def session(path):
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def images(count: int) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(count))


def test_onnx_has_the_values_of_the_model_at_any_batch_size_and_number(onnx):
    mixed, written, graph = onnx
    name = mixed.moved_by
    assert written.difference < 1e-4
    assert [value.name for value in graph.get_inputs()] == ["images"]  # required
    assert [value.name for value in graph.get_overridable_initializers()] == [name]  # with a default
    for count, number in ((1, None), (5, 0.25), (2, 1.0), (16, 0.6)):
        feeds = {"images": images(count).numpy()}
        moved = mixed
        if number is not None:
            feeds[name] = np.array(number, np.float32)
            moved = mixed.with_alpha(number) if name == "alpha" else mixed.with_sigmoid(mixed.alpha_scale, number)
        logits, alphas = graph.run(["logits", "alphas"], feeds)
        with torch.no_grad():
            expected = moved.mix(images(count))
        np.testing.assert_allclose(logits, expected.logits.numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(alphas, expected.alpha.numpy(), atol=1e-5)


def test_the_logits_of_an_image_outside_the_unit_interval_are_nan(onnx):
    _, _, graph = onnx
    batch = images(4)
    batch[1] *= 255
    batch[2, 0, 0, 0] = torch.nan
    (logits,) = graph.run(["logits"], {"images": batch.numpy()})
    assert np.isnan(logits).all(1).tolist() == [False, True, True, False]


def test_an_alpha_outside_the_unit_interval_gives_nan(onnx):
    mixed, _, graph = onnx
    if mixed.moved_by == "alpha":
        (logits,) = graph.run(["logits"], {"images": images(2).numpy(), "alpha": np.array(1.2, np.float32)})
        assert np.isnan(logits).all()


def test_an_onnx_file_describes_itself(onnx):
    mixed, _, graph = onnx
    facts = graph.get_modelmeta().custom_metadata_map
    assert json.loads(facts["shape"]) == list(SHAPE) and json.loads(facts["classes"]) == 5
    assert facts["digest"] == model_digest(mixed) and facts["producer"].startswith("adaptive-smoothing 0")
    default = getattr(mixed, mixed.moved_by).item()
    assert json.loads(facts["defaults"]) == {mixed.moved_by: pytest.approx(default)}
    assert json.loads(facts["alpha_range"]) == pytest.approx(mixed.alpha_range.tolist())
    assert graph.get_inputs()[0].shape == ["batch", *SHAPE]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    mixed = MixedClassifier(network(0), network(1), 0.8)
    return mixed, mixed.export(tmp_path_factory.mktemp("pt2") / "model.pt2", shape=SHAPE).path


def test_a_pt2_file_has_the_values_of_the_model(program):
    mixed, path = program
    graph = torch.export.load(path).module()
    for count, alpha in ((1, 0.8), (5, 0.0), (3, 0.4)):
        found = graph(images(count), alpha=torch.tensor(alpha))
        torch.testing.assert_close(found["logits"], mixed.with_alpha(alpha)(images(count)))
        torch.testing.assert_close(found["alphas"], torch.full((count,), alpha))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_on_a_gpu_is_written_for_a_cpu(tmp_path):
    mixed = MixedClassifier(wrap(network(0), mean=0.5, std=0.5, shape=SHAPE), network(1), 0.8).cuda()
    expected = mixed(images(3).cuda())
    program = torch.export.load(mixed.export(tmp_path / "model.pt2", shape=SHAPE).path)
    found = program.module()(images(3), alpha=torch.tensor(0.8))["logits"]
    torch.testing.assert_close(found, expected.cpu(), atol=1e-4, rtol=1e-4)
    found = moved(program, "cuda")(images(3).cuda(), alpha=torch.tensor(0.8, device="cuda"))["logits"]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert all(tensor.is_cuda for tensor in mixed.parameters())


def moved(program, device):
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device).module()


def test_a_pt2_file_can_be_moved_to_another_device(program):
    """A tensor that stays where it was would be an error."""
    inputs = images(3).to("meta"), torch.tensor(0.8, device="meta")
    found = moved(torch.export.load(program[1]), "meta")(inputs[0], alpha=inputs[1])
    assert {tensor.device.type for tensor in found.values()} == {"meta"} and found["logits"].shape == (3, 5)


def test_the_facts_of_a_pt2_file_are_read_without_loading_it(program):
    mixed, path = program
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(FACTS))
        facts = json.loads(archive.read(name))
    assert facts["defaults"] == {"alpha": 0.8} and facts["classes"] == 5 and facts["digest"] == model_digest(mixed)


def test_a_plain_classifier_and_an_alpha_module_have_images_as_their_only_input(tmp_path):
    plain, path = wrap(network(0), mean=0.5, std=0.25, shape=SHAPE), tmp_path / "plain"
    assert export(plain, path, shape=SHAPE, format="onnx").facts["defaults"] == {}
    graph = session(path)
    assert not graph.get_overridable_initializers()
    (logits,) = graph.run(None, {"images": images(3).numpy()})
    np.testing.assert_allclose(logits, plain(images(3)).numpy(), atol=1e-5)
    brightness = nn.Sequential(nn.Flatten(), nn.AvgPool1d(768), nn.Flatten(0))
    assert (
        MixedClassifier(plain, network(1), brightness).export(tmp_path / "m.pt2", shape=SHAPE).facts["defaults"] == {}
    )


@pytest.mark.parametrize(
    ("model", "path", "message"),
    [
        (copy.deepcopy(G).double(), "a.onnx", r"float32 for ONNX, got float64: call model.float\(\), or write a .pt2"),
        (MixedClassifier(G, copy.deepcopy(H).bfloat16(), 0.5), "a.onnx", "float32 for ONNX, got bfloat16"),
        (SmoothedClassifier(G, 0.1), "a.onnx", "got a SmoothedClassifier.*export its base"),
        (GradientMixedClassifier(G, H, 1.0, r="gradient_ratio"), "a.pt2", "that torch.export can trace, got"),
        (G, "model.pb", r"ends in .onnx or .pt2, got 'model.pb'"),
        (network(0).train(), "a.pt2", "eval mode"),
        (MixedClassifier(G, H, torch.tensor([0.1, 0.2])), "a.pt2", "one alpha for all images, got 2: .*with_alpha"),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval(), "a.pt2", "to accept images of 3 x 32 x 32.*shape="),
    ],
)
def test_what_cannot_be_exported_is_explained(model, path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        export(model, path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", ["3x40x40", (3, -1, 32), (3, 32), (3, 32, 32.0), 32, ()])
def test_a_shape_is_three_whole_numbers(shape, tmp_path):
    with pytest.raises(ValueError, match=r"expected shape as \(channels, height, width\).*, got .*--shape 3x32x32"):
        export(G, tmp_path / "a.pt2", shape=shape)


def test_a_path_is_a_text():
    with pytest.raises(TypeError, match=r"expected the path of a file to write, such as 'model.onnx', got 3"):
        MixedClassifier(G, H, 0.5).export(3)


def test_format_and_suffix_must_agree():
    assert exporting.find_format(Path("a.ONNX"), None) == exporting.find_format(Path("a.bin"), "onnx") == "onnx"
    with pytest.raises(ValueError, match=r"expected a file that ends in .pt2 for pt2, got 'a.onnx': rename it"):
        exporting.find_format(Path("a.onnx"), "pt2")


def test_a_file_is_replaced_with_overwrite_only(tmp_path, linear):
    mixed, path = MixedClassifier(linear, linear, 0.5), tmp_path / "a.pt2"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"expected a new file, got .*a.pt2, which exists: .*overwrite=True"):
        mixed.export(path, shape=(3, 8, 8))
    assert path.read_text() == "mine"
    assert mixed.export(path, shape=(3, 8, 8), overwrite=True).path.stat().st_size > 100


def test_the_place_is_checked_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(exporting, "check_eval", lambda model: pytest.fail("the model was looked at"))
    for name, message in (("folder.onnx", "which is a folder"), ("file/a.onnx", "expected a folder that can be")):
        with pytest.raises(OSError, match=message):
            export(G, tmp_path / name, overwrite=True)


def test_the_input_alpha_is_that_of_with_alpha(tmp_path, linear):
    """With a range it is not the weight of h."""
    mixed = MixedClassifier(linear, linear, 0.5, alpha_range=(0.5, 1.0))
    written = mixed.export(tmp_path / "a.pt2", shape=(3, 8, 8))
    assert written.facts["alpha_range"] == [0.5, 1.0] and written.facts["defaults"] == {"alpha": 0.5}
    graph, image = torch.export.load(written.path).module(), torch.rand(1, 3, 8, 8)
    weights = [graph(image, alpha=torch.tensor(alpha))["alphas"].item() for alpha in (0.0, 0.3, 0.8, 1.0)]
    assert weights == pytest.approx([0.5, 0.65, 0.9, 1.0])
    assert weights == pytest.approx([mixed.with_alpha(alpha).mix(image).alpha.item() for alpha in (0.0, 0.3, 0.8, 1.0)])


def test_an_onnx_export_does_not_warn(tmp_path, linear):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = export(linear, tmp_path / "a.onnx", shape=(3, 8, 8))
    assert written.path.stat().st_size and written.difference <= exporting.TOLERANCE


def test_a_gradient_mixture_without_gradients_can_be_exported(tmp_path, linear):
    mixed = GradientMixedClassifier(linear, linear, 1.0, r="one")
    assert export(mixed, tmp_path / "a.pt2", shape=(3, 8, 8)).difference <= 1e-6


def test_the_default_shape_is_that_of_wrap(tmp_path):
    flat = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 4)).eval()
    one, other = wrap(flat, shape=(1, 28, 28)), wrap(copy.deepcopy(flat), mean=0.5, shape=(1, 28, 28))
    assert MixedClassifier(one, other, 0.5).export(tmp_path / "a.pt2").facts["shape"] == [1, 28, 28]
    assert exporting.input_shape(wrap(network(0), shape=(3, 64, 64))) == (3, 64, 64)
    assert exporting.input_shape(MixedClassifier(network(0), wrap(network(1), shape=SHAPE), 0.5)) == SHAPE
    with pytest.raises(ValueError, match="same size, got 3 x 16 x 16 and 3 x 64 x 64"):
        exporting.input_shape(MixedClassifier(wrap(network(0), shape=SHAPE), wrap(network(1), shape=(3, 64, 64)), 0.5))


def test_two_sizes_need_a_shape(tmp_path):
    g, h = (wrap(network(0), size=16 if seed else (16, 16), shape=SHAPE) for seed in (0, 1))
    assert exporting.input_shape(MixedClassifier(g, h, 0.5)) == SHAPE
    with pytest.raises(ValueError, match=r"images of the same size, got 3 x 16 x 16 and none: pass shape="):
        MixedClassifier(g, network(0), 0.5).export(tmp_path / "a.pt2")


def test_a_graph_that_differs_from_the_model_is_not_written(tmp_path, monkeypatch):
    write = exporting.WRITERS["pt2"]

    def wrong(*arguments):
        content, run = write(*arguments)
        return content, lambda images, numbers: {k: v + 1e-3 for k, v in run(images, numbers).items()}

    monkeypatch.setitem(exporting.WRITERS, "pt2", wrong)
    with pytest.raises(ValueError, match=r"at most 0.0001, got 0.001 for a batch of 1, alpha 0.8: nothing was written"):
        MixedClassifier(network(0), network(1), 0.8).export(tmp_path / "a.pt2", shape=SHAPE)
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_nothing_is_written_unchecked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"expected onnxruntime .* pip install 'adaptive-smoothing\[export\]'"):
        export(G, tmp_path / "a.onnx", shape=SHAPE)
    assert not list(tmp_path.iterdir())
