"""N of R-GP-UCB by cross-validation on the temperatures of Bogunovic et al. (2016), Section 5.2.

46 sensors in 10-minute steps, σ² = 0.5, β = 0.8 log(0.4 t). Each of the three training days is left
out in turn and played with the kernel of the other two; then the two test days are played with
the kernel of all three, to see what the choice was worth. The paper found N = 15.

    TVBO_DATA=FOLDER PYTHONPATH=. python benchmarks/block_length_cv.py \
        --json docs/results/block_length_cv.json
"""

from __future__ import annotations

import torch
from shared import parser, show
from torch import Generator

from experiments.bogunovic.fig3a import BETA, NOISE_VARIANCE
from experiments.data.intel_lab import intel_lab
from tvbo import recipes, run
from tvbo.evaluation import tune_block_length
from tvbo.test_functions import PanelProblem
from tvbo.test_functions.empirical import EmpiricalPanel

LENGTHS = (5, 8, 10, 12, 15, 18, 20, 25, 30, 40, 50, 75, 144)
DAYS = 3


def test_regret(data: EmpiricalPanel, length: int, replicates: int) -> float:
    """Return the mean regret on the test days."""
    problem = PanelProblem(data.test - data.mean)
    regret = []
    for seed in range(replicates):
        optimizer = recipes.r_gp_ucb(
            every=length,
            choices=problem.choices,
            covar_module=data.covar_module,
            noise_variance=NOISE_VARIANCE,
            beta=BETA,
            generator=Generator().manual_seed(seed),
        )
        history = run(problem, optimizer, horizon=len(data.test), progress=False)
        regret.append(history.regret.mean())
    return torch.stack(regret).mean().item()


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, replicates=3).parse_args()
    torch.set_num_threads(1)
    data = intel_lab()
    tuned = tune_block_length(
        data.train.tensor_split(DAYS),
        noise_variance=NOISE_VARIANCE,
        beta=BETA,
        lengths=LENGTHS,
        replicates=chosen.replicates,
    )
    tested = {length: test_regret(data, length, chosen.replicates) for length in LENGTHS}
    records = [
        {
            "length": length,
            "chosen": "*" if length == tuned.length else "",
            "cross_validation": tuned.mean_regret[length],
            "by_day": tuned.by_stretch[length],
            "test_days": tested[length],
        }
        for length in LENGTHS
    ]
    days = {f"day {i + 1} left out": f"{{by_day[{i}]:.3f}}" for i in range(DAYS)}
    columns = {
        "N, rounds": "{length} {chosen}",
        "cross-validation": "{cross_validation:.3f}",
        **days,
    }
    columns["test days"] = "{test_days:.3f}"
    show("Mean regret of R-GP-UCB, °C; * chosen", columns, records, chosen.json)


if __name__ == "__main__":
    main()
