"""Which versions and which code of the user's count."""

import importlib
import sys
from importlib.metadata import version
from types import ModuleType

import torch

import tvbo
from tvbo.storage import environment


def test_versions_and_threads_are_kept_track_of():
    now = environment.current_environment([])
    assert now["torch"] == torch.__version__.split("+")[0] or now["torch"] == torch.__version__
    assert now["tvbo"] == tvbo.__version__
    assert now["threads"] == str(torch.get_num_threads())
    assert environment.is_same(now, environment.current_environment([]))


def test_user_modules_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "top_of_mine.py").write_text("import math, torch\nfrom below_mine import f\n")
    (tmp_path / "below_mine.py").write_text("def f():\n    pass\n")
    (tmp_path / "beside_mine.py").write_text("")
    then = environment.current_environment(["top_of_mine", "torch.nn", "tvbo.kernels"])
    mine = {name for name in then if name.startswith("source of") and name != "source of tvbo"}
    assert mine == {"source of top_of_mine", "source of below_mine"}
    (tmp_path / "below_mine.py").write_text("def f():\n    return 1\n")
    now = environment.current_environment(["top_of_mine"])
    assert not environment.is_same(then, now)
    old, new = then["source of below_mine"], now["source of below_mine"]
    assert environment.changes(then, now) == f"source of below_mine was {old}, is {new}"


def sources(names) -> set[str]:
    """Modules of the user's among those that a run rests on."""
    found = environment.current_environment(names)
    return {name for name in found if name.startswith("source of")} - {"source of tvbo"}


def test_all_that_a_source_imports_counts(tmp_path, monkeypatch):
    """Constants, modules within packages, and what is imported when it is first used."""
    monkeypatch.syspath_prepend(tmp_path)
    package, folder = tmp_path / "mine_in_parts", tmp_path / "mere_folder_of_mine"
    (package / "inner").mkdir(parents=True)
    folder.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from ..beside import CONSTANT")
    (package / "inner" / "deep.py").write_text(
        "from constants_of_mine import SCALE\n"
        "def f():\n    from . import late\n    import mere_folder_of_mine.part\n"
    )
    (package / "inner" / "late.py").write_text("import not_there_at_all, no_package.of_any")
    (package / "inner" / "unused.py").write_text("")
    (package / "beside.py").write_text("CONSTANT = 1")
    (folder / "part.py").write_text("")
    (tmp_path / "constants_of_mine.py").write_text("SCALE = 2")
    names = ("", ".inner", ".inner.deep", ".inner.late", ".beside")
    assert sources(["mine_in_parts.inner.deep"]) == {
        *(f"source of mine_in_parts{name}" for name in names),
        "source of constants_of_mine",
        "source of mere_folder_of_mine.part",
    }


def test_a_constant_that_has_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "uses_a_constant.py").write_text("from my_constants import SCALE\n")
    (tmp_path / "my_constants.py").write_text("SCALE = 2\n")
    then = environment.current_environment(["uses_a_constant"])
    (tmp_path / "my_constants.py").write_text("SCALE = 200\n")
    now = environment.current_environment(["uses_a_constant"])
    assert environment.changes(then, now).startswith("source of my_constants was ")


def test_installed_packages_are_known_by_their_version(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "uses_packages.py").write_text("import pandas\nfrom matplotlib import pyplot\n")
    found = environment.current_environment(["uses_packages"])
    assert found["pandas"] == f"pandas {version('pandas')}"
    assert found["matplotlib"] == f"matplotlib {version('matplotlib')}"
    assert sources(["uses_packages"]) == {"source of uses_packages"}


def test_a_function_without_a_module_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "homeless.py").write_text(
        "space = {}\nexec('def f(): pass', space)\nf = space['f']\n"
    )
    importlib.import_module("homeless")
    assert sources(["homeless"]) == {"source of homeless"}
    del sys.modules["homeless"]


def test_a_source_that_is_gone_equals_nothing(tmp_path, monkeypatch):
    """Though the module is in memory still."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = tmp_path / "soon_gone.py"
    source.write_text("")
    importlib.import_module("soon_gone")
    source.unlink()
    now = environment.current_environment(["soon_gone"])
    del sys.modules["soon_gone"]
    assert not environment.is_same(now, dict(now))
    assert environment.changes(now, now) == (
        "source of soon_gone cannot be compared, it stands in no file"
    )


def test_code_of_a_notebook_stands_in_no_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    now = environment.current_environment(["__main__"])
    assert now["source of __main__"] == environment.NO_SOURCE


def test_what_python_cannot_read_counts_as_it_is(tmp_path, monkeypatch):
    """A source that is no Python, and an import from beyond the package, are not followed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "uses_the_unfinished.py").write_text(
        "def f():\n    import unfinished\n    from ... import nothing\n    import finished\n"
    )
    (tmp_path / "unfinished.py").write_text("import finished\nreturn (")
    (tmp_path / "finished.py").write_text("")
    then = environment.current_environment(["uses_the_unfinished"])
    names = ("uses_the_unfinished", "unfinished", "finished")
    assert sources(["uses_the_unfinished"]) == {f"source of {name}" for name in names}
    (tmp_path / "unfinished.py").write_text("return ((")
    now = environment.current_environment(["uses_the_unfinished"])
    assert environment.changes(then, now).startswith("source of unfinished was ")


def test_a_library_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr("tvbo.storage.environment.LIBRARIES", ("torch", "never_installed"))
    assert environment.current_environment([])["never_installed"] == "not installed"


def test_a_module_that_is_gone_is_a_difference():
    assert environment.current_environment(["never_there"])["source of never_there"] == "missing"
