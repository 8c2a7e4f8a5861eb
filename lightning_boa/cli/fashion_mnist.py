"""Fashion-MNIST as Debian's package dataset-fashion-mnist installs it: gzipped IDX files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_boa.cli.framework import LightningDataModule
from lightning_boa.cli.options import whole_number
from lightning_boa.errors import OptionError

UNSIGNED_BYTE = 0x08
PIXEL_MEAN, PIXEL_DEVIATION = np.float32(72.9), np.float32(90.0)


class FashionMnistData(LightningDataModule):
    def __init__(
        self,
        folder: str = "/usr/share/datasets/fashion-mnist",
        batch_size: int = 256,
        train_rows: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.batch_size = whole_number("data.batch_size", batch_size, least=1)
        self.num_workers = whole_number("data.num_workers", num_workers, least=0)
        rows = None if train_rows is None else whole_number("data.train_rows", train_rows, least=1)
        self.train_set = _read_pairs(Path(folder), "train", rows)
        self.test_set = _read_pairs(Path(folder), "t10k", None)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(
            self.train_set,
            batch_size=self.batch_size,
            shuffle=True,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.test_set, batch_size=self.batch_size)


def _read_pairs(folder: Path, part: str, rows: int | None) -> Dataset[tuple[Tensor, ...]]:
    pictures = _read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3)[:rows]
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)[:rows]
    standardised = (pictures[:, None].astype(np.float32) - PIXEL_MEAN) / PIXEL_DEVIATION
    return TensorDataset(torch.from_numpy(standardised), torch.from_numpy(labels.astype(np.int64)))


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The array of an IDX file: two zero bytes, the type, the number of dimensions, each one's length
    as a big-endian 32-bit number, the values."""
    if not path.is_file():
        raise OptionError(
            f"data.folder: expected {path.name} in {path.parent}, found no such file; "
            "install it with apt-get install dataset-fashion-mnist, or set data.folder."
        )
    with gzip.open(path) as file:
        content = file.read()
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise OptionError(
            f"data.folder: expected {path} to be an IDX file of bytes in {dimensions} dimensions, "
            f"its first bytes are {content[:4]!r}."
        )
    shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).astype(np.int64)
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    return values.reshape(tuple(shape))
