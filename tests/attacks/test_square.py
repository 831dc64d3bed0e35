import pytest
import torch
from torch import nn
from toys import CPU, Planes, make_images, make_input, median_threat, run, within

from adaptive_smoothing.attacks import square as square_module
from adaptive_smoothing.attacks.engine.arithmetic import fast_arithmetics
from adaptive_smoothing.attacks.engine.engine import Engine
from adaptive_smoothing.attacks.engine.jobs import run_attack
from adaptive_smoothing.attacks.square import Square
from adaptive_smoothing.threat import L2, Linf


def test_the_sides_of_the_squares_are_those_of_the_reference():
    side = square_module._side(torch.arange(5000), 32, 32, odd=False).tolist()
    expected = {0: 29, 11: 20, 51: 14, 201: 10, 501: 7, 1001: 5, 2001: 4, 4001: 3}
    changes = {k: side[k] for k in range(5000) if k == 0 or side[k] != side[k - 1]}
    assert changes == expected
    odd = square_module._side(torch.arange(5000), 32, 32, odd=True)
    assert set(odd.tolist()) == {29, 21, 15, 11, 7, 5, 3} and (odd % 2 == 1).all()


def test_squares_fit_into_the_image():
    for height, width in ((4, 4), (3, 9), (1, 1)):
        for odd in (False, True):
            side = square_module._side(torch.arange(9000), height, width, odd=odd)
            assert side.min() >= 1 and side.max() <= min(height, width)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (1 - 2**-24, 1 - 2**-24), (0.0, 1 - 2**-24)])
def test_squares_lie_inside_the_image_up_to_its_last_pixel(ends, monkeypatch):
    chance = torch.tensor([*ends, *ends, 0.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr(square_module, "uniform", lambda keys, count: chance.expand(len(keys), count))
    steps = torch.tensor([1, 20, 100, 300, 600, 1500, 3000, 4500])
    side, *corners = square_module._draw(torch.zeros(1).long(), steps, (3, 32, 29), odd=False)[0].long().T[:5]
    for top, left in (corners[:2], corners[2:]):
        window = square_module._window(torch.zeros(len(steps), 3, 32, 29), side, top, left)
        assert torch.equal(window.sum((1, 2, 3)), side.float() ** 2) and len(side.unique()) == 8
        assert (window[:, 0, 0 if ends[0] == 0 else -1, 0 if ends[1] == 0 else -1] == 1).all()


def test_proposals_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    clean = torch.full((4, 3, 8, 6), 0.5)
    state = {"clean": clean, "eps": torch.full((4,), 0.1), "key": torch.arange(4)}
    proposals = []
    for drawn in (1, 30, 1000):
        monkeypatch.setattr(square_module, "DRAWN", drawn)
        proposals.append(Square(Linf(0.1), queries=50).begin(state, 2)["proposals"])
    assert all(torch.equal(part, proposals[0]) for part in proposals) and proposals[0].shape == (4, 51, 9)
    assert set(proposals[0][..., 6:].unique().tolist()) == {-1, 1} and len(proposals[0].unique(dim=0)) == 4


@pytest.mark.parametrize(("kind", "lookahead"), [(Linf, 4), (L2, 8)])
def test_the_lookahead_does_not_change_the_outcome(network, kind, lookahead, monkeypatch):
    eps = 0.02 if kind is Linf else 0.3
    inputs = make_input(network, make_images(12, (3, 8, 8), 0, 1), kind(eps))
    attack, outcomes = Square(inputs.threat, queries=40), []
    for capacity in (1, 7 * lookahead):
        monkeypatch.setattr(Engine, "_capacity", lambda self, state, capacity=capacity: capacity)
        outcomes.append(run(network, attack, inputs, batch_size=7))
    plain, ahead = outcomes
    assert attack.for_rows(7, 1).lookahead == 1 and attack.for_rows(7, 7 * lookahead).lookahead == lookahead
    assert torch.equal(plain.fooled, ahead.fooled) and torch.equal(plain.queries, ahead.queries)
    assert torch.allclose(plain.margin, ahead.margin, atol=1e-4)
    assert 2 < plain.fooled.sum() < 11 and len(plain.queries.unique()) > 3


def test_square_stops_at_the_query_that_fools_the_model():
    """One pixel decides between two classes; in the first image, of stripes, it is at either end of its range."""

    class Pixel(nn.Module):
        def forward(self, images):
            return torch.stack([images[:, 0, 0, 0] - 0.45, 0 * images[:, 0, 0, 0]], 1)

    inputs = make_input(Pixel().eval(), torch.full((40, 1, 4, 4), 0.5), Linf(0.1))
    outcome = run(Pixel().eval(), Square(inputs.threat, queries=200), inputs)
    assert outcome.fooled.all()
    assert 10 < (outcome.queries == 1).sum() < 30 and outcome.queries.max() < 100
    assert torch.allclose(outcome.margin, torch.tensor(0.05), atol=1e-6)


@pytest.mark.parametrize("kind", [Linf, L2])
def test_the_start_and_the_proposals_are_on_the_surface(kind):
    clean = torch.full((5, 3, 11, 9), 0.5)
    attack = Square(kind(0.3))
    state = {"clean": clean, "eps": torch.full((5,), 0.3), "key": torch.arange(5), "step": torch.arange(5)}
    state |= {"worst": clean.clone(), "margin": torch.zeros(5), "label": torch.zeros(5).long()}
    state |= attack.begin(state, 2)
    distance = attack.threat.distance
    assert torch.allclose(distance(state["start"], clean), torch.full((5,), 0.3), rtol=1e-5)
    state["worst"] = state["start"]
    queried = attack.query(state)
    assert torch.equal(queried[0], state["start"][0])
    assert torch.allclose(distance(queried, clean), torch.full((5,), 0.3), rtol=1e-5)
    assert (queried[1:] != state["start"][1:]).flatten(1).any(1).sum() >= 3


def test_the_norm_of_one_window_moves_to_another():
    """The source is empty, the destination has its norm, other pixels are unchanged, and the norm is eps."""
    clean = torch.full((2, 3, 9, 9), 0.5)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    threat = L2(0.3)
    before = 0.9 * threat.steepest(noise) * 0.3
    numbers = torch.tensor([[3, 0, 0, 6, 6, 1, -1, 1, -1], [3, 0, 6, 6, 0, 0, 1, 1, -1]])
    proposal = square_module.Proposal.of(numbers)
    moved = square_module._move_mass(clean + before, clean, torch.full((2,), 0.3), proposal) - clean
    assert (moved[0, :, 6:, 6:] == 0).all() and (moved[1, :, 6:, :3] == 0).all()
    assert torch.allclose(threat.distance(moved, torch.zeros_like(moved)), torch.full((2,), 0.3), rtol=1e-5)
    middle = moved[:, :, 3:6, 3:6] / before[:, :, 3:6, 3:6]
    assert torch.allclose(middle, torch.ones_like(middle), rtol=1e-4)
    assert (moved[0, :, :3, :3].norm() > before[0, :, :3, :3].norm()).all()


def test_square_continues_after_a_refusal(monkeypatch):
    """Fast arithmetic with an error of half a logit sees successes that are not confirmed."""

    class Inaccurate:
        calls = 0

        def __call__(self, images):
            self.calls += 1
            return model(images) + 0.5 * torch.nn.functional.one_hot(1 - inputs.labels[0], 2)

    model, images = Planes(classes=2), make_images(40)
    images = images[model(images).argmax(1) == 0]
    threat, distance = median_threat(model, Linf, images)
    inputs = make_input(model, images, threat)
    engine = Engine(model, CPU, 64)
    engine._arithmetic = fast_arithmetics(CPU)[0]
    inaccurate = engine._fast[id(model), engine._arithmetic] = Inaccurate()
    monkeypatch.setattr(square_module, "CHECK_EVERY", 10)
    outcome = run_attack(engine, "test", Square(threat, queries=150), inputs)
    possible, undecided = within(distance, threat.eps)
    assert inaccurate.calls > 50  # five checks
    assert not (outcome.fooled & ~possible & ~undecided).any() and outcome.fooled.sum() > 0.7 * possible.sum()
