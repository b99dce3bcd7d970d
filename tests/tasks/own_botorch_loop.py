"""A BoTorch loop of one's own on a drifting objective, with qLogNEI at the present."""

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

from tvbo.models import TimeVaryingGP

torch.manual_seed(0)
bounds = torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double()  # of x; time is fixed below
rows = torch.cat([torch.rand(8, 1), torch.arange(8.0).unsqueeze(-1)], dim=-1).double()
outcomes = -((rows[:, :1] - 0.3 - 0.02 * rows[:, 1:]) ** 2) + 0.01 * torch.randn(8, 1)
for t in range(8, 14):
    model = TimeVaryingGP(rows, outcomes)  # rows [x | t]; the drift rate is learned
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    present = rows.clone()
    present[:, 1] = t  # what was observed, as it would be now
    acq_function = qLogNoisyExpectedImprovement(model, X_baseline=present)
    row, _ = optimize_acqf(
        acq_function, bounds, q=1, num_restarts=4, raw_samples=64, fixed_features={1: float(t)}
    )
    value = -((row[:, :1] - 0.3 - 0.02 * t) ** 2) + 0.01 * torch.randn(1, 1)
    rows, outcomes = torch.cat([rows, row]), torch.cat([outcomes, value])
