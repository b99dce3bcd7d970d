"""A stand-in for another CPU: results of linear algebra that are rounded otherwise.

``TVBO_TEST_ROUNDING=SEED`` multiplies every entry of what exponentials (that is, kernels), matrix
products and factorizations return by ``1 + 1e-14 u``, ``u`` uniform in [-1, 1], and turns the signs
of eigenvectors, which no CPU promises either. The factors depend on the seed, the function and the
shape of the result, so that a computation that is repeated gives the same result twice, as on
any CPU.
"""

import zlib

import torch
from torch.overrides import TorchFunctionMode

SIZE = 1e-14

PRODUCTS = (
    "matmul mm bmm mv dot vdot inner outer addmm addmv addbmm baddbmm einsum tensordot cdist "
    "__matmul__ __rmatmul__ addmm_ addmv_ addbmm_ baddbmm_"
)
EXPONENTIALS = "exp exp_ exp2"
OTHERS = "cholesky cholesky_solve cholesky_inverse triangular_solve"
LINALG = "cholesky cholesky_ex solve solve_triangular inv matmul multi_dot lstsq eigvalsh svdvals"
VECTORS = "eigh svd qr"


def _functions(holder, names):
    found = (getattr(holder, name, None) for name in names.split())
    return {function for function in found if function is not None}


EXPONENTIALS = _functions(torch, EXPONENTIALS) | _functions(torch.Tensor, EXPONENTIALS)
ROUNDED = (
    EXPONENTIALS
    | _functions(torch, f"{PRODUCTS} {OTHERS}")
    | _functions(torch.Tensor, f"{PRODUCTS} {OTHERS}")
    | _functions(torch.linalg, LINALG)
)
DECOMPOSED = _functions(torch.linalg, VECTORS) | {torch.svd}


class OtherRounding(TorchFunctionMode):
    """Round the results of linear algebra otherwise, as long as it is entered."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed
        self._factors = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in ROUNDED:
            in_place = function.__name__.endswith("_") and function.__name__[:2] != "__"
            in_place = in_place or (bool(kwargs) and kwargs.get("out") is not None)
            # What autograd has saved must stay; then what is returned is another tensor.
            if in_place and not result.requires_grad:
                return result.mul_(self._factor(function, result))
            return self._each(function, result)
        if function in DECOMPOSED:
            return self._each(function, self._turned(function, result))
        return result

    def _each(self, function, result):
        if isinstance(result, torch.Tensor):
            return result * self._factor(function, result) if _is_rounded(result) else result
        parts = [self._each(function, part) for part in result]
        return type(result)(parts)

    def _turned(self, function, result):
        """Decompositions ``A = U S V'`` with other signs; R and U change theirs together."""
        parts = list(result)
        vectors = [i for i, part in enumerate(parts) if part.ndim >= 2]
        rank = min(size for i in vectors for size in parts[i].shape[-2:])
        signs = 1 - 2 * (self._uniform(function, (rank,)) < 0).double().to(parts[vectors[0]])
        for i in vectors:
            is_left = i == vectors[0]
            if is_left or function is torch.svd:
                parts[i] = parts[i] * _padded(signs, parts[i].shape[-1])
            else:
                parts[i] = parts[i] * _padded(signs, parts[i].shape[-2]).unsqueeze(-1)
        return type(result)(parts)

    def _factor(self, function, result):
        factor = 1 + SIZE * self._uniform(function, tuple(result.shape)).to(result)
        if function in EXPONENTIALS:
            # exp(0) is 1 on every CPU.
            factor = torch.where(result.detach() == 1, 1.0, factor)
        return factor

    def _uniform(self, function, shape):
        key = (function.__name__, shape)
        if key not in self._factors:
            seed = zlib.crc32(repr((self.seed, *key)).encode())
            generator = torch.Generator().manual_seed(seed)
            uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
            if uniform.numel() > 1_000_000:
                return 2 * uniform - 1
            self._factors[key] = 2 * uniform - 1
        return self._factors[key]


def _is_rounded(tensor):
    return tensor.dtype == torch.float64


def _padded(signs, size):
    return torch.cat([signs, signs.new_ones(size - len(signs))])
