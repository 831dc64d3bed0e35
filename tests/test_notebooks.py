"""The notebooks run without an error, and are stored with output that names no machine and no time."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 400_000
# Lines of the first code cell that make a notebook small. Such a radius fools every image in the first attack.
SMALLER = {
    "tour": {"IMAGES": "IMAGES = 2", "EPS": "EPS = 64 / 255"},
    "own-models": {"IMAGES": "IMAGES = 8", "EPOCHS": "EPOCHS = 1", "EPS": "EPS = 64 / 255"},
}
# Calls after which a cell has output.
SHOWS = re.compile(r"\bprint\(|\bplt\.subplots\(")


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    """Return notebooks/execute.py as a module."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec and spec.loader
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def outputs(path: Path) -> list[nbformat.NotebookNode]:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, execute: ModuleType):
    cells = execute.executed(path, SMALLER[path.stem]).cells
    names = {output.get("name") for cell in cells if cell.cell_type == "code" for output in cell.outputs}
    assert "stdout" in names
    saved = [cell for cell in cells if "from_pretrained" in cell.source and cell.cell_type == "code"][-1]
    assert any("same logits: True" in output.get("text", "") for output in saved.outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_has_its_output(path: Path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    without = [cell.source for cell in code if SHOWS.search(cell.source) and not cell.outputs]
    assert not without, "execute it again: python notebooks/execute.py"
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]  # in order, in one go
    assert sum("image/png" in output.get("data", {}) for output in outputs(path)) >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_is_small_and_names_no_machine_and_no_time(path: Path):
    assert path.stat().st_size < MOST_BYTES
    notebook = nbformat.read(path, as_version=4)
    assert not [cell.metadata for cell in notebook.cells if cell.metadata]  # no times of execution
    assert notebook.metadata.language_info == {"name": "python"}
    for output in outputs(path):
        assert output.output_type != "error" and output.get("name") != "stderr"
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        assert not re.search(r"(?<![\w.])(/\w+/\w|[A-Z]:\\)", text), text
        assert not re.search(r"\b(site-packages|0x[0-9a-f]{6,})\b", text), text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_files(path: Path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets
    assert not [target for target in targets if not (FOLDER / target.partition("#")[0]).exists()]


def test_the_lines_that_the_test_makes_smaller_are_there():
    assert {path.stem for path in NOTEBOOKS} == SMALLER.keys()
