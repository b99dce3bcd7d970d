"""Event-triggered reset: detection of sudden jumps of two kinds, and false alarms.

50 actions on [0, 1], functions drawn with an RBF kernel of length-scale 0.2 and variance 1,
σ² = 0.01; GP-UCB is given the kernel and σ². After round 100 comes one of two jumps, for 100 more
rounds. Redraw: the function is replaced by an independent draw, which may hardly change the
value of the current action. Drop: every action falls by a stated number of standard deviations of
the noise, so that the jump is visible at every action; the best action does not change. This kind
was added after redraws had been measured, with its size fixed before its first run. The seed
determines functions and noise, the same for both jumps, with the reset and without.

A jump is detected if an alarm is raised within the number of outcomes that the policy states for
95 %. False alarms: one function for 10,000 rounds, several seeds, the count beside the
stated rate.

    python benchmarks/event_reset.py --runs 200 --json docs/results/event_reset.json
"""

from __future__ import annotations

import torch
from rich.progress import track
from scipy.stats import binomtest, norm, poisson
from shared import parser, show, squared_exponential, with_error

from tvbo import recipes, run
from tvbo.optimizers import GPOptimizer
from tvbo.retention import Retention
from tvbo.retention.event_reset import EventReset
from tvbo.test_functions import PanelProblem, drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid

ACTIONS = unit_grid(50, dim=1)
NOISE = 0.01
JUMP = 100
AFTER = 100
LEVELS = (0.5, 0.9, 0.95, 0.99)


def loop(retention: Retention | None) -> GPOptimizer:
    """Return GP-UCB with a retention policy."""
    return recipes.gp_ucb(
        choices=ACTIONS,
        covar_module=squared_exponential(0.2),
        noise_variance=NOISE,
        retention=retention,
    )


def functions(count: int, seed: int) -> torch.Tensor:
    """Return independent draws, ``count x 50``, as a drifting function with ε = 1."""
    draw = torch.Generator().manual_seed(seed)
    return drifting_gp(ACTIONS, squared_exponential(0.2), 1.0, horizon=count, generator=draw).values


def share_outside(change: float, policy: EventReset) -> float:
    """Return the share of outcomes outside the band after a change of the mean.

    The change is in standard deviations of the noise. The posterior variance is ignored, which is
    small at the actions of a converged loop.
    """
    edge = norm.ppf(0.5 + policy.band / 2)
    return norm.sf(edge - change) + norm.cdf(-edge - change)


def one_jump(seed: int, kind: str, size: float, policy: EventReset) -> dict:
    """Return when the jump was detected, and the regret after it with and without the reset."""
    before, other = functions(2, seed)
    after = other if kind == "redraw" else before - size * NOISE**0.5
    values = torch.stack([before, after])
    change = (values[1] - values[0]).abs() / NOISE**0.5
    values = values.repeat_interleave(torch.tensor([JUMP, AFTER]), dim=0)
    regret = {}
    for name, retention in (("none", None), ("reset", policy)):
        noise = torch.Generator().manual_seed(seed)
        problem = PanelProblem(values, choices=ACTIONS, noise_variance=NOISE, generator=noise)
        optimizer = loop(retention)
        history = run(problem, optimizer, horizon=JUMP + AFTER, progress=False)
        regret[name] = history.regret[JUMP:].mean().item()
    alarms = [int(t) for t in optimizer.retention.alarms]
    later = [t - JUMP for t in alarms if t > JUMP]
    sat = problem.search_space.index(history.X[JUMP - 1 : JUMP]).item()
    return {
        "seed": seed,
        "delay": later[0] if later else None,
        "alarms_before": len(alarms) - len(later),
        "alarms_after": len(later),
        "change_where_it_was": change[sat].item(),
        "regret_reset": regret["reset"],
        "regret_none": regret["none"],
    }


def without_jump(rounds: int, seed: int, policy: EventReset) -> int:
    """Return the number of alarms on one function."""
    values = functions(1, seed).expand(rounds, -1)
    noise = torch.Generator().manual_seed(seed)
    problem = PanelProblem(values, choices=ACTIONS, noise_variance=NOISE, generator=noise)
    optimizer = loop(policy)
    run(problem, optimizer, horizon=rounds, progress=False)
    return len(optimizer.retention.alarms)


def jumps(kind: str, found: list[dict], policy: EventReset) -> dict:
    """Return the figures over many jumps of a kind."""
    stated = policy.detection_delay(0.95)
    in_time = [r for r in found if r["delay"] is not None and r["delay"] <= stated]
    visible = [
        r for r in found if share_outside(r["change_where_it_was"], policy) >= policy.outside
    ]
    interval = binomtest(len(in_time), len(found)).proportion_ci()
    delays = torch.tensor([float(AFTER + 1 if r["delay"] is None else r["delay"]) for r in found])
    quantiles = [delays.quantile(q, interpolation="higher").item() for q in LEVELS]
    reset, none = (
        torch.tensor([r[f"regret_{name}"] for r in found]).double() for name in ("reset", "none")
    )
    missed = (r for r in found if r not in in_time)
    return {
        f"found within {stated} outcomes": f"{len(in_time)} of {len(found)}",
        "that share, 95 % interval": f"{interval.low:.3f} to {interval.high:.3f}",
        f"of those with a share outside >= {policy.outside:g} where the loop was": (
            f"{sum(r in in_time for r in visible)} of {len(visible)}"
        ),
        "delay: " + ", ".join(f"{q:.0%}" for q in LEVELS): ", ".join(
            f"{d:g}" if d <= AFTER else "not" for d in quantiles
        ),
        "found later, or not (change where the loop was, in σ)": ", ".join(
            f"{r['delay'] or 'not'} ({r['change_where_it_was']:.1f})" for r in missed
        ),
        f"false alarms in the {JUMP} rounds before": sum(r["alarms_before"] for r in found),
        f"further alarms in the {AFTER} rounds after": sum(
            max(0, r["alarms_after"] - 1) for r in found
        ),
        "mean regret after the jump, with reset": with_error(reset, ".3f"),
        "without": with_error(none, ".3f"),
        "without less with, paired": with_error(none - reset, ".3f"),
    }


def false_alarms(rounds: int, counts: list[int], rate: float) -> dict:
    """Return the figures over long runs without a jump."""
    total = rounds * len(counts)
    low, high = (bound / total for bound in poisson.interval(0.95, rate * total))
    measured = sum(counts) / total
    return {
        f"false alarms, {len(counts)} x {rounds} rounds": sum(counts),
        "expected at the stated rate": f"{rate * total:.1f}",
        "per 10,000 rounds: measured, stated": f"{measured * 1e4:.2f}, {rate * 1e4:.2f}",
        "95 % of counts at that rate": f"{low * 1e4:.2f} to {high * 1e4:.2f}",
        "by seed": ", ".join(map(str, counts)),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__, runs=200, rounds=10_000, seeds=10, first_seed=0)
    options.add_argument("--size", type=float, default=3.0, help="of a drop, noise s.d.")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    policy = EventReset()
    figures = {}
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.runs)
    for kind, name in (("redraw", "redraw"), ("drop", f"drop of {chosen.size:g} σ")):
        found = [one_jump(seed, kind, chosen.size, policy) for seed in track(seeds, name)]
        figures[name] = jumps(kind, found, policy)
    counts = [
        without_jump(chosen.rounds, seed, policy) for seed in track(range(chosen.seeds), "no jump")
    ]
    figures["no jump"] = false_alarms(chosen.rounds, counts, policy.false_alarm_rate)
    rows = [
        {"what": what, "measure": measure, "value": value}
        for what, measures in figures.items()
        for measure, value in measures.items()
    ]
    title = f"{policy!r}: GP-UCB on {len(ACTIONS)} actions"
    columns = {"what happens": "{what}", "measure": "{measure}", "value": "{value}"}
    show(title, columns, rows, chosen.json, figures)


if __name__ == "__main__":
    main()
