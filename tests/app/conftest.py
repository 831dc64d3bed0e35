"""The mixture of the package with its validation curve, as the application shows it."""

import pytest

from adaptive_smoothing.app.subject import Subject
from adaptive_smoothing.mixing.loading import LoadedModel


@pytest.fixture(scope="session")
def subject() -> Subject:
    return Subject.of(LoadedModel.load("compact-mixed", None, None, "cpu"))


@pytest.fixture(scope="session")
def pair() -> Subject:
    return Subject.of(LoadedModel.load("compact-standard", "compact-robust", 0.85, "cpu"))
