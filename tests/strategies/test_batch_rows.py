from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from lightning_boa.strategies.batch_rows import leading_sizes

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        (torch.zeros(5, 2), {5}),
        (torch.tensor(3.0), set()),
        ([torch.zeros(4, 2), torch.zeros(4)], {4}),
        ([torch.zeros(4, 2), torch.tensor(1.0)], {4}),
        ((torch.zeros(4), {"ids": torch.zeros(9, 1), "text": ["a"]}), {4, 9}),
        (Pair(torch.zeros(3, 8), torch.zeros(3)), {3}),
        ([[torch.zeros(2)], [torch.zeros(2), [torch.zeros(6)]]], {2, 6}),
        (torch.zeros(0, 3), {0}),
        (["text", None, 3], set()),
        (object(), set()),
        ({}, set()),
    ],
)
def test_all_tensors_of_a_batch_are_looked_at(batch: Any, sizes: set[int]) -> None:
    assert set(leading_sizes(batch)) == sizes
