"""`linear_ucb` against LinUCB in closed form (Li et al., 2010): the same arms, round by round."""

import math

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import LinearKernel

from tvbo import recipes
from tvbo.optimizers.pending import IgnorePending

TIE = 1e-9


def normal(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Ridge:
    """One regression with inverse by Sherman and Morrison: ``A = ridge I + sum x x'``."""

    def __init__(self, num_features, ridge):
        self.inverse = torch.eye(num_features, dtype=torch.float64) / ridge
        self.b = torch.zeros(num_features, dtype=torch.float64)

    def learn(self, x, y):
        u = self.inverse @ x
        self.inverse = self.inverse - torch.outer(u, u) / (1 + x @ u)
        self.b = self.b + y * x

    def bound(self, x, alpha):
        return (self.inverse @ self.b) @ x + alpha * (x @ self.inverse @ x).sqrt()


def assert_the_largest(bounds, arm):
    """The arm is the one with the largest bound; returns whether it was alone."""
    assert bounds[arm] >= bounds.max() - TIE
    return int((bounds >= bounds.max() - TIE).sum()) == 1


@pytest.mark.parametrize(
    ("rounds", "noise", "beta", "seed"),
    [pytest.param(500, 1.0, 1.0, 0, marks=pytest.mark.slow), (150, 0.25, 4.0, 1)],
)
def test_the_disjoint_model_chooses_the_same_arms(rounds, noise, beta, seed):
    """Algorithm 1 of Li et al., 5 arms, 4 features; ridge σ², α = sqrt(β σ²)."""
    arms = torch.arange(5.0, dtype=torch.float64).unsqueeze(-1)
    features, weights, scatter = normal(seed, rounds, 4), normal(seed + 10, 5, 4), normal(7, rounds)
    limit = features.abs().amax(dim=0)
    optimizer = recipes.linear_ucb(
        choices=arms,
        context_bounds=torch.stack([-limit, limit]),
        noise_variance=noise,
        beta=beta,
    )
    models, alone = [Ridge(4, noise) for _ in arms], 0
    for z, e in zip(features, scatter, strict=True):
        trial = optimizer.ask(context=z)
        arm = int(trial.X.item())
        bounds = torch.stack([model.bound(z, math.sqrt(beta * noise)) for model in models])
        alone += assert_the_largest(bounds, arm)
        y = (weights[arm] @ z + 0.5 * e).item()
        optimizer.tell(trial, y)
        models[arm].learn(z, y)
    # Only arms not tried yet are alike.
    assert alone >= rounds - 10


@pytest.mark.slow_cases("bounds")
@pytest.mark.parametrize("declared", ["bounds", "list"])
def test_the_hybrid_model_chooses_the_same_arms(declared):
    """Bayesian regression on [e_a ⊗ z, x_a ⊗ z], 200 rounds: what arms share, and their own."""
    arms, features = normal(3, 6, 2), normal(4, 200, 3)
    if declared == "list":
        features = features[:20].repeat(10, 1)
        contexts = {"contexts": features[:20]}
    else:
        contexts = {"context_bounds": torch.stack([-torch.ones(3), torch.ones(3)]) * 9}
    own, shared, scatter = normal(5, 6, 3), normal(6, 2, 3), normal(7, 200)
    linear = LinearKernel().double()
    linear.variance = torch.ones(1, dtype=torch.float64)
    noise, beta = 0.25, 2.0
    optimizer = recipes.linear_ucb(
        choices=arms, shared_kernel=linear, noise_variance=noise, beta=beta, **contexts
    )
    model, alone = Ridge(6 * 3 + 2 * 3, noise), 0
    for z, e in zip(features, scatter, strict=True):
        trial = optimizer.ask(context=z)
        arm = (arms == trial.X).all(-1).nonzero().item()
        # Every arm's joint features, 6 x 24.
        joint = torch.cat([torch.kron(torch.eye(6, dtype=z.dtype), z), torch.kron(arms, z)], dim=-1)
        bounds = torch.stack([model.bound(x, math.sqrt(beta * noise)) for x in joint])
        alone += assert_the_largest(bounds, arm)
        y = (own[arm] @ z + arms[arm] @ shared @ z + 0.5 * e).item()
        optimizer.tell(trial, y)
        model.learn(joint[arm], y)
    # Arm features differ, so that arms do even before they are tried.
    assert alone == 200


def test_its_model_is_the_regression():
    """Mean and standard deviation of every arm in any context; one arm, told by hand."""
    optimizer = recipes.linear_ucb(
        choices=torch.tensor([[3.0], [8.0]]),
        context_bounds=torch.tensor([[-2.0, -2.0], [2.0, 2.0]]),
        noise_variance=0.5,
        pending=IgnorePending(),
    )
    model, z = Ridge(2, 0.5), torch.tensor([1.5, -0.5], dtype=torch.float64)
    for x, y in zip(normal(1, 6, 2).clamp(-2, 2), normal(2, 6), strict=True):
        optimizer.tell(optimizer.attach([8.0], t=1.0, context=x), y)
        model.learn(x, y)
    for arm, mean, sd in (
        (8.0, (model.inverse @ model.b) @ z, (0.5 * z @ model.inverse @ z).sqrt()),
        (3.0, torch.tensor(0.0), z.norm()),
    ):
        optimizer.ask(t=1.0, context=z)
        row = torch.tensor([[arm, 1.5, -0.5, 1.0]], dtype=torch.float64)
        posterior = optimizer.model.posterior(row)
        assert posterior.mean.item() == pytest.approx(mean.item(), abs=1e-9)
        assert posterior.variance.sqrt().item() == pytest.approx(sd.item(), abs=1e-9)


def test_bad_arguments():
    bounds = torch.tensor([[0.0], [1.0]])
    with pytest.raises(ValueError):
        recipes.linear_ucb(choices=torch.eye(2), context_bounds=bounds, noise_variance=0.0)
    with pytest.raises(InputDataError):
        recipes.linear_ucb(choices=torch.ones(2, 1), context_bounds=bounds)


@pytest.mark.parametrize("named", [False, True])
def test_arms_with_features_of_their_own(named):
    """Each arm has other features in each round; shared weights, or weights for each arm."""
    rounds, num_arms, d = 80, 4, 3
    features = normal(5, rounds, num_arms, d).clamp(-3, 3)
    weights, noise = normal(6, num_arms if named else 1, d), 0.3 * normal(7, rounds)
    ridges = [Ridge(d, 1.0) for _ in range(num_arms if named else 1)]
    bounds = [(-3.0, 3.0)] * d
    if named:
        bounds = {"arm": ["p", "q", "r", "s"]} | {f"x{i}": (-3.0, 3.0) for i in range(d)}
    optimizer = recipes.linear_ucb(bounds=bounds, beta=2.0, pending=IgnorePending())
    num_alone = 0
    for t in range(rounds):
        offered = features[t]
        if named:
            names = {f"x{i}": features[t][:, i].numpy() for i in range(d)}
            offered = pd.DataFrame({"arm": list("pqrs")} | names)
        trial = optimizer.ask(choices=offered)
        of = [arm if named else 0 for arm in range(num_arms)]
        bound = [ridges[of[arm]].bound(features[t, arm], math.sqrt(2)) for arm in range(num_arms)]
        num_alone += assert_the_largest(torch.stack(bound), trial.choice)
        x = features[t, trial.choice]
        y = weights[of[trial.choice]] @ x + noise[t]
        ridges[of[trial.choice]].learn(x, y)
        optimizer.tell(trial, y)
    assert num_alone > rounds - 6


def test_arms_with_features_of_their_own_take_no_contexts():
    with pytest.raises(ValueError):
        recipes.linear_ucb(bounds=[(0.0, 1.0)], contexts=torch.eye(2))
    with pytest.raises(ValueError):
        recipes.linear_ucb(bounds=[(0.0, 1.0)], shared_kernel=LinearKernel())
