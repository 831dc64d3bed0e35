"""The Square attack (Andriushchenko et al. 2020): random squares, kept when they help. It asks for no gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adaptive_smoothing.attacks.losses import logit_margin
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, choose, column
from adaptive_smoothing.noise import fold, uniform
from adaptive_smoothing.threat import L2, Threat

# The share of the image that the first squares cover.
COVERED = 0.8
# The queries after which the squares have half the area they had before.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
LOOK = 51
# One proposal in twenty or so is kept: of more than this many at once, too many would be made again.
AHEAD = 8


@dataclass(frozen=True)
class Square(StepAttack):
    """`queries` proposals after the first image, which has stripes (Linf) or tiles (L2).

    Most proposals are refused. So a small batch asks about the next `lookahead` proposals at once, all made from the
    same image: the first that helps is kept, those after it are made again. The result is the same.
    """

    threat: Threat
    queries: int = 5000
    lookahead: int = 1
    seed: int = 0

    # What a proposal is made from.
    _read = ("clean", "eps", "key", "step", "worst", "start")

    @property
    def evaluations(self) -> int:
        return self.queries + 1

    @property
    def look_every(self) -> int:
        return min(LOOK, self.evaluations)

    def for_rows(self, rows: int, full: int) -> Square:
        return replace(self, lookahead=max(1, min(AHEAD, full // rows)))

    def begin(self, state: State, classes: int) -> State:
        threat = self.threat.with_eps(state["eps"])
        start = _tiles(state) if isinstance(threat, L2) else _stripes(state)
        return {"start": threat.project(state["clean"] + start, state["clean"])}

    def query(self, state: State) -> Tensor:
        ahead = {name: state[name].repeat_interleave(self.lookahead, 0) for name in self._read}
        number = torch.arange(self.lookahead, device=state["step"].device).repeat(len(state["step"]))
        return self._proposal(ahead, ahead["step"] + number)

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        labels = state["label"].repeat_interleave(self.lookahead)
        # Not a number is the worst of all: it must reach the verdict, which refuses it.
        margin = logit_margin(answer.logits, labels).nan_to_num(nan=torch.inf).view(-1, self.lookahead)
        number = torch.arange(self.lookahead, device=margin.device)
        better = margin > state["margin"][:, None]
        better &= state["step"][:, None] + number < self.evaluations
        # What may have succeeded waits for the verdict.
        open_ = state["margin"] <= state["bar"]
        first = better.int().argmax(1)
        kept = open_ & better.any(1)
        chosen = images.view(-1, self.lookahead, *images.shape[1:])[
            torch.arange(len(first), device=first.device), first
        ]
        made = torch.where(better.any(1), first + 1, self.lookahead)
        return {
            "worst": choose(kept, chosen, state["worst"]),
            "margin": torch.where(kept, margin.gather(1, first[:, None]).squeeze(1), state["margin"]),
            "step": torch.where(open_, state["step"] + made, state["step"]),
        }

    def _proposal(self, state: State, step: Tensor) -> Tensor:
        """The image at the start, then a change of the worst one so far."""
        threat, clean = self.threat.with_eps(state["eps"]), state["clean"]
        chance = uniform(fold(state["key"], step), 5 + clean.shape[1])
        change = _move_mass if isinstance(threat, L2) else _flip
        size = _side(step - 1, clean.shape[2], clean.shape[3], odd=isinstance(threat, L2))
        return choose(step == 0, state["start"], threat.project(change(state, size, chance), clean))


def _side(query: Tensor, height: int, width: int, *, odd: bool) -> Tensor:
    """The side of a query's square; L2 wants it odd and at least 3."""
    halvings = torch.stack([query > limit for limit in HALVINGS]).sum(0)
    side = (COVERED * height * width * 0.5**halvings).sqrt().round().long()
    if odd:
        side = side.clamp_min(3) // 2 * 2 + 1
    return side.clamp(1, min(height, width))


def _signs(chance: Tensor) -> Tensor:
    return torch.where(chance < 0.5, -1.0, 1.0)


# --- Linf -----------------------------------------------------------------------------------------


def _stripes(state: State) -> Tensor:
    """Every column of every channel at one end of its range."""
    count, channels, _, width = state["clean"].shape
    chance = uniform(fold(state["key"], 0), channels * width).view(count, channels, 1, width)
    return _signs(chance) * column(state["eps"], state["clean"])


def _flip(state: State, size: Tensor, chance: Tensor) -> Tensor:
    """A square in which every channel goes to one end of its range."""
    worst = state["worst"]
    inside = _window(worst, size, chance[:, 0], chance[:, 1])
    return worst + 2 * column(state["eps"], worst) * _signs(chance[:, 5:])[:, :, None, None] * inside


def _window(images: Tensor, size: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """1 inside a square of `size` at a random place of each image, 0 outside."""
    row, col = _places(images, size, top, left)
    side = size[:, None, None]
    return ((row >= 0) & (row < side) & (col >= 0) & (col < side)).to(images.dtype)[:, None]


def _places(images: Tensor, size: Tensor, top: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every pixel, counted from the corner of a square at a random place."""
    places = []
    for dim, chance in ((2, top), (3, left)):
        length = images.shape[dim]
        first = (chance * (length - size + 1)).long()
        places.append(torch.arange(length, device=images.device) - first[:, None])
    return places[0][:, :, None], places[1][:, None, :]


# --- L2 -------------------------------------------------------------------------------------------


def _tiles(state: State) -> Tensor:
    """A grid of about five by five bumps, upright or lying, with random signs; as long as eps, in the middle."""
    clean = state["clean"]
    count, channels, height, width = clean.shape
    size = max(min(height, width) // 5, 2)
    rows, columns = height // size, width // size
    place = torch.arange(size, device=clean.device)
    bump = _bump(torch.full_like(place[:1], size), place[None, :, None], place[None, None, :])[0]
    chance = uniform(fold(state["key"], 0), (channels + 1) * rows * columns).view(count, channels + 1, rows, columns)
    lying = chance[:, -1, :, :, None, None] < 0.5
    tiles = torch.einsum("ncij,nijrs->ncirjs", _signs(chance[:, :-1]), torch.where(lying, bump.T, bump))
    delta, top, left = torch.zeros_like(clean), (height - rows * size) // 2, (width - columns * size) // 2
    grid = delta[:, :, top : top + rows * size, left : left + columns * size]
    grid.copy_(tiles.reshape(count, channels, rows * size, columns * size))
    return delta / _length(delta, (1, 2, 3)) * column(state["eps"], clean)


def _move_mass(state: State, size: Tensor, chance: Tensor) -> Tensor:
    """What one window has of the radius, and what is unused of it, goes to another window as a bump."""
    clean, delta = state["clean"], state["worst"] - state["clean"]
    eps, channels = column(state["eps"], delta), delta.shape[1]
    to, source = (_window(delta, size, chance[:, i], chance[:, i + 1]) for i in (0, 2))
    both = (delta * torch.maximum(to, source)).square().sum((2, 3), keepdim=True)
    unused = (eps.square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0)
    row, col = _places(delta, size, chance[:, 0], chance[:, 1])
    at_setting = (chance[:, 4] < 0.5)[:, None, None]
    bump = _bump(size, torch.where(at_setting, col, row), torch.where(at_setting, row, col))[:, None] * to
    bump = _signs(chance[:, 5:])[:, :, None, None] * bump / _length(bump, (2, 3))
    moved = bump + delta * to / _length(delta * to, (2, 3))
    moved = moved / _length(moved, (2, 3)) * (unused / channels + both).sqrt()
    delta = torch.where(to > 0, moved, delta * (1 - source))
    return clean + delta * eps / _length(delta, (1, 2, 3))


def _bump(size: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """A hill in the upper half of a square, and a hollow in the lower one: 1 / k^2 for each of k nested rectangles.

    Both are of length 1.
    """
    side = size[:, None, None]
    half = side // 2
    lower = row >= half
    height = torch.where(lower, side - half, half)
    away = torch.maximum((torch.where(lower, row - half, row) - height // 2).abs(), (col - side // 2).abs())
    largest = torch.maximum(height // 2, side // 2)
    hill = _inverse_squares(largest + 1) - _inverse_squares(away.clamp_min(0))
    inside = (row >= 0) & (row < side) & (col >= 0) & (col < side)
    up, down = hill * (inside & ~lower), hill * (inside & lower)
    return up / _length(up, (1, 2)) - down / _length(down, (1, 2))


def _inverse_squares(count: Tensor) -> Tensor:
    """1 + 1/4 + 1/9 + ... + 1/count^2."""
    return torch.pi**2 / 6 - torch.special.polygamma(1, count.float() + 1)


def _length(delta: Tensor, dims: tuple[int, ...]) -> Tensor:
    return delta.square().sum(dims, keepdim=True).sqrt().clamp_min(1e-12)
