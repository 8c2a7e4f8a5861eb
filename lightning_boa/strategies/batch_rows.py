"""The rows that a batch shows by the shape of its tensors, against the rows that its rank asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError


def leading_sizes(batch: Any) -> list[int]:
    """The leading sizes of all tensors in a batch; tensors without dimensions have none."""
    return [size[0] for size in _sizes(batch) if size]


def rows_shown(batch: Any) -> int | None:
    """The leading size that all tensors of a batch share; None where they share none."""
    leading = set(leading_sizes(batch))
    return leading.pop() if len(leading) == 1 else None


class RowCheck:
    """Refuses batches that show another number of rows than was asked for.

    Only where all tensors share one leading size is it taken for a number of rows, and only where the number asked
    for is nowhere to be seen: not as a multiple of it (two views of each row), nor as another dimension (time first),
    nor as the length of a list (rows that are not stacked). Where sizes say nothing the plan's rows count.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._multiple: int | None = None

    def __call__(self, batch: Any, share: Share, rank: int) -> None:
        asked = share.fetched
        if not asked:
            return
        sizes = _sizes(batch)
        seen = (asked, *sizes)
        if seen in self._seen:
            return
        leading = {size[0] for size in sizes if size}
        if len(leading) == 1 and not (
            self._is_usual_multiple(asked, leading) or _shows(asked, batch, sizes)
        ):
            raise UnsupportedError(
                f"Expected a batch of {asked} rows on rank {rank} (its share of step {share.step}), got tensors"
                f" whose leading size is {leading.pop()}. Let collate_fn keep one entry per row of the data set, or"
                ' train with strategy="ddp".'
            )
        self._seen.add(seen)

    def _is_usual_multiple(self, asked: int, leading: set[int]) -> bool:
        """Whether each row has become as many as before."""
        (size,) = leading
        if size % asked:
            return False
        if self._multiple is None:
            self._multiple = size // asked
        return size == asked * self._multiple


def _sizes(batch: Any) -> list[tuple[int, ...]]:
    if isinstance(batch, Tensor):
        return [batch.shape]
    if isinstance(batch, (list, tuple)):
        sizes: list[tuple[int, ...]] = [part.shape for part in batch if isinstance(part, Tensor)]
        if len(sizes) == len(batch):
            return sizes
    if isinstance(batch, Mapping):
        return [size for part in batch.values() for size in _sizes(part)]
    leaves = tree_leaves(batch, is_leaf=lambda part: isinstance(part, Mapping))
    found: list[tuple[int, ...]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append(leaf.shape)
        elif isinstance(leaf, Mapping):
            found += _sizes(leaf)
    return found


def _shows(asked: int, batch: Any, sizes: list[tuple[int, ...]]) -> bool:
    return any(asked in size for size in sizes) or asked in _list_lengths(batch)


def _list_lengths(batch: Any) -> Iterator[int]:
    if isinstance(batch, Mapping):
        for part in batch.values():
            yield from _list_lengths(part)
    elif isinstance(batch, (list, tuple)):
        yield len(batch)
        for part in batch:
            yield from _list_lengths(part)
