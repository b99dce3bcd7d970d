"""An integer, a rate on a logarithmic scale and a category, tuned together."""

import math

from ConfigSpace import Float

from tvbo import recipes, run

optimizer = recipes.tv_gp_ucb(
    bounds={
        "rate": Float("rate", (1e-5, 0.1), log=True),
        "layers": (1, 8),
        "rule": ["adam", "sgd", "rms"],
    },
    minimize=True,
)


def loss(trial):
    values = trial.parameters
    penalty = {"adam": 0.0, "sgd": 0.5, "rms": 0.2}[values["rule"]]
    return (math.log10(values["rate"]) + 3) ** 2 + 0.1 * (values["layers"] - 5) ** 2 + penalty


history = run(loss, optimizer, horizon=25, progress=False)
history.to_csv("history.csv")
print(history, optimizer.recommend().parameters)
