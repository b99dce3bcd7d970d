"""Print the store of `run.py` as Markdown, and plot it.

    PYTHONPATH=. python benchmarks/peers/table.py --store docs/results/peers.jsonl --plot peers.png

Regret is the mean over rounds 16 to 80, or over time against the clock; ± is the standard error
over seeds. A run that ended in an exception has no regret: it is counted as a failure, has the last
rank, and takes its seed out of the paired differences of its method.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from methods import INITIAL, LABELS, OURS
from play import LAST
from run import STORE
from store import load

from tvbo.plotting import save_figure
from tvbo.plotting.figure import ALGORITHM_COLORS, new_figure


def table(records: list[dict[str, Any]]) -> pd.DataFrame:
    """Return one row for each run: what it was, its score and its cost."""
    runs = pd.DataFrame(
        [
            {
                "problem": record["problem"],
                "method": record["method"],
                "seed": record["seed"],
                "evaluation": record["evaluation"],
                "regret": score(record),
                "seconds": pd.Series(record["seconds"][-LAST:], dtype=float).median(),
                "rounds": record["rounds"],
                "model_size": record["model_size"],
                "error": record["error"],
            }
            for record in records
        ]
    )
    together = runs.groupby(["problem", "seed", "evaluation"], dropna=False)["regret"]
    runs["rank"] = together.rank(na_option="bottom")
    return runs


def score(record: dict[str, Any]) -> float:
    """Return the mean regret of a run, NaN if it failed."""
    if record["error"] is not None:
        return math.nan
    counted = record["regret"][INITIAL if record["evaluation"] is None else 0 :]
    return sum(counted) / len(counted)


def shared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs on those problems and seeds that all methods have played."""
    played = runs.groupby(["problem", "seed"])["method"].transform("nunique")
    return runs[played == runs["method"].nunique()]


def with_error(values: pd.Series) -> str:
    """Return mean ± standard error of what is not missing."""
    values = values.dropna()
    if values.empty:
        return "–"
    return f"{values.mean():.2f}" + (f" ± {values.sem():.2f}" if len(values) > 1 else "")


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown, the first column to the left."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_problem(regret: pd.DataFrame) -> str:
    """Return a table of problems x methods, and their mean over seeds that have all problems."""
    rows = [
        [problem, *[with_error(of_problem[name]) for name in regret]]
        for problem, of_problem in regret.groupby("problem", sort=False)
    ]
    means = [regret[name].unstack("problem").mean(axis=1, skipna=False) for name in regret]
    rows.append(["mean", *[with_error(mean) for mean in means]])
    return markdown(["problem", *[LABELS[name] for name in regret]], rows)


def over_ours(runs: pd.DataFrame) -> dict[str, float]:
    """Return the geometric mean over problems of the mean regret over ours, by method."""
    regret = shared(runs).groupby(["problem", "method"])["regret"].mean().unstack("method")
    ratio = np.log(regret).sub(np.log(regret[OURS]), axis=0).mean()
    return dict(np.exp(ratio))


def by_method(runs: pd.DataFrame, names: list[str]) -> str:
    """Return a table of what a method reaches and costs over all problems."""
    ratio = over_ours(runs) if OURS in names else {}
    rows = []
    for name in names:
        mine = runs[runs["method"] == name]
        rank = shared(runs).query("method == @name").groupby("seed")["rank"].mean()
        rows.append(
            [
                LABELS[name],
                with_error(rank),
                f"{ratio.get(name, math.nan):.2f}",
                f"{mine['seconds'].median():.3f}",
                f"{mine['rounds'].median():.0f}",
                f"{mine['model_size'].median():.0f}",
                f"{mine['error'].notna().sum()} of {len(mine)}",
            ]
        )
    columns = ["method", "mean rank", "regret over ours, geometric mean", "CPU s a round"]
    return markdown([*columns, "rounds", "model size", "failures"], rows)


def failures(runs: pd.DataFrame) -> str:
    """Return the exceptions and how often each came, without the rounds they came in."""
    failed = runs[runs["error"].notna()]
    words = failed["error"].str.replace(r"^round \d+: ", "", regex=True).str.split().str.join(" ")
    counted = words.str.slice(0, 200).groupby([failed["method"], words]).agg(["first", "size"])
    return "\n".join(f"* {LABELS[m]}, {n} times: {w}" for (m, _), (w, n) in counted.iterrows())


def report(runs: pd.DataFrame) -> str:
    """Return the tables of the runs of one protocol."""
    names = [name for name in LABELS if name in set(runs["method"])]
    index = runs.set_index(["problem", "seed"]).index.unique()
    regret = runs.pivot(index=["problem", "seed"], columns="method", values="regret")
    regret = regret.loc[index, names]
    parts = [by_problem(regret)]
    if OURS in names:
        below = regret.rsub(regret[OURS], axis=0).drop(columns=OURS)
        parts.append("Our regret less that of the other, paired:\n\n" + by_problem(below))
    parts += [by_method(runs, names), failures(runs)]
    return "\n\n".join(part for part in parts if part)


def plot(runs: pd.DataFrame, path: Path) -> None:
    """Plot regret over ours: a row for each method, a point for each problem, their mean."""
    average = over_ours(runs)
    names = sorted((name for name in average if name != OURS), key=average.__getitem__)[::-1]
    regret = shared(runs).groupby(["problem", "method"])["regret"].mean().unstack("method")
    ratios = regret[names].div(regret[OURS], axis=0)
    figure = new_figure(7.5, 1.4 + 0.5 * len(names))
    ax = figure.subplots()
    for height, name in enumerate(names):
        better = (ratios[name] < 1).sum()
        words = f"{average[name]:.1f} times; less than tvbo on {better} of {ratios[name].count()}"
        ax.plot(ratios[name], [height] * len(ratios), "o", color="0.6", ms=5, alpha=0.7)
        ax.plot(average[name], height, "D", color="black", ms=8)
        ax.text(average[name], height + 0.17, words, fontsize=8, va="bottom")
    color = ALGORITHM_COLORS["tvbo"]
    ax.axvline(1, color=color, linewidth=2)
    place = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    ax.text(1, 1.0, "tvbo", color=color, weight="bold", **place)
    ax.set_xscale("log")
    ax.set_xlim(right=1.5 * ratios.max(axis=None))
    ticks = [0.5, 0.7, 1, 1.5, 2, 3, 4, 5]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(names)), [LABELS[name] for name in names])
    ax.set_ylim(-0.5, len(names))
    ax.set_xlabel("mean regret over that of tvbo with nothing given (right of the line is worse)")
    title = f"Grey: each of {len(ratios)} moving problems. Black: their geometric mean"
    ax.set_title(title, loc="left", fontsize=11, pad=16)
    ax.grid(axis="x", alpha=0.3)
    save_figure(figure, path)


def main() -> None:
    """Print the tables of each protocol in the store, plot that in rounds."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--store", type=Path, default=STORE)
    options.add_argument("--methods", nargs="+", choices=list(LABELS), default=list(LABELS))
    options.add_argument("--plot", type=Path, help="save a picture of the runs in rounds")
    chosen = options.parse_args()
    runs = table([each for each in load(chosen.store) if each["method"] in chosen.methods])
    for evaluation, of_protocol in runs.groupby("evaluation", dropna=False):
        title = "Same evaluations" if pd.isna(evaluation) else f"{evaluation:g} s an evaluation"
        print(f"### {title}, {of_protocol['seed'].nunique()} seeds\n\n{report(of_protocol)}\n")
    if chosen.plot is not None:
        plot(runs[runs["evaluation"].isna()], chosen.plot)


if __name__ == "__main__":
    main()
