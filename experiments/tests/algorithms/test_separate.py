import torch
from gpytorch.kernels import RBFKernel

from experiments.algorithms.separate import SeparateContexts
from tvbo import recipes

CHOICES = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CONTEXTS = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)


def gp_ucb(generator):
    return recipes.gp_ucb(
        choices=CHOICES, covar_module=RBFKernel(), noise_variance=0.1, generator=generator
    )


def test_each_context_has_a_loop_of_its_own():
    """Made by hand, on one generator; outcomes come two rounds late."""
    optimizer = SeparateContexts(CHOICES, CONTEXTS, gp_ucb)
    shared = torch.Generator().manual_seed(0)
    loops = [gp_ucb(shared) for _ in CONTEXTS]
    places = torch.randint(3, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    waiting = []
    for t, place in enumerate(places, start=1):
        mine, other = optimizer.ask(float(t), CONTEXTS[place]), loops[place].ask(float(t))
        assert torch.equal(mine.X, other.X)
        waiting.append((mine, loops[place], other))
        if len(waiting) > 2:
            mine, loop, other = waiting.pop(0)
            optimizer.tell(mine, mine.X.sum().item())
            loop.tell(other, mine.X.sum().item())
    assert optimizer.model_size == sum(loop.model_size for loop in loops) == 28
