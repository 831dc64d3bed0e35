"""A plane with its images, and access to the scripts in benchmarks/."""

import importlib.util
import sys
from pathlib import Path

import pytest
from half_spaces import HalfSpaces

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def plane():
    return HalfSpaces(steep=4.0)


@pytest.fixture(scope="session")
def data(plane):
    return plane.data(9)


@pytest.fixture(scope="session")
def load_benchmark():
    """A function that imports a script of benchmarks/ by its name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"benchmarks.{name}", BENCHMARKS / f"{name}.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look here
        spec.loader.exec_module(module)
        return module

    return load
