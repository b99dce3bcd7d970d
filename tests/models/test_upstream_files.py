"""``TemporalDecayKernel`` and ``TimeVaryingGP`` need torch, GPyTorch and BoTorch alone.

The page ``experiments/docs/upstream.md`` names their files. They work in a folder of their own.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.models import TimeVaryingGP

ROOT = Path(__file__).parents[2]
KERNEL = {"batch", "temporal"}
FILES = [
    *(f"tvbo/kernels/{name}.py" for name in ("batch", "temporal")),
    *(f"tvbo/models/{name}.py" for name in ("at_bounds", "time_varying_gp")),
]
# Of the checks of what callers pass, these alone; the rest of the file is not taken.
CHECKS, USED_CHECKS = "tvbo/spaces/observations.py", {"check_finite", "split_columns"}
LIBRARIES = {"torch", "gpytorch", "botorch"}

ALONE = """
import sys

import torch
from gpytorch.kernels import RBFKernel
from tvbo.models.time_varying_gp import TimeVaryingGP

print(sorted(name for name in sys.modules if name.startswith("tvbo.") and name.count(".") == 2))
t = torch.arange(6.0, dtype=torch.float64).unsqueeze(-1)
model = TimeVaryingGP(torch.cat([t.sin(), t], -1), t.cos(), covar_module=RBFKernel())
print(model.posterior(torch.tensor([[0.3, 7.0]], dtype=torch.float64)).mean.item())
"""


def imports(file):
    """Names that a file imports, as ``module`` or ``module.name``, also within functions."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "Expected absolute imports"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module(file):
    return file.removesuffix(".py").replace("/", ".")


@pytest.mark.parametrize("file", FILES)
def test_each_imports_the_libraries_and_the_other_files_alone(file):
    own = {name for name in imports(file) if name.startswith("tvbo.")}
    others = {name.partition(".")[0] for name in imports(file) - own}
    assert others <= LIBRARIES | set(sys.stdlib_module_names)
    modules = {name.rpartition(".")[0] for name in own}
    assert modules <= {module(each) for each in (*FILES, CHECKS)}
    checks = {name.rpartition(".")[2] for name in own if name.startswith(module(CHECKS))}
    assert checks <= USED_CHECKS


@pytest.mark.parametrize("name", sorted(KERNEL))
def test_the_kernel_needs_its_three_files_and_one_check(name):
    own = {each for each in imports(f"tvbo/kernels/{name}.py") if each.startswith("tvbo.")}
    modules = {f"tvbo.kernels.{each}" for each in KERNEL}
    assert {e for e in own if e.rpartition(".")[0] not in modules} <= {
        "tvbo.spaces.observations.check_finite"
    }


@pytest.mark.slow
def test_they_work_in_a_folder_of_their_own(tmp_path):
    for file in (*FILES, CHECKS):
        target = tmp_path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, target)
    for folder in ("tvbo", "tvbo/kernels", "tvbo/models", "tvbo/spaces"):
        (tmp_path / folder / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded, mean = done.stdout.splitlines()
    assert set(ast.literal_eval(loaded)) == {module(file) for file in (*FILES, CHECKS)}
    t = torch.arange(6.0, dtype=torch.float64).unsqueeze(-1)
    model = TimeVaryingGP(torch.cat([t.sin(), t], -1), t.cos(), covar_module=RBFKernel())
    here = model.posterior(torch.tensor([[0.3, 7.0]], dtype=torch.float64)).mean.item()
    assert float(mean) == pytest.approx(here, rel=1e-9)


def test_the_page_names_them():
    page = (ROOT / "experiments" / "docs" / "upstream.md").read_text()
    rows = re.findall(r"^\| `(tvbo/\S+\.py)` ", page, re.MULTILINE)
    assert sorted(rows) == sorted([*FILES, CHECKS])
