"""Recorded panels: a model fitted on the training stretch, its tuner played on what follows."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.claims import (
    BEST_OF_TRAINING,
    BEYOND,
    Claim,
    Reproduction,
    mean_and_error,
)
from experiments.data.empirical import EmpiricalPanel
from experiments.data.intel_lab import intel_lab
from experiments.data.metr_la import metr_la
from experiments.data.traffic import TrafficDays, traffic
from experiments.plots.regret import plot_regret_panels
from experiments.spread import spread
from tvbo.logs import PanelFit, fit_panel

NAME = "panels"
FITTED, LAST_BEST, RANDOM = "fitted tuner", "best arm a step ago, always", "random"
NUM_SENSORS = 50
METR_LA, METR_LA_LATER, INTEL, TRAFFIC = (
    "METR-LA",
    "METR-LA, two days later",
    "Intel",
    "traffic mornings",
)
HOUR = {METR_LA: 12, METR_LA_LATER: 12, INTEL: 6}
"""Steps in blocks of one hour, for standard errors."""


@dataclass(frozen=True)
class Stretch:
    """Values that are played, with their times, and those a step before each of them.

    Args:
        values: ``T x n``.
        times: ``T``.
        before: ``T x n``.
    """

    values: Tensor
    times: Tensor
    before: Tensor


def panel_data() -> dict[str, EmpiricalPanel]:
    """Return the panels by name, from the folder that ``TVBO_DATA`` names."""
    return {
        METR_LA: metr_la(),
        METR_LA_LATER: metr_la(later=True),
        INTEL: intel_lab(),
        TRAFFIC: traffic(),
    }


def panels(
    data: dict[str, EmpiricalPanel],
    trials: int = 20,
    seed: int = 0,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Play the tuner of a fitted panel, beside rules without a model.

    Model and multiplier of the deviation are chosen on the training stretch; the test stretch is
    played once. The best arm a step ago is that of all arms, which no tuner knows.

    Args:
        data: The panels, from :func:`panel_data`.
        trials: Number of draws of 50 sensors of the traffic panel, each with all test days.
        seed: The draws have the seeds ``seed, ..., seed + trials - 1``.
        progress: Show a progress bar.
        executor: Executor that runs the fits; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    if trials < 1:
        raise ValueError(f"Expected trials >= 1. Got {trials}.")
    jobs: list[tuple[str, ...] | int] = [(METR_LA, METR_LA_LATER), (INTEL,)]
    jobs += range(seed, seed + trials)
    played = spread(partial(_job, data), jobs, executor, NAME, progress)
    regret: dict[str, dict[str, Tensor]] = {}
    for rows, _ in played[:2]:
        regret.update(rows)
    draws = [rows[TRAFFIC] for rows, _ in played[2:]]
    # Draws x days x T.
    mornings = {name: torch.stack([rows[name] for rows in draws]) for name in draws[0]}
    results = {
        name: {
            **{panel: rows[name].mean().item() for panel, rows in regret.items()},
            TRAFFIC: mornings[name].mean().item(),
        }
        for name in (FITTED, BEST_OF_TRAINING, LAST_BEST, RANDOM)
    }
    return Reproduction(
        name=NAME,
        title="Mean regret on the test stretch: METR-LA and traffic in mph, Intel in °C",
        settings={
            "trials": trials,
            "seed": seed,
            "chosen": {str(job): chosen for job, (_, chosen) in zip(jobs, played, strict=True)},
        },
        results=results,
        claims=_claims(regret, mornings),
        regret={name: rows.unsqueeze(0) for name, rows in regret[METR_LA].items()},
        curves={
            panel: {k: v.unsqueeze(0) for k, v in rows.items()} for panel, rows in regret.items()
        }
        | {TRAFFIC: {name: rows.mean(dim=1) for name, rows in mornings.items()}},
    )


def plot_panels(result: Reproduction) -> Figure:
    """Plot the average regret on each panel, without random arms, many times all others."""
    curves = {
        panel: {name: rows for name, rows in rules.items() if name != RANDOM}
        for panel, rules in result.curves.items()
    }
    return plot_regret_panels(
        curves, unit="mph or °C", time_label="round", columns=2, shared_axes=False
    )


def _job(
    data: dict[str, EmpiricalPanel], job: tuple[str, ...] | int
) -> tuple[dict[str, dict[str, Tensor]], dict[str, str | float]]:
    """Return the regret of all rules on the panels of a job, and what was chosen for the tuner."""
    if isinstance(job, int):
        days = data[TRAFFIC]
        assert isinstance(days, TrafficDays)
        panel = days.sample_sensors(NUM_SENSORS, torch.Generator().manual_seed(job))
        number, steps, _ = panel.train.shape
        clock = torch.arange(steps, dtype=torch.float64)
        times, segments = clock.repeat(number), torch.arange(number).repeat_interleave(steps)
        # Every morning begins without observations: before its first step there is none to go by.
        stretches = {
            TRAFFIC: [
                Stretch(day, clock, torch.cat([panel.train.mean((0, 1))[None], day[:-1]]))
                for day in panel.test
            ]
        }
    else:
        panel = data[job[0]]
        times, segments = torch.arange(len(panel.train), dtype=torch.float64), None
        stretches, newest, start = {}, panel.train[-1:], len(panel.train)
        for name in job:
            values = data[name].test
            later = start + torch.arange(len(values), dtype=torch.float64)
            stretches[name] = [Stretch(values, later, torch.cat([newest, values[:-1]]))]
            newest, start = values[-1:], start + len(values)
    values = panel.train.flatten(0, -2)
    fit = fit_panel(
        values,
        times,
        segments=segments,
        time_unit=panel.time_unit,
        origin=panel.origin,
    )
    regret = {}
    for name, parts in stretches.items():
        rules: dict[str, list[Tensor]] = {}
        for part in parts:
            best = part.values.amax(dim=1)
            last = part.before.argmax(dim=1, keepdim=True)
            found = {
                FITTED: _play(fit, part),
                BEST_OF_TRAINING: best - part.values[:, panel.best_arm],
                LAST_BEST: best - part.values.gather(1, last).squeeze(1),
                RANDOM: best - part.values.mean(dim=1),
            }
            for rule, rows in found.items():
                rules.setdefault(rule, []).append(rows)
        together = {rule: torch.stack(rows) for rule, rows in rules.items()}
        regret[name] = together if name == TRAFFIC else {r: x[0] for r, x in together.items()}
    chosen = {"model": fit.reason, "multiplier": fit.tuning.multiplier}
    return regret, chosen


def _play(fit: PanelFit, stretch: Stretch) -> Tensor:
    """Return the regret of the tuner of a fit at each time, ``T``."""
    tuner, arms = fit.optimizer(), []
    for t, row in zip(stretch.times.tolist(), stretch.values, strict=True):
        trial = tuner.ask(t=t)
        arms.append(int(trial.X))
        tuner.tell(trial, row[arms[-1]].item())
    taken = stretch.values.gather(1, torch.tensor(arms).unsqueeze(1)).squeeze(1)
    return stretch.values.amax(dim=1) - taken


def _claims(regret: dict[str, dict[str, Tensor]], mornings: dict[str, Tensor]) -> list[Claim]:
    """Return the bounds that the tuner should keep, and its differences from the best arm."""
    claims = [
        _at_most("METR-LA, mean regret: at most 0.8 of the best arm of training's, 1.76 mph",
                 regret[METR_LA][FITTED], 1.76),
        _at_most("Intel, mean regret: at most 0.90 °C", regret[INTEL][FITTED], 0.90),
    ]  # fmt: skip
    for panel, rows in regret.items():
        gained = rows[BEST_OF_TRAINING] - rows[FITTED]
        hours = torch.stack([block.mean() for block in gained.split(HOUR[panel])])
        figure, error = mean_and_error(hours)
        claims.append(
            Claim(
                f"{panel}: {BEST_OF_TRAINING} minus fitted, one-hour blocks: above two standard "
                "errors",
                error is not None and figure > BEYOND * error,
                figure,
                error,
            )
        )
    excess = (mornings[FITTED] - mornings[BEST_OF_TRAINING]).mean((1, 2))
    figure, error = mean_and_error(excess)
    claims.append(
        Claim(
            f"traffic: fitted minus {BEST_OF_TRAINING}, by draw: at most two standard errors",
            error is not None and figure <= BEYOND * error,
            figure,
            error,
        )
    )
    by_day = mornings[FITTED].mean((0, 2))
    claims.append(
        Claim(
            f"traffic: the largest mean regret of the {len(by_day)} days: below GP-UCB's 3.63 mph",
            by_day.max().item() < 3.63,
            by_day.max().item(),
            None,
        )
    )
    return claims


def _at_most(claim: str, regret: Tensor, bound: float) -> Claim:
    figure = regret.mean().item()
    return Claim(claim, figure <= bound, figure, None)
