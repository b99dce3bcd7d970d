"""What makes a function a recipe: its options are known by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_type_hints

from tvbo.acquisition import AtPresent, Goals
from tvbo.acquisition.at_present import as_acquisition
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.builder import OutcomeOptions
from tvbo.optimizers.several_outcomes import MultiOutcomeOptimizer
from tvbo.optimizers.units import UnitOptions

P = ParamSpec("P")
R = TypeVar("R", bound=Optimizer)

UNITS = UnitOptions.__annotations__.keys()
OUTCOMES = OutcomeOptions.__annotations__.keys()


def recipe(**defined: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that refuses a misspelt option, and shows all options in the signature.

    A function with ``**options: Unpack[GPOptions]`` takes any keyword at run time. Decorated, it
    raises a ``TypeError`` for one that is neither among its own arguments nor in the TypedDict.
    ``inspect.signature``, ``help`` and the completion of notebooks show the options by name. Those
    of :class:`tvbo.optimizers.UnitOptions` every recipe has: they are given to the optimizer that
    the function returns, and the function does not see them.

    Args:
        defined: Options that the rule of the recipe defines, each with a sentence that says how.
            They are refused with that sentence.

    Example:
        >>> @recipe(pending="minimum stands in for the outcomes of pending trials")
        ... def gp_ucb_sdf(*, minimum: float, **options: Unpack[GPOptions]) -> GPOptimizer: ...
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        shown = _with_options(function, defined)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in kwargs.items():
                if name in defined:
                    raise TypeError(
                        f"Expected no {name} in {function.__name__}(): {defined[name]}. "
                        f"Got {name}={value!r}."
                    )
                if name not in shown.parameters:
                    near = get_close_matches(name, shown.parameters, n=1)
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}"
                        + (f". Did you mean {near[0]!r}?" if near else "")
                    )
            units: Any = {name: kwargs.pop(name) for name in UNITS & kwargs.keys()}
            outcomes: Any = {name: kwargs.pop(name) for name in OUTCOMES & kwargs.keys()}
            if any(given is not None for given in outcomes.values()):
                goals = Goals.of(**outcomes, minimize=units.get("minimize"))
                if goals.num_objectives > 1:
                    _check_rule(kwargs.get("acquisition"), kwargs.get("beta"))
                parts: Any = {name: function(*args, **kwargs) for name in goals.names}
                several = MultiOutcomeOptimizer(parts, goals)
                several.set_units(**{**units, "minimize": several.minimize})
                return cast("R", several)
            optimizer = function(*args, **kwargs)
            if units:
                optimizer.set_units(**units)
            return optimizer

        checked.__signature__ = shown  # type: ignore[attr-defined]  # Read by inspect.signature.
        return checked

    return decorate


def _check_rule(acquisition: Any, beta: object) -> None:
    """Raise ``ValueError`` for a rule of one objective where there are several."""
    if beta is not None:
        raise ValueError(
            "Expected no beta with several objectives, which are not chosen by an upper bound. "
            f"Got {beta!r}."
        )
    if acquisition is not None and not isinstance(as_acquisition(acquisition), AtPresent):
        raise ValueError(
            "Expected an acquisition function of BoTorch for several objectives, such as "
            f"qLogNoisyExpectedHypervolumeImprovement. Got {acquisition!r}."
        )


def _with_options(function: Callable[..., object], defined: dict[str, str]) -> Signature:
    """Return the signature with the keys of ``**options: Unpack[...]`` as arguments."""
    found = signature(function)
    parameters = []
    for parameter in found.parameters.values():
        if parameter.kind is not Parameter.VAR_KEYWORD:
            parameters.append(parameter)
            continue
        (options,) = get_args(get_type_hints(function)[parameter.name])
        parameters += [
            # As it is written there, as other annotations are shown.
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in options.__annotations__.items()
            if name not in defined
        ]
    return found.replace(parameters=parameters)
