from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from lightning_boa.emulation import rows_of_batch


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (torch.zeros(5, 2), 5),
        (torch.zeros(0, 2), 0),
        (torch.tensor(3.0), 1),
        ([torch.zeros(4, 2), torch.zeros(7)], 4),
        ((torch.zeros(4, 2), torch.zeros(7)), 4),
        ({"x": torch.zeros(6, 2), "y": torch.zeros(3)}, 6),
        (OrderedDict(x=torch.zeros(6), y=torch.zeros(3)), 6),
        ([[torch.zeros(3), torch.zeros(2)], torch.zeros(9)], 3),
        ({"inputs": {"ids": [torch.zeros(8, 2)]}, "labels": torch.zeros(1)}, 8),
        (["text", None, torch.zeros(2)], 2),
        ([], 1),
        ({}, 1),
        (["text", 3], 1),
        ("text", 1),
        (None, 1),
        (7, 1),
    ],
)
def test_the_first_tensor_tells(batch: Any, rows: int) -> None:
    assert rows_of_batch(batch) == rows


@pytest.mark.parametrize(
    "batch",
    [
        {"path": ["a.png", "b.png", "c.png"], "image": torch.zeros(3, 2)},
        [[], torch.zeros(3)],
        [{}, {"image": torch.zeros(3)}],
    ],
)
def test_containers_without_tensors_are_passed_over(batch: Any) -> None:
    """torch's default_collate leaves strings as a list."""
    assert rows_of_batch(batch) == 3
