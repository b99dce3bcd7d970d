"""A tuner whose process may die: record it, kill it, go on."""

from tvbo import recipes
from tvbo.optimizers import Optimizer

optimizer = recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0), "n": (1, 9)}, minimize=True)
optimizer.record("run.db")
for _ in range(8):
    trial = optimizer.ask()
    optimizer.tell(trial, (trial.parameters["x"] - 0.3) ** 2 + trial.parameters["n"] / 10)
pending = optimizer.ask()
optimizer.close()  # or the process dies here

optimizer = Optimizer.open("run.db")
optimizer.tell(pending.id, 0.4)
print(optimizer, optimizer.recommend().parameters)
