"""Every acquisition function of BoTorch, made for a model and maximized once.

A case is a function of a :class:`Setting` that returns an acquisition function. ``outcome`` tells
what becomes of it: it is maximized, or refused in words, or it fails.
"""

from dataclasses import dataclass, field

import torch
from botorch.acquisition import (
    PosteriorMean,
    UpperConfidenceBound,
    active_learning,
    analytic,
    bayesian_active_learning,
    joint_entropy_search,
    knowledge_gradient,
    logei,
    monte_carlo,
    multi_step_lookahead,
    multioutput_acquisition,
    penalized,
    predictive_entropy_search,
    preference,
    prior_guided,
    proximal,
    risk_measures,
    thompson_sampling,
)
from botorch.acquisition import max_value_entropy_search as mes
from botorch.acquisition import multi_objective as mo
from botorch.acquisition.acquisition import OneShotAcquisitionFunction
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.multi_objective import (
    hypervolume_knowledge_gradient,
    multi_output_risk_measures,
    parego,
)
from botorch.acquisition.multi_objective import joint_entropy_search as mo_jes
from botorch.acquisition.multi_objective import max_value_entropy_search as mo_mes
from botorch.acquisition.multi_objective import predictive_entropy_search as mo_pes
from botorch.acquisition.multi_objective.utils import compute_sample_box_decomposition
from botorch.acquisition.multioutput_acquisition import MultiOutputAcquisitionFunction
from botorch.acquisition.objective import (
    ConstrainedMCObjective,
    ExpectationPosteriorTransform,
    GenericMCObjective,
    LearnedObjective,
    LinearMCObjective,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.utils import get_optimal_samples, project_to_target_fidelity
from botorch.exceptions.errors import BotorchError
from botorch.models import AffineFidelityCostModel, ModelListGP
from botorch.models.transforms.input import InputPerturbation
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.list_sampler import ListSampler
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
    NondominatedPartitioning,
)
from every_model import CHOICES, DENSE, MODELS, T, ahead, single_task
from torch import Size, Tensor

BOUNDS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, T]], dtype=torch.float64)
REFERENCE = torch.tensor([-3.0, -3.0], dtype=torch.float64)
LINE = torch.tensor([[-1.0, 0.5], [0.5, -1.0]], dtype=torch.float64)


@dataclass
class Setting:
    """A model and what acquisition functions are made of."""

    name: str
    best_f: float = 0.5
    ahead: Tensor = field(default_factory=lambda: ahead(9))
    pending: Tensor = field(default_factory=lambda: ahead(2, seed=3))

    def make(self, seed=0, **options):
        if options and self.name not in DENSE:
            raise NoSuchOptionError
        return MODELS[self.name](seed, **options)

    @property
    def model(self):
        return self.make()

    @property
    def pair(self):
        return ModelListGP(self.make(), self.make(seed=1))

    @property
    def perturbed(self):
        """With an input transform that perturbs each row twice, not in time."""
        shifts = torch.tensor([[0.0, 0.0, 0.0], [0.1, -0.1, 0.0]], dtype=torch.float64)
        return self.make(input_transform=InputPerturbation(shifts)).eval()

    @property
    def perturbed_pair(self):
        return ModelListGP(self.perturbed, self.perturbed)

    @property
    def utility(self):
        cost = AffineFidelityCostModel({0: 1.0}, fixed_cost=0.5).double()
        return InverseCostWeightedUtility(cost_model=cost)


class NoSuchOptionError(Exception):
    """The model has no such option."""


def sobol(n=8):
    return SobolQMCNormalSampler(Size([n]), seed=0)


def project(X):
    return project_to_target_fidelity(X, target_fidelities={0: 1.0}, d=3)


def partitioning(kind=FastNondominatedPartitioning):
    return kind(ref_point=REFERENCE, Y=LINE)


def hypercells():
    return compute_sample_box_decomposition(torch.stack([LINE, LINE]))


def ucb(s):
    return UpperConfidenceBound(s.model, beta=2.0)


def second_below(samples):
    return samples[..., 1] - 0.5


BELOW = {1: (None, 0.5)}

CASES = {
    # analytic
    "PosteriorMean": lambda s: PosteriorMean(s.model),
    "PosteriorStandardDeviation": lambda s: analytic.PosteriorStandardDeviation(s.model),
    "ScalarizedPosteriorMean": lambda s: analytic.ScalarizedPosteriorMean(
        s.model, weights=torch.tensor([0.4, 0.6])
    ),
    "UpperConfidenceBound": ucb,
    "ProbabilityOfImprovement": lambda s: analytic.ProbabilityOfImprovement(s.model, s.best_f),
    "LogProbabilityOfImprovement": lambda s: analytic.LogProbabilityOfImprovement(
        s.model, s.best_f
    ),
    "qAnalyticProbabilityOfImprovement": lambda s: analytic.qAnalyticProbabilityOfImprovement(
        s.model, s.best_f
    ),
    "ExpectedImprovement": lambda s: analytic.ExpectedImprovement(s.model, s.best_f),
    "LogExpectedImprovement": lambda s: analytic.LogExpectedImprovement(s.model, s.best_f),
    "ConstrainedExpectedImprovement": lambda s: analytic.ConstrainedExpectedImprovement(
        s.pair, s.best_f, objective_index=0, constraints=BELOW
    ),
    "LogConstrainedExpectedImprovement": lambda s: analytic.LogConstrainedExpectedImprovement(
        s.pair, s.best_f, objective_index=0, constraints=BELOW
    ),
    "LogProbabilityOfFeasibility": lambda s: analytic.LogProbabilityOfFeasibility(
        s.pair, constraints=BELOW
    ),
    "NoisyExpectedImprovement": lambda s: analytic.NoisyExpectedImprovement(
        s.make(known_noise=True) if s.name in DENSE else s.model, s.ahead[:3], num_fantasies=4
    ),
    "LogNoisyExpectedImprovement": lambda s: analytic.LogNoisyExpectedImprovement(
        s.make(known_noise=True) if s.name in DENSE else s.model, s.ahead[:3], num_fantasies=4
    ),
    # monte_carlo, logei
    "qExpectedImprovement": lambda s: monte_carlo.qExpectedImprovement(
        s.model, s.best_f, sampler=sobol()
    ),
    "qNoisyExpectedImprovement": lambda s: monte_carlo.qNoisyExpectedImprovement(
        s.model, s.ahead[:3], sampler=sobol()
    ),
    "qProbabilityOfImprovement": lambda s: monte_carlo.qProbabilityOfImprovement(
        s.model, s.best_f, sampler=sobol()
    ),
    "qSimpleRegret": lambda s: monte_carlo.qSimpleRegret(s.model, sampler=sobol()),
    "qUpperConfidenceBound": lambda s: monte_carlo.qUpperConfidenceBound(
        s.model, 2.0, sampler=sobol()
    ),
    "qLowerConfidenceBound": lambda s: monte_carlo.qLowerConfidenceBound(
        s.model, 2.0, sampler=sobol()
    ),
    "qPosteriorStandardDeviation": lambda s: monte_carlo.qPosteriorStandardDeviation(
        s.model, sampler=sobol()
    ),
    "qLogExpectedImprovement": lambda s: logei.qLogExpectedImprovement(
        s.model, s.best_f, sampler=sobol()
    ),
    "qLogNoisyExpectedImprovement": lambda s: logei.qLogNoisyExpectedImprovement(
        s.model, s.ahead[:3], sampler=sobol()
    ),
    "qLogNoisyExpectedImprovement, pruned": lambda s: logei.qLogNoisyExpectedImprovement(
        s.model, s.ahead[:3], sampler=sobol(), prune_baseline=True
    ),
    "qLogProbabilityOfFeasibility": lambda s: logei.qLogProbabilityOfFeasibility(
        s.pair, constraints=[second_below], sampler=sobol()
    ),
    "qLogExpectedImprovement, pending": lambda s: logei.qLogExpectedImprovement(
        s.model, s.best_f, sampler=sobol(), X_pending=s.pending
    ),
    "qLogNoisyExpectedImprovement, pending": lambda s: logei.qLogNoisyExpectedImprovement(
        s.model, s.ahead[:3], sampler=sobol(), X_pending=s.pending
    ),
    "qLogExpectedImprovement, constraints": lambda s: logei.qLogExpectedImprovement(
        s.pair,
        s.best_f,
        sampler=sobol(),
        objective=GenericMCObjective(lambda Y, X=None: Y[..., 0]),
        constraints=[second_below],
    ),
    # objectives and posterior transforms
    "ScalarizedPosteriorTransform": lambda s: UpperConfidenceBound(
        s.pair, 2.0, posterior_transform=ScalarizedPosteriorTransform(torch.tensor([0.4, 0.6]))
    ),
    "ExpectationPosteriorTransform": lambda s: UpperConfidenceBound(
        s.perturbed, 2.0, posterior_transform=ExpectationPosteriorTransform(n_w=2)
    ),
    "LinearMCObjective": lambda s: monte_carlo.qUpperConfidenceBound(
        s.pair, 2.0, sampler=sobol(), objective=LinearMCObjective(torch.tensor([0.4, 0.6]))
    ),
    "ConstrainedMCObjective": lambda s: monte_carlo.qExpectedImprovement(
        s.pair,
        0.0,
        sampler=sobol(),
        objective=ConstrainedMCObjective(lambda Y, X=None: Y[..., 0], [second_below]),
    ),
    "LearnedObjective": lambda s: monte_carlo.qSimpleRegret(
        preferred_outcomes(s), sampler=sobol(), objective=LearnedObjective(single_task())
    ),
    "VaR": lambda s: monte_carlo.qExpectedImprovement(
        s.perturbed, s.best_f, sampler=sobol(), objective=risk_measures.VaR(0.5, n_w=2)
    ),
    "CVaR": lambda s: monte_carlo.qExpectedImprovement(
        s.perturbed, s.best_f, sampler=sobol(), objective=risk_measures.CVaR(0.5, n_w=2)
    ),
    "WorstCase": lambda s: monte_carlo.qExpectedImprovement(
        s.perturbed, s.best_f, sampler=sobol(), objective=risk_measures.WorstCase(n_w=2)
    ),
    "Expectation": lambda s: monte_carlo.qExpectedImprovement(
        s.perturbed, s.best_f, sampler=sobol(), objective=risk_measures.Expectation(n_w=2)
    ),
    # look-ahead
    "qKnowledgeGradient": lambda s: knowledge_gradient.qKnowledgeGradient(
        s.model, num_fantasies=2, sampler=sobol(2)
    ),
    "qKnowledgeGradient, pending": lambda s: knowledge_gradient.qKnowledgeGradient(
        s.model, num_fantasies=2, sampler=sobol(2), X_pending=s.pending
    ),
    "qMultiFidelityKnowledgeGradient": lambda s: knowledge_gradient.qMultiFidelityKnowledgeGradient(
        s.model,
        num_fantasies=2,
        sampler=sobol(2),
        current_value=torch.tensor(0.0),
        cost_aware_utility=s.utility,
        project=project,
    ),
    "ProjectedAcquisitionFunction": lambda s: knowledge_gradient.ProjectedAcquisitionFunction(
        PosteriorMean(s.model), project=project
    ),
    "qMultiStepLookahead": lambda s: multi_step_lookahead.qMultiStepLookahead(
        s.model, batch_sizes=[1], num_fantasies=[2]
    ),
    # entropy
    "qMaxValueEntropy": lambda s: mes.qMaxValueEntropy(s.model, s.ahead, num_fantasies=2),
    "qMaxValueEntropy, pending": lambda s: mes.qMaxValueEntropy(
        s.model, s.ahead, num_fantasies=2, X_pending=s.pending
    ),
    "qLowerBoundMaxValueEntropy": lambda s: mes.qLowerBoundMaxValueEntropy(s.model, s.ahead),
    "qLowerBoundMaxValueEntropy, pending": lambda s: mes.qLowerBoundMaxValueEntropy(
        s.model, s.ahead, X_pending=s.pending
    ),
    "qMultiFidelityMaxValueEntropy": lambda s: mes.qMultiFidelityMaxValueEntropy(
        s.model, s.ahead, num_fantasies=2, cost_aware_utility=s.utility, project=project
    ),
    "qMultiFidelityLowerBoundMaxValueEntropy": lambda s: (
        mes.qMultiFidelityLowerBoundMaxValueEntropy(
            s.model, s.ahead, num_fantasies=2, cost_aware_utility=s.utility, project=project
        )
    ),
    "qJointEntropySearch": lambda s: joint_entropy_search.qJointEntropySearch(
        s.model, s.ahead[:2], torch.tensor([[1.0], [1.5]])
    ),
    "qJointEntropySearch, drawn optima": lambda s: joint_entropy_search.qJointEntropySearch(
        s.model,
        *get_optimal_samples(s.model, BOUNDS, num_optima=2, raw_samples=8, num_restarts=1),
    ),
    "qPredictiveEntropySearch": lambda s: predictive_entropy_search.qPredictiveEntropySearch(
        s.model, s.ahead[:2], max_ep_iterations=3
    ),
    # active learning
    "qNegIntegratedPosteriorVariance": lambda s: active_learning.qNegIntegratedPosteriorVariance(
        s.model, mc_points=s.ahead[:4]
    ),
    "PairwiseMCPosteriorVariance": lambda s: active_learning.PairwiseMCPosteriorVariance(
        s.model, objective=GenericMCObjective(lambda Y, X=None: Y[..., 0]), sampler=sobol()
    ),
    "qBayesianActiveLearningByDisagreement": lambda s: (
        bayesian_active_learning.qBayesianActiveLearningByDisagreement(s.model, sampler=sobol())
    ),
    # several objectives
    "ExpectedHypervolumeImprovement": lambda s: mo.ExpectedHypervolumeImprovement(
        s.pair, REFERENCE, partitioning(NondominatedPartitioning)
    ),
    "qExpectedHypervolumeImprovement": lambda s: mo.qExpectedHypervolumeImprovement(
        s.pair, REFERENCE, partitioning(), sampler=sobol()
    ),
    "qLogExpectedHypervolumeImprovement": lambda s: mo.qLogExpectedHypervolumeImprovement(
        s.pair, REFERENCE, partitioning(), sampler=sobol()
    ),
    "qNoisyExpectedHypervolumeImprovement": lambda s: mo.qNoisyExpectedHypervolumeImprovement(
        s.pair, REFERENCE, s.ahead[:3], sampler=sobol()
    ),
    "qLogNoisyExpectedHypervolumeImprovement": lambda s: mo.qLogNoisyExpectedHypervolumeImprovement(
        s.pair, REFERENCE, s.ahead[:3], sampler=sobol(), X_pending=s.pending
    ),
    "qHypervolumeKnowledgeGradient": lambda s: mo.qHypervolumeKnowledgeGradient(
        s.pair, REFERENCE, num_fantasies=2, num_pareto=2, sampler=ListSampler(sobol(2), sobol(2))
    ),
    "qMultiFidelityHypervolumeKnowledgeGradient": lambda s: (
        hypervolume_knowledge_gradient.qMultiFidelityHypervolumeKnowledgeGradient(
            s.pair,
            REFERENCE,
            target_fidelities={0: 1.0},
            num_fantasies=2,
            num_pareto=2,
            sampler=ListSampler(sobol(2), sobol(2)),
            current_value=torch.tensor(0.0),
            cost_aware_utility=s.utility,
            project=project,
        )
    ),
    "MOMF": lambda s: mo.MOMF(s.pair, REFERENCE, partitioning(), sampler=sobol()),
    "qLogNParEGO": lambda s: parego.qLogNParEGO(s.pair, s.ahead[:3], sampler=sobol()),
    "qLowerBoundMultiObjectiveMaxValueEntropySearch": lambda s: (
        mo_mes.qLowerBoundMultiObjectiveMaxValueEntropySearch(s.pair, hypercells())
    ),
    "qLowerBoundMultiObjectiveJointEntropySearch": lambda s: (
        mo_jes.qLowerBoundMultiObjectiveJointEntropySearch(
            s.pair,
            torch.stack([s.ahead[:2], s.ahead[2:4]]),
            torch.stack([LINE, LINE]),
            hypercells(),
        )
    ),
    "qMultiObjectivePredictiveEntropySearch": lambda s: (
        mo_pes.qMultiObjectivePredictiveEntropySearch(
            s.pair, torch.stack([s.ahead[:2], s.ahead[2:4]]), max_ep_iterations=3
        )
    ),
    "MultiOutputPosteriorMean": lambda s: multioutput_acquisition.MultiOutputPosteriorMean(s.pair),
    "MultiOutputAcquisitionFunctionWrapper": lambda s: (
        multioutput_acquisition.MultiOutputAcquisitionFunctionWrapper(
            [ucb(s), PosteriorMean(s.model)]
        )
    ),
    "MVaR": lambda s: mo.qExpectedHypervolumeImprovement(
        s.perturbed_pair,
        REFERENCE,
        partitioning(),
        sampler=sobol(),
        objective=multi_output_risk_measures.MVaR(n_w=2, alpha=0.5, pad_to_n_w=True),
    ),
    # wrappers
    "FixedFeatureAcquisitionFunction": lambda s: FixedFeatureAcquisitionFunction(
        ucb(s), d=3, columns=[1, 2], values=[0.5, T]
    ),
    "PenalizedAcquisitionFunction": lambda s: penalized.PenalizedAcquisitionFunction(
        ucb(s), penalized.L2Penalty(s.ahead[0]), regularization_parameter=0.1
    ),
    "PriorGuidedAcquisitionFunction": lambda s: prior_guided.PriorGuidedAcquisitionFunction(
        monte_carlo.qSimpleRegret(s.model, sampler=sobol()), Prior()
    ),
    "ProximalAcquisitionFunction": lambda s: proximal.ProximalAcquisitionFunction(
        ucb(s), proximal_weights=torch.ones(3), beta=1.0
    ),
    # preferences
    "AnalyticExpectedUtilityOfBestOption": lambda s: preference.AnalyticExpectedUtilityOfBestOption(
        s.model
    ),
    "qExpectedUtilityOfBestOption": lambda s: preference.qExpectedUtilityOfBestOption(
        s.model, sampler=sobol()
    ),
    "PairwiseBayesianActiveLearningByDisagreement": lambda s: (
        preference.PairwiseBayesianActiveLearningByDisagreement(s.model, num_samples=8)
    ),
    # Thompson sampling
    "PathwiseThompsonSampling": lambda s: thompson_sampling.PathwiseThompsonSampling(s.model),
}

PAIRS = (
    "ScalarizedPosteriorMean",
    "qAnalyticProbabilityOfImprovement",
    "PairwiseMCPosteriorVariance",
    "AnalyticExpectedUtilityOfBestOption",
    "qExpectedUtilityOfBestOption",
    "PairwiseBayesianActiveLearningByDisagreement",
)
"""Acquisition functions of two rows."""

NEEDS_PATHS = ("qJointEntropySearch, drawn optima", "PathwiseThompsonSampling")
"""Cases that draw whole functions from the prior, by features of the kernel."""


class Prior(torch.nn.Module):
    """A prior over where the maximum is."""

    def forward(self, X):
        return torch.exp(-((X[..., :2] - 0.5) ** 2).sum(dim=-1))


def preferred_outcomes(s):
    """Three outcomes, of which another model is the utility."""
    return ModelListGP(s.make(), s.make(seed=1), s.make(seed=2))


def maximize(acquisition, name, finite):
    """Maximize an acquisition function once, over the choices or in the box, at one time."""
    q = 2 if name in PAIRS else 1
    if name == "FixedFeatureAcquisitionFunction":
        rows, bounds, fixed = SIDE_ROWS, BOUNDS[:, :1], None
    else:
        rows, bounds, fixed = ahead(9), BOUNDS, {2: T}
    if name == "qMultiFidelityHypervolumeKnowledgeGradient":
        # Its starting points do not heed fixed features.
        bounds, fixed = torch.cat([BOUNDS[:, :2], torch.full((2, 1), T)], dim=-1), None
    if isinstance(acquisition, MultiOutputAcquisitionFunction):
        values = acquisition(rows.unsqueeze(-2))
        assert values.shape == (9, 2)
        return values
    one_shot = isinstance(acquisition, OneShotAcquisitionFunction)
    if one_shot and (finite or name == "qMultiStepLookahead"):
        q = acquisition.get_augmented_q_batch_size(q)
    if finite and q > 1:
        # BoTorch maximizes over sets of choices one by one: here over a few sets.
        with torch.no_grad():
            return acquisition(ahead(6, q)).max()
    if finite:
        return optimize_acqf_discrete(acquisition, q=q, choices=rows)[1]
    options = {"maxiter": 2}
    return optimize_acqf(
        acquisition,
        bounds,
        q=q,
        num_restarts=1,
        raw_samples=4,
        fixed_features=fixed,
        options=options,
    )[1]


SIDE_ROWS = CHOICES[::3, :1]


def outcome(name, model):
    """Return "yes" if the acquisition function is maximized under the model, or why not."""
    torch.manual_seed(0)
    try:
        value = maximize(CASES[name](Setting(model)), name, finite=model == "StreamingGP")
    except NoSuchOptionError:
        return "no option"
    except (BotorchError, NotImplementedError) as error:
        return f"refused: {type(error).__name__}: {error}"
    except Exception as error:
        return f"fails: {type(error).__name__}: {error}"
    return "yes" if torch.isfinite(value).all() else f"fails: {value}"
