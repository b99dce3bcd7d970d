"""Benchmarks, which no other test runs, use names that there are."""

import ast
from importlib import import_module
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
            import_module(node.module)
            for name in node.names:
                resolve_name(f"{node.module}.{name.name}")
