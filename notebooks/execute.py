"""Execute notebooks and store them with their output: python notebooks/execute.py [NOTEBOOK...], by default all."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parent


def executed(path: Path, replaced: Mapping[str, str] | None = None) -> nbformat.NotebookNode:
    """Return a notebook with fresh output, executed in an empty folder.

    Args:
        replaced: for each line of the first code cell that is replaced, its beginning and the new line.
    """
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    lines = first.source.splitlines()
    for beginning, new in (replaced or {}).items():
        (old,) = (number for number, line in enumerate(lines) if line.startswith(beginning))
        lines[old] = new
    first.source = "\n".join(lines)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        # Sockets in a folder of its own: two notebooks that run at the same time could choose the same port.
        connection = Config({"ConnectionFileMixin": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        # Times of execution would change the file with every execution.
        options = {"record_timing": False, "resources": {"metadata": {"path": folder}}, "config": connection}
        return NotebookClient(notebook, **options).execute()


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        notebook = executed(path)
        notebook.metadata.language_info = {"name": "python"}  # without the version of this machine
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
