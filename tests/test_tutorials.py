"""Every notebook runs from top to bottom, in its short mode."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_tutorials():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("TVBO_SHORT", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", output["text"]
