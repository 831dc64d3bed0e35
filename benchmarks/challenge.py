"""Attacks on certificates: no perturbation inside a certified radius may change the prediction.

Each certified image is moved to the end of its radius, to the point where h has the smallest lead that PGD finds. The
moved image is classified again, with new noise for a smoothed h. A certificate is broken if, beyond sampling error, the
mixture with its own g predicts another class, or if h leads by less than the theorem needs for any g.
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

# Failure probability of the bounds at a moved image.
FAILURE_PROBABILITY = 1e-6


@dataclass(frozen=True)
class Challenge:
    """The result of `challenge`.

    Args:
        rows: columns with one entry per certified image: index; distance (norm of the perturbation over the radius);
            before and after (the lead of h); slack (upper confidence bound of the lead, minus the lead that the theorem
            promises); broken (with its own g); broken_with_some_g.
    """

    rows: dict[str, np.ndarray]

    @property
    def broken(self) -> int:
        """The number of certificates that are broken with their own g, or with some g."""
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
    """Attack every certified image of `data` inside the radius that `found` gives it.

    Args:
        norm: norm of the attack; a certificate in L2 can also be attacked in Linf.
        steps: steps of PGD.
        attack_samples: noise samples of a smoothed h inside the attack.
        samples: noise samples of each moved image.
        batch: images per batch.
        seed: seed of the noise, which must differ from that of the certification.
    """
    if data.fingerprint() != found.settings["fingerprint"]:
        raise ValueError(f"expected the certified images, got {data.name}: pass the data of the certification")
    target, precision = CertificationTarget.of(model), found.settings["precision"]
    chosen = np.flatnonzero(found.certified)
    rows: list[dict[str, np.ndarray]] = []
    for start in range(0, len(chosen), batch):
        which = chosen[start : start + batch]
        images = data.take(which).to(device).floats()
        classes = torch.from_numpy(found.rows["prediction"][which]).to(device)
        threat = _threat(found, which, norm, images)
        moved = _worst(target, images, classes, threat, steps, attack_samples, seed)
        columns = _check(target, moved, classes, torch.from_numpy(found.rows["index"][which]), samples, precision, seed)
        before = _lead(torch.from_numpy(found.rows["probabilities"][which]), classes.cpu()).numpy()
        distance = (threat.distance(moved, images) / torch.as_tensor(threat.eps).clamp_min(1e-12)).cpu().numpy()
        columns |= {"index": found.rows["index"][which], "distance": distance, "before": before}
        rows.append(columns)
    return Challenge({name: np.concatenate([part[name] for part in rows]) for name in rows[0]} if rows else _no_rows())


def _no_rows() -> dict[str, np.ndarray]:
    flags = np.zeros(0, dtype=bool)
    numbers = dict.fromkeys(("index", "distance", "before", "after", "slack"), np.zeros(0))
    return {**numbers, "broken": flags, "broken_with_some_g": flags}


def _threat(found: Certificates, which: np.ndarray, norm: str, images: Tensor) -> Threat:
    """Return the ball just inside the radius, in float32. An L2 certificate covers the Linf ball inside its own."""
    certified = found.settings["norm"]
    radius = torch.from_numpy(found.rows["radius"][which]).to(images) * (1 - 1e-6)
    if norm == "Linf" and certified == "L2":
        radius = radius / images[0].numel() ** 0.5
    elif norm != certified:
        raise ValueError(f"expected an attack in {certified}, or in Linf on a certificate in L2, got {norm}")
    return Linf(radius.clamp_max(1)) if norm == "Linf" else L2(radius)


def _worst(
    target: CertificationTarget,
    images: Tensor,
    classes: Tensor,
    threat: Threat,
    steps: int,
    attack_samples: int,
    seed: int,
) -> Tensor:
    """Return the point with the smallest lead of h that attacks on h and on the mixture find."""
    h: nn.Module = target.robust
    if isinstance(h, SmoothedClassifier):
        # Hard votes have no gradient: attack the soft votes.
        h = SmoothedClassifier(h.base, h.sigma, samples=attack_samples, seed=seed, batch=8192)
    models = [h]
    if isinstance(target.model, MixedClassifier):
        models.append(target.model.with_robust(h).smooth())
    attack = PGD(threat, steps=steps, objective=margin)
    candidates = [PGD(threat, steps=steps)(h, images, classes)]
    candidates += [attack(model, images, classes) for model in models]
    leads = torch.stack([_lead(fp32_logits_chunked(h, moved).softmax(1), classes) for moved in candidates])
    best = leads.argmin(0)
    return torch.stack(candidates)[best, torch.arange(len(images), device=images.device)]


def _lead(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Return the probability of each class minus the largest of the others."""
    own = probabilities.gather(1, classes[:, None]).squeeze(1)
    return own - probabilities.scatter(1, classes[:, None], -1.0).amax(1)


def _check(
    target: CertificationTarget, moved: Tensor, classes: Tensor, index: Tensor, samples: int, precision: str, seed: int
) -> dict[str, np.ndarray]:
    """Return the columns of moved images, with an upper bound on their class and lower bounds on all others."""
    if isinstance(target.robust, SmoothedClassifier):
        own, others, mean = _bounds(target.robust, moved, classes, index, samples, precision, seed)
    else:
        mean = (target.scale * fp32_logits_chunked(target.robust, moved).double()).softmax(1)
        own = mean.gather(1, classes[:, None]).squeeze(1).cpu().numpy()
        others = mean.scatter(1, classes[:, None], -1.0).cpu().numpy()
    lead = own - others.max(1)
    g = target.probabilities(moved, mean.float())[1].double().cpu().numpy()
    own_g = g[np.arange(len(g)), classes.cpu().numpy()]
    against = (1 - target.alpha) * (g - own_g[:, None]) + target.alpha * (others - own[:, None])
    against[np.arange(len(g)), classes.cpu().numpy()] = -1
    slack = lead - needed_margin(target.alpha)
    after = _lead(mean, classes).cpu().numpy()
    return {"after": after, "slack": slack, "broken": (against > 0).any(1), "broken_with_some_g": slack < 0}


def _bounds(
    h: SmoothedClassifier, moved: Tensor, classes: Tensor, index: Tensor, samples: int, precision: str, seed: int
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Return upper bounds on the probability of the class, lower bounds on all others, and the means."""
    sampler = Sampler(h.base, h.sigma, h.hard, seed=seed, precision=precision)
    tally: Tally | None = None
    for rows, answers in sampler.draw(moved, index, "challenge", 0, samples):
        if tally is None:
            order = torch.arange(answers.shape[1], device=moved.device).expand(len(moved), -1)
            # First the class, whose error is the probability of all others, then every class.
            tally = Tally(torch.cat([classes[:, None], order], 1), answers.shape[1], sampler.values)
        tally.add(rows, answers)
    assert tally is not None
    chance = FAILURE_PROBABILITY / tally.classes.shape[1]
    own = 1 - _lower(tally.counts(0), sampler, samples, chance)
    others = np.stack(
        [_lower(tally.counts(1 + k), sampler, samples, chance) for k in range(tally.classes.shape[1] - 1)], 1
    )
    others[np.arange(len(moved)), classes.cpu().numpy()] = -1
    return own, others, torch.from_numpy(tally.mean()).to(moved.device)


def _lower(counts: np.ndarray, sampler: Sampler, samples: int, chance: float) -> np.ndarray:
    """Return a lower bound on a mean error: 1 minus an upper bound on its complement."""
    if sampler.hard:
        return 1 - clopper_pearson(counts[:, 0], samples, chance)
    # Counted values were rounded up by less than a percent, the smallest one from 0 on: round them down instead.
    values = np.where(sampler.values <= sampler.values[1], 0.0, sampler.values / 1.01)
    return 1 - Betting().upper(counts, chance, 1 - values)
