"""Which code of the user's counts."""

import importlib
import sys
from importlib.metadata import version

from tvbo.journal import environment


def test_user_modules_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "top_of_mine.py").write_text("import math, torch\nfrom below_mine import f\n")
    (tmp_path / "below_mine.py").write_text("def f():\n    pass\n")
    (tmp_path / "beside_mine.py").write_text("")
    then = environment.environment(["top_of_mine", "torch.nn", "tvbo.kernels"])
    mine = {name for name in then if name.startswith("source of") and name != "source of tvbo"}
    assert mine == {"source of top_of_mine", "source of below_mine"}
    (tmp_path / "below_mine.py").write_text("def f():\n    return 1\n")
    now = environment.environment(["top_of_mine"])
    assert not environment.same(then, now)
    old, new = then["source of below_mine"], now["source of below_mine"]
    assert environment.changes(then, now) == f"source of below_mine was {old}, is {new}"


def sources(names) -> set[str]:
    """Modules of the user's among those that a run rests on."""
    found = environment.environment(names)
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
    then = environment.environment(["uses_a_constant"])
    (tmp_path / "my_constants.py").write_text("SCALE = 200\n")
    now = environment.environment(["uses_a_constant"])
    assert environment.changes(then, now).startswith("source of my_constants was ")


def test_installed_packages_are_known_by_their_version(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "uses_packages.py").write_text("import pandas\nfrom matplotlib import pyplot\n")
    found = environment.environment(["uses_packages"])
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


def test_a_module_that_is_gone_is_a_difference():
    assert environment.environment(["never_there"])["source of never_there"] == "missing"
