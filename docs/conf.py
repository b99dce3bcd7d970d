"""Sphinx configuration."""

import shutil
import sys
from importlib.metadata import version as installed_version
from inspect import signature, unwrap
from pathlib import Path

# For experiments/, which is not installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

project = "tvbo"
author = "The tvbo authors"
version = release = installed_version("botorch-tvbo")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "results"]

html_theme = "furo"
html_title = f"tvbo {version}"
html_static_path = []

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# The tests execute the notebooks; the pages show them as they were saved.
nb_execution_mode = "off"

autodoc_default_options = {"special-members": "__call__"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shape"]
add_module_names = False


def copy_tutorials() -> None:
    """Bring the notebooks of ../tutorials into the source tree, and drop those that are gone."""
    docs = Path(__file__).parent
    notebooks = {path.name: path for path in (docs.parent / "tutorials").glob("*.ipynb")}
    for copy in (docs / "tutorials").glob("*.ipynb"):
        if copy.name not in notebooks:
            copy.unlink()
    for name, path in notebooks.items():
        shutil.copy2(path, docs / "tutorials" / name)


def show_options_as_written() -> None:
    """Let recipes end in ``**options``, which their docstrings link to the TypedDict.

    Python shows the options one by one; Sphinx looks for the default of each in the source.
    """
    from tvbo import recipes

    for name in recipes.__all__:
        recipe = getattr(recipes, name)
        recipe.__signature__ = signature(unwrap(recipe))


def hide_colons(app, what, name, obj, options, lines):
    """Napoleon takes the words before a colon for the type of a property: hide it there."""
    if what == "property":
        lines[:] = [line.replace(": ", "\0 ") for line in lines]


def show_colons(app, what, name, obj, options, lines):
    """Undo :func:`hide_colons`."""
    lines[:] = [line.replace("\0 ", ": ") for line in lines]


def setup(app):
    """Before and after Napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)


copy_tutorials()
show_options_as_written()
