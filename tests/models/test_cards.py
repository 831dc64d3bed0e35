"""Cards of models."""

from adaptive_smoothing.models.cards import _purpose


def test_a_card_knows_a_lipschitz_network():
    method = {"name": "standard"}
    assert "Lipschitz" in _purpose({"model": {"arch": "lipschitz_net"}, "method": method})
    assert "standard classifier g" in _purpose({"model": {"arch": "preact_resnet18"}, "method": method})
