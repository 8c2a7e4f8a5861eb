"""The rows that a batch shows by the shape of its tensors, against the rows that its rank asked for."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError


def leading_sizes(batch: Any) -> list[int]:
    """The leading sizes of all tensors in a batch; tensors without dimensions have none."""
    return [len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim]


class RowCheck:
    """Refuses batches whose tensors agree on a number of rows that is not the one asked for, nor a multiple of it.

    Where tensors disagree (graphs, custom collate functions) their sizes say nothing, and the plan's rows count.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()

    def __call__(self, batch: Any, share: Share, rank: int) -> None:
        sizes = leading_sizes(batch)
        seen = (share.fetched, *sizes)
        if seen in self._seen:
            return
        if len(set(sizes)) == 1 and sizes[0] % share.fetched:
            raise UnsupportedError(
                f"Expected a batch of {share.fetched} rows on rank {rank} (its share of step {share.step}), got tensors"
                f" whose leading size is {sizes[0]}. Let collate_fn keep one entry per row of the data set, or train"
                ' with strategy="ddp".'
            )
        self._seen.add(seen)
