import math

import pytest
import torch

from experiments.data.peptides import AMINO_ACIDS, hamming_distances, residues
from experiments.krause.fig2_model import (
    METHODS,
    HammingKernel,
    TaskPosterior,
    fit_examples,
    learned,
)
from tvbo.models import ContextualGP

SEQUENCES = ["ACDW", "ACDY", "WCDA", "YYYY"]


def test_hamming_kernel_against_a_double_loop():
    kernel = HammingKernel(hamming_distances(SEQUENCES)).double()
    kernel.lengthscale = 2.5
    tasks = torch.tensor([[3.0], [0.0], [1.0]], dtype=torch.float64)
    expected = [
        [math.exp(-sum(a != b for a, b in zip(x, y, strict=True)) / 2.5) for y in SEQUENCES]
        for x in (SEQUENCES[3], SEQUENCES[0], SEQUENCES[1])
    ]
    covar = kernel(tasks, torch.arange(4.0).double().unsqueeze(-1)).to_dense()
    torch.testing.assert_close(
        covar, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13
    )
    assert kernel(tasks, diag=True).tolist() == [1.0, 1.0, 1.0]


def test_hamming_kernel_is_the_gaussian_kernel_on_one_hot_letters():
    kernel = HammingKernel(hamming_distances(SEQUENCES)).double()
    for scale in (0.1, 1.0, 30.0):
        kernel.lengthscale = torch.tensor(scale, dtype=torch.float64)
        letters = torch.nn.functional.one_hot(residues(SEQUENCES), len(AMINO_ACIDS)).flatten(-2)
        squared = torch.cdist(letters.double(), letters.double()).square()
        expected = torch.exp(-squared / (2 * scale))
        torch.testing.assert_close(kernel.covar_matrix, expected, rtol=0, atol=1e-12)
        assert torch.linalg.eigvalsh(kernel.covar_matrix)[0] > 0


@pytest.mark.parametrize("name", METHODS)
def test_learned_hyperparameters_maximize_the_likelihood(name, drawn, generator):
    """The gradient, checked by differences of a likelihood written out here."""
    examples = torch.arange(0, len(drawn), 2)
    model = fit_examples(drawn, examples, METHODS[name], generator)
    best = learned(model)
    assert ("hamming_scale" in best) == (name == "CGP-UCB")
    X, y = drawn.rows(examples), drawn.reward[examples]
    squared = torch.cdist(X[:, :-1], X[:, :-1]).square()
    task = X[:, -1].long()
    hamming = drawn.distances[task][:, task]

    def likelihood(lengthscale, signal_variance, noise_variance, mean, hamming_scale=1.0):
        context = {
            "CGP-UCB": torch.exp(-hamming / hamming_scale),
            "merged": torch.ones_like(hamming),
            "separate": (task.unsqueeze(-1) == task).double(),
        }[name]
        covar = signal_variance * torch.exp(-squared / (2 * lengthscale**2)) * context
        covar = covar + noise_variance * torch.eye(len(y), dtype=torch.float64)
        return torch.distributions.MultivariateNormal(
            torch.full_like(y, mean), covar, validate_args=False
        ).log_prob(y)

    top = likelihood(**best)
    for key, value in best.items():
        for factor in (0.8, 1.25):
            assert likelihood(**{**best, key: value * factor}) < top + 1e-3, key


@pytest.mark.parametrize("name", METHODS)
def test_posterior_is_that_of_the_dense_model(name, drawn, generator):
    """Trial by trial, over two tasks, with a candidate that is tried twice."""
    fitted = fit_examples(drawn, torch.arange(0, len(drawn), 3), METHODS[name], generator)
    posterior = TaskPosterior(fitted)
    seen: list[int] = []
    for task, places in ((1, [0, 3, 0]), (2, [1, 2])):
        measurements = torch.nonzero(drawn.molecule == task).squeeze(-1)
        rows = drawn.rows(measurements)
        posterior.enter(rows)
        for place in places:
            if seen:
                dense = dense_model(fitted, drawn, seen).posterior(rows)
                mean, variance = dense.mean.squeeze(-1), dense.variance.squeeze(-1)
                torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=1e-10)
                torch.testing.assert_close(posterior.variance, variance, rtol=0, atol=1e-10)
            posterior.observe(place, drawn.reward[measurements[place]].item())
            seen.append(int(measurements[place]))


def dense_model(fitted, data, seen):
    return ContextualGP(
        data.rows(torch.tensor(seen)),
        data.reward[seen].unsqueeze(-1),
        context_features=[data.molecule_feature],
        action_kernel=fitted.context_action_kernel.action_kernel.base_kernel,
        context_kernel=fitted.context_action_kernel.context_kernel.base_kernel,
        likelihood=fitted.likelihood,
        mean_module=fitted.mean_module,
        outcome_transform=None,
    ).eval()
