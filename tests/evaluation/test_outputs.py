"""Rows have the outputs of the model on clean and attacked images, and attacked images can be kept."""

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.evaluation import outputs as outputs_file
from adaptive_smoothing.evaluation.stored import save_adversarial
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED
from adaptive_smoothing.models.inference import fp32_logits
from adaptive_smoothing.results import read_rows
from adaptive_smoothing.threat import L2, Linf

ALL = 10**6


class AlphaFromBrightness(nn.Module):
    def forward(self, images):
        return images.mean((1, 2, 3))


@pytest.fixture
def mixed(toys):
    return ads.MixedClassifier(toys.network(0), toys.network(1), AlphaFromBrightness(), alpha_range=(0.2, 0.4))


def test_the_outputs_of_a_mixture_are_those_of_mix(mixed, data, toys):
    verdict = toys.run(mixed, data, save_adversarial=ALL)
    for version, images in (("clean", data.floats()), ("attacked", verdict.adversarial)):
        with torch.no_grad():
            expected = mixed.mix(images)
        found = {name: verdict.outputs[f"{version}_{name}"] for name in ("alpha", "confidence", "probabilities")}
        assert torch.allclose(found["alpha"], expected.alpha, atol=1e-6)
        probabilities = {name: getattr(expected, name).softmax(1) for name in ("logits", "g", "h")}
        assert torch.allclose(found["confidence"], probabilities["logits"].amax(1), atol=1e-5)
        for base in ("g", "h"):
            column = {name: verdict.outputs[f"{version}_{base}_{name}"] for name in ("prediction", "confidence")}
            assert torch.equal(column["prediction"], probabilities[base].argmax(1))
            assert torch.allclose(column["confidence"], probabilities[base].amax(1), atol=1e-5)
        g, h = (verdict.outputs[f"{version}_{base}_probabilities"].double() for base in ("g", "h"))
        alpha = found["alpha"].double()[:, None]
        assert torch.allclose((1 - alpha) * g + alpha * h, found["probabilities"].double(), atol=2e-3)
    moved = (verdict.outputs["clean_alpha"] != verdict.outputs["attacked_alpha"]).sum()
    assert moved >= int(verdict.clean_correct.sum()) - 1


def test_the_probabilities_of_a_plain_model_agree_with_its_predictions(verdict):
    assert not [name for name in verdict.outputs if "_g_" in name or "alpha" in name]
    assert torch.equal(verdict.outputs["clean_probabilities"].argmax(1), verdict.clean_predictions)
    assert torch.equal(verdict.outputs["attacked_probabilities"].argmax(1), verdict.attacked_predictions)
    gap = verdict.outputs["attacked_probabilities"].float().topk(2).values
    assert torch.allclose(gap[:, 0] - gap[:, 1], verdict.attacked_gap, atol=1e-3)
    wrong = verdict.fooled_by == MISCLASSIFIED
    assert torch.equal(verdict.outputs["clean_confidence"][wrong], verdict.outputs["attacked_confidence"][wrong])


def test_with_many_classes_only_the_confidence_is_kept(model, data, toys, monkeypatch):
    monkeypatch.setattr(outputs_file, "MOST_CLASSES", 3)
    verdict = toys.run(model, data)
    assert set(verdict.outputs) == {"clean_confidence", "attacked_confidence"} and verdict.calibration()


def test_calibration_is_in_the_summary(mixed, data, toys, verdict):
    assert verdict.summary()["calibration"]["clean"]["model"]["accuracy"] == verdict.clean
    found = toys.run(mixed, data)
    parts = found.summary()["calibration"]
    assert list(parts) == ["clean", "attacked"] and all(list(each) == ["mixture", "g", "h"] for each in parts.values())
    assert parts["attacked"]["mixture"]["accuracy"] == pytest.approx(found.robust)


# --- attacked images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", [Linf(0.01), L2(0.1)], ids=["Linf", "L2"])
def test_stored_images_are_inside_the_ball_and_fool_the_model_as_recorded(model, data, toys, tmp_path, threat):
    verdict = toys.run(model, data, toys.cascade(threat), save_adversarial=ALL)
    save_adversarial(tmp_path, verdict)
    stored = read_rows(tmp_path / "adversarial.npz")
    images = torch.from_numpy(stored["images"])
    assert torch.equal(images, verdict.adversarial) and images.dtype == torch.float32
    assert images.min() >= 0 and images.max() <= 1
    assert (threat.distance(images, data.floats()) <= threat.eps * (1 + 1e-5) + 1e-6).all()
    assert np.array_equal(fp32_logits(model, images).argmax(1).numpy(), stored["attacked_prediction"])
    assert np.array_equal(stored["attacked_prediction"] != stored["label"], ~verdict.robust_correct.numpy())
    assert stored["index"].tolist() == data.index.tolist() and stored["schema"] == 1
    wrong = verdict.fooled_by == MISCLASSIFIED
    assert torch.equal(images[wrong], data.floats()[wrong])


def test_the_first_images_are_kept_and_the_verdict_does_not_change(model, data, toys, verdict):
    everything = toys.run(model, data, save_adversarial=ALL)
    some = toys.run(model, data, save_adversarial=8)
    assert len(everything.adversarial) == 20 and torch.equal(some.adversarial, everything.adversarial[:8])
    assert verdict.adversarial is None
    assert toys.content(some)[1] == toys.content(verdict)[1]
    assert some.settings["save adversarial"] == 8 and "save adversarial" not in verdict.settings


def test_an_interrupted_run_keeps_the_same_images(model, data, toys, tmp_path, ctrl_c_at, monkeypatch):
    expected = toys.run(model, data, save_adversarial=15)
    ctrl_c_at(5)
    with pytest.raises(KeyboardInterrupt):
        toys.run(model, data, save_adversarial=15, journal=tmp_path)
    monkeypatch.undo()
    found = toys.run(model, data, save_adversarial=15, journal=tmp_path)
    assert torch.equal(found.adversarial, expected.adversarial)
    with pytest.raises(ValueError, match="another save adversarial"):
        toys.run(model, data, save_adversarial=3, journal=tmp_path)


def test_a_negative_number_of_images_is_refused():
    with pytest.raises(ValueError, match="expected save_adversarial of at least 0, got -1"):
        ads.EvaluationOptions(save_adversarial=-1)
