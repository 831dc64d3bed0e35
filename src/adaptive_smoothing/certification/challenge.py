"""Certificates under attack: nothing inside a certified radius may change the answer, and somebody should try.

An attack moves each certified image to the very end of its radius, to where h is least sure of its class: through the
noise for a smoothed h, through the network itself for a Lipschitz one. Then it is looked at again, with fresh noise. A
certificate is broken when the answer is another beyond sampling error: that of the mixture with its own g, or that with
some g, if the lead of h is less than the theorem says it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_smoothing.attacks.objectives import margin
from adaptive_smoothing.attacks.pgd import PGD
from adaptive_smoothing.certification.bounds import Betting, clopper_pearson
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.certification.radius import needed_margin
from adaptive_smoothing.certification.sampling import Sampler, Tally
from adaptive_smoothing.certification.target import CertificationTarget
from adaptive_smoothing.data.datasets import ImageData
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models.inference import fp32_logits_chunked
from adaptive_smoothing.models.smoothed import SmoothedClassifier
from adaptive_smoothing.threat import L2, Linf, Threat

# What a look at a moved image may be wrong with, for each image.
SURELY = 1e-6


@dataclass(frozen=True)
class Challenge:
    """What became of certified images that were moved to the end of their radius, one entry per image in each of
    `rows`: index, norm of the move over the radius, the lead of h before and after it, by how much it is above what the
    theorem says (at the end of its confidence interval), and what is broken."""

    rows: dict[str, np.ndarray]

    @property
    def broken(self) -> int:
        """With its own g, or with some g."""
        return int((self.rows["broken"] | self.rows["broken_with_some_g"]).sum())

    def summary(self) -> dict[str, Any]:
        images = len(self.rows["index"])
        found = {
            "images": images,
            "broken": int(self.rows["broken"].sum()),
            "broken with some g": int(self.rows["broken_with_some_g"].sum()),
        }
        if not images:
            return found
        return {
            **found,
            "mean lead before": float(self.rows["before"].mean()),
            "mean lead after": float(self.rows["after"].mean()),
            "smallest lead over the needed one": float(self.rows["slack"].min()),
            "mean distance over the radius": float(self.rows["distance"].mean()),
        }


def challenge(
    model: nn.Module,
    data: ImageData,
    found: Certificates,
    *,
    device: torch.device | str = "cpu",
    norm: str = "L2",
    steps: int = 20,
    attack_samples: int = 32,
    samples: int = 10_000,
    batch: int = 64,
    seed: int = 1,
) -> Challenge:
    """Attack every certified image of `data` inside the radius that `found` gives it, which is about these images."""
    if data.fingerprint() != found.settings["fingerprint"]:
        raise ValueError(f"expected the images that were certified, got {data.name}, which are others")
    parts, precision = CertificationTarget.of(model), found.settings["precision"]
    chosen = np.flatnonzero(found.certified)
    rows: list[dict[str, np.ndarray]] = []
    for start in range(0, len(chosen), batch):
        which = chosen[start : start + batch]
        images = data.take(which).to(device).floats()
        classes = torch.from_numpy(found.rows["prediction"][which]).to(device)
        threat = _threat(found, which, norm, images)
        moved = _worst(parts, images, classes, threat, steps, attack_samples, seed)
        columns = _look(parts, moved, classes, torch.from_numpy(found.rows["index"][which]), samples, precision, seed)
        before = _lead(torch.from_numpy(found.rows["probabilities"][which]), classes.cpu()).numpy()
        distance = (threat.distance(moved, images) / torch.as_tensor(threat.eps).clamp_min(1e-12)).cpu().numpy()
        columns |= {"index": found.rows["index"][which], "distance": distance, "before": before}
        rows.append(columns)
    return Challenge({name: np.concatenate([part[name] for part in rows]) for name in rows[0]} if rows else _nothing())


def _nothing() -> dict[str, np.ndarray]:
    no = np.zeros(0, dtype=bool)
    numbers = dict.fromkeys(("index", "distance", "before", "after", "slack"), np.zeros(0))
    return {**numbers, "broken": no, "broken_with_some_g": no}


def _threat(found: Certificates, which: np.ndarray, norm: str, images: Tensor) -> Threat:
    """Just inside, as float32 has it; an L2 certificate holds in the Linf ball inside of its own."""
    certified = found.settings["norm"]
    radius = torch.from_numpy(found.rows["radius"][which]).to(images) * (1 - 1e-6)
    if norm == "Linf" and certified == "L2":
        radius = radius / images[0].numel() ** 0.5
    elif norm != certified:
        raise ValueError(f"expected an attack in {certified}, or in Linf on a certificate in L2, got {norm}")
    return Linf(radius.clamp_max(1)) if norm == "Linf" else L2(radius)


def _worst(
    parts: CertificationTarget,
    images: Tensor,
    classes: Tensor,
    threat: Threat,
    steps: int,
    attack_samples: int,
    seed: int,
) -> Tensor:
    """Of what attacks on h and on the mixture find, that where h leads by least."""
    h: nn.Module = parts.robust
    if isinstance(h, SmoothedClassifier):
        # Votes have no gradient: through the noise, and through the softmax that they are cast by.
        h = SmoothedClassifier(h.base, h.sigma, samples=attack_samples, seed=seed, batch=8192)
    targets = [h]
    if isinstance(parts.model, MixedClassifier):
        targets.append(parts.model.with_robust(h).smooth())
    attack = PGD(threat, steps=steps, objective=margin)
    candidates = [PGD(threat, steps=steps)(h, images, classes)]
    candidates += [attack(target, images, classes) for target in targets]
    leads = torch.stack([_lead(fp32_logits_chunked(h, moved).softmax(1), classes) for moved in candidates])
    best = leads.argmin(0)
    return torch.stack(candidates)[best, torch.arange(len(images), device=images.device)]


def _lead(probabilities: Tensor, classes: Tensor) -> Tensor:
    own = probabilities.gather(1, classes[:, None]).squeeze(1)
    return own - probabilities.scatter(1, classes[:, None], -1.0).amax(1)


def _look(
    parts: CertificationTarget, moved: Tensor, classes: Tensor, index: Tensor, samples: int, precision: str, seed: int
) -> dict[str, np.ndarray]:
    """What h and the mixture say of moved images, with the class at most as likely, and others at least as likely, as
    they can be called with confidence."""
    if isinstance(parts.robust, SmoothedClassifier):
        own, others, mean = _seen(parts.robust, moved, classes, index, samples, precision, seed)
    else:
        mean = (parts.scale * fp32_logits_chunked(parts.robust, moved).double()).softmax(1)
        own = mean.gather(1, classes[:, None]).squeeze(1).cpu().numpy()
        others = mean.scatter(1, classes[:, None], -1.0).cpu().numpy()
    lead = own - others.max(1)
    g = parts.say(moved, mean.float())[1].double().cpu().numpy()
    own_g = g[np.arange(len(g)), classes.cpu().numpy()]
    against = (1 - parts.alpha) * (g - own_g[:, None]) + parts.alpha * (others - own[:, None])
    against[np.arange(len(g)), classes.cpu().numpy()] = -1
    slack = lead - needed_margin(parts.alpha)
    after = _lead(mean, classes).cpu().numpy()
    return {"after": after, "slack": slack, "broken": (against > 0).any(1), "broken_with_some_g": slack < 0}


def _seen(
    h: SmoothedClassifier, moved: Tensor, classes: Tensor, index: Tensor, samples: int, precision: str, seed: int
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Upper bounds on the probability of the class, lower bounds on all others, and the means."""
    sampler = Sampler(h.base, h.sigma, h.hard, seed=seed, precision=precision)
    tally: Tally | None = None
    for rows, answers in sampler.draw(moved, index, "challenge", 0, samples):
        if tally is None:
            order = torch.arange(answers.shape[1], device=moved.device).expand(len(moved), -1)
            # First the class, whose doubt is the probability of all others, then every class with its own.
            tally = Tally(torch.cat([classes[:, None], order], 1), answers.shape[1], sampler.values)
        tally.add(rows, answers)
    assert tally is not None
    chance = SURELY / tally.classes.shape[1]
    own = 1 - _lower(tally.counts(0), sampler, samples, chance)
    others = np.stack(
        [_lower(tally.counts(1 + k), sampler, samples, chance) for k in range(tally.classes.shape[1] - 1)], 1
    )
    others[np.arange(len(moved)), classes.cpu().numpy()] = -1
    return own, others, torch.from_numpy(tally.mean()).to(moved.device)


def _lower(counts: np.ndarray, sampler: Sampler, samples: int, chance: float) -> np.ndarray:
    """A lower bound on a mean doubt: 1 minus an upper bound on what is left of 1."""
    if sampler.hard:
        return 1 - clopper_pearson(counts[:, 0], samples, chance)
    # Values are rounded up in the counts, by less than a percent, the smallest from 0: rounded back, they are below it.
    values = np.where(sampler.values <= sampler.values[1], 0.0, sampler.values / 1.01)
    return 1 - Betting().upper(counts, chance, 1 - values)
