"""The checker of documentation runs blocks as a reader would who pastes them."""

import importlib.util
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "docs" / "check_snippets.py"


@pytest.fixture
def checker(tmp_path, monkeypatch):
    """The checker over an empty README and CONTRIBUTING and an empty folder of pages."""
    spec = importlib.util.spec_from_file_location("check_snippets", SOURCE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_snippets", module)
    spec.loader.exec_module(module)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(module, "RESEARCH", tmp_path / "experiments" / "docs")
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    monkeypatch.setattr(module, "CONTRIBUTING", tmp_path / "CONTRIBUTING.md")
    monkeypatch.setattr(sys, "argv", ["check_snippets.py"])
    module.README.write_text("")
    module.CONTRIBUTING.write_text("")
    return module


def text(*blocks):
    return "".join(f"Words.\n\n```python\n{block}\n```\n\n" for block in blocks)


def test_blocks_of_a_page_share_names_and_those_of_the_readme_do_not(checker, capsys):
    blocks = text("x = 1", "y = 2", "assert x == 1")
    (checker.DOCS / "page.md").write_text(blocks)
    assert checker.main() == 0
    checker.README.write_text(blocks)
    assert checker.main() == 1
    output = capsys.readouterr()
    assert "README.md, block 3, line 16 failed:" in output.err
    assert "NameError: name 'x' is not defined" in output.err
    assert "page.md" not in output.err


def test_each_process_starts_in_an_empty_folder_with_nothing_defined(checker):
    block = (
        'names = [name for name in globals() if not name.startswith("__")]\n'
        "assert names == [], names\n"
        "import os\n"
        'assert __name__ == "__main__" and os.listdir() == []\n'
        'open("left behind", "w").close()'
    )
    checker.README.write_text(text(block, block))
    (checker.DOCS / "page.md").write_text(text(block))
    assert checker.main() == 0


@pytest.mark.parametrize(
    ("blocks", "where"),
    [
        (("x = 1", "def f():\n    1 / 0", "x += 1\nf()"), "page.md, block 3, line 18 failed"),
        (("x = 1", "if x\n    pass"), "page.md, block 2, line 10 failed"),
        (("import os\nos._exit(3)",), "page.md failed, exit status 3"),
    ],
)
def test_page_block_and_line_are_named(checker, capsys, blocks, where):
    (checker.DOCS / "page.md").write_text(text(*blocks))
    assert checker.main() == 1
    assert where in capsys.readouterr().err.replace("docs/", "")


def test_other_languages_are_not_run(checker):
    (checker.DOCS / "page.md").write_text("```console\ntvbo nonsense\n```\n\n```text\n1 / 0\n```\n")
    assert checker.main() == 0
