"""What is published: the wheel works in an empty environment, and the sdist builds the same wheel."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

from adaptive_smoothing.version import VERSION

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "adaptive_smoothing"
MOST_BYTES = 30e6
# What the demo needs besides the code.
NEEDED = (
    "py.typed",
    "data/builtin/index.json",
    "data/builtin/test.webp",
    "data/builtin/val.webp",
    "models/weights/compact-standard.safetensors",
    "models/weights/compact-robust.safetensors",
    "models/weights/compact-mixed/mixer.safetensors",
    "report/stored/compact/rows.npz",
    "report/stored/compact-mixed/rows.npz",
)


def build(source: Path, folder: Path, *options: str) -> None:
    """Build in this environment, without fetching anything."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), *options]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist."""
    build(ROOT, folder := tmp_path_factory.mktemp("dist"))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    """Return the files of the wheel."""
    return contents(one(built, "*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Message:
    return message_from_bytes(wheel[f"adaptive_smoothing-{VERSION}.dist-info/METADATA"])


@pytest.fixture(scope="module")
def run(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Install the wheel in an empty environment. Return a function that runs a program of it in an empty folder.

    The dependencies are those of this environment, because torch takes minutes to install. Python follows the path in a
    .pth file, but not the .pth files it finds there, so an editable installation of this package stays invisible.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    scripts = environment / "bin"
    install = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, "--quiet", str(one(built, "*.whl"))], check=True, capture_output=True)
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (one(environment, "lib/python*/site-packages") / "dependencies.pth").write_text("\n".join(packages))
    empty = tmp_path_factory.mktemp("empty")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *arguments: str) -> str:
        command = [str(scripts / program), *arguments]
        return subprocess.run(command, cwd=empty, env=variables, check=True, capture_output=True, text=True).stdout

    return run


def test_the_wheel_is_complete_and_small(built: Path, wheel: dict[str, bytes]):
    sources = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    sources = {name for name in sources if "__pycache__" not in name and not name.endswith(".tmp")}
    packed = {name.removeprefix("adaptive_smoothing/") for name in wheel if ".dist-info/" not in name}
    assert packed == sources  # so it has no tests
    assert not set(NEEDED) - packed and any(name.startswith("report/") and name.endswith(".html") for name in packed)
    assert one(built, "*.whl").stat().st_size < MOST_BYTES


def test_the_wheel_names_no_path_of_this_machine(wheel: dict[str, bytes]):
    paths = b"|".join(re.escape(str(path).encode()) for path in (ROOT, sys.prefix))
    assert not [name for name, content in wheel.items() if re.search(rb"(?<![\w./-])(" + paths + rb")/", content)]


def test_the_page_of_the_package_has_a_licence_and_links_that_lead_to_this_version(metadata: Message):
    assert (metadata["Version"], metadata["License-Expression"]) == (VERSION, "MIT")
    text = metadata.get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 10
    assert not [target for target in targets if "://" not in target]
    assert any(f"/raw/v{VERSION}/results/headline.png" in target for target in targets)


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built: Path, wheel: dict[str, bytes], tmp_path: Path):
    with tarfile.open(one(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    source = one(tmp_path / "sdist", "*")
    build(source, tmp_path, "--target", "wheel")
    assert contents(one(tmp_path, "*.whl")) == wheel
    assert not [path for path in source.rglob("*") if path.suffix == ".pyc" or path.name.startswith("test_")]
    assert {"LICENSE", "CITATION.cff", "CHANGELOG.md", "recipes"} <= {path.name for path in source.iterdir()}


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(run: Callable[..., str], tmp_path: Path):
    file = Path(run("python", "-c", "import adaptive_smoothing; print(adaptive_smoothing.__file__)").strip())
    assert file.is_relative_to(Path(run("python", "-c", "import sys; print(sys.prefix)").strip()))
    assert run("adaptive-smoothing", "--version").strip() == f"adaptive-smoothing {VERSION}"
    assert "compact-mixed" in run("adaptive-smoothing", "models")
    options = ("--images", "2", "--device", "cpu")
    run("adaptive-smoothing", "demo", *options, "--out", str(tmp_path / "demo"))
    assert list((tmp_path / "demo").glob("*.html"))
    # Attacks on a mixture take four times as long.
    evaluate = ("evaluate", "compact-standard", *options, "--set", "alarms=false", "--out", str(tmp_path / "evaluate"))
    assert "robust accuracy" in run("adaptive-smoothing", *evaluate)
    assert (tmp_path / "evaluate" / "result.json").is_file()


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (VERSION, project["license"])
    addresses = [citation["repository-code"], citation["url"]]
    assert addresses == [project["urls"][name] for name in ("Source", "Documentation")]
    assert citation["authors"] == project["authors"]
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert next(title for title in sections if title != "Unreleased") == f"{VERSION} ({citation['date-released']})"


def test_the_citation_names_the_paper_and_its_authors():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    assert {"type", "title", "authors", "journal", "year"} <= paper.keys()
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    assert paper["title"] in readme and f"{paper['journal']}, {paper['year']}" in readme
    assert [author["family-names"] for author in paper["authors"]] == ["Bai", "Anderson", "Kim", "Sojoudi"]
