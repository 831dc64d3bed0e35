import pytest
import torch
from toys import Planes, make_images, make_input, run

from adaptive_smoothing.attacks.diversified import DiversifiedPGD
from adaptive_smoothing.attacks.objectives import targeted_margin, targeted_margin_loss
from adaptive_smoothing.threat import Linf


def test_an_image_that_the_first_untargeted_step_fools_costs_two_queries():
    model, images = Planes(), make_images()
    threat = Linf(0.3)  # larger than the distance of every image
    untargeted, targeted = DiversifiedPGD(threat), DiversifiedPGD(threat, objective=targeted_margin, target_classes=2)
    outcomes = [run(model, attack, make_input(model, images, threat)) for attack in (untargeted, targeted)]
    assert all(outcome.fooled.all() for outcome in outcomes)
    assert (outcomes[0].queries == 2).all() and (outcomes[1].queries > 2).all()


def test_the_first_steps_maximise_a_random_combination_of_logits_and_the_others_the_objective():
    model, images = Planes(), make_images(3)
    labels, targets = model(images).argmax(1), torch.tensor([0, 1, 2])
    attack = DiversifiedPGD(Linf(0.1), objective=targeted_margin, diversify=2)
    state = {"clean": images, "eps": torch.full((3,), 0.1), "key": torch.arange(3), "step": torch.tensor([1, 2, 3])}
    state |= attack.begin(state, 5)
    loss, logits = attack.current_objective(state)(model, images, labels, targets)
    assert loss[0].item() == pytest.approx((logits[0] * state["direction"][0]).sum().item())
    assert torch.allclose(loss[1:], targeted_margin_loss(logits, labels, targets)[1:])
    assert state["direction"].shape == (3, 5) and state["direction"].abs().max() <= 1
    assert state["direction"].min() < 0 and not torch.equal(state["direction"][0], state["direction"][1])


def test_the_step_size_decreases_to_zero_like_half_a_cosine():
    attack = DiversifiedPGD(Linf(0.1), steps=4, diversify=2)
    expected = [1, 1, 2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]
    assert attack._step_size(torch.arange(8)).tolist() == pytest.approx(expected, abs=1e-6)
