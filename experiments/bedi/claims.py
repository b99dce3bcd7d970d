"""Claims and measures of Tables 2, 3 and 4 of Bedi et al."""

from __future__ import annotations

from concurrent.futures import Executor

import torch

from experiments.algorithms.bkb import QBAR
from experiments.bedi.setting import (
    COMPRESSED,
    DELTA,
    DENSE,
    GROWING,
    NOISE_VARIANCE,
    PAPER_BUDGET,
    PAPERS,
    REFACTORED,
    Curves,
    Setting,
    excess,
    exponent,
    growth,
    play,
    unit_kernel,
)
from experiments.claims import Claim, Reproduction, mean_and_error
from experiments.theory.compression import information_model_order_bound, model_order_bound
from tvbo.spaces import FiniteSpace

CLOSE = 0.05
"""Largest difference that counts as close, as a share of the dense model's regret."""

ORDER_OF_MAGNITUDE = 10.0
"""Factor of an order of magnitude; the paper claims several orders fewer points."""


def trials_by_method(trials: int) -> dict[str, int]:
    """Return the number of replicates of each method; slow methods have fewer.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    if trials < 1:
        raise ValueError(f"Expected trials >= 1. Got {trials}.")
    some, few = -(-trials // 4), -(-trials // 20)
    return {DENSE: trials, COMPRESSED: trials, PAPERS: some, "BKB": some, REFACTORED: few}


def reproduction(
    name: str,
    title: str,
    setting: Setting,
    trials: int,
    seed: int,
    progress: bool,
    about: dict,
    executor: Executor | None = None,
) -> Reproduction:
    """Run an experiment, and return its table with its claims.

    Args:
        name: Name on the command line.
        title: Title of the table.
        setting: Setting of the experiment.
        trials: Number of replicates.
        seed: The first seed.
        progress: Whether to show a progress bar.
        about: Further settings to record.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive, or the horizon is below 2.
    """
    curves = play(setting, trials_by_method(trials), seed, progress, name, executor)
    return Reproduction(
        name=name,
        title=title,
        settings={
            "trials": trials,
            "seed": seed,
            "horizon": setting.horizon,
            "num_choices": len(setting.choices),
            "alpha": exponent(setting.dim),
            "budget": setting.budget,
            "prior_noise_variance": NOISE_VARIANCE,
            "delta": DELTA,
            "qbar": QBAR,
            "num_initial": 2**setting.dim,
            **bounds(setting),
            **about,
        },
        results={row: _measures(each) for row, each in curves.items()},
        claims=[
            claim
            for acquisition, seconds in setting.paper_seconds.items()
            for claim in _claims(acquisition, seconds, setting, curves)
        ]
        + [
            _settles(
                f"{GROWING}: growth of the compressed model", curves[f"{GROWING}, {COMPRESSED}"]
            )
        ],
        regret={row: each.regret for row, each in curves.items()},
        row_label="acquisition, model",
        curves={
            "model_order": {row: each.model_order for row, each in curves.items()},
            "seconds": {row: each.seconds for row, each in curves.items()},
        },
    )


def bounds(setting: Setting) -> dict[str, int]:
    """Return bounds on the compressed model's order, by (3.1) and by information."""
    kernel = unit_kernel()
    with torch.no_grad():
        covar = kernel(setting.choices).to_dense()
    low, high = FiniteSpace(setting.choices).bounds
    # The initial actions are not tested, and are added to the bound.
    initial = 2**setting.dim
    return {
        "cell_bound": initial
        + model_order_bound(
            budget=setting.budget,
            noise_variance=NOISE_VARIANCE,
            lengthscales=[1.0] * setting.dim,
            side_lengths=(high - low).tolist(),
        ),
        "information_bound": initial
        + information_model_order_bound(
            covar, noise_variance=NOISE_VARIANCE, budget=setting.budget
        ),
    }


def _measures(curves: Curves) -> dict[str, float | None]:
    mean, error = mean_and_error(curves.regret.mean(dim=1))
    return {
        "mean_regret": mean,
        "standard_error": error,
        "clock_seconds": curves.seconds.sum(dim=1).mean().item(),
        "model_order": curves.model_order[:, -1].mean().item(),
        "growth_last_half": growth(curves.model_order).mean().item(),
        "evaluated": curves.evaluated.mean().item(),
    }


def _claims(
    acquisition: str,
    paper: tuple[float, float, float],
    setting: Setting,
    curves: dict[str, Curves],
) -> list[Claim]:
    dense, compressed, papers, bkb, refactored = (
        curves[f"{acquisition}, {method}"]
        for method in (DENSE, COMPRESSED, PAPERS, "BKB", REFACTORED)
    )
    more, error = excess(compressed.regret, dense.regret)
    times = f"{paper[0]:g} / {paper[1]:g} {setting.unit}"
    return [
        Claim(
            f"{acquisition}: mean regret, compressed over dense, less 1: at most {CLOSE}",
            more <= CLOSE,
            more,
            error,
            "comparable",
        ),
        _settles(f"{acquisition}: growth of the compressed model", compressed),
        _clock(
            f"{acquisition}: clock time, dense over compressed: above the paper's",
            dense,
            compressed,
            paper[0] / paper[1],
            times,
        ),
        _clock(
            f"{acquisition}: the same, the dense model factorized anew each round",
            refactored,
            compressed,
            paper[0] / paper[1],
            times,
        ),
        _clock(
            f"{acquisition}: clock time, BKB over compressed: above the paper's",
            bkb,
            compressed,
            paper[2] / paper[1],
            f"{paper[2]:g} / {paper[1]:g} {setting.unit}",
        ),
        _settles(f"{acquisition}: with ε = {PAPER_BUDGET:g}, growth", papers),
        _smaller(acquisition, dense, compressed),
        _smaller(f"{acquisition}: with ε = {PAPER_BUDGET:g}", dense, papers),
    ]


def _clock(claim: str, slow: Curves, fast: Curves, above: float, times: str) -> Claim:
    """Return the claim on a ratio of clock times, over the common replicates."""
    n = min(len(slow.seconds), len(fast.seconds))
    ratio = slow.seconds[:n].sum(dim=1) / fast.seconds[:n].sum(dim=1)
    figure, error = mean_and_error(ratio)
    return Claim(claim, figure > above, figure, error, f"{above:.3g} ({times})")


def _smaller(which: str, dense: Curves, compressed: Curves) -> Claim:
    """Return the claim on the ratio of the mean final numbers of points."""
    large, small = (each.model_order[:, -1].mean().item() for each in (dense, compressed))
    figure = large / small
    return Claim(
        f"{which}: points at the end, dense over compressed: at least {ORDER_OF_MAGNITUDE:g}",
        figure >= ORDER_OF_MAGNITUDE,
        figure,
        None,
        "orders of magnitude",
    )


def _settles(claim: str, curves: Curves) -> Claim:
    """Return the claim that the model does not grow in the last half of any replicate."""
    grown = growth(curves.model_order)
    figure, error = mean_and_error(grown)
    return Claim(
        f"{claim} in the last half, points: 0", bool((grown == 0).all()), figure, error, "settles"
    )
