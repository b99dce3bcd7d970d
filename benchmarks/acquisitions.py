"""Which acquisition functions of BoTorch can be maximized under which model: the table of a page.

PYTHONPATH=tests python benchmarks/acquisitions.py --json docs/results/acquisitions.json
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from acquisition_cases import CASES, outcome
from botorch.acquisition.multi_objective import logei
from every_model import MODELS
from shared import parser, show

PAGE = Path(__file__).parents[1] / "experiments" / "docs" / "acquisitions.md"
BEGIN, END = "<!-- begin of table -->", "<!-- end of table -->"
SIGNS = {"yes": "✓", "refused": "refused", "no option": "–", "fails": "✗"}


def sign(result: str) -> str:
    """Return what stands in the table for an outcome."""
    return SIGNS[result.split(":")[0]]


def main() -> None:
    """Make and maximize all acquisition functions, print a table, write it into the page."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    logei._load_attempted = True  # or BoTorch compiles a kernel, for 20 s
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = {name: {model: outcome(name, model) for model in MODELS} for name in CASES}
    rows = [(name, *map(sign, results[name].values())) for name in CASES]
    reasons = {
        name: {model: words[:300] for model, words in each.items() if words != "yes"}
        for name, each in results.items()
    }
    figures = {"cases": len(CASES), "not_maximized": {k: v for k, v in reasons.items() if v}}
    columns = ("acquisition function", *MODELS)
    cells = {column: lambda row, i=i: row[i] for i, column in enumerate(columns)}
    show("Acquisition functions and models", cells, rows, chosen.json, figures)
    everywhere = [row[0] for row in rows if set(row[1:]) == {"✓"}]
    names = ", ".join(f"`{name}`" for name in everywhere)
    lines = [f"Maximized under every model: {names}.", ""]
    lines += ["| " + " | ".join(columns) + " |", "|---|" + "---|" * len(MODELS)]
    exceptions = [row for row in rows if row[0] not in everywhere]
    lines += ["| " + " | ".join([f"`{row[0]}`", *row[1:]]) + " |" for row in exceptions]
    counts = (sum(row[i] == "✓" for row in rows) for i in range(1, len(columns)))
    lines.append(f"| of {len(rows)} | " + " | ".join(map(str, counts)) + " |")
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
