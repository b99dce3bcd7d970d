"""Thompson sampling in loops: which spaces it searches for the best of a whole function."""

import pytest
import torch
from gpytorch.kernels import LinearKernel
from reference import rbf

from tvbo import recipes
from tvbo.acquisition import ThompsonSampling
from tvbo.acquisition.thompson import DrawnFunction
from tvbo.acquisition.ucb import KnownValues
from tvbo.optimizers import ConstantLiar

KNOWN = {"covar_module": rbf(0.4), "noise_variance": 0.01}
CONTEXTS = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
MIXED = {"x": (0.0, 1.0), "count": [1, 2, 3], "rule": ["a", "b", "c"]}
PARTS = {"action_kernel": rbf(0.4), "context_kernel": rbf(0.8), "noise_variance": 0.01}


class Noted(ThompsonSampling):
    """Notes what was drawn."""

    def __call__(self, model, ask_context):
        drawn.append(super().__call__(model, ask_context))
        return drawn[-1]


drawn = []

LOOPS = {
    "drift": lambda: recipes.gp_ts(bounds=[(0, 1)], forgetting_rate=0.05, **KNOWN, **NOTED),
    "nothing kept": lambda: recipes.gp_ts(bounds=[(0, 1)], forgetting_rate=1.0, **KNOWN, **NOTED),
    "learned": lambda: recipes.gp_ts(bounds=[(0, 1)], initial=2, **NOTED),
    "averaged": lambda: recipes.tv_gp_ucb(bounds=[(0, 1)], initial=2, **NOTED),
    "least value": lambda: recipes.gp_ts(
        bounds=[(0, 1)], pending=ConstantLiar(-1.0), **KNOWN, **NOTED
    ),
    "mixed": lambda: recipes.gp_ts(bounds=MIXED, **KNOWN, **NOTED),
    "contexts": lambda: recipes.tv_cgp_ucb(
        bounds=[(0, 1)], contexts=CONTEXTS, forgetting_rate=0.05, **PARTS, **NOTED
    ),
    "linear": lambda: recipes.gp_ts(
        bounds=[(0, 1)], covar_module=LinearKernel(), noise_variance=0.01, **NOTED
    ),
    "finite": lambda: recipes.gp_ts(choices=CONTEXTS, **KNOWN, **NOTED),
}
NOTED = {"acquisition": Noted(num_candidates=64)}


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_drawn(name):
    """With trials pending; at all choices of a set, and at points where no function can be."""
    drawn.clear()
    optimizer = LOOPS[name]()
    for t in range(1, 6):
        context = None if optimizer.contexts is None else CONTEXTS[t % 2]
        trials = [optimizer.ask(float(t), context) for _ in range(2)]
        optimizer.tell(trials[0], trials[0].X.sum().item())
    kind = KnownValues if name in ("linear", "finite") else DrawnFunction
    assert drawn
    assert all(isinstance(each, kind) for each in drawn)
    for trial in optimizer.open_trials:
        optimizer.search_space.snap(trial.X)


@pytest.mark.slow
def test_the_feasible_part_of_a_box():
    optimizer = recipes.gp_ts(bounds=[(0, 1)], constraints={"load": (None, 0.5)}, **KNOWN)
    actions = []
    for t in range(1, 11):
        trial = optimizer.ask(float(t))
        x = trial.X.item()
        optimizer.tell(trial, {"outcome": x, "load": x})
        actions.append(x)
    assert max(actions[5:]) <= 0.55
