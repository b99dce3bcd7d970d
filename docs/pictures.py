"""Draw the pictures of the guides into docs/pictures, each from the example of its page.

    python docs/pictures.py               # all of them
    python docs/pictures.py delay loop    # some

Seeds are fixed. The picture of costs shows what benchmarks/costs.py measured,
from docs/results.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from PIL import Image

from experiments.problems.dynamic_problems import dynamic_problems
from tvbo import recipes, run
from tvbo.logs import fit_drift
from tvbo.models import TimeVaryingGP
from tvbo.optimizers import Hallucinate, IgnorePending, Optimizer
from tvbo.plotting import plot_backtest, plot_diagnosis, save_figure
from tvbo.plotting.figure import COLORS, new_figure
from tvbo.storage import read_run
from tvbo.test_functions import drifting_gp
from tvbo.test_functions.drifting_gp import drifting_gp_log, unit_grid

DOCS = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, _, GRAY, SKY, _ = COLORS
BOX = {"boxstyle": "round,pad=0.5", "linewidth": 1.2}
PLAIN = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
ARROW = {"arrowstyle": "-|>", "color": "0.25", "linewidth": 1.3}


def rbf(lengthscale):
    """Return an RBF kernel of unit variance."""
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def finished(ax, title, xlabel, ylabel):
    """Give a panel its words, and take away the frame on top and on the right."""
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)


def diagram(height):
    """Return a figure for boxes and arrows, with coordinates from 0 to 100 across and down."""
    figure = new_figure(7.0, height)
    ax = figure.subplots()
    ax.set(xlim=(0, 100), ylim=(100, 0))
    ax.axis("off")
    return figure, ax


def box(ax, x, y, text, face="white", edge="0.25", **options):
    """Write a text in a box around a point."""
    options = {"fontsize": 9.5, "ha": "center", "va": "center"} | options
    ax.text(x, y, text, bbox=BOX | {"facecolor": face, "edgecolor": edge}, **options)


def arrow(ax, start, end, label="", shift=(0.0, 0.0), **style):
    """Draw an arrow from a point to another, with a label at its middle."""
    ax.annotate("", end, start, arrowprops=ARROW | style)
    if label:
        x, y = (start[0] + end[0]) / 2 + shift[0], (start[1] + end[1]) / 2 + shift[1]
        ax.text(x, y, label, fontsize=9, ha="center", va="center", bbox=PLAIN)


def which_algorithm():
    """Draw the decision tree."""
    figure, ax = diagram(4.3)
    question, answer, extra = "#EAF3FA", "#FFF4E0", "#E9F6F1"
    box(ax, 50, 8, "Does the best action move with time?\n(a log tells: fit_drift)", question, BLUE)
    for x, drifts in ((25, False), (75, True)):
        arrow(ax, (44 if not drifts else 56, 14.5), (x, 25), "yes" if drifts else "no")
        box(ax, x, 31, "Is something known\nwhen choosing: a context?", question, BLUE)
        for dx, context in ((-12, False), (12, True)):
            name = ("tv_" if drifts else "") + ("cgp_ucb" if context else "gp_ucb")
            arrow(ax, (x + dx / 2, 37.5), (x + dx, 50), "yes" if context else "no")
            box(ax, x + dx, 55, name, answer, ORANGE, family="monospace", weight="bold")
    ax.text(50, 68, "then, with any of the four:", fontsize=10, ha="center", style="italic")
    rows = (
        ("evaluations are\nexpensive", "EntropyThreshold(budget)\n(in compressed_gp)"),
        ("outcomes\ncome late", "nothing to do: what is\npending is in the model"),
        ("it starts afresh\nat known times", "Reset(every, start)"),
        ("it jumps at\nunknown times", "EventReset()"),
    )
    for x, (problem, remedy) in zip((13, 38, 63, 87), rows, strict=True):
        ax.text(x, 78, problem, fontsize=9.5, ha="center", va="center")
        box(ax, x, 91, remedy, extra, GREEN, fontsize=8.5)
    return figure


def example_log():
    """Return the log of drift_rate.md, and the kernel and rate it is drawn with."""
    generator = torch.Generator().manual_seed(0)
    minutes = torch.arange(200, dtype=torch.float64)
    actions = torch.rand(200, 2, dtype=torch.float64, generator=generator)
    train_X = torch.cat([actions, minutes.unsqueeze(-1)], dim=-1)
    kernel = RBFKernel()
    kernel.lengthscale = 0.3
    noise = {"noise_variance": 0.05, "generator": generator}
    return train_X, drifting_gp_log(train_X, kernel, 0.05, **noise)


def drift_rate():
    """Draw the correlation against age that a fit means."""
    fit = fit_drift(*example_log(), time_unit="minute")
    age = torch.linspace(0, 120, 241, dtype=torch.float64)

    def correlation(rate):
        return torch.exp(0.5 * age * math.log1p(-rate))

    figure = new_figure(7.0, 3.8)
    ax = figure.subplots()
    low, high = map(correlation, fit.forgetting_rate_interval)
    ax.fill_between(age, low, high, color=SKY, alpha=0.35, linewidth=0)
    ax.plot(age, correlation(fit.forgetting_rate), color=BLUE, linewidth=2)
    ax.plot(age, correlation(0.05), color="black", linestyle="--", linewidth=1.2)
    ax.plot([0, fit.half_life, fit.half_life], [0.5, 0.5, 0], color=ORANGE, linestyle=":")
    words = f"half-life {fit.half_life:.0f} min:\nthe correlation\nis one half"
    ax.annotate(
        words, (fit.half_life, 0.5), (14, 20), textcoords="offset points", color=ORANGE, fontsize=10
    )
    ends = "{:.3f} to {:.3f}".format(*fit.forgetting_rate_interval)
    ax.text(75, 0.42, f"95 % interval, {ends}", color="#2A7FB0", fontsize=10)
    ax.annotate(
        f"fitted ε = {fit.forgetting_rate:.3f} per minute",
        (50, correlation(fit.forgetting_rate)[100]),
        (62, 0.62),
        color=BLUE,
        fontsize=10,
        arrowprops={"arrowstyle": "-", "color": BLUE, "linewidth": 0.8},
    )
    ax.annotate(
        "truth, 0.050",
        (20, correlation(0.05)[40]),
        (2, 0.25),
        fontsize=10,
        arrowprops={"arrowstyle": "-", "color": "black", "linewidth": 0.8},
    )
    ax.set(xlim=(0, 120), ylim=(0, 1.02))
    title = "ε says how long an outcome stays true: fit of 200 observations"
    finished(ax, title, "age of the outcome (minutes)", "correlation with the present")
    return figure


def contexts():
    """Draw the learned policy over the load, and the truth."""
    generator = torch.Generator().manual_seed(0)
    optimizer = recipes.cgp_ucb(
        bounds=torch.tensor([[0.0], [1.0]]), context_bounds=torch.tensor([[1.0], [4.0]])
    )
    tried = []
    for t in range(1, 31):
        load = 1 + 3 * torch.rand(1, generator=generator)
        trial = optimizer.ask(t=t, context=load)
        optimizer.tell(trial, torch.exp(-((trial.X - load / 5) ** 2) / 0.05))
        tried.append((load.item(), trial.X.item()))
    loads = torch.linspace(1, 4, 61, dtype=torch.float64)
    policy = optimizer.policy(loads.unsqueeze(-1))
    figure = new_figure(7.0, 3.8)
    ax = figure.subplots()
    ax.plot(*zip(*tried, strict=True), "o", color=GRAY, markerfacecolor="none", markersize=6)
    ax.plot(loads, loads / 5, color="black", linestyle="--", linewidth=1.3)
    ax.plot(loads, policy.X[:, 0], color=BLUE, linewidth=2.2)
    ax.text(4.03, 0.8, "truth,\nload / 5", fontsize=10, va="center")
    ax.annotate(
        "learned policy",
        (2.2, policy.X[24, 0]),
        (1.35, 0.73),
        color=BLUE,
        fontsize=10,
        arrowprops={"arrowstyle": "-", "color": BLUE, "linewidth": 0.8},
    )
    ax.text(1.02, 0.93, "○ the 30 trials", color="0.4", fontsize=10)
    ax.set(ylim=(-0.03, 1.03))
    title = "30 trials at random loads, and a best action for each load"
    finished(ax, title, "context: load (kg)", "action")
    return figure


def compression():
    """Draw which evaluations were made and which were skipped, without drift and with it."""
    choices = torch.linspace(0, 10, 200, dtype=torch.float64).unsqueeze(-1)
    given = {"choices": choices, "covar_module": rbf(1.0), "noise_variance": 0.01}
    values = (choices.sin() + choices.cos() + 0.1 * choices).squeeze(-1)
    best = choices[values.argmax()].item()
    figure = new_figure(7.0, 4.8)
    panels = figure.subplots(2, 1, sharex=True)
    said = (
        (0.0, 0.03, "Nothing drifts: {} of 120 evaluations, then nothing is left to learn"),
        (0.01, 0.88, "Drift, ε = 0.01 per round: {} of 120, and it looks again"),
    )
    for ax, (rate, budget, title) in zip(panels, said, strict=True):
        noise = torch.Generator().manual_seed(0)
        optimizer = recipes.compressed_gp(budget=budget, forgetting_rate=rate, **given)
        evaluated, skipped = [], []
        for t in range(1, 121):
            trial = optimizer.ask(t=t)
            (skipped if trial.skipped else evaluated).append((t, trial.X.item()))
            if not trial.skipped:
                x = trial.X.item()
                error = 0.1 * torch.randn(1, generator=noise).item()
                optimizer.tell(trial, math.sin(x) + math.cos(x) + 0.1 * x + error)
        ax.axhline(best, color="black", linestyle="--", linewidth=1)
        ax.text(121, best, "best\naction", fontsize=9.5, va="center")
        ax.plot(*zip(*skipped, strict=True), "o", color=GRAY, markerfacecolor="none", markersize=4)
        ax.plot(*zip(*evaluated, strict=True), "o", color=BLUE, markersize=5)
        ax.set(xlim=(0, 121), ylim=(-0.5, 10.5))
        finished(ax, title.format(len(evaluated)), "", "action chosen")
    panels[0].text(30, 2.6, "● evaluated", color=BLUE, fontsize=10.5)
    panels[0].text(30, 0.8, "○ skipped", color="0.4", fontsize=10.5)
    panels[1].set_xlabel("round")
    return figure


def delay():
    """Draw regret with and without the hallucination of pending trials."""
    runs = {"ignored": [], "hallucinated": []}
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        problem = drifting_gp(
            unit_grid(20), rbf(0.2), 0.0, horizon=60, noise_variance=0.01, generator=generator
        )
        for name, pending in (("ignored", IgnorePending()), ("hallucinated", Hallucinate())):
            optimizer = recipes.gp_ucb(
                choices=problem.choices,
                covar_module=rbf(0.2),
                noise_variance=0.01,
                pending=pending,
                generator=torch.Generator().manual_seed(seed),
            )
            history = run(problem, optimizer, horizon=60, delay=10.0, progress=False)
            runs[name].append(history.regret)
    figure = new_figure(7.0, 3.8)
    ax = figure.subplots()
    rounds = torch.arange(1, 61)
    for regrets, color, style in zip(runs.values(), (ORANGE, BLUE), ("--", "-"), strict=True):
        regret = torch.stack(regrets)
        mean, error = regret.mean(0), regret.std(0) / len(regrets) ** 0.5
        ax.fill_between(rounds, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
        ax.plot(rounds, mean, color=color, linestyle=style, linewidth=2)
    ax.text(22, 1.9, "pending trials ignored:\nit repeats one action", color=ORANGE, fontsize=10)
    ax.text(7, 0.3, "hallucinated\n(default)", color=BLUE, fontsize=10)
    ax.set(xlim=(1, 60), ylim=(0, None))
    title = "Each outcome comes 10 rounds late: what is pending must be in the model"
    ylabel = "regret (prior standard deviations)"
    finished(ax, title, "round (mean of 12 functions, band: standard error)", ylabel)
    return figure


def durable_runs():
    """Draw the trials of a run that is killed, and the actions of the same run never stopped."""
    kill, again, end = 12, 16, 28

    def made():
        return recipes.tv_gp_ucb(
            choices=torch.linspace(0, 1, 51).unsqueeze(-1),
            covar_module=rbf(0.2),
            forgetting_rate=0.1,
            noise_variance=0.01,
        )

    def play(optimizer, times):
        """Ask once an hour; each outcome takes three hours and a half."""
        for t in times:
            for trial in [each for each in optimizer.open_trials if each.t + 3.5 <= t]:
                peak = 0.2 + 0.025 * trial.t
                optimizer.tell(trial, math.exp(-(((trial.X.item() - peak) / 0.2) ** 2)))
            optimizer.ask(t=t)

    def killed(path):
        optimizer = made()
        optimizer.record(path)
        play(optimizer, range(1, kill + 1))
        os.kill(os.getpid(), signal.SIGKILL)

    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("killed.db", "whole.db")]
        process = get_context("fork").Process(target=killed, args=(paths[0],))
        process.start()
        process.join()
        with Optimizer.open(paths[0]) as optimizer:
            survived = {trial.id for trial in optimizer.open_trials}
            play(optimizer, range(again, end))
        optimizer = made()
        optimizer.record(paths[1])
        play(optimizer, [*range(1, kill + 1), *range(again, end)])
        optimizer.close()
        tables = [read_run(path).to_frame() for path in paths]
    figure = new_figure(7.0, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for row in tables[0].itertuples():
        told = max(row.t + 3.5, again) if row.trial in survived else min(row.t + 3.5, end)
        color = ORANGE if row.trial in survived else BLUE
        top.plot([row.t, told], [row.trial, row.trial], color=color, linewidth=4)
    for ax in (top, bottom):
        ax.axvspan(kill + 0.5, again - 0.5, color="0.85", linewidth=0)
    top.text(kill + 0.6, 24, "kill -9", fontsize=10)
    top.text(1, 17, "one bar per trial,\nfrom ask to tell", color=BLUE, fontsize=10)
    words = f"{len(survived)} trials were pending:\nthey are still there"
    top.text(16.8, 6.5, words, color=ORANGE, fontsize=10)
    top.invert_yaxis()
    finished(top, "Killed after 12 trials, opened again: nothing is lost", "", "trial")
    markers = ({"markersize": 4, "color": BLUE}, {"markersize": 8, "color": "black"})
    for table, marker in zip(tables, markers, strict=True):
        bottom.plot(table["t"], table["action_0"], "o", fillstyle="none", **marker)
    title = "It asks for the same actions (inner circles) as a run never stopped (outer)"
    finished(bottom, title, "time (hours)", "action")
    return figure


def loop():
    """Draw ask and tell as boxes and arrows."""
    figure, ax = diagram(3.9)
    ours, theirs = "#EAF3FA", "#FFF4E0"
    ax.text(4, 6, "tvbo", fontsize=12, weight="bold", color=BLUE)
    ax.text(73, 6, "your world", fontsize=12, weight="bold", color=ORANGE)
    box(ax, 17, 24, "search space,\nacquisition:\nwhich action is next?", ours, BLUE)
    box(ax, 17, 54, "model:\nhow good is each,\nhow sure is that?", ours, BLUE)
    box(ax, 17, 84, "observations,\nretention:\nwhat is still true?", ours, BLUE)
    box(ax, 83, 24, "do it:\nset trial.X\nat time trial.t", theirs, ORANGE)
    measure = "measure the outcome;\nlarger is better,\nin any order, late or not"
    box(ax, 83, 84, measure, theirs, ORANGE)
    arrow(ax, (17, 75), (17, 63.5))
    arrow(ax, (17, 45), (17, 33.5))
    arrow(ax, (83, 33.5), (83, 75), color=ORANGE)
    mono = {"family": "monospace", "fontsize": 9.5, "ha": "center"}
    arrow(ax, (32, 24), (71, 24))
    ax.text(51, 21, "trial = ask(t, context)", **mono)
    arrow(ax, (66, 84), (31, 84))
    ax.text(48.5, 81, "tell(trial, outcome)", **mono)
    ax.text(48.5, 91, "or fail(trial), expire(trial)", **mono, color="0.35")
    ax.text(50, 48, "recommend(): the best now", **mono, color="0.35")
    ax.text(50, 57, "attach(X, t): data from elsewhere", **mono, color="0.35")
    arrow(ax, (47, 60), (31, 77), color="0.55", linewidth=1.0)
    arrow(ax, (29, 51), (33, 48.5), color="0.55", linewidth=1.0)
    return figure


def models():
    """Draw the posterior of one action over time, with forgetting and without."""
    generator = torch.Generator().manual_seed(3)
    times = torch.cat([torch.arange(0.0, 21.0, 2.0), torch.arange(40.0, 61.0, 2.0)]).double()
    truth = drifting_gp_log(
        torch.stack([torch.zeros(121), torch.arange(121.0)], dim=-1).double(),
        rbf(0.3),
        0.05,
        noise_variance=0.0,
        generator=generator,
    )[:, 0]
    noise = 0.2 * torch.randn(len(times), generator=generator, dtype=torch.float64)
    train_X = torch.stack([torch.zeros_like(times), times], dim=-1)
    train_Y = (truth[times.long()] + noise).unsqueeze(-1)
    rows = torch.stack([torch.zeros(121), torch.arange(121.0)], dim=-1).double()
    figure = new_figure(7.0, 3.9)
    ax = figure.subplots()
    for rate, color, style in ((0.0, GREEN, "--"), (0.05, BLUE, "-")):
        model = TimeVaryingGP(
            train_X,
            train_Y,
            torch.full_like(train_Y, 0.04),
            forgetting_rate=rate,
            covar_module=rbf(0.3),
            outcome_transform=None,
        )
        with torch.no_grad():
            posterior = model.posterior(rows)
            mean, deviation = posterior.mean[:, 0], posterior.variance[:, 0].sqrt()
        band = (mean - 1.96 * deviation, mean + 1.96 * deviation)
        ax.fill_between(rows[:, 1], *band, color=color, alpha=0.2, linewidth=0)
        ax.plot(rows[:, 1], mean, color=color, linestyle=style, linewidth=2)
    ax.plot(rows[:, 1], truth, color="black", linewidth=0.9)
    ax.plot(times, train_Y[:, 0], "o", color="black", markersize=4)
    ax.axvline(60, color="0.6", linewidth=0.8)
    ax.set(xlim=(0, 120), ylim=(-2.6, 3))
    ax.text(61, -2.4, "last observation", fontsize=9, color="0.4")
    ax.text(62, 2.1, "TimeVaryingGP:\nits 95 % band widens with age", color=BLUE, fontsize=10)
    ax.text(2, -1.4, "static GP:\nsure, and wrong", color=GREEN, fontsize=10)
    ax.text(84, 0.8, "truth", fontsize=10)
    title = "What was seen grows old: one action, ε = 0.05 per minute"
    finished(ax, title, "time (minutes)", "value of the action")
    return figure


def costs():
    """Draw the seconds of an ask that benchmarks/costs.py measured."""
    measured = json.loads((DOCS / "results" / "costs.json").read_text())
    figure = new_figure(7.0, 3.8)
    ax = figure.subplots()
    for form, color, style in (("dense", ORANGE, "s--"), ("streaming", BLUE, "o-")):
        points = [
            (int(row["what"].split("n = ")[1].split(",")[0]), 1e3 * row["seconds"])
            for row in measured
            if row["what"].startswith("round") and row["what"].endswith(form)
        ]
        ax.loglog(*zip(*points, strict=True), style, color=color, linewidth=2)
    ax.text(
        380, 150, "dense model, as where\nhyperparameters are learned", color=ORANGE, ha="right"
    )
    ax.text(600, 1.5, "streaming model: finite set,\nnothing learned", color=BLUE)
    ticks = [200, 400, 800, 1200]
    ax.set_xticks(ticks, ticks)
    ax.minorticks_off()
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.set(ylim=(1, 1200))
    title = "A round that never gets slower: one ask among 2,500 actions"
    finished(ax, title, "observations", "milliseconds, one thread")
    return figure


def command_line():
    """Let ``tvbo fit --plot`` draw the log of drift_rate.md."""
    train_X, train_Y = example_log()
    frame = pd.DataFrame(train_X.numpy(), columns=["x1", "x2", "minute"]).assign(y=train_Y.numpy())
    frame["time"] = pd.Timestamp("2025-03-01 08:00") + pd.to_timedelta(frame["minute"], unit="min")
    with tempfile.TemporaryDirectory() as folder:
        frame[["time", "x1", "x2", "y"]].to_csv(Path(folder) / "log.csv", index=False)
        options = ["--time", "time", "--reward", "y", "--action", "x1,x2", "--plot"]
        command = [sys.executable, "-m", "tvbo", "fit", "log.csv", *options]
        path = DOCS / "pictures" / "command_line.png"
        subprocess.run([*command, path], cwd=folder, check=True, capture_output=True)


def from_log_to_tuner():
    """All algorithms on the panel of from_log_to_tuner.md."""
    page = (DOCS / "from_log_to_tuner.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    panel = next(block for block in blocks if "values =" in block).split("\nprint(fit)")[0]
    names = {}
    with redirect_stdout(None):
        exec(panel, names)
        exec(next(block for block in blocks if "backtest(" in block), names)
    return plot_backtest(names["result"])


def diagnosis():
    """Draw the diagnosis of in_service.md."""
    page = (DOCS / "in_service.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    names = {"recipes": recipes}
    block = next(block for block in blocks if "diagnose(" in block)
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(None):
        exec(block, names)
    return plot_diagnosis(names["diagnosis"])


def problems():
    """Draw the regret of one coordinate over time, of every problem of dynamic_problems."""
    generator = torch.Generator().manual_seed(0)
    figure = new_figure(7.0, 9.2)
    panels = figure.subplots(5, 3, sharex=True)
    for ax, (name, problem) in zip(
        panels.flat, dynamic_problems(80, generator=generator).items(), strict=True
    ):
        low, high = problem.bounds[:, 0]
        side = torch.linspace(low, high, 201, dtype=torch.float64)
        regret, path = torch.empty(201, 81), []
        for t in range(81):
            best = problem.optimal_action(t)
            path.append(best[0].item())
            actions = best.repeat(201, 1)
            actions[:, 0] = side
            values = problem.evaluate_true(problem.layout.rows(actions, t))
            regret[:, t] = problem.optimal_value(t) - values
        extent = (-0.5, 80.5, low, high)
        shown = {"cmap": "Blues_r", "vmin": 0, "vmax": 4, "aspect": "auto", "origin": "lower"}
        image = ax.imshow(regret, extent=extent, interpolation="nearest", **shown)
        ax.plot(path, ".", color=ORANGE, markersize=3, clip_on=False)
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_yticks([low, high], [f"{low:g}", f"{high:g}"])
        ax.set_xticks([0, 40, 80])
    for ax in panels[-1]:
        ax.set_xlabel("time")
    for ax in panels[:, 0]:
        ax.set_ylabel("first coordinate", fontsize=9)
    bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.6, aspect=40, pad=0.01)
    bar.set_ticks(range(5), labels=["0", "1", "2", "3", "4 or more"])
    bar.set_label("loss against the best value at that time (standard deviations)")
    title = "Orange: the best first coordinate. Blue: what others lose, all else at its best"
    figure.suptitle(title, fontsize=11)
    return figure


def several_outcomes():
    """Draw what a loop chooses under a limit that moves, and the latencies observed."""
    optimizer = recipes.tv_gp_ucb(
        bounds={"rate": (0.0, 10.0)},
        objectives=["throughput"],
        constraints={"latency": (None, 100.0)},
    )
    noise = torch.Generator().manual_seed(0)
    times, rates, latencies = range(1, 61), [], []
    for t in times:
        trial = optimizer.ask(t)
        rate, load = trial.parameters["rate"], 1 + 0.3 * math.sin(t / 8)
        errors = torch.randn(2, generator=noise).tolist()
        latencies.append(load * (20 + 12 * rate) + 2 * errors[1])
        throughput = 10 * math.sqrt(rate) + 0.3 * errors[0]
        optimizer.tell(trial, {"throughput": throughput, "latency": latencies[-1]})
        rates.append(rate)
    largest = [min(10.0, (100 / (1 + 0.3 * math.sin(t / 8)) - 20) / 12) for t in times]
    figure = new_figure(7.0, 5.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.fill_between(times, largest, 10.4, color=GRAY, alpha=0.25, linewidth=0)
    above.plot(times, largest, color="0.3", linewidth=1.5)
    above.text(9, 9.2, "too slow: latency above 100 ms", color="0.3", fontsize=10)
    colors = [ORANGE if rate > most else BLUE for rate, most in zip(rates, largest, strict=True)]
    above.scatter(times, rates, c=colors, s=16, zorder=3)
    above.text(24, 3.4, "what the loop chose", color=BLUE, fontsize=10)
    above.set(ylim=(0, 10.4))
    finished(above, "The fastest rate that is allowed moves, and the loop with it", "", "rate")
    below.axhline(100, color="0.3", linewidth=1.5)
    below.scatter(times, latencies, c=colors, s=16, zorder=3)
    below.set(ylim=(0, 175))
    finished(below, "", "round (the first 8 fill the space)", "observed latency (ms)")
    return figure


PICTURES = (
    several_outcomes,
    problems,
    which_algorithm,
    from_log_to_tuner,
    drift_rate,
    contexts,
    compression,
    delay,
    durable_runs,
    diagnosis,
    loop,
    models,
    costs,
    command_line,
)


def main():
    """Draw the pictures named on the command line, or all."""
    (DOCS / "pictures").mkdir(exist_ok=True)
    for picture in PICTURES:
        if not sys.argv[1:] or picture.__name__ in sys.argv[1:]:
            path = DOCS / "pictures" / f"{picture.__name__}.png"
            figure = picture()
            if figure is not None:
                save_figure(figure, path)
            # Few colors take a third of the bytes.
            with Image.open(path) as image:
                small = image.convert("RGB").quantize(128)
            small.save(path, optimize=True)
            print(picture.__name__)


if __name__ == "__main__":
    main()
