"""Random features of tvbo's kernels, for BoTorch's pathwise samples.

Importing this module registers them with :func:`botorch.sampling.pathwise.gen_kernel_features`,
and with them products and sums of kernels, for which BoTorch has no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial, singledispatch
from typing import NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features import KernelFeatureMap
from botorch.sampling.pathwise.features.generators import GenKernelFeatures, gen_kernel_features
from botorch.sampling.pathwise.utils import ChainedTransform, FeatureSelector, SineCosineTransform
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor
from torch.distributions import Gamma

from tvbo.kernels.batch import ColumnKernel
from tvbo.kernels.context_action import ContextActionKernel
from tvbo.kernels.temporal import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)

FASTEST_DECAY = 1e6
"""Largest rate of decay that is drawn, per unit of time: with ε = 1 it would be infinite."""


class Spectrum(NamedTuple):
    r"""``n`` draws whose average is a kernel of ``d`` columns, in expectation.

    .. math:: k(x, x') = \mathbb{E} \frac1n \sum_{j=1}^n a_j^2 \cos(w_j^\top (x - x'))

    Draws of two kernels make draws of their product, with :math:`w` added and :math:`a` multiplied;
    those of a sum are divided among its parts.

    Args:
        frequencies: :math:`w`, ``batch_shape x n x d``.
        amplitudes: :math:`a`, ``batch_shape x n``.
    """

    frequencies: Tensor
    amplitudes: Tensor

    def scaled(self, variance: Tensor) -> Spectrum:
        """Return draws of the kernel times a variance, ``batch_shape``."""
        return self._replace(amplitudes=self.amplitudes * variance.sqrt().unsqueeze(-1))


def product_of(factors: Sequence[Spectrum]) -> Spectrum:
    """Return draws of the product of kernels."""
    frequencies, amplitudes = factors[0]
    for factor in factors[1:]:
        # Each is spread evenly over its spectrum; by its place a draw must tell nothing of another.
        order = torch.randperm(factor.frequencies.shape[-2])
        frequencies = frequencies + factor.frequencies[..., order, :]
        amplitudes = amplitudes * factor.amplitudes[..., order]
    return Spectrum(frequencies, amplitudes)


def sum_of(parts: Sequence[Callable[[int], Spectrum]], n: int) -> Spectrum:
    """Return ``n`` draws of the sum of kernels, each given as a function of their number."""
    if n < len(parts):
        raise UnsupportedError(f"Expected at least {2 * len(parts)} features. Got {2 * n}.")
    counts = [n // len(parts) + (i < n % len(parts)) for i in range(len(parts))]
    drawn = [part(count) for part, count in zip(parts, counts, strict=True)]
    batch = torch.broadcast_shapes(*(each.frequencies.shape[:-2] for each in drawn))
    frequencies = [each.frequencies.expand(*batch, -1, -1) for each in drawn]
    amplitudes = [
        (each.amplitudes * math.sqrt(n / count)).expand(*batch, -1)
        for each, count in zip(drawn, counts, strict=True)
    ]
    return Spectrum(torch.cat(frequencies, dim=-2), torch.cat(amplitudes, dim=-1))


def has_features(kernel: Kernel) -> bool:
    """Return whether random features can be drawn of a kernel."""
    inner = [part for part in kernel.modules() if isinstance(part, Kernel)]
    return all(GenKernelFeatures.dispatch(type(part)) is not None for part in inner)


def draw_spectrum(kernel: Kernel, n: int, d: int) -> Spectrum:
    """Return ``n`` draws of a kernel over ``d`` columns, from torch's global generator.

    Raises:
        UnsupportedError: if BoTorch's features of a kernel inside are no sines and cosines.
        NotImplementedError: if nothing draws features of a kernel inside.
    """
    if kernel.active_dims is None:
        return _draw(kernel, n, d)
    of_columns, amplitudes = _draw(_without_selection(kernel), n, len(kernel.active_dims))
    frequencies = of_columns.new_zeros(*of_columns.shape[:-1], d)
    frequencies[..., kernel.active_dims] = of_columns
    return Spectrum(frequencies, amplitudes)


@singledispatch
def _draw(kernel: Kernel, n: int, d: int) -> Spectrum:
    """Return draws of a kernel without ``active_dims``; by BoTorch where there is no rule here."""
    features = gen_kernel_features(kernel, num_inputs=d, num_outputs=2 * n)
    if type(features) is not KernelFeatureMap or not isinstance(
        features.output_transform, SineCosineTransform
    ):
        raise UnsupportedError(
            f"Expected features that are sines and cosines. Got others of {type(kernel).__name__}."
        )
    unit = torch.eye(d).to(features.weight)
    transform = features.input_transform
    frequencies = features.forward(unit if transform is None else transform(unit)).mT.detach()
    return Spectrum(frequencies, torch.ones_like(frequencies[..., 0]))


@_draw.register
def _(kernel: ScaleKernel, n: int, d: int) -> Spectrum:
    # Its base kernel is evaluated on the columns selected by the outer one.
    base = _draw(_without_selection(kernel.base_kernel), n, d)
    return base.scaled(kernel.outputscale.detach())


@_draw.register
def _(kernel: ColumnKernel, n: int, d: int) -> Spectrum:
    return draw_spectrum(kernel.base_kernel, n, d)


@_draw.register
def _(kernel: ProductKernel, n: int, d: int) -> Spectrum:
    return product_of([draw_spectrum(part, n, d) for part in kernel.kernels])


@_draw.register
def _(kernel: AdditiveKernel, n: int, d: int) -> Spectrum:
    return sum_of([partial(draw_spectrum, part, d=d) for part in kernel.kernels], n)


@_draw.register
def _(kernel: ContextActionKernel, n: int, d: int) -> Spectrum:
    parts = [kernel.action_kernel, kernel.context_kernel]
    if kernel.structure == "product":
        return _draw(ProductKernel(*parts), n, d)
    if kernel.structure == "additive":
        return _draw(AdditiveKernel(*parts), n, d)

    def scaled(m: int, factors: list[Kernel], scale: Tensor) -> Spectrum:
        return _draw(ProductKernel(*factors), m, d).scaled(scale)

    scales = kernel.outputscales.detach().unbind(dim=-1)
    terms = zip(([parts[0]], [parts[1]], parts), scales, strict=True)
    return sum_of([partial(scaled, factors=each, scale=scale) for each, scale in terms], n)


@_draw.register
def _(kernel: TemporalDecayKernel, n: int, d: int) -> Spectrum:
    # The spectrum of exponential decay is that of Cauchy's distribution.
    rate = (-0.5 * torch.log1p(-kernel.forgetting_rate.detach())).clamp_max(FASTEST_DECAY)
    return _in_time(rate * torch.tan(math.pi * (_uniform(kernel, n) - 0.5)))


@_draw.register
def _(kernel: TemporalMaternKernel, n: int, d: int) -> Spectrum:
    # Student's distribution with 2 ν degrees of freedom (Rasmussen, Williams, 2006, Section 4.2.1).
    nu = torch.tensor(kernel.nu).to(kernel._one)
    shape = *kernel.batch_shape, n
    normal = torch.randn(shape).to(nu)
    students = normal * Gamma(nu, nu).sample(shape).rsqrt()
    return _in_time(students / kernel.lengthscale.detach().squeeze(-1))


@_draw.register
def _(kernel: SeasonalKernel, n: int, d: int) -> Spectrum:
    cumulated = kernel.weights.detach().cumsum(dim=-1)
    harmonic = torch.searchsorted(cumulated, _uniform(kernel, n)).clamp_max(
        kernel.num_harmonics - 1
    )
    signs = (2 * torch.randint(2, harmonic.shape) - 1).to(kernel._one)
    return _in_time(2 * math.pi * (harmonic + 1) * signs / kernel.period.detach())


@_draw.register
def _(kernel: ConstantTemporalKernel, n: int, d: int) -> Spectrum:
    return _in_time(kernel._one.new_zeros(*kernel.batch_shape, n))


def _in_time(frequencies: Tensor) -> Spectrum:
    return Spectrum(frequencies.unsqueeze(-1), torch.ones_like(frequencies))


def _uniform(kernel: TemporalKernel, n: int) -> Tensor:
    """Return uniform numbers, one in each ``n``-th of (0, 1), ``batch_shape x n``."""
    within = torch.rand(*kernel.batch_shape, n, dtype=torch.float64)
    return ((torch.arange(n) + within) / n).to(kernel._one)


def _without_selection(kernel: Kernel) -> Kernel:
    """Return a kernel that is evaluated on all columns of its input."""
    new = deepcopy(kernel)
    new.active_dims = None
    return new


@GenKernelFeatures.register(
    (ColumnKernel, ContextActionKernel, TemporalKernel, ProductKernel, AdditiveKernel)
)
def _generate(kernel: Kernel, *, num_inputs: int, num_outputs: int) -> KernelFeatureMap:
    r"""Return features :math:`n^{-1/2} a_j \sin(w_j^\top x)`, and the same with cosines."""
    if num_outputs % 2:
        raise UnsupportedError(f"Expected an even number of features. Got {num_outputs}.")
    active, n = kernel.active_dims, num_outputs // 2
    d = num_inputs if active is None else len(active)
    frequencies, amplitudes = _draw(_without_selection(kernel), n, d)
    scale = torch.cat([amplitudes, amplitudes], dim=-1).unsqueeze(-2) / math.sqrt(n)
    # Without a transform, those that BoTorch chains to it would have nothing to follow.
    return KernelFeatureMap(
        kernel,
        frequencies,
        input_transform=ChainedTransform() if active is None else FeatureSelector(active),
        output_transform=SineCosineTransform(scale),
    )
