"""Threats: projections, steepest directions and random points, compared with their definitions; parsing."""

import pytest
import torch

from adaptive_smoothing.threat import L2, Linf, parse_number, parse_threat

IMAGES = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5), Linf(torch.linspace(0, 0.2, 5)), L2(torch.linspace(0, 1, 5))])
def test_projection_and_random_starts_stay_in_ball_and_box(threat):
    wild = IMAGES + torch.randn(IMAGES.shape)
    start = threat.project(IMAGES + threat.random_delta(IMAGES, torch.Generator().manual_seed(1)), IMAGES)
    for points in (threat.project(wild, IMAGES), start):
        assert (threat.distance(points, IMAGES) <= torch.as_tensor(threat.eps) + 1e-6).all()
        assert points.min() >= 0 and points.max() <= 1


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)])
def test_points_inside_are_not_moved(threat):
    inside = IMAGES.clamp(0.3, 0.7)
    near = inside + 1e-3
    assert torch.allclose(threat.project(near, inside), near)


@pytest.mark.parametrize("threat", [Linf(1.0), L2(1.0)])
def test_steepest_direction_has_unit_norm_and_attains_the_dual_norm(threat):
    gradient = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    direction = threat.steepest(gradient)
    assert torch.allclose(threat.distance(direction, torch.zeros_like(direction)), torch.ones(5, dtype=torch.float64))
    assert torch.allclose((gradient * direction).flatten(1).sum(1), threat.dual_norm(gradient))


def test_l2_start_is_uniform_in_the_ball():
    points = L2(2.0).random_delta(torch.zeros(20_000, 1, 1, 2), torch.Generator().manual_seed(0)).flatten(1)
    inner = (points.norm(dim=1) < 1).double().mean().item()
    assert inner == pytest.approx(1 / 4, abs=0.01)  # the share of the area within half the radius


def test_a_zero_gradient_gives_no_nan():
    for threat in (Linf(0.1), L2(0.1)):
        assert torch.isfinite(threat.steepest(torch.zeros(2, 3, 4, 4))).all()
        assert torch.isfinite(threat.clip(torch.zeros(2, 3, 4, 4))).all()


def test_take_selects_the_radii_of_images():
    threat = Linf(torch.tensor([0.1, 0.2, 0.3]))
    assert threat.take(torch.tensor([2, 0])).eps.tolist() == pytest.approx([0.3, 0.1])
    assert Linf(0.1).take(torch.tensor([0])).eps == 0.1


def test_threats_are_parsed_from_text():
    assert parse_threat("Linf:8/255") == Linf(8 / 255)
    assert parse_threat("l2: 0.5") == L2(0.5)
    assert parse_number("1/4") == 0.25


@pytest.mark.parametrize("text", ["Linf", "L1:0.5", "Linf:abc", "8/255", "Linf:8/0"])
def test_an_error_names_a_valid_threat(text):
    with pytest.raises(ValueError, match="Linf:8/255"):
        parse_threat(text)


def test_a_radius_in_units_of_pixel_values_is_an_error():
    with pytest.raises(ValueError, match="did you mean 8/255"):
        Linf(8)
    with pytest.raises(ValueError, match="did you mean 8/255"):
        Linf(torch.tensor([0.1, 8]))
    assert L2(8).eps == 8


def test_a_negative_radius_is_an_error():
    with pytest.raises(ValueError, match="eps >= 0"):
        Linf(-0.1)
    with pytest.raises(ValueError, match="eps >= 0"):
        L2(torch.tensor([0.1, -0.2]))


def test_the_number_of_radii_must_match_the_batch():
    with pytest.raises(ValueError, match="one radius per image"):
        Linf(torch.tensor([0.1, 0.2])).clip(IMAGES)


ENDS = torch.tensor([0.0, 1 - 2.0**-24])


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5), Linf(torch.linspace(0, 0.2, 5)), L2(torch.linspace(0, 1, 5))])
def test_surface_delta_has_norm_eps(threat):
    delta = threat.surface_delta(torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0)))
    expected = torch.as_tensor(threat.eps).expand(5)
    assert torch.allclose(threat.distance(delta, torch.zeros_like(delta)), expected, rtol=1e-6)
    assert (delta > 0).any() and (delta < 0).any()


@pytest.mark.parametrize("kind", [Linf, L2])
@pytest.mark.parametrize("uniform", [ENDS[[0, 0, 0]], ENDS[[1, 1, 1]], ENDS[[0, 1, 0]], torch.tensor([0.5, 0.5, 0])])
def test_surface_delta_is_finite_for_the_extreme_random_numbers(kind, uniform):
    threat = kind(0.25)
    delta = threat.surface_delta(uniform.view(1, 3, 1, 1))
    assert delta.isfinite().all()
    assert threat.distance(delta, torch.zeros_like(delta)).item() == pytest.approx(0.25, rel=1e-6)


def test_l2_surface_points_are_uniform_in_direction():
    points = L2(1.0).surface_delta(torch.rand(20_000, 1, 1, 3, generator=torch.Generator().manual_seed(0))).flatten(1)
    assert torch.allclose(points.mean(0), torch.zeros(3), atol=0.02)
    assert torch.allclose(points.T @ points / len(points), torch.eye(3) / 3, atol=0.01)


def test_the_pace_of_pixels_towards_a_plane():
    """The shortest step moves all pixels with a nonzero normal equally in Linf, and along the normal in L2."""
    normal = torch.tensor([2.0, -3.0, 0.0]).view(1, 3, 1, 1)
    assert Linf(0.1).pace(normal).flatten().tolist() == [1, 1, 0]
    assert L2(0.1).pace(normal).flatten().tolist() == [2, 3, 0]
