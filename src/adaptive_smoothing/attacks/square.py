"""The Square attack (Andriushchenko et al. 2020), without a gradient: random squares, kept if they widen the margin.

The proposals do not depend on the model, so those of all queries are drawn before the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from adaptive_smoothing.attacks.objectives import logit_margin
from adaptive_smoothing.attacks.step_attack import Answer, State, StepAttack, choose
from adaptive_smoothing.noise import fold, uniform
from adaptive_smoothing.threat import L2, Threat, column

# Share of the image that the first squares cover.
FIRST_AREA = 0.8
# Queries after which the area of the squares is halved.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
# Steps between two checks by the host.
CHECK_EVERY = 51
# Proposals that are drawn at once. More would take more memory.
DRAWN = 2**19
# About one proposal in twenty is kept. With a longer lookahead, too many proposals would be made twice.
MAX_LOOKAHEAD = 8


class Proposal(NamedTuple):
    """The integers that describe proposals, one per image."""

    side: Tensor
    top: Tensor
    left: Tensor
    source_top: Tensor  # the second square, in L2 only
    source_left: Tensor
    transposed: Tensor  # 1 if the bump of L2 is transposed
    signs: Tensor  # 1 or -1, [N, channels, 1, 1]

    @classmethod
    def of(cls, numbers: Tensor) -> Proposal:
        """Return the proposals of rows that `_draw` has made."""
        side, top, left, source_top, source_left, transposed = numbers[:, :6].unbind(1)
        return cls(side, top, left, source_top, source_left, transposed, numbers[:, 6:, None, None])


@dataclass(frozen=True)
class Square(StepAttack):
    """Square with `queries` proposals, starting from an image with stripes (Linf) or tiles (L2).

    Most proposals are rejected. A small batch therefore evaluates the next `lookahead` proposals at once, all made from
    the same image. The first that widens the margin is kept, and those after it are made again from the new image. The
    result does not depend on `lookahead`.
    """

    threat: Threat
    queries: int = 5000
    lookahead: int = 1
    seed: int = 0

    @property
    def evaluations(self) -> int:
        return self.queries + 1

    @property
    def check_every(self) -> int:
        return min(CHECK_EVERY, self.evaluations)

    def for_rows(self, rows: int, capacity: int) -> Square:
        return replace(self, lookahead=max(1, min(MAX_LOOKAHEAD, capacity // rows)))

    def begin(self, state: State, classes: int) -> State:
        threat, size = self.threat.with_eps(state["eps"]), state["clean"].shape[1:]
        start = _tiles(state) if isinstance(threat, L2) else _stripes(state)
        steps = torch.arange(self.evaluations, device=state["key"].device).split(max(1, DRAWN // len(state["key"])))
        proposals = [_draw(state["key"], part, size, odd=isinstance(threat, L2)) for part in steps]
        return {
            "start": threat.project(state["clean"] + start, state["clean"]),
            "proposals": torch.cat(proposals, 1),
        }

    def query(self, state: State) -> Tensor:
        """Return the start at step 0, then changes of the worst image so far."""
        clean, worst, eps = (state[name].repeat_interleave(self.lookahead, 0) for name in ("clean", "worst", "eps"))
        rows, ahead = (torch.arange(count, device=clean.device) for count in (len(state["step"]), self.lookahead))
        step = state["step"][:, None] + ahead
        numbers = state["proposals"][rows[:, None], step.clamp(max=self.queries)].flatten(0, 1).long()
        change = _move_mass if isinstance(self.threat, L2) else _flip
        images = self.threat.with_eps(eps).project(change(worst, clean, eps, Proposal.of(numbers)), clean)
        images = images.view(*step.shape, *clean.shape[1:])
        return torch.where(column(step == 0, images), state["start"][:, None], images).flatten(0, 1)

    def update(self, state: State, images: Tensor, answer: Answer) -> State:
        labels = state["label"].repeat_interleave(self.lookahead)
        # NaN counts as the widest margin, so that it reaches the confirmation, which raises an error.
        margin = logit_margin(answer.logits, labels).nan_to_num(nan=torch.inf).view(-1, self.lookahead)
        number = torch.arange(self.lookahead, device=margin.device)
        better = (margin > state["margin"][:, None]) & (state["step"][:, None] + number < self.evaluations)
        # A row that may have succeeded waits until the host has checked it.
        active = state["margin"] <= state["threshold"]
        first, kept = better.int().argmax(1), active & better.any(1)
        rows = torch.arange(len(first), device=first.device)
        chosen = images.view(-1, self.lookahead, *images.shape[1:])[rows, first]
        used = torch.where(better.any(1), first + 1, self.lookahead)
        return {
            "worst": choose(kept, chosen, state["worst"]),
            "margin": torch.where(kept, margin.gather(1, first[:, None]).squeeze(1), state["margin"]),
            "step": torch.where(active, state["step"] + used, state["step"]),
        }


def _side(query: Tensor, height: int, width: int, *, odd: bool) -> Tensor:
    """Return the side of the square of each query. With `odd` (L2), it is an odd number of at least 3."""
    halvings = torch.stack([query > limit for limit in HALVINGS]).sum(0)
    side = (FIRST_AREA * height * width * 0.5**halvings).sqrt().round().long()
    if odd:
        side = side.clamp_min(3) // 2 * 2 + 1
    return side.clamp(1, min(height, width))


def _signs(chance: Tensor) -> Tensor:
    return torch.where(chance < 0.5, -1.0, 1.0).to(chance)


def _draw(keys: Tensor, steps: Tensor, size: Sequence[int], *, odd: bool) -> Tensor:
    """Return the proposals of some steps for each key, [keys, steps, numbers]; `size` is that of an image."""
    channels, height, width = size
    side = _side(steps - 1, height, width, odd=odd)[:, None]
    chance = uniform(fold(keys[:, None], steps).flatten(), 5 + channels).view(len(keys), len(steps), -1)
    places = torch.tensor([height, width, height, width], device=keys.device) - side + 1
    corners, transposed = (chance[..., :4] * places).long(), (chance[..., 4:5] < 0.5).long()
    signs = _signs(chance[..., 5:]).long()
    return torch.cat([side.expand(len(keys), -1, -1), corners, transposed, signs], -1).short()


def _stripes(state: State) -> Tensor:
    """Return the start in Linf: a perturbation of +eps or -eps for every column of every channel."""
    count, channels, _, width = state["clean"].shape
    chance = uniform(fold(state["key"], 0), channels * width).view(count, channels, 1, width)
    return _signs(chance) * column(state["eps"], state["clean"])


def _flip(worst: Tensor, clean: Tensor, eps: Tensor, proposal: Proposal) -> Tensor:
    """Return proposals in Linf: in a square, every channel moves to one end of its range."""
    inside = _window(worst, proposal.side, proposal.top, proposal.left)
    return worst + 2 * column(eps, worst) * proposal.signs * inside


def _window(images: Tensor, side: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Return 1 inside a square of each image, 0 outside."""
    return _inside(*_positions(images, top, left), side[:, None, None]).to(images.dtype)[:, None]


def _inside(row: Tensor, col: Tensor, side: Tensor) -> Tensor:
    return ((row >= 0) & (row < side)) & ((col >= 0) & (col < side))


def _positions(images: Tensor, top: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and column of every pixel, relative to the corner of a square."""
    rows, columns = (torch.arange(length, device=images.device) for length in images.shape[2:])
    return (rows - top[:, None])[:, :, None], (columns - left[:, None])[:, None, :]


def _tiles(state: State) -> Tensor:
    """Return the start in L2: a centred grid of about five by five bumps with random orientations and signs."""
    clean = state["clean"]
    count, channels, height, width = clean.shape
    size = max(min(height, width) // 5, 2)
    rows, columns = height // size, width // size
    position = torch.arange(size, device=clean.device)
    bump = _bump(torch.full_like(position[:1], size), position[None, :, None], position[None, None, :])[0]
    chance = uniform(fold(state["key"], 0), (channels + 1) * rows * columns).view(count, channels + 1, rows, columns)
    transposed = chance[:, -1, :, :, None, None] < 0.5
    tiles = torch.einsum("ncij,nijrs->ncirjs", _signs(chance[:, :-1]), torch.where(transposed, bump.T, bump))
    delta, top, left = torch.zeros_like(clean), (height - rows * size) // 2, (width - columns * size) // 2
    grid = delta[:, :, top : top + rows * size, left : left + columns * size]
    grid.copy_(tiles.reshape(count, channels, rows * size, columns * size))
    return delta / _length(delta, (1, 2, 3)) * column(state["eps"], clean)


def _move_mass(worst: Tensor, clean: Tensor, eps: Tensor, proposal: Proposal) -> Tensor:
    """Return proposals in L2: the norm of one window, and the unused norm, moves to a bump in another window."""
    delta, eps = worst - clean, column(eps, clean)
    side, top, left, source_top, source_left, transposed, signs = proposal
    to, source = _window(delta, side, top, left), _window(delta, side, source_top, source_left)
    both = (delta * torch.maximum(to, source)).square().sum((2, 3), keepdim=True)
    unused = (eps.square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0)
    row, col = _positions(delta, top, left)
    turned = (transposed == 1)[:, None, None]
    bump = _bump(side, torch.where(turned, col, row), torch.where(turned, row, col))[:, None] * to
    bump = signs * bump / _length(bump, (2, 3))
    moved = bump + delta * to / _length(delta * to, (2, 3))
    moved = moved / _length(moved, (2, 3)) * (unused / delta.shape[1] + both).sqrt()
    delta = torch.where(to > 0, moved, delta * (1 - source))
    return clean + delta * eps / _length(delta, (1, 2, 3))


def _bump(size: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """Return a positive bump in the upper half of a square and a negative one in the lower half, each of norm 1.

    A bump is a sum of nested rectangles with weights 1 / k^2.
    """
    side = size[:, None, None]
    half = side // 2
    lower = row >= half
    height = torch.where(lower, side - half, half)
    away = torch.maximum((torch.where(lower, row - half, row) - height // 2).abs(), (col - side // 2).abs())
    largest = torch.maximum(height // 2, side // 2)
    bump = _inverse_squares(largest + 1) - _inverse_squares(away.clamp_min(0))
    inside = _inside(row, col, side)
    up, down = bump * (inside & ~lower), bump * (inside & lower)
    return up / _length(up, (1, 2)) - down / _length(down, (1, 2))


def _inverse_squares(count: Tensor) -> Tensor:
    """Return 1 + 1/4 + 1/9 + ... + 1/count^2."""
    return torch.pi**2 / 6 - torch.special.polygamma(1, count.float() + 1)


def _length(delta: Tensor, dims: tuple[int, ...]) -> Tensor:
    return delta.square().sum(dims, keepdim=True).sqrt().clamp_min(1e-12)
