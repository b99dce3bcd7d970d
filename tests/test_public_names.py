"""What the design promises, and that every kernel has a test."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpytorch.kernels import Kernel

import tvbo
import tvbo.kernels
from tvbo import recipes


def run_fresh(script):
    """Run a script in an interpreter that has imported nothing."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_every_public_name_has_a_docstring():
    names = {}
    for found in pkgutil.walk_packages(tvbo.__path__, "tvbo."):
        # What needs an extra, which may not be installed, is left out.
        if not (found.name.endswith(("__main__", ".app")) or ".integrations." in found.name):
            module = importlib.import_module(found.name)
            names |= {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    names |= {name: getattr(tvbo, name) for name in tvbo.__all__}
    assert len(names) <= 120
    described = {
        name: x for name, x in names.items() if inspect.isclass(x) or inspect.isfunction(x)
    }
    assert [name for name, value in described.items() if not inspect.getdoc(value)] == []


def test_recipes_refuse_a_misspelt_option():
    with pytest.raises(TypeError, match="forgeting_rate"):
        recipes.tv_gp_ucb(bounds=None, forgeting_rate=0.1)


@pytest.mark.parametrize(
    "name",
    [n for n, k in vars(tvbo.kernels).items() if inspect.isclass(k) and issubclass(k, Kernel)],
)
def test_every_kernel_has_a_test(name):
    tests = (Path(__file__).parent / "kernels").glob("test_*.py")
    assert any(f"{name}(" in path.read_text() for path in tests)


def test_the_other_tvbo_beside_ours_is_named(tmp_path):
    other = tmp_path / "tvbo-0.5.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tvbo\nVersion: 0.5.3\n")
    script = f"import sys; sys.path.append({str(tmp_path)!r}); import tvbo"
    run = run_fresh(script)
    assert run.stderr.splitlines()[-1].startswith("ImportError: ")
    assert "tvbo 0.5.3" in run.stderr


def test_import_is_light():
    """Names of the package are imported at first use, and what only tables and plots need later."""
    script = (
        "import sys, tvbo; assert 'torch' not in sys.modules; assert 'run' in dir(tvbo); "
        "tvbo.run, tvbo.recipes.gp_ucb, tvbo.History; assert 'torch' in sys.modules; "
        "late = ('matplotlib', 'pandas', 'rich', 'scipy.stats', 'sklearn'); "
        "print([name for name in late if name in sys.modules])"
    )
    loaded = run_fresh(script)
    assert loaded.stdout.strip() == "[]", loaded.stderr


@pytest.mark.slow
def test_models_alone_have_sample_paths():
    """No other part of the package has to be imported before BoTorch draws paths of a model."""
    script = (
        "import torch; from tvbo.models import TimeVaryingGP; "
        "from botorch.sampling.pathwise import draw_matheron_paths; "
        "X = torch.rand(5, 2).double(); model = TimeVaryingGP(X, X[:, :1], time_feature=1); "
        "print(draw_matheron_paths(model, torch.Size([3]))(X).shape)"
    )
    drawn = run_fresh(script)
    assert drawn.stdout.strip() == "torch.Size([3, 5])", drawn.stderr


def test_unknown_name():
    with pytest.raises(AttributeError):
        tvbo.recipe  # noqa: B018
