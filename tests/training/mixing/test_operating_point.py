"""The shift of alpha during training, and the weight of attacked images."""

import pytest
import torch

from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.training.mixing.trainer import composite_loss
from adaptive_smoothing.tuning.curves import accuracy_curve


@pytest.fixture
def run(toy, tmp_path):
    """A fine-tuned tail whose scores differ from image to image, as after some training."""
    run = toy.trainer(tmp_path, toy.recipe("flip-standard", epochs=1))
    with torch.no_grad():
        run.model.scorer[-1].weight.normal_(std=30, generator=torch.Generator().manual_seed(0))
        run.model.scorer[-1].bias += 50
    return run


def test_the_share_of_the_recipe_is_recovered(toy, run):
    run.update_operating_point()
    h, g, mixed = (evaluate(model, run.val_data).clean for model in (toy.h, toy.g, run.mixed))
    assert g > h and mixed >= h + 0.5 * (g - h) - 1e-6


def test_the_target_of_the_recipe_is_kept(toy, tmp_path):
    run = toy.trainer(tmp_path, toy.recipe("flip-standard", operating_point={"clean_accuracy": 0.9}))
    run.update_operating_point()
    assert run.operating_point.target == 0.9 and evaluate(run.mixed, run.val_data).clean >= 0.9


def test_a_target_that_cannot_be_reached_gives_the_best_accuracy(run):
    best = accuracy_curve(run.mixed, run.val_data).best()
    run.mixed.alpha_shift.fill_(20.0)
    assert evaluate(run.mixed, run.val_data).clean < best
    run.operating_point.target = 1.1
    run.update_operating_point()
    assert evaluate(run.mixed, run.val_data).clean == pytest.approx(best)


def test_a_common_offset_of_the_scores_does_not_change_alpha(run):
    run.update_operating_point()
    before = run.mixed.mix(run.val_data.floats()).alpha
    assert before.std() > 0.1
    with torch.no_grad():
        run.model.scorer[-1].bias -= 1000
    run.update_operating_point()
    torch.testing.assert_close(run.mixed.mix(run.val_data.floats()).alpha, before, atol=1e-3, rtol=0)


def test_the_range_of_alpha_reaches_as_low_as_the_pair_needs(toy, tmp_path):
    """An h that is as confident as g outvotes it at one half."""
    recipe = toy.recipe("flip-standard", operating_point={"low": 0.5})
    for h, low in ((toy.unconfident_h, 0.5), (toy.h, 0.25)):
        run = toy.trainer(tmp_path, recipe, toy.data(64), toy.mixture(recipe, h=h))
        assert run.mixed.alpha_range.tolist() == pytest.approx([low, 1.0], abs=0.01)
        run.update_operating_point()
        assert evaluate(run.mixed, run.val_data).clean >= run.operating_point.target - 1e-6
        assert run.mixed.mix(run.val_data.floats()).alpha.min() >= run.mixed.alpha_range[0]


def test_the_weight_of_attacked_images_cancels_the_slope_by_the_shift(toy, tmp_path):
    """Compared with finite differences of the losses of clean and attacked images."""
    recipe = toy.recipe("flip-standard", loss={"error": 1.0, "bce": 0.0, "product": 0.0, "balanced": True})
    run = toy.trainer(tmp_path, recipe)
    examples = run.examples(toy.first_batch(run))

    def losses(shift: float) -> torch.Tensor:
        mixed = run.mixed.with_sigmoid(1.0, shift).combine(examples.base_outputs, examples.images)
        return composite_loss(recipe.loss, mixed.logits, mixed.alpha, examples.labels, examples.pseudo_labels)

    with torch.no_grad():
        slopes = [half.mean().item() for half in ((losses(0.405) - losses(0.395)) / 0.01).chunk(2)]
    assert slopes[0] > 0 > slopes[1]
    run._loss(examples)
    assert run.attacked_weight.slopes.tolist() == pytest.approx(slopes, rel=0.02)
    loss = run._loss(examples)[0].item()  # the same batch again has the same weight
    weight = -slopes[0] / slopes[1]
    clean, attacked = (half.mean().item() for half in losses(0.4).chunk(2))
    assert 0.05 < weight < 2 and loss == pytest.approx((clean + weight * attacked) / (1 + weight), rel=0.01)
