"""scikit-learn's handwritten digits: 1,797 pictures of 8 x 8 pixels that come with the package."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_boa.cli.framework import LightningDataModule
from lightning_boa.cli.options import number, whole_number
from lightning_boa.errors import OptionError

PIXEL_MEAN, PIXEL_DEVIATION = 4.9, 6.0


class DigitsData(LightningDataModule):
    def __init__(
        self, batch_size: int = 16, test_share: float = 0.2, num_workers: int = 0, seed: int = 1
    ) -> None:
        super().__init__()
        self.batch_size = whole_number("data.batch_size", batch_size, least=1)
        self.test_share = number("data.test_share", test_share, above=0, below=1)
        self.num_workers = whole_number("data.num_workers", num_workers, least=0)
        self.seed = whole_number("data.seed", seed, least=0)
        self.train_set, self.test_set = _split(self.test_share, self.seed)

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


def _split(test_share: float, seed: int) -> tuple[Dataset[tuple[Tensor, ...]], ...]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise OptionError(
            'data: digits needs scikit-learn: pip install "lightning-boa[demo]".'
        ) from error
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    pictures = (pictures - PIXEL_MEAN) / PIXEL_DEVIATION
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test_rows = max(1, round(test_share * len(labels)))
    train, test = order[test_rows:], order[:test_rows]
    return TensorDataset(pictures[train], labels[train]), TensorDataset(
        pictures[test], labels[test]
    )
