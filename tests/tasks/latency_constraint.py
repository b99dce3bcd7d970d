"""The highest throughput among the settings whose latency stays below 100 ms, as both drift."""

import math

from tvbo import recipes

optimizer = recipes.tv_gp_ucb(
    bounds={"batch": (1, 64), "share": (0.0, 1.0)},
    objectives=["throughput"],
    constraints={"latency": (None, 100.0)},
)


def measure(values, t):
    load = 1 + 0.2 * math.sin(t / 10)
    latency = load * (30 + 2 * values["batch"] * values["share"])
    return {"throughput": values["batch"] * values["share"] / load, "latency": latency}


for t in range(1, 26):
    trial = optimizer.ask(t)
    optimizer.tell(trial, measure(trial.parameters, t))
best = optimizer.recommend()
print(trial.feasibility, best.parameters, best.mean, best.others["latency"])
