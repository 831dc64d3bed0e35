"""The version of the code changes with the code that computes results, and with nothing else."""

import re

import pytest

from adaptive_smoothing import version
from adaptive_smoothing.version import VERSION, code_digest, code_version

CODE = '''"""A module."""

RATE = 0.5


def step(x):
    """Return the next point."""
    return x - RATE * x  # downhill
'''


@pytest.fixture
def package(tmp_path):
    for name in ("models", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Return the next point.", "Return another point."),
        ('"""A module."""\n', ""),
        ("# downhill", "# towards zero"),
        ("x - RATE * x  #", "(x\n        - RATE * x)  #"),
    ],
)
def test_docstrings_comments_and_layout_do_not_count(package, old, new):
    before = code_digest(package)
    (package / "models" / "steps.py").write_text(CODE.replace(old, new))
    assert old in CODE and code_digest(package) == before


@pytest.mark.parametrize(("old", "new"), [("0.5", "0.25"), ("x - RATE", "x + RATE"), ("step", "move")])
def test_code_counts(package, old, new):
    before = code_digest(package)
    (package / "models" / "steps.py").write_text(CODE.replace(old, new))
    assert code_digest(package) != before


def test_the_name_of_a_module_counts(package):
    before = code_digest(package)
    (package / "models" / "steps.py").rename(package / "models" / "moves.py")
    assert code_digest(package) != before


def test_packages_that_compute_no_result_do_not_count(package):
    before = code_digest(package)
    (package / "cli" / "steps.py").write_text(CODE.replace("0.5", "0.25"))
    assert code_digest(package) == before


def test_the_version_has_ten_digits_of_the_digest():
    assert re.fullmatch(re.escape(VERSION) + r"\+[0-9a-f]{10}", code_version())


def test_the_digest_is_computed_once_for_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setenv(version.CACHE_VARIABLE, str(tmp_path / "cache"))
    compute = code_version.__wrapped__
    expected = compute()
    monkeypatch.setattr(version, "code_digest", lambda folder: "0" * 64)
    assert compute() == expected == code_version()
    with monkeypatch.context() as other_python:  # the digest of the same code differs between versions of Python
        other_python.setattr(version.sys, "hexversion", 0)
        assert compute() == f"{VERSION}+0000000000"
    monkeypatch.setattr(version, "file_digest", lambda folder: "other files")
    assert compute() == f"{VERSION}+0000000000"


def test_a_cache_that_cannot_be_read_or_written_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "code-digest").write_text("cut off")
    monkeypatch.setenv(version.CACHE_VARIABLE, str(tmp_path))
    assert code_version.__wrapped__() == code_version()
    (tmp_path / "file").touch()
    monkeypatch.setenv(version.CACHE_VARIABLE, str(tmp_path / "file"))
    assert code_version.__wrapped__() == code_version()
