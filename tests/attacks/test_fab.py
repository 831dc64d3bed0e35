"""The step to a plane inside the box, compared with linear and quadratic programs."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from toys import Planes, make_images, make_input, median_threat, run

from adaptive_smoothing.attacks.fab import FAB, step_to_plane
from adaptive_smoothing.threat import L2, Linf


def plane_cases(count, seed=0):
    """Return points with some pixels on the faces of the box, and planes that cut the box."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, 2, 2, generator=generator) * 1.6 - 0.3
    points = points.clamp(0, 1)
    normal = torch.randn(count, 3, 2, 2, generator=generator)
    normal[:, 0] = torch.where(normal[:, 0] < 0, 0.0, normal[:, 0])
    inner = torch.rand(count, 3, 2, 2, generator=generator)
    # The plane goes through a point of the box, sometimes one near a corner.
    corner = (normal > 0).float() * 0.97 + 0.015
    inner = torch.where(torch.arange(count).view(-1, 1, 1, 1) % 3 == 0, corner, inner)
    return points, normal, (normal * inner).sum((1, 2, 3))


def linf_distance(point, normal, offset):
    """Return min t subject to |z - x| <= t, 0 <= z <= 1, normal . z = offset."""
    x, n = point.flatten().double().numpy(), normal.flatten().double().numpy()
    size = len(x)
    ones = -np.ones((size, 1))
    result = linprog(
        [0] * size + [1],
        A_ub=np.block([[np.eye(size), ones], [-np.eye(size), ones]]),
        b_ub=np.concatenate([x, -x]),
        A_eq=[[*n, 0]],
        b_eq=[float(offset)],
        bounds=[(0, 1)] * size + [(0, None)],
    )
    assert result.success
    return result.fun


def l2_distance(point, normal, offset):
    x, n = point.flatten().double().numpy(), normal.flatten().double().numpy()
    result = minimize(
        lambda z: ((z - x) ** 2).sum(),
        np.full(len(x), 0.5),
        jac=lambda z: 2 * (z - x),
        bounds=[(0, 1)] * len(x),
        constraints={"type": "eq", "fun": lambda z: n @ z - float(offset), "jac": lambda z: n},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert result.success
    return result.fun**0.5


@pytest.mark.parametrize(("threat", "solve"), [(Linf(0.1), linf_distance), (L2(0.1), l2_distance)])
def test_the_step_to_a_plane_is_the_shortest_inside_the_box(threat, solve):
    points, normal, offset = plane_cases(30)
    step = step_to_plane(threat, points, normal, offset)
    there = points + step
    assert there.min() >= 0 and there.max() <= 1 + 1e-6
    assert torch.allclose((normal * there).sum((1, 2, 3)), offset, atol=2e-5)
    expected = [solve(*case) for case in zip(points, normal, offset, strict=True)]
    assert threat.distance(there, points).tolist() == pytest.approx(expected, abs=2e-5)
    bound = ((there == 0) | (there == 1)) & (step != 0)
    assert bound.flatten(1).any(1).sum() >= 10  # the box binds for many of them


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
def test_if_the_box_does_not_bind_the_distance_is_the_excess_over_the_dual_norm(threat):
    points, (_, normal, _) = make_images(10, (3, 2, 2)), plane_cases(10)
    excess = 0.05 * torch.linspace(-1, 1, 10)
    step = step_to_plane(threat, points, normal, (normal * points).sum((1, 2, 3)) - excess)
    expected = excess.abs() / threat.dual_norm(normal)
    assert torch.allclose(threat.distance(step, torch.zeros_like(step)), expected, atol=1e-6)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
@pytest.mark.parametrize("far", [3.0, 1e4])
def test_if_the_plane_misses_the_box_the_step_leads_to_the_nearest_corner(threat, far):
    points, normal, _ = plane_cases(10)
    corner = (normal > 0).float()
    step = step_to_plane(threat, points, normal, (normal * corner).sum((1, 2, 3)) + far)
    assert torch.allclose((points + step)[normal != 0], corner[normal != 0])
    assert (step[normal == 0] == 0).all()


@pytest.mark.parametrize(("threat", "farthest"), [(Linf(0.1), 0.999), (L2(0.1), 0.9)])
def test_the_step_to_a_plane_with_3072_pixels(threat, farthest):
    """Compare with a bisection in double precision over the only free parameter, the time."""
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(8, 3, 32, 32, generator=generator) * 1.4 - 0.2).clamp(0, 1)
    # Gradients of networks span orders of magnitude.
    normal = torch.randn(points.shape, generator=generator) ** 3
    corner = (normal > 0).float()
    share = torch.tensor([0.05, 0.3, 0.6, 0.9, 0.95, 0.98, 0.99, 0.999]).clamp_max(farthest).view(-1, 1, 1, 1)
    offset = (normal * (points + share * (corner - points))).double().sum((1, 2, 3)).float()
    step = step_to_plane(threat, points, normal, offset)
    room, pace = (corner - points).abs().double(), threat.pace(normal).double()
    goal = offset.double() - (normal * points).double().sum((1, 2, 3))
    low, high = torch.zeros(8, dtype=torch.double), torch.full((8,), 1e6, dtype=torch.double)
    for _ in range(200):
        time = (low + high) / 2
        enough = (normal.abs().double() * torch.minimum(time.view(-1, 1, 1, 1) * pace, room)).sum((1, 2, 3)) >= goal
        low, high = torch.where(enough, low, time), torch.where(enough, time, high)
    expected = torch.minimum(high.view(-1, 1, 1, 1) * pace, room)
    assert torch.allclose(step.abs().double(), expected, atol=1e-3)


def test_rounding_at_a_corner_does_not_lead_out_of_the_box():
    """The plane goes exactly through a corner, where the last moving pixels have tiny gradients."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2048, 3, 16, 16, generator=generator)
    normal = torch.randn(points.shape, generator=generator) ** 9
    corner = (normal < 0).float()
    step = step_to_plane(Linf(0.1), points, normal, (normal * corner).sum((1, 2, 3)))
    there = points + step
    assert there.min() >= 0 and there.max() <= 1 + 1e-6


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1)])
@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12])
def test_the_scale_of_the_gradient_does_not_matter(threat, scale):
    points, normal, offset = plane_cases(6)
    expected = step_to_plane(threat, points, normal, offset)
    step = step_to_plane(threat, points, scale * normal, scale * offset)
    assert torch.allclose(step, expected, atol=1e-4)


def test_without_a_gradient_there_is_no_step():
    points, normal, _ = plane_cases(4)
    for threat in (Linf(0.1), L2(0.1)):
        assert (step_to_plane(threat, points, 0 * normal, torch.ones(4)) == 0).all()


def test_fab_ends_at_the_nearest_point_of_the_boundary():
    """In a ball that is slightly larger than needed, the best iterates lie just beyond the boundary."""
    model, images = Planes(classes=2), make_images(10)
    for kind in (Linf, L2):
        _, distance = median_threat(model, kind, images)
        inputs = make_input(model, images, kind(distance * 1.01))
        outcome = run(model, FAB(inputs.threat, steps=30), inputs)
        assert outcome.fooled.all() and (inputs.threat.distance(outcome.worst, images) >= distance * 0.999).all()
