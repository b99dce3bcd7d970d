"""Random features of tvbo's kernels, for BoTorch's pathwise samples.

Importing this module registers them with :func:`botorch.sampling.pathwise.gen_kernel_features`,
and with them products and sums of kernels, for which BoTorch has no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial, singledispatch
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features import KernelFeatureMap
from botorch.sampling.pathwise.features.generators import GenKernelFeatures, gen_kernel_features
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    FeatureSelector,
    SineCosineTransform,
)
from gpytorch.kernels import AdditiveKernel, IndexKernel, Kernel, ProductKernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor
from torch.distributions import Gamma
from torch.nn.functional import one_hot, pad

from tvbo.kernels.batch import ColumnKernel
from tvbo.kernels.context_action import ContextActionKernel
from tvbo.kernels.finite import CovarianceMatrixKernel, index_column
from tvbo.kernels.temporal import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)

FASTEST_DECAY = 1e6
"""Largest rate of decay that is drawn, per unit of time: with ε = 1 it would be infinite."""


NULL = 1e-12
"""Share of the largest eigenvalue of a covariance matrix below which others count as zero."""


class Spectrum(NamedTuple):
    r"""``n`` draws whose average is a kernel of ``d`` columns, in expectation.

    .. math:: k(x, x') = \mathbb{E} \frac1n \sum_{j=1}^n a_j(x)\, a_j(x') \cos(w_j^\top (x - x'))

    Draws of two kernels make draws of their product, with :math:`w` added and :math:`a` multiplied;
    those of a sum are divided among its parts.

    Args:
        frequencies: :math:`w`, ``batch_shape x n x d``.
        amplitudes: The constant factors of :math:`a`, ``batch_shape x n``.
        tables: The factors of :math:`a` that depend on an index column: the column, and the
            factors by index, ``batch_shape x num_indices x n``.
    """

    frequencies: Tensor
    amplitudes: Tensor
    tables: tuple[tuple[int, Tensor], ...] = ()

    def scaled(self, variance: Tensor) -> Spectrum:
        """Return draws of the kernel times a variance, ``batch_shape``."""
        return self._replace(amplitudes=self.amplitudes * variance.sqrt().unsqueeze(-1))

    def within(self, columns: Sequence[int], d: int) -> Spectrum:
        """Return draws of the same kernel over some of ``d`` columns."""
        frequencies = self.frequencies.new_zeros(*self.frequencies.shape[:-1], d)
        frequencies[..., columns] = self.frequencies
        tables = tuple((columns[column], table) for column, table in self.tables)
        return Spectrum(frequencies, self.amplitudes, tables)


def product_of(factors: Sequence[Spectrum]) -> Spectrum:
    """Return draws of the product of kernels."""
    frequencies, amplitudes, tables = factors[0]
    for factor in factors[1:]:
        # Each is spread evenly over its spectrum; by its place a draw must tell nothing of another.
        order = torch.randperm(factor.frequencies.shape[-2])
        frequencies = frequencies + factor.frequencies[..., order, :]
        amplitudes = amplitudes * factor.amplitudes[..., order]
        tables = tables + tuple((column, table[..., order]) for column, table in factor.tables)
    return Spectrum(frequencies, amplitudes, tables)


def sum_of(parts: Sequence[Callable[[int], Spectrum]], n: int) -> Spectrum:
    """Return ``n`` draws of the sum of kernels, each given as a function of their number."""
    if n < len(parts):
        raise UnsupportedError(f"Expected at least {2 * len(parts)} features. Got {2 * n}.")
    counts = [n // len(parts) + (i < n % len(parts)) for i in range(len(parts))]
    drawn = [part(count) for part, count in zip(parts, counts, strict=True)]
    batch = torch.broadcast_shapes(*(each.frequencies.shape[:-2] for each in drawn))
    frequencies = [each.frequencies.expand(*batch, -1, -1) for each in drawn]
    amplitudes, tables, end = [], [], 0
    for each, count in zip(drawn, counts, strict=True):
        start, end = end, end + count
        amplitudes.append((each.amplitudes * math.sqrt(n / count)).expand(*batch, -1))
        # A factor of one for the draws of the other parts.
        tables += [(i, pad(table, (start, n - end), value=1.0)) for i, table in each.tables]
    return Spectrum(torch.cat(frequencies, dim=-2), torch.cat(amplitudes, dim=-1), tuple(tables))


class SpectralFeatureMap(KernelFeatureMap):
    r"""Features :math:`n^{-1/2} a_j(x) \sin(w_j^\top x)` and the same with cosines.

    Args:
        kernel: The kernel.
        spectrum: ``n`` draws of it, over the columns that it sees.
    """

    def __init__(self, kernel: Kernel, spectrum: Spectrum):
        # Without transforms, those that BoTorch chains to them would have nothing to follow.
        active = kernel.active_dims
        super().__init__(
            kernel,
            spectrum.frequencies,
            input_transform=ChainedTransform() if active is None else FeatureSelector(active),
            output_transform=ChainedTransform(),
        )
        self.spectrum = spectrum

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of rows ``... x q x d``, ``... x q x 2 n``."""
        angles = super().forward(x)
        amplitudes = self.spectrum.amplitudes.unsqueeze(-2) / math.sqrt(angles.shape[-1])
        for column, table in self.spectrum.tables:
            index = index_column(x[..., column : column + 1], table.shape[-2])
            amplitudes = amplitudes * (one_hot(index, table.shape[-2]).to(table) @ table)
        return torch.cat([amplitudes * angles.sin(), amplitudes * angles.cos()], dim=-1)

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """Number of features, ``2 n``."""
        return 2 * int(self.weight.shape[-2])


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
    columns = kernel.active_dims.tolist()
    return _draw(_without_selection(kernel), n, len(columns)).within(columns, d)


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


@_draw.register(CovarianceMatrixKernel)
@_draw.register(IndexKernel)
def _(kernel: Any, n: int, d: int) -> Spectrum:
    # Columns of a root of the matrix. Where there are at least as many draws as columns, their
    # average is the matrix itself.
    values, vectors = torch.linalg.eigh(to_dense(kernel.covar_matrix).detach())
    kept = values > NULL * values.amax(dim=-1, keepdim=True)
    kept = kept.reshape(-1, kept.shape[-1]).any(dim=0)
    root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2))[..., kept]
    rank = root.shape[-1]
    place = torch.randperm(rank).repeat(-(-n // rank))[:n]
    counts = torch.bincount(place, minlength=rank)
    share = counts / n if n >= rank else torch.full((rank,), 1 / rank)
    table = (root / share.to(root).sqrt())[..., place]
    frequencies = root.new_zeros(*root.shape[:-2], n, d)
    return Spectrum(frequencies, torch.ones_like(frequencies[..., 0]), ((0, table),))


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
    (
        ColumnKernel,
        ContextActionKernel,
        CovarianceMatrixKernel,
        TemporalKernel,
        IndexKernel,
        ProductKernel,
        AdditiveKernel,
    )
)
def _generate(kernel: Kernel, *, num_inputs: int, num_outputs: int) -> SpectralFeatureMap:
    if num_outputs % 2:
        raise UnsupportedError(f"Expected an even number of features. Got {num_outputs}.")
    d = num_inputs if kernel.active_dims is None else len(kernel.active_dims)
    spectrum = _draw(_without_selection(kernel), num_outputs // 2, d)
    return SpectralFeatureMap(kernel, spectrum)
