"""The Square attack (Andriushchenko et al. 2020): random squares, kept when they help. It asks for no gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from adaptive_smoothing.attacks.steps import State, StepAttack, Victim, choose, column, keep_worst
from adaptive_smoothing.noise import fold, uniform
from adaptive_smoothing.threat import L2, Threat

# The share of the image that the first squares cover.
COVERED = 0.8
# The queries after which the squares have half the area they had before.
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
LOOK = 51


@dataclass(frozen=True)
class Square(StepAttack):
    """`queries` proposals after the first image, which has stripes (Linf) or tiles (L2)."""

    threat: Threat
    queries: int = 5000
    seed: int = 0

    backwards = 0

    @property
    def evaluations(self) -> int:
        return self.queries + 1

    @property
    def look_every(self) -> int:
        return min(LOOK, self.evaluations)

    def begin(self, state: State, classes: int) -> State:
        threat = self.threat.with_eps(state["eps"])
        start = _tiles(state) if isinstance(threat, L2) else _stripes(state)
        return {"iterate": threat.project(state["clean"] + start, state["clean"])}

    def step(self, victim: Victim, state: State) -> State:
        proposal = choose(state["step"] == 0, state["iterate"], self._propose(state))
        if proposal.is_cuda:
            return keep_worst(state, proposal, victim.predict(proposal))
        return self._without_repeats(victim, state, proposal)

    def _propose(self, state: State) -> Tensor:
        threat, clean = self.threat.with_eps(state["eps"]), state["clean"]
        chance = uniform(fold(state["key"], state["step"]), 6 + clean.shape[1])
        size = _sizes(clean.shape[2], clean.shape[3], self.queries, clean.device, isinstance(threat, L2))
        size = size[(state["step"] - 1).clamp(0, self.queries - 1)]
        change = _move_mass if isinstance(threat, L2) else _flip
        return threat.project(change(state, size, chance), clean)

    @staticmethod
    def _without_repeats(victim: Victim, state: State, proposal: Tensor) -> State:
        """Where the square changes nothing, nothing has to be asked; on a GPU batches are better left alone."""
        new = ((proposal != state["worst"]).flatten(1).any(1) | (state["step"] == 0)).nonzero().squeeze(1)
        if not len(new):
            return {}
        part = {name: state[name][new] for name in ("label", "worst", "margin")}
        kept = keep_worst(part, proposal[new], victim.predict(proposal[new]))
        return {name: state[name].index_copy(0, new, value) for name, value in kept.items()}


def _flip(state: State, size: Tensor, chance: Tensor) -> Tensor:
    """Linf: a square in which every channel goes to one end of its range."""
    worst = state["worst"]
    signs = torch.where(chance[:, 6:] < 0.5, -1.0, 1.0)[:, :, None, None]
    inside = _window(worst, size, chance[:, 0], chance[:, 1])
    return worst + 2 * column(state["eps"], worst) * signs * inside


def _move_mass(state: State, size: Tensor, chance: Tensor) -> Tensor:
    """L2: what one window has of the radius, and what is unused of it, goes to another window as a bump."""
    clean, delta = state["clean"], state["worst"] - state["clean"]
    eps, channels = column(state["eps"], delta), delta.shape[1]
    to, source = (_window(delta, size, chance[:, i], chance[:, i + 1]) for i in (0, 2))
    both = (delta * torch.maximum(to, source)).square().sum((2, 3), keepdim=True)
    unused = (eps.square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0)
    signs = torch.where(chance[:, 6:] < 0.5, -1.0, 1.0)[:, :, None, None]
    bump = signs * _bump(delta, size, chance) + _unit(delta * to)
    moved = _unit(bump) * (unused / channels + both).sqrt()
    delta = torch.where(to > 0, moved, delta * (1 - source))
    return clean + delta * eps / delta.square().sum((1, 2, 3), keepdim=True).sqrt().clamp_min(1e-12)


def _unit(delta: Tensor) -> Tensor:
    """Length 1 in every channel."""
    return delta / delta.square().sum((2, 3), keepdim=True).sqrt().clamp_min(1e-12)


def _window(images: Tensor, size: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """1 inside a square of `size` at a random place of each image, 0 outside."""
    inside = []
    for dim, chance in ((2, top), (3, left)):
        length = images.shape[dim]
        first = _first(size, chance, length)
        place = torch.arange(length, device=images.device)
        inside.append((place >= first[:, None]) & (place < (first + size)[:, None]))
    return (inside[0][:, None, :, None] & inside[1][:, None, None, :]).to(images.dtype)


def _first(size: Tensor, chance: Tensor, length: int) -> Tensor:
    return (chance * (length - size + 1)).long()


def _bump(images: Tensor, size: Tensor, chance: Tensor) -> Tensor:
    """The L2 attack's bump in the window that `chance` has first: half of it up, half of it down."""
    height, width = images.shape[2:]
    table = _bumps(min(height, width), images.device)
    places = [
        torch.arange(length, device=images.device) - _first(size, draw, length)[:, None]
        for length, draw in ((height, chance[:, 0]), (width, chance[:, 1]))
    ]
    row, col = places[0][:, :, None], places[1][:, None, :]
    turned = (chance[:, 4] < 0.5)[:, None, None]
    row, col = torch.where(turned, col, row), torch.where(turned, row, col)
    limit = table.shape[1] - 1
    value = table[size[:, None, None], row.clamp(0, limit), col.clamp(0, limit)]
    return value[:, None] * _window(images, size, chance[:, 0], chance[:, 1])


@lru_cache
def _bumps(largest: int, device: torch.device) -> Tensor:
    """[size, row, column]: for each size a bump and its negative, one above the other, of length 1."""
    table = torch.zeros(largest + 1, largest, largest)
    for size in range(2, largest + 1):
        half = size // 2
        table[size, :half, :size] = _hill(half, size)
        table[size, half:size, :size] = -_hill(size - half, size)
        table[size] /= table[size].norm()
    return table.to(device)


def _hill(height: int, width: int) -> Tensor:
    """Nested rectangles around the middle, the k-th worth 1 / k^2."""
    hill = torch.zeros(height, width)
    top, left = height // 2, width // 2
    for k in range(max(top, left) + 1):
        hill[max(top - k, 0) : top + k + 1, max(left - k, 0) : left + k + 1] += 1 / (k + 1) ** 2
    return hill / hill.norm()


def _stripes(state: State) -> Tensor:
    """Linf: every column of every channel at one end of its range."""
    count, channels, _, width = state["clean"].shape
    chance = uniform(fold(state["key"], 0), channels * width).view(count, channels, 1, width)
    return torch.where(chance < 0.5, -1.0, 1.0) * column(state["eps"], state["clean"])


def _tiles(state: State) -> Tensor:
    """L2: a grid of about five by five bumps with random signs, as long as eps."""
    clean = state["clean"]
    count, channels, height, width = clean.shape
    size = max(min(height, width) // 5, 2)
    rows, columns = height // size, width // size
    bump = _bumps(min(height, width), clean.device)[size, :size, :size]
    chance = uniform(fold(state["key"], 0), channels * rows * columns).view(count, channels, rows, columns)
    signs = torch.where(chance < 0.5, -1.0, 1.0)
    tiles = torch.einsum("ncij,rs->ncirjs", signs, bump).reshape(count, channels, rows * size, columns * size)
    delta = torch.zeros_like(clean)
    delta[:, :, : rows * size, : columns * size] = tiles
    return delta / delta.square().sum((1, 2, 3), keepdim=True).sqrt() * column(state["eps"], clean)


@lru_cache
def _sizes(height: int, width: int, queries: int, device: torch.device, odd: bool) -> Tensor:
    """The side of the square of each query; L2 wants it odd and at least 3."""
    sides = []
    for query in range(queries):
        share = COVERED / 2 ** sum(query > limit for limit in HALVINGS)
        side = max(round(math.sqrt(share * height * width)), 3 if odd else 1)
        sides.append(min(side + (1 - side % 2 if odd else 0), height, width))
    return torch.tensor(sides, device=device)
