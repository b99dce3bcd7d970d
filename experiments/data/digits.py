"""Images of handwritten digits: scikit-learn's bundled ones, or MNIST from its files."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.logs.reading import TableError
from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.spaces.observations import check_finite

UNSIGNED_BYTE = 8
"""Meaning of the third byte of an idx file, the type of its entries."""


@dataclass(frozen=True, eq=False)
class ClassificationData:
    """A training set and a hold-out set of inputs and classes.

    Args:
        train_X: ``n x d``.
        train_Y: ``n`` classes, whole numbers from 0.
        test_X: ``m x d``.
        test_Y: ``m`` classes.
        num_classes: Number of classes, at least 2.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree, or a set is empty.
        InputDataError: if an input is not finite, or a class is not a whole number below
            ``num_classes``.
        ValueError: if ``num_classes`` is below 2.
    """

    train_X: Tensor = field(repr=False)  # noqa: N815 (BoTorch's spelling)
    train_Y: Tensor = field(repr=False)  # noqa: N815 (BoTorch's spelling)
    test_X: Tensor = field(repr=False)  # noqa: N815 (BoTorch's spelling)
    test_Y: Tensor = field(repr=False)  # noqa: N815 (BoTorch's spelling)
    num_classes: int

    def __post_init__(self):
        if self.num_classes < 2:
            raise ValueError(f"Expected num_classes >= 2. Got {self.num_classes}.")
        width = self.train_X.shape[-1]
        for name in ("train", "test"):
            X, Y = getattr(self, f"{name}_X"), getattr(self, f"{name}_Y")
            if X.ndim != 2 or 0 in X.shape or X.shape[-1] != width or Y.shape != X.shape[:1]:
                raise BotorchTensorDimensionError(
                    f"Expected {name}_X of shape n x {width} and {name}_Y of shape n, n >= 1. "
                    f"Got {tuple(X.shape)} and {tuple(Y.shape)}."
                )
            check_finite(f"{name}_X", X)
            if Y.dtype != torch.int64 or Y.min() < 0 or Y.max() >= self.num_classes:
                raise InputDataError(
                    f"Expected {name}_Y of whole numbers in 0, ..., {self.num_classes - 1}. "
                    f"Got {Y.dtype} from {Y.min().item()} to {Y.max().item()}."
                )


def digits(test_share: float = 0.2, generator: Generator | None = None) -> ClassificationData:
    """Return the 1,797 images of 8 x 8 pixels that come with scikit-learn, in float32.

    Pixels are scaled to [0, 1].

    Args:
        test_share: Share of the images that is held out, in (0, 1).
        generator: Source of the split; default a new one with a fixed seed.

    Raises:
        ValueError: if ``test_share`` leaves one of the sets empty.
    """
    # Imported here, since it takes a second.
    from sklearn.datasets import load_digits

    X, Y = load_digits(return_X_y=True)
    num_test = round(test_share * len(X)) if 0 < test_share < 1 else 0
    if not 0 < num_test < len(X):
        raise ValueError(
            f"Expected test_share in (0, 1) that leaves images in both sets. Got {test_share}."
        )
    X = torch.tensor(X, dtype=torch.float32) / 16
    Y = torch.tensor(Y, dtype=torch.int64)
    order = torch.randperm(len(X), generator=default_generator(generator, PROBLEM_SEED))
    test, train = order[:num_test], order[num_test:]
    return ClassificationData(X[train], Y[train], X[test], Y[test], num_classes=10)


def mnist(path: str | Path) -> ClassificationData:
    """Read MNIST (LeCun and Cortes) from its four files, in float32.

    Pixels are scaled to [0, 1]. The files are those of the original distribution, such as
    ``train-images-idx3-ubyte``, compressed (``.gz``) or not.

    Args:
        path: The folder of the files.

    Raises:
        FileNotFoundError: if there is no such folder.
        TableError: if a file is missing, is no idx file of the right kind, is cut off or too long,
            or images and labels, or training and test images, do not belong together.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"Expected a folder with MNIST. Got {folder}, which is no folder.")
    (train_X, train_Y), (test_X, test_Y) = (_images(folder, part) for part in ("train", "t10k"))
    if train_X.shape[-1] != test_X.shape[-1]:
        raise TableError(
            "Expected test images of the size of the training images, "
            f"{train_X.shape[-1]} pixels. Got {test_X.shape[-1]}."
        )
    num_classes = int(max(train_Y.max(), test_Y.max())) + 1
    return ClassificationData(train_X, train_Y, test_X, test_Y, num_classes)


def _images(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return pixels ``n x (rows columns)`` in [0, 1], and classes ``n``."""
    images = _read_idx(folder / f"{part}-images-idx3-ubyte", num_dimensions=3)
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte", num_dimensions=1)
    if len(images) != len(labels):
        raise TableError(
            f"Expected a label for each of the {len(images)} {part} images in {folder}. "
            f"Got {len(labels)} labels."
        )
    X = torch.tensor(images.reshape(len(images), -1), dtype=torch.float32) / 255
    return X, torch.tensor(labels, dtype=torch.int64)


def _read_idx(path: Path, num_dimensions: int) -> np.ndarray:
    """Read an idx file of bytes: two zeros, type, number of dimensions, their sizes, entries."""
    content = _read_bytes(path)
    start = 4 + 4 * num_dimensions
    magic = bytes([0, 0, UNSIGNED_BYTE, num_dimensions])
    if len(content) < start or content[:4] != magic:
        raise TableError(
            f"Expected {path.name} to begin with {_number(magic)}, the mark of an idx file of "
            f"bytes in {num_dimensions} dimensions, and its sizes. "
            f"Got {_number(content[:4])} and {len(content)} bytes in all."
        )
    sizes = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    entries = np.frombuffer(content, dtype=np.uint8, offset=start)
    if len(entries) != np.prod(sizes, dtype=object) or 0 in sizes:
        raise TableError(
            f"Expected {' x '.join(map(str, sizes))} bytes after the sizes of {path.name}, and at "
            f"least one. Got {len(entries)}."
        )
    return entries.reshape(sizes)


def _read_bytes(path: Path) -> bytes:
    packed = path.with_name(f"{path.name}.gz")
    if path.is_file():
        return path.read_bytes()
    if not packed.is_file():
        raise TableError(
            f"Expected {path.name}, or {packed.name}, in the folder {path.parent}. Got neither."
        )
    try:
        return gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise TableError(f"Expected a gzip file. Got {packed}: {error}.") from error


def _number(mark: bytes) -> int:
    return int.from_bytes(mark, "big")
