"""Seconds of the joint posterior of all choices of a streaming model, against single rows.

python benchmarks/joint_posterior.py --json docs/results/joint_posterior.json
"""

from __future__ import annotations

import torch
from shared import median_seconds, parser, show, squared_exponential
from torch import Generator

from tvbo.models import StreamingGP
from tvbo.test_functions import unit_grid

RATE, NOISE, POINTS, OBSERVATIONS = 0.03, 0.01, 50, 500
REPEATS = 201


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    choices = unit_grid(POINTS)
    model = StreamingGP(choices, squared_exponential(0.2), RATE, NOISE)
    generator = Generator().manual_seed(0)
    for t in range(OBSERVATIONS):
        place = torch.randint(len(choices), (1,), generator=generator)
        row = torch.cat([choices[place], torch.tensor([[float(t)]]).to(choices)], dim=-1)
        model.observe(row, torch.randn(1, 1, dtype=torch.float64, generator=generator))
    now = choices.new_full((len(choices), 1), float(OBSERVATIONS))
    rows = torch.cat([choices, now], dim=-1)
    works = {
        "variance, a batch of single rows": lambda: model.posterior(rows.unsqueeze(-2)).variance,
        "variance, all rows jointly": lambda: model.posterior(rows).variance,
        "mean, all rows jointly": lambda: model.posterior(rows).mean,
    }
    taken = dict(zip(works, median_seconds(*works.values(), repeats=REPEATS), strict=True))
    (taken["covariance matrix"],) = median_seconds(
        lambda: model.posterior(rows).distribution.covariance_matrix, repeats=3
    )
    single = next(iter(taken.values()))
    records = [
        {"what": what, "ms": 1e3 * seconds, "ratio": seconds / single}
        for what, seconds in taken.items()
    ]
    title = f"Posterior of {len(choices):,} choices after {OBSERVATIONS} observations, one thread"
    columns = {"what": "{what}", "ms": "{ms:.2f}", "ratio": "{ratio:.2f}"}
    show(title, columns, records, chosen.json)


if __name__ == "__main__":
    main()
