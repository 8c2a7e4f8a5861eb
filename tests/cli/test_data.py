from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lightning_boa.cli.convnet import ConvNet
from lightning_boa.cli.digits import DigitsData
from lightning_boa.cli.fashion_mnist import FashionMnistData
from lightning_boa.errors import OptionError


def test_digits_are_split_once_and_for_all() -> None:
    data, again = DigitsData(test_share=0.25, seed=3), DigitsData(test_share=0.25, seed=3)
    assert len(data.train_set) + len(data.test_set) == 1797
    assert len(data.test_set) == 449
    pictures, labels = data.train_set[:]
    assert pictures.shape[1:] == (1, 8, 8)
    assert torch.equal(pictures, again.train_set[:][0])
    assert set(labels.tolist()) == set(range(10))
    assert not torch.equal(pictures, DigitsData(test_share=0.25, seed=4).train_set[:][0])


def test_fashion_mnist_is_read_from_its_idx_files(tmp_path: Path) -> None:
    pictures = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    _write(tmp_path, pictures, np.array([7, 0, 9], np.uint8))
    data = FashionMnistData(str(tmp_path), batch_size=2, train_rows=2)
    read, labels = data.train_set[:]
    assert labels.tolist() == [7, 0]
    assert read.shape == (2, 1, 28, 28)
    assert torch.allclose(read[:, 0], (torch.tensor(pictures[:2]) - 72.9) / 90)
    assert len(data.test_set) == 3


def test_missing_files_name_the_package_that_brings_them(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="apt-get install dataset-fashion-mnist"):
        FashionMnistData(str(tmp_path / "nowhere"))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, np.zeros((3, 28, 28), np.uint8), np.zeros((3, 2), np.uint8))
    with pytest.raises(OptionError, match="IDX file of bytes in 1 dimensions"):
        FashionMnistData(str(tmp_path))


@pytest.mark.parametrize("size", [8, 28])
def test_the_network_takes_both_sizes_of_picture(size: int) -> None:
    assert ConvNet(channels=2)(torch.zeros(5, 1, size, size)).shape == (5, 10)


def test_the_networks_channels_are_checked() -> None:
    with pytest.raises(OptionError, match=r"^model\.channels: "):
        ConvNet(channels=0)


def _write(folder: Path, pictures: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    for part in ("train", "t10k"):
        _write_idx(folder / f"{part}-images-idx3-ubyte.gz", pictures)
        _write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)


def _write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    with gzip.open(path, "wb") as file:
        file.write(header + values.tobytes())
