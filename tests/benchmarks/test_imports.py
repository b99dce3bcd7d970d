"""Benchmarks, most of which no other test runs: they import, and make runs, what there is."""

import ast
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.stem)
def test_what_a_benchmark_imports_is_there(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tvbo"):
            if node.module.startswith("tvbo.integrations"):
                continue  # Of extras.
            for name in node.names:
                assert resolve_name(f"{node.module}.{name.name}") is not None


def test_make_runs_benchmarks_that_there_are():
    named = re.findall(r"benchmarks/\S+\.py", (FOLDER.parent / "Makefile").read_text())
    assert named
    assert not [name for name in named if not (FOLDER.parent / name).exists()]
