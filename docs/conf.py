"""Sphinx configuration."""

import re
import shutil
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

# For experiments/, which is not installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

project = "tvbo"
author = "The tvbo authors"
version = release = installed_version("botorch-tvbo")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "results"]

html_theme = "furo"
html_title = f"tvbo {version}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"

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


def copy_research() -> None:
    """Bring the pages of ../experiments/docs into the source tree as research/, links adapted."""
    docs = Path(__file__).parent
    shutil.rmtree(docs / "research", ignore_errors=True)
    (docs / "research").mkdir()
    for page in (docs.parent / "experiments" / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8").replace("../../docs/", "../")
        text = text.replace("../../tutorials/", "../tutorials/")
        (docs / "research" / page.name).write_text(text, encoding="utf-8")


def link_research(app, name, content):
    """Lead links to ../experiments/docs and ../tutorials to where the site has these pages."""
    content[0] = content[0].replace("../experiments/docs/", "research/")
    if "/" not in name:
        content[0] = content[0].replace("](../tutorials/", "](tutorials/")


def hide_colons(app, what, name, obj, options, lines):
    """Napoleon takes the words before a colon for the type of a property: hide it there."""
    if what == "property":
        lines[:] = [line.replace(": ", "\0 ") for line in lines]


def show_colons(app, what, name, obj, options, lines):
    """Undo :func:`hide_colons`."""
    lines[:] = [line.replace("\0 ", ": ") for line in lines]


# LaTeX that docutils does not know or sets badly, and the same that it sets well: sizes of
# brackets, fractions of digits, an index to an accent, and the space around log, max and the like.
FUNCTION = r"\\(?:log|ln|exp|det|cos|sin|max|min)(?![a-zA-Z])"
SPELLINGS = (
    (r"\\[bB]igg?[lrm]?(?=\(|\[|\\lceil)", r"\\left"),
    (r"\\[bB]igg?[lrm]?(?=\)|\]|\\rceil)", r"\\right"),
    (r"\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
    (r"(?<!\\left)\\l([vV])ert", r"\\left\\l\1ert"),
    (r"(?<!\\right)\\r([vV])ert", r"\\right\\r\1ert"),
    (r"(?<!\\)\|([^|\\()\[\]{}]+)\|", r"\\left|\1\\right|"),
    (r"\\([td]?frac)(\d)(\d)", r"\\\1{\2}{\3}"),
    (r"\\dots(?![a-zA-Z])", r"\\ldots"),
    (r"\\iff(?![a-zA-Z])", r"\\Longleftrightarrow"),
    (r"\\(tilde|bar|hat)\s*(\\[a-zA-Z]+|[a-zA-Z]|\{[^{}]*\})", r"{{}\\\1{\2}}"),
    (rf"(?<=[\w}})\]])\s*(?={FUNCTION})", r"\\,"),
    (rf"({FUNCTION})(?!\s*(?:[_^(\[]|\\left|\\[,!]))", r"\1\\,"),
)


def visit_math(self, node):
    """Write a formula as MathML, which browsers draw without a script and without a network."""
    block = isinstance(node, nodes.math_block)
    # An empty line between two formulas starts a new line, as in sphinx.ext.mathjax.
    formula = r" \\ ".join(part for part in node.astext().split("\n\n") if part.strip())
    for unknown, known in SPELLINGS:
        formula = re.sub(unknown, known, formula)
    try:
        mathml = tex2mathml(formula, as_block=block)
    except MathError as error:
        message = "MathML is not made of %r: %s"
        logging.getLogger(__name__).warning(message, formula, error, location=node)
        mathml = self.encode(formula)
    element = "div" if block else "span"
    self.body.append(self.starttag(node, element, "", CLASS="math notranslate nohighlight"))
    self.body.append(f"{mathml}</{element}>\n" if block else f"{mathml}</{element}>")
    raise nodes.SkipNode


def setup(app):
    """Register the renderer of formulas, and what goes before and after Napoleon (priority 500)."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", link_research)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)


copy_tutorials()
copy_research()
