"""Which season a panel has, and which form of drift, by evidence and by prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from botorch.exceptions.errors import InputDataError

from tvbo.logs.forms import EXPONENTIAL, PanelCandidate
from tvbo.logs.paired import mean_and_error
from tvbo.logs.panel_search import INDEPENDENT, VECTOR, PanelSearch
from tvbo.logs.panel_start import season_regressors
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

DEVIATIONS, WORSE = 3.0, 2.0
"""Standard errors by which another form has to predict better, since two are passed by chance in
one of some panels, where errors are correlated for long; and by which a season must not predict
worse: that values far out repeat is evidence by chance."""

MAX_VECTOR_ARMS = 100
"""Largest number of arms for which a vector autoregression is compared: its parameters, and the
time of its search, grow with the square."""

MAX_DENSE_STATES = 120
"""Largest number of states of arms together for which forms with more than one state are compared
where cells are missing."""


def affordable(search: PanelSearch, names: list[str]) -> list[str]:
    """Return the forms that a panel allows, and say which are left out."""
    cells, is_regular = search.cells, search.cells.is_regular
    n = cells.values.shape[1]
    if len(names) == 1:
        if names == [VECTOR] and not is_regular:
            raise InputDataError(
                "Expected times at multiples of one gap for a vector autoregression. Got others."
            )
        return names
    if not is_regular or n > MAX_VECTOR_ARMS:
        names = [name for name in names if name != VECTOR]
        why = f"More than {MAX_VECTOR_ARMS} arms" if is_regular else "Times of unequal gaps"
        search.messages.append(f"{why}: no vector autoregression was compared.")
    if not cells.is_full and 2 * n > MAX_DENSE_STATES:
        names = [name for name in names if name in (EXPONENTIAL, INDEPENDENT, VECTOR)]
        search.messages.append(
            "Since cells are missing, and arms are many, fewer forms were compared."
        )
    return names


def choose_season(
    search: PanelSearch, seasons: Sequence[Season], names: Sequence[str], are_found: bool
) -> Season | None:
    r"""Return the season of the largest evidence, or None, and set the prior without it.

    It needs evidence beside exponential decay, which may need a season for what is smooth drift,
    and so beside the form that has most with it too, with a prior given that form. A period that
    was found in the log is a parameter about which a log tells more than about others: it counts
    :math:`\frac{1}{2} \log N T^2` (Djurić, 1996), and the form must not predict worse with it, by
    :data:`WORSE` standard errors.

    Args:
        search: The fits of the panel.
        seasons: The seasons that are compared with one another, and with none.
        names: The forms of drift.
        are_found: Whether their periods were found in the log.
    """
    season = max([None, *seasons], key=lambda each: search.fit(EXPONENTIAL, each).evidence)
    if season is None:
        return None
    best = _by_evidence(search, names, season)[0]
    without, beside = search.fit(best, None), search.fit(best, season)
    if best != EXPONENTIAL and best in search.forms:
        regressors = season_regressors(search.cells, season, without.form, without.theta)
        beside = search.fit_beside(best, regressors, beside)
    found = 0.5 * math.log(search.cells.num_values) + math.log(search.cells.span)
    if beside.evidence - without.evidence <= (found if are_found else 0.0):
        return None
    search.set_prior(season)
    if are_found:
        gain, error = mean_and_error(search.scores(best, season) - search.scores(best, None))
        if gain < -WORSE * error:
            search.set_prior(None)
            return None
    return season


def choose_form(
    search: PanelSearch, names: Sequence[str], season: Season | None
) -> tuple[str, list[PanelCandidate], str]:
    """Return the name of the form that is taken, the rows of all forms, and the reason.

    Of the forms that arms share, that of the largest evidence is taken; then independent arms, and
    then a vector autoregression, if they predict better than what was taken before, from one arm at
    a time, by :data:`DEVIATIONS` standard errors. Only what is taken, of these two, is fitted to
    the whole panel.

    Args:
        search: The fits of the panel.
        names: The forms of drift.
        season: The season.
    """
    chosen, *others = common = _by_evidence(search, names, season)
    reason = f"{chosen}, {'no ' if season is None else ''}season: "
    reason += "the only candidate" if len(names) == 1 else ""
    if others:
        lead, second = (search.fit(name, season).evidence for name in common[:2])
        reason += f"it has the largest evidence, {lead - second:.1f} nats more than {others[0]}"
    separate = [name for name in names if name not in common]
    scores: dict[str, Array] = {}
    if separate:
        scores = {name: search.scores(name, season) for name in (chosen, *separate)}
        reason += "; from one arm at a time"
        for name in separate:
            gain, error = mean_and_error(scores[name] - scores[chosen])
            reason += (
                f", {name} predicts all arms {'better' if gain >= 0 else 'worse'} than {chosen} by "
                f"{abs(gain):.3g} ± {error:.2g} nats a time"
            )
            chosen = name if gain > DEVIATIONS * error else chosen
        reason += f", so that {chosen} is taken"
    fits = {name: search.fit(name, season) for name in (*common, chosen)}
    count = search.cells.values.shape[1]
    rows = [
        PanelCandidate(
            name,
            season is not None,
            fits[name].num_parameters if name in fits else None,
            fits[name].objective - search.shift if name in fits else None,
            fits[name].evidence - search.shift if name in fits else None,
            float(scores[name].mean()) / count if name in scores else None,
        )
        for name in names
    ]
    return chosen, rows, f"{reason}."


def _by_evidence(search: PanelSearch, names: Sequence[str], season: Season | None) -> list[str]:
    """Return the forms that arms share, or those there are, that of the largest evidence first."""
    common = [name for name in names if name in search.forms] or names
    return sorted(common, key=lambda name: -search.fit(name, season).evidence)
