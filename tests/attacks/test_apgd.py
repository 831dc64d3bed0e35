"""The step-size schedule, the start and the momentum of APGD."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import Planes, make_images, make_input, run

from adaptive_smoothing.attacks.apgd import APGD
from adaptive_smoothing.attacks.step_attack import Answer
from adaptive_smoothing.threat import L2, Linf


def trace(attack, losses, gradient=None):
    """Return the states of a job after each step, for given losses and a gradient of 1 or as given."""
    clean = torch.full((1, 3, 4, 4), 0.5)
    zero = torch.zeros(1)
    state = {"clean": clean, "label": zero.long(), "target": zero.long(), "eps": zero + 0.1, "key": zero.long()}
    state |= {
        "step": zero.long(),
        "end": zero.long() + attack.evaluations,
        "worst": clean.clone(),
        "margin": zero - torch.inf,
        "threshold": zero.clone(),
    }
    state |= attack.begin(state, 2)
    states = []
    for loss in losses:
        images = attack.query(state)
        slope = torch.ones_like(images) if gradient is None else gradient(images)
        answer = Answer(torch.tensor([[0.0, loss]]), torch.tensor([loss]), slope)
        state = state | {"step": state["step"] + 1} | attack.update(state, images, answer)
        states.append(state | {"queried": images})
    return states


def sizes(states):
    """Return the step sizes in units of eps, after each evaluation."""
    return [state["step_size"].item() / 0.1 for state in states]


@pytest.mark.parametrize(
    ("steps", "ends"),
    [(100, [22, 41, 57, 70, 80, 87, 93, 99]), (50, [11, 21, 30, 38, 45, 51]), (10, [2, 3, 4, 5, 6, 7, 8, 9, 10])],
)
def test_the_windows_are_those_of_the_paper(steps, ends):
    """p_0 = 0, p_1 = 0.22, p_j+1 = p_j + max(p_j - p_j-1 - 0.03, 0.06), as whole steps."""
    states = trace(APGD(Linf(0.1), steps=steps), torch.linspace(0, 1, steps + 1).tolist())
    found = [int(state["window_end"]) for state in states]
    assert list(dict.fromkeys(found))[: len(ends)] == ends
    # A window that ends at step k is over after evaluation k; the start is evaluation 0.
    assert found[ends[0] - 1] == ends[0] and found[ends[0]] == ends[1]


def test_a_rising_loss_keeps_the_step_size_and_an_oscillating_loss_halves_it():
    rising = sizes(trace(APGD(Linf(0.1)), torch.linspace(0, 1, 101).tolist()))
    assert rising == pytest.approx([2.0] * 101)
    oscillating = sizes(trace(APGD(Linf(0.1)), [0.01 * step + step % 2 for step in range(101)]))
    ends = (22, 41, 57, 70, 80, 87, 93, 99)
    assert oscillating == pytest.approx([2 * 0.5 ** sum(step >= end for end in ends) for step in range(101)])


@pytest.mark.parametrize(("rises", "halved"), [(16, True), (17, False)])
def test_the_step_size_is_kept_if_three_quarters_of_the_steps_increase_the_loss(rises, halved):
    losses = np.cumsum([0, *[1.0] * rises, *[-0.1] * (22 - rises)]).tolist()
    assert sizes(trace(APGD(Linf(0.1)), losses))[-1] == pytest.approx(1.0 if halved else 2.0)


def test_a_window_without_a_new_best_halves_the_step_unless_the_one_before_did():
    """In the second window the loss rises with every step, but stays below the first."""
    first = torch.linspace(10, 20, 23).tolist()
    second = torch.linspace(0, 5, 19).tolist()
    assert sizes(trace(APGD(Linf(0.1)), first + second))[-1] == pytest.approx(1.0)
    stalled = [20.0, *[19.0] * 22]
    assert sizes(trace(APGD(Linf(0.1)), stalled + second))[-1] == pytest.approx(1.0)  # halved at 22, not at 41


def test_after_halving_the_attack_continues_from_the_best_point():
    noise = torch.Generator().manual_seed(0)
    losses = [float(step == 5) for step in range(23)]
    states = trace(APGD(Linf(0.1)), losses, lambda images: torch.randn(images.shape, generator=noise))
    assert torch.equal(states[-1]["iterate"], states[5]["queried"])
    assert torch.equal(states[-1]["gradient"], states[5]["gradient"])
    assert not torch.equal(states[-2]["iterate"], states[5]["queried"])


def test_apgd_can_start_from_the_worst_version_so_far():
    """With a step size of zero it stays there, and fools the model where that version does; a random start does not."""
    model = Planes()
    ball = Linf(0.01)
    inputs = make_input(model, make_images(20), ball)
    found = run(model, APGD(ball, steps=20), inputs)
    assert 3 < found.fooled.sum() < 20
    again, anew = (APGD(ball, steps=1, first_step=0.0, from_worst=flag) for flag in (True, False))
    continued = run(model, again, replace(inputs, worst=found.worst))
    assert torch.equal(continued.fooled, found.fooled) and torch.allclose(continued.worst, found.worst, atol=1e-6)
    torch.testing.assert_close(continued.margin, found.margin)
    assert run(model, anew, replace(inputs, worst=found.worst)).fooled.sum() < found.fooled.sum()
    # Without earlier attacks the worst version is the image itself.
    torch.testing.assert_close(run(model, again, inputs).worst, inputs.images)


def test_the_first_query_is_the_start_on_the_surface():
    (state,) = trace(APGD(Linf(0.1)), [0.0])
    assert (state["queried"] - state["clean"]).abs().amax().item() == pytest.approx(0.1, rel=1e-5)


def test_momentum_is_a_quarter_of_the_last_move():
    start, one, two = (state["queried"] for state in trace(APGD(L2(0.1)), [0.0, 1.0, 2.0]))
    ball, clean, unit = L2(0.1), torch.full_like(start, 0.5), torch.ones_like(start) / 48**0.5
    assert torch.allclose(one, ball.project(start + 0.2 * unit, clean), atol=1e-6)
    ahead = ball.project(one + 0.2 * unit, clean)
    assert torch.allclose(two, ball.project(one + 0.75 * (ahead - one) + 0.25 * (one - start), clean), atol=1e-6)
