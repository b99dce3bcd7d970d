"""Quality and cost, both drifting: the best compromises now."""

import math

import pandas as pd

from tvbo import recipes

optimizer = recipes.tv_gp_ucb(
    bounds={"effort": (0.0, 1.0), "method": ["quick", "thorough"]},
    objectives={"quality": 0.0, "cost": 10.0},
    minimize=["cost"],
)
for t in range(1, 16):
    trial = optimizer.ask(t)
    effort, thorough = trial.parameters["effort"], trial.parameters["method"] == "thorough"
    price = 4 + math.sin(t / 10) + 3 * thorough
    quality = math.sqrt(effort) + 0.3 * thorough
    optimizer.tell(trial, {"quality": quality, "cost": price * effort})
front = pd.DataFrame([each.to_row() for each in optimizer.front()])
print(front[["effort", "method", "mean", "cost_mean"]])
