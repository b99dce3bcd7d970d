"""Images: the idx files are written here, byte by byte."""

import gzip
import struct

import pytest
import torch
from sklearn.datasets import load_digits

from experiments.data.digits import digits, mnist
from tvbo.logs.reading import TableError

FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


def idx(sizes, entries, magic=None):
    magic = 2048 + len(sizes) if magic is None else magic
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + bytes(entries)


def write_mnist(folder, packed=False, **changed):
    """Three training images of 2 x 3 pixels, two test images; ``changed`` by first letters."""
    content = {
        "train_images": idx((3, 2, 3), range(0, 180, 10)),
        "train_labels": idx((3,), [2, 0, 1]),
        "t10k_images": idx((2, 2, 3), [255] * 6 + [0] * 6),
        "t10k_labels": idx((2,), [1, 2]),
    } | changed
    for name, data in zip(FILES, content.values(), strict=True):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_reads_what_was_written(tmp_path, packed):
    write_mnist(tmp_path, packed)
    data = mnist(tmp_path)
    assert data.train_X.shape == (3, 6)
    assert data.train_X[1].mul(255).tolist() == pytest.approx([60, 70, 80, 90, 100, 110])
    assert data.train_Y.tolist() == [2, 0, 1]
    assert data.test_X.tolist() == [[1.0] * 6, [0.0] * 6]
    assert data.test_Y.tolist() == [1, 2]
    assert data.num_classes == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"train_images": idx((3, 2, 3), range(18), magic=2049)},
        {"train_labels": idx((3,), [2, 0, 1], magic=2051)},
        {"t10k_images": b"\0\0\x08"},
        {"t10k_images": struct.pack(">I", 2051)},
        {"train_images": idx((3, 2, 3), range(17))},
        {"train_images": idx((3, 2, 3), range(19))},
        {"train_images": idx((0, 2, 3), [])},
        {"train_images": idx((2**32 - 1, 2**31, 2**31), [])},
        {"train_labels": idx((2,), [2, 0])},
        {"t10k_images": idx((2, 2, 2), range(8))},
    ],
)
def test_malformed_files(tmp_path, changed):
    write_mnist(tmp_path, **changed)
    with pytest.raises(TableError):
        mnist(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_missing_file(tmp_path, name):
    write_mnist(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TableError):
        mnist(tmp_path)


# No time of packing in it: the workers of pytest-xdist must agree on the names of tests.
@pytest.mark.parametrize(
    "content",
    [b"not gzip at all", gzip.compress(b"cut off", mtime=0)[:-9]],
    ids=["not gzip", "cut off"],
)
def test_broken_gzip(tmp_path, content):
    write_mnist(tmp_path, packed=True)
    (tmp_path / f"{FILES[0]}.gz").write_bytes(content)
    with pytest.raises(TableError):
        mnist(tmp_path)


def test_digits_are_scikit_learns_in_another_order():
    X, Y = load_digits(return_X_y=True)
    data = digits()
    assert data.train_X.shape == (1438, 64)
    assert data.test_X.shape == (359, 64)
    assert data.num_classes == 10
    given = sorted((*row, y) for row, y in zip((X / 16).tolist(), Y.tolist(), strict=True))
    found = sorted(
        (*row, y)
        for part in ("train", "test")
        for row, y in zip(
            getattr(data, f"{part}_X").tolist(), getattr(data, f"{part}_Y").tolist(), strict=True
        )
    )
    assert found == given
    # Mixed: all classes, in about their shares, on both sides.
    assert torch.bincount(data.test_Y).min() > 20


def test_split_is_that_of_the_generator():
    one, two = digits(), digits()
    assert torch.equal(one.test_X, two.test_X)
    other = digits(generator=torch.Generator().manual_seed(5))
    assert not torch.equal(one.test_X, other.test_X)
