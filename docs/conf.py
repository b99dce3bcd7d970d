"""Sphinx configuration."""

import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

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

autodoc_member_order = "bysource"
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


copy_tutorials()
