"""Cards of models."""

from adaptive_smoothing.models.cards import _purpose, base_description


def test_a_card_knows_a_lipschitz_network():
    method = {"name": "standard"}
    assert "Lipschitz" in _purpose({"model": {"arch": "lipschitz_net"}, "method": method})
    assert "standard classifier g" in _purpose({"model": {"arch": "preact_resnet18"}, "method": method})


def test_the_description_of_a_network_is_found_inside_any_number_of_transforms():
    base = {"name": "a", "of": "part of the base"}
    once = {"transform": "nonlinear", "options": {}, "of": base}
    twice = {"transform": "hardmax", "options": {}, "of": once}
    assert base == base_description(base) == base_description(once) == base_description(twice)
    assert base_description({"transform": "hardmax"}) == {}
