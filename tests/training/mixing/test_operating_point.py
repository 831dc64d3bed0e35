"""The range, scale and shift of alpha during training."""

import pytest
import torch

from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.training.mixing.operating_point import standardize_scores
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


def standardize(run):
    standardize_scores(run.mixed, run.model, run.recipe.operating_point, run.validation_outputs())


def test_scores_are_standardized_without_a_change_of_alpha(run):
    run.update_operating_point()
    images = run.val_data.floats()
    before = run.mixed.mix(images).alpha
    assert before.std() > 0.1
    standardize(run)
    score = run.model(run.mixed.base_outputs(images)).score
    assert score.mean().item() == pytest.approx(0, abs=1e-4) and score.std(correction=0).item() == pytest.approx(1)
    torch.testing.assert_close(run.mixed.mix(images).alpha, before, atol=1e-3, rtol=0)
    assert run.mixed.alpha_scale.item() == pytest.approx(run.recipe.operating_point.scale * run.model.spread.item())


def test_a_fine_tuned_tail_can_be_trained_again(toy, run, tmp_path):
    """It continues with the scores it had, and ends with the alpha that it learned."""
    first = run
    standardize(first)
    again = toy.trainer(tmp_path / "again", first.recipe, toy.data(64), first.mixed)
    images = again.val_data.floats()
    again.update_operating_point()
    before = again.mixed.mix(images).alpha
    assert before.std() > 0.1
    torch.testing.assert_close(again.mixed.alpha_scale, again.recipe.operating_point.scale * again.model.spread)
    standardize(again)
    torch.testing.assert_close(again.mixed.mix(images).alpha, before, atol=1e-3, rtol=0)
    torch.testing.assert_close(again.mixed.alpha_scale, first.mixed.alpha_scale, rtol=0.2, atol=0)
