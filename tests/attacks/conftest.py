"""A network that the tests of the engine and of attacks share."""

import pytest
from toys import small_network


@pytest.fixture(scope="module")
def network():
    return small_network()
