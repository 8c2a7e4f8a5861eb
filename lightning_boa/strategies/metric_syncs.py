"""Notices that a torchmetrics metric synchronises itself over ranks, which it does past the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

Gather = Callable[..., list[Tensor]]


def notice_syncs(module: nn.Module, note: Callable[[], None]) -> Callable[[], None]:
    """Let `note` be called before a metric of the module gathers its state; the returned function ends that."""
    noticed = [(part, part.dist_sync_fn) for part in module.modules() if isinstance(part, Metric)]
    for metric, gather in noticed:
        metric.dist_sync_fn = _NoticedGather(gather, note)

    def end() -> None:
        for metric, gather in noticed:
            metric.dist_sync_fn = gather

    return end


class _NoticedGather:
    """Gathers as the metric did before; copies of the metric do only that."""

    def __init__(self, gather: Gather | None, note: Callable[[], None] | None = None) -> None:
        self._gather = gather
        self._note = note

    def __call__(self, tensor: Tensor, group: Any = None) -> list[Tensor]:
        if self._note is not None:
            self._note()
        return (self._gather or gather_all_tensors)(tensor, group)

    def __reduce__(self) -> tuple[type[_NoticedGather], tuple[Gather | None]]:
        return _NoticedGather, (self._gather,)
