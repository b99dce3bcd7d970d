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
    """Made by hand, each with a seed of its own; outcomes come two rounds late."""
    loops = []

    def make(generator):
        made = gp_ucb(generator)
        loops.append(gp_ucb(made.seed))
        return made

    optimizer = SeparateContexts(CHOICES, CONTEXTS, make)
    places = torch.randint(3, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    order = list(dict.fromkeys(places))
    waiting = []
    for t, place in enumerate(places, start=1):
        mine, loop = optimizer.ask(float(t), CONTEXTS[place]), loops[order.index(place)]
        other = loop.ask(float(t))
        assert torch.equal(mine.X, other.X)
        waiting.append((mine, loop, other))
        if len(waiting) > 2:
            mine, loop, other = waiting.pop(0)
            optimizer.tell(mine, mine.X.sum().item())
            loop.tell(other, mine.X.sum().item())
    assert len({loop.seed for loop in loops}) == len(loops) == 3
    assert optimizer.model_size == sum(loop.model_size for loop in loops) == 28
