"""The loop: surrogate, acquisition and retention, each of them replaceable."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.acquisition import Acquisition, DrawnValues, ThompsonSampling
from tvbo.acquisition.analytic import posterior_mean
from tvbo.feedback.pending import Hallucinate, Pending
from tvbo.models import IncrementalGP
from tvbo.models.raw import scale_of
from tvbo.models.scale import variance_of
from tvbo.observations import Observations
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.closed import LostTrial
from tvbo.optimizers.events import Event
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.refusals import Refusals
from tvbo.optimizers.surrogate_protocol import Surrogate
from tvbo.optimizers.trial import Trial
from tvbo.randomness import copy_of
from tvbo.retention import KeepAll, Prediction, Retention
from tvbo.search_space import AskContext, ContextSpace, InputLayout, SearchSpace, SpaceFilling


class GPOptimizer(Optimizer):
    """Bayesian optimization by ask/tell.

    One round is: drop what retention no longer keeps, build the model, maximize the acquisition at
    the present time. Outcomes told late enter with the time at which they were sampled. Where the
    retention policy judges whether an outcome is worth having, the trial says so.

    Args:
        search_space: The set of actions.
        surrogate: Builds the model.
        acquisition: Builds the acquisition function: :class:`tvbo.acquisition.UCB`, or any function
            of a model and a :class:`tvbo.search_space.AskContext` to a BoTorch acquisition.
        retention: Which observations stay, and which outcomes enter; all by default. The loop works
            on a copy, ``optimizer.retention``, since a policy may learn from what it is told.
        layout: How the rows of the model are laid out; as in :class:`Optimizer`.
        generator: Source of every random choice; default a fresh one with seed 0.
        contexts: The contexts to expect, as in :class:`Optimizer`.
        pending: What open trials contribute meanwhile; default
            :class:`tvbo.feedback.Hallucinate`, which changes nothing while none is open. The papers
            that know no delay have :class:`tvbo.feedback.IgnorePending`.
        initial: As long as there were fewer outcomes and open trials than this, actions fill the
            space instead of maximizing the acquisition, on a finite set until each was tried once,
            and no outcome is refused; default 0. The recipes give the number that the first fit
            waits for.

    Attributes:
        observations: The observations held.
        refusals: The record of trials whose outcome is not wanted.
    """

    def __init__(
        self,
        search_space: SearchSpace,
        surrogate: Surrogate,
        acquisition: Acquisition,
        retention: Retention | None = None,
        layout: InputLayout | None = None,
        generator: Generator | None = None,
        contexts: ContextSpace | None = None,
        pending: Pending | None = None,
        initial: int = 0,
    ):
        super().__init__(search_space, layout, generator, contexts)
        self.surrogate = surrogate
        self.acquisition = acquisition
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(
                f"Expected a retention policy. Got {retention!r} of {type(retention).__name__}."
            )
        if pending is not None and not isinstance(pending, Pending):
            raise TypeError(
                f"Expected a pending policy. Got {pending!r} of {type(pending).__name__}."
            )
        if initial != int(initial) or initial < 0:
            raise ValueError(f"Expected initial to be 0, 1, 2, ... actions. Got {initial}.")
        self.pending = Hallucinate() if pending is None else pending
        self.initial = initial
        self.retention = KeepAll() if retention is None else deepcopy(retention)
        self.refusals = Refusals()
        self.observations = Observations.empty(self.layout.num_columns)
        self._num_told = 0
        self._space_filling = SpaceFilling()
        self._fit_seen: dict[str, list[float]] | None = None
        self._newest_model: Model | None = None
        self._looked_at: Model | None = None
        self._predictions: dict[int, Prediction] = {}
        # Of the open trials, so that each round need not lay them out again.
        self._rows: dict[int, Tensor] = {}

    @property
    def repeats_open_trials(self) -> bool:
        """Where open trials do not count, unless functions are drawn."""
        return not self.pending.counts and not isinstance(self.acquisition, ThompsonSampling)

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return len(self.observations)

    @property
    def model(self) -> Model | None:
        """The model behind the newest ask or recommendation; None before the first.

        That of an ask counts open trials, that of a recommendation what has come only. While
        actions fill the space, it has the default hyperparameters. Whatever its class, it has
        ``posterior`` and ``forgetting_rate``, and on a box ``likelihood`` and ``covar_module``.
        With open trials these are in raw units; ``surrogate.last_model`` has them as fitted.
        """
        model = self._newest_model if self._looked_at is None else self._looked_at
        # To look at: what it remembers of that is not the run's.
        return model.snapshot() if isinstance(model, IncrementalGP) else model

    def recommend(self, context: Tensor | None = None, t: float | None = None) -> Recommendation:
        """The best action in a context, by posterior mean. It is no ask: nothing changes by it.

        A fit of hyperparameters that is due is made on a copy, and again at the next ask.

        Args:
            context: The context, ``c``, where contexts were declared.
            t: The time; None is that of the latest ask or outcome.

        Raises:
            InputDataError: if nothing was asked or told yet and no ``t`` is given, if ``t`` is
                not finite, or lies before what a streaming model still knows, or the context is
                none of those declared.
            BotorchTensorDimensionError: if the context has the wrong size, or is missing.
        """
        context = self._check_context(context)
        t = self._time_of(t)
        self._looked_at = self._model_at(t)
        return self._best(self._looked_at, t, context)

    def policy(self, contexts: Tensor | None = None, t: float | None = None) -> Policy:
        """The best action within each of several contexts, by posterior mean, at one time.

        Args:
            contexts: ``m x c``; None is every context of a declared list.
            t: As in :meth:`recommend`.

        Raises:
            ValueError: if no contexts are given where they were declared by bounds, or an empty
                table.
            InputDataError: as in :meth:`recommend`.
            BotorchTensorDimensionError: if none were declared, or their size is wrong.
        """
        contexts = self._check_table(contexts)
        t = self._time_of(t)
        self._looked_at = self._model_at(t)
        return Policy.collect([self._best(self._looked_at, t, context) for context in contexts])

    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        keep = self.retention.keep(self.observations, self.surrogate.last_model, t)
        if not keep.all():
            self.surrogate.drop(self.observations, keep, t)
            self.observations = self.observations[keep]
        # Before a fit draws from the generator, so that the start does not depend on fits.
        start = self._start() if self._is_starting() else None
        rows = self._open_rows(t)
        told = (self._num_told, self.generator)
        if len(rows) == 0:
            model = self.surrogate.model(self.observations, *told)
        else:
            model = self.surrogate.model_with(self.observations, rows, self.pending, *told)
        self._newest_model, self._looked_at = model, None
        if start is not None:
            return start
        ask_context = self._ask_context(round_number, t, context, self.observations)
        acq_function = self.acquisition(model, ask_context)
        if isinstance(acq_function, DrawnValues):
            # Its values are known at the candidates alone.
            return acq_function.best()
        return self.search_space.maximize(acq_function, ask_context, self.generator)

    def _start(self) -> Tensor | None:
        """The next space-filling action; None where all choices were tried."""
        tried = [self.observations.X[:, : self.layout.num_actions]]
        tried += [trial.X for trial in self.open_trials]
        return self._space_filling.next(self.search_space, torch.cat(tried), self.generator)

    def _is_starting(self) -> bool:
        """Whether too little was tried yet to learn from."""
        return self._num_told + len(self._open) < self.initial

    def _open_rows(self, t: float) -> Tensor:
        """Rows of the open trials that the next action should know of, ``q x d``."""
        rows = [self.observations.X[:0]]
        if self.pending.counts:
            for trial in self.open_trials:
                # What will not enter, or lies in the future, need not be counted now.
                if trial.informative and trial.t <= t:
                    rows.append(self._rows[trial.id])
        if len(rows) == 1:
            return rows[0]
        X = torch.cat(rows)
        # Nor what would be dropped as soon as it is told.
        outcomes = Observations(X, torch.zeros(len(X), 1, dtype=torch.float64))
        return X[self.retention.keep(outcomes, self.surrogate.last_model, t)]

    def _row(self, trial: Trial) -> Tensor:
        return self.layout.rows(trial.X, trial.t, self._seen(trial.context))

    def _judge(self, trial: Trial) -> Trial:
        if not self.retention.needs_prediction or self._is_starting():
            return trial
        prediction = self._predict(trial, self._newest_model)
        if prediction is None:
            return trial
        refusal = self.retention.judge(prediction, len(self.observations))
        trial = replace(
            trial,
            informative=refusal is None,
            information_gain=prediction.information_gain,
            skipped=refusal is not None and refusal.skip,
        )
        if refusal is not None:
            self.refusals.add(trial, refusal)
        if not trial.skipped:
            self._predictions[trial.id] = self._foretold(trial, prediction)
        return trial

    def _foretold(self, trial: Trial, prediction: Prediction) -> Prediction:
        """What the outcomes that have come say of the trial, whatever stands in for others."""
        if len(self._open_rows(trial.t)) == 0:
            return prediction
        model = self.surrogate.model(self.observations, self._num_told, self.generator)
        return self._predict(trial, model)

    def _predict(self, trial: Trial, model: Model) -> Prediction | None:
        """What a model says of the trial; None as long as nothing is known of the noise."""
        noise_variance = self.surrogate.outcome_noise(self.observations)
        if noise_variance is None:
            return None
        row = self._row(trial)
        with torch.no_grad():
            posterior = model.posterior(row)
        return Prediction(
            t=trial.t,
            mean=posterior.mean.item(),
            variance=variance_of(posterior, scale_of(model)).item(),
            noise_variance=noise_variance,
            trial_id=trial.id,
        )

    @property
    def _unit(self) -> float:
        # A surrogate of the user's own need not know one.
        return getattr(self.surrogate, "unit", 1.0)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        # What may refuse the outcome comes first, what takes it in last.
        observations = self.observations.append(observation) if trial.informative else None
        prediction = self._predictions.get(trial.id)
        if prediction is not None:
            if observation.Yvar is not None:
                prediction = replace(prediction, noise_variance=observation.Yvar.item())
            self.retention.learn(prediction, observation.Y.item())
        if observations is not None:
            self.observations = observations
            # What is refused makes no fit due: it would learn nothing from it.
            self._num_told += 1
        self._let_go(trial)

    def _open_trial(self, trial: Trial) -> Trial:
        # Now, since a caller may change the tensors of a trial later.
        self._rows[trial.id] = self._row(trial)
        return super()._open_trial(trial)

    def _forget(self, lost: LostTrial) -> None:
        self._let_go(lost.trial)

    def _let_go(self, trial: Trial) -> None:
        self._predictions.pop(trial.id, None)
        self._rows.pop(trial.id, None)

    def _refits(self) -> list[Event]:
        fit = self.surrogate.newest_fit
        if fit is self._fit_seen:
            return []
        self._fit_seen = fit
        return [Event("refit", fit=fit)]

    def _ask_context(
        self, round_number: int, t: float, context: Tensor | None, observations: Observations
    ) -> AskContext:
        return AskContext(
            round=round_number,
            t=t,
            context=self._seen(context),
            layout=self.layout,
            observations=observations,
            search_space=self.search_space,
            generator=self.generator,
        )

    def _model_at(self, t: float) -> Model:
        """The model that an ask at ``t`` would rest on, without dropping anything for it."""
        keep = self.retention.keep(self.observations, self.surrogate.last_model, t)
        kept = self.observations if keep.all() else self.observations[keep]
        # A copy: a fit that is due is the next ask's to make, and so is the taking in of what is
        # new. In other portions it would round otherwise, and a run that was only looked at would
        # go on differently.
        surrogate = deepcopy(self.surrogate)
        if surrogate.changes(self._num_told):
            if len(kept) < len(keep):
                surrogate.drop(self.observations, keep, t)
        elif len(kept) < len(keep):
            return surrogate.preview(kept)
        return surrogate.model(kept, self._num_told, copy_of(self.generator))

    def _best(self, model: Model, t: float, context: Tensor | None) -> Recommendation:
        ask_context = self._ask_context(self._num_asked, t, context, self.observations)
        X = self.search_space.maximize(
            posterior_mean(model, ask_context), ask_context, copy_of(self.generator)
        )
        with torch.no_grad():
            posterior = model.posterior(ask_context.rows(X))
        return Recommendation(
            X=X,
            mean=posterior.mean.item(),
            standard_deviation=variance_of(posterior, scale_of(model)).sqrt().item(),
            t=t,
            context=context,
        )
