"""Means over ranks that hold different numbers of rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_boa.errors import UnsupportedError

MOST_DIMENSIONS = 16


def mean_over_rows(value: Tensor, rows: int) -> Tensor:
    """sum_i rows_i value_i / sum_i rows_i over all ranks, in one all-reduce.

    Args:
        value: this rank's mean over its rows, any shape, the same on all ranks.
        rows: this rank's rows; a rank with none takes part and its value does not count.
    """
    weighted = value.detach().to(torch.float64) * rows if rows else _zeros_like(value)
    total = torch.cat([weighted.reshape(-1), weighted.new_tensor([float(rows)])])
    dist.all_reduce(total)
    mean = (total[:-1] / total[-1]).reshape(value.shape)
    return mean.to(value.dtype if value.is_floating_point() else torch.get_default_dtype())


def mean_over_ranks(value: Tensor) -> Tensor:
    """The plain mean over ranks, computed in float64.

    Whole numbers are not cut, and a number without dimensions stays in float64: Lightning divides the mean of summed
    values by the mean of summed rows, and 1.0 must come out as 1.0 (lightning issue 21859).
    """
    total = value.detach().to(torch.float64, copy=True)
    dist.all_reduce(total)
    mean = total / dist.get_world_size()
    return mean.to(value.dtype) if value.is_floating_point() and value.ndim else mean


def check_same_shape(value: Tensor, group: Any | None) -> None:
    """Refuse to gather tensors of different shapes, on every rank: backends abort, hang or return rubbish.

    Raises:
        UnsupportedError: with each rank's shape.
    """
    mine = torch.tensor([value.ndim, *value.shape, *[0] * (MOST_DIMENSIONS - value.ndim)])
    mine = mine.to(value.device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    shapes = [tuple(each[1 : int(each[0]) + 1].tolist()) for each in gathered]
    if len(set(shapes)) > 1:
        raise UnsupportedError(
            f"Expected tensors of one shape to gather, got {', '.join(map(str, shapes))} on ranks 0 to"
            f" {len(shapes) - 1}: ranks have different numbers of rows. Use lightning_boa.gather_rows(tensor), which"
            " takes them, or a torchmetrics metric."
        )


def neutral(value: Tensor, operation: str) -> Tensor:
    """What a rank without rows contributes to a sum, product, minimum or maximum."""
    if operation == "sum":
        return torch.zeros_like(value)
    if operation in ("prod", "product"):
        return torch.ones_like(value)
    if operation not in ("min", "max"):
        return value
    if value.dtype == torch.bool:
        return torch.full_like(value, operation == "min")
    if value.is_floating_point():
        extreme = float("inf")
        return torch.full_like(value, extreme if operation == "min" else -extreme)
    limits = torch.iinfo(value.dtype)
    return torch.full_like(value, limits.max if operation == "min" else limits.min)


def _zeros_like(value: Tensor) -> Tensor:
    return torch.zeros_like(value, dtype=torch.float64)
