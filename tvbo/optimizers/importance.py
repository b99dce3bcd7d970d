"""How much of what a function does over a space each parameter takes part in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from tvbo.spaces.search_space import MixedSpace, SearchSpace

NUM_ROWS = 2_048
"""Number of rows at which the function is evaluated, at least 32 for each parameter."""


def total_effects(
    function: Callable[[Tensor], Tensor], spaces: Sequence[SearchSpace], seed: int
) -> dict[str, float]:
    r"""Return the total Sobol index of each parameter: its share of the variance of a function.

    With all parameters uniform and independent, and :math:`x'` another value of the i-th alone,

    .. math:: S_i = \frac{E[(f(x) - f(x_{\sim i}, x'_i))^2]}{2 \operatorname{Var} f(x)},

    by the estimator of Jansen (1999) at points of a Sobol sequence. Interactions count for each of
    the parameters that take part in them, so that the shares of all add up to 1 or more.

    Args:
        function: Takes rows ``n x d`` of all spaces to values ``n``.
        spaces: The spaces, whose columns follow one another.
        seed: Scrambles the sequence.

    Returns:
        From 0, of what changes nothing, to 1, of what alone decides; 0 of all if ``f`` is constant.
    """
    names = [name for space in spaces for name in space.varying]
    # The columns of the unit cube: of a space that is searched by value, one for each parameter.
    widths = [
        [1] * len(space.varying) if isinstance(space, MixedSpace) else [*space.varying.values()]
        for space in spaces
    ]
    sizes = [sum(each) for each in widths]
    places = torch.arange(sum(sizes)).split([width for each in widths for width in each])

    def values(unit: Tensor) -> Tensor:
        parts = zip(spaces, unit.split(sizes, dim=-1), strict=True)
        return function(torch.cat([space.from_unit(part) for space, part in parts], dim=-1))

    number = 2 ** max(5, (NUM_ROWS // (len(names) + 1)).bit_length() - 1)
    engine = SobolEngine(2 * sum(sizes), scramble=True, seed=seed)
    unit, others = engine.draw(number, dtype=torch.float64).chunk(2, dim=-1)
    base = values(unit)
    variance = base.var().item()
    effects = {}
    for name, place in zip(names, places, strict=True):
        changed = unit.clone()
        changed[:, place] = others[:, place]
        effect = (base - values(changed)).square().mean().item() / 2
        effects[name] = min(1.0, effect / variance) if variance > 0 else 0.0
    return effects
