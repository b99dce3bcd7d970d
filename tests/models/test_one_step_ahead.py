"""Predictions of each outcome by those before it, against a model of these alone."""

import pytest
import torch
from gpytorch.kernels import MaternKernel

from tvbo.models import ContextualGP, EnsembleGP, TimeVaryingGP

GENERATOR = torch.Generator().manual_seed(11)
X = torch.rand(9, 3, dtype=torch.float64, generator=GENERATOR)
Y = torch.randn(9, 1, dtype=torch.float64, generator=GENERATOR)
Yvar = 0.01 + torch.rand(9, 1, dtype=torch.float64, generator=GENERATOR)


@pytest.mark.parametrize("noise", [None, Yvar])
@pytest.mark.parametrize("contextual", [False, True])
def test_a_dense_model_predicts_as_one_of_the_outcomes_before(contextual, noise):
    def model(n):
        known = None if noise is None else noise[:n]
        if contextual:
            made = ContextualGP(
                X[:n],
                Y[:n],
                known,
                context_features=[1],
                time_feature=2,
                forgetting_rate=0.2,
                outcome_transform=None,
            )
        else:
            made = TimeVaryingGP(
                X[:n],
                Y[:n],
                known,
                covar_module=MaternKernel(),
                forgetting_rate=0.2,
                outcome_transform=None,
            )
        if noise is None:
            made.likelihood.noise = 0.05
        return made.eval()

    held = EnsembleGP.from_model(model(9))
    held = held.condition_on_observations(X, Y, noise)
    mean, variance = held.one_step_ahead()
    for i in range(1, 9):
        with torch.no_grad():
            posterior = model(i).posterior(X[[i]])
        expected = posterior.variance.item() + (0.05 if noise is None else noise[i].item())
        assert mean[i].item() == pytest.approx(posterior.mean.item(), abs=1e-8)
        assert variance[i].item() == pytest.approx(expected, abs=1e-8)
