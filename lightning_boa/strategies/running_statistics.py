"""Running statistics of BatchNorm that have seen all rows of a step, on every rank alike.

DDP spreads those of rank 0, which have seen rank 0's rows alone. A layer with momentum m makes (1 - m) r + m s_i of the
running statistic r on rank i, linear in the rank's own statistic s_i; so the mean over ranks, weighted by their rows,
is (1 - m) r + m sum_i rows_i s_i / sum_i rows_i. That holds for a cumulative mean (momentum=None) and for layers that
are called several times in a step too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel


class RunningStatistics:
    """Averages the running means and variances of layers over the rows of all ranks.

    `begin` starts one all-reduce, which what follows may overlap; `finish` waits for it. All ranks call both in every
    step, a rank without rows too. Layers that have not run in training mode are left as they are.

    Args:
        layers: BatchNorm or InstanceNorm that track statistics, in the same order on all ranks.
        device: where the process group's backend wants its tensors.
    """

    def __init__(self, layers: Sequence[_NormBase], device: torch.device) -> None:
        values = [value for layer in layers for value in _statistics(layer)]
        kinds = (torch.float32, *(value.dtype for value in values))
        wide = torch.float64 if torch.float64 in kinds else torch.float32
        sizes = [value.numel() for value in values]
        self._sent = torch.zeros(sum(sizes) + 1, dtype=wide, device=device)
        *places, self._rows = torch.split(self._sent, [*sizes, 1])
        pairs = zip(places[::2], places[1::2], strict=True)
        self._layers = [_Layer(layer, pair) for layer, pair in zip(layers, pairs, strict=True)]
        self._reduced: list[_Layer] = []
        self._work: Any = None

    @classmethod
    def instead_of_broadcast(cls, ddp: DistributedDataParallel) -> RunningStatistics | None:
        """Take statistics out of what DDP broadcasts before each forward; all ranks hold rank 0's until the first step.

        None where DDP broadcasts no buffers or there are none to take. What a user has excluded from DDP stays so.
        """
        if not ddp.will_sync_module_buffers():  # type: ignore[no-untyped-call]
            return None
        broadcast = {id(buffer): name for name, buffer in ddp.module.named_buffers()}
        for identity, name in list(broadcast.items()):
            if name in ddp.parameters_to_ignore:
                del broadcast[identity]
        layers = [
            layer
            for layer in ddp.module.modules()
            if isinstance(layer, _NormBase)
            and not isinstance(layer, nn.SyncBatchNorm)
            and _statistics(layer)
            and all(id(value) in broadcast for value in _statistics(layer))
        ]
        if not layers:
            return None
        taken = [buffer for layer in layers for buffer in _buffers(layer)]
        ddp.parameters_to_ignore.update(broadcast[id(buffer)] for buffer in taken)
        ddp._assign_modules_buffers()  # type: ignore[no-untyped-call]
        return cls(layers, ddp.device)

    def buffers(self) -> Iterator[Tensor]:
        """The buffers that a rank without rows need not put back: `finish` writes the statistics, its counts go on."""
        for layer in self._layers:
            yield from _buffers(layer.norm)

    @torch.no_grad()
    def begin(self, rows: int) -> None:
        """A forward of `rows` rows is over on this rank; 0 where it only took part."""
        self._reduced = [layer for layer in self._layers if layer.has_run()]
        if not self._reduced:
            return
        self._sent.zero_()
        if rows:
            places, values = self._places_and_values()
            torch._foreach_copy_(places, values)
            self._sent.mul_(rows)
            self._rows.fill_(rows)
        self._work = dist.all_reduce(self._sent, async_op=True)

    @torch.no_grad()
    def begin_without_forward(self) -> None:
        """The same where this rank has not run the layers; their counts go on as if it had."""
        for layer in self._layers:
            layer.count_as_before()
        self.begin(0)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for what `begin` has started, if anything, and give the layers the mean over all rows."""
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        self._sent.div_(self._rows.clone())
        places, values = self._places_and_values()
        torch._foreach_copy_(values, places)

    def _places_and_values(self) -> tuple[list[Tensor], list[Tensor]]:
        places = [place for layer in self._reduced for place in layer.places]
        # .data: a graph that still needs a layer's statistics does not take this for a change of its own, as with DDP
        values = [value.data for layer in self._reduced for value in _statistics(layer.norm)]
        return places, values


class _Layer:
    """A layer and the places of its mean and variance in what is sent."""

    def __init__(self, norm: _NormBase, places: tuple[Tensor, Tensor]) -> None:
        self.norm = norm
        self.places = places
        self._version = self._counted()
        self._calls = 1

    def count_as_before(self) -> None:
        """Count as many calls as the layer had in the last step in which it has run."""
        if self.norm.training and self.norm.num_batches_tracked is not None:
            for _ in range(self._calls):
                self.norm.num_batches_tracked.add_(1)

    def has_run(self) -> bool:
        """Whether its statistics may have changed since the last call; it may be in evaluation mode again."""
        before, self._version = self._version, self._counted()
        self._calls = self._version - before or self._calls
        return self.norm.training or self._version != before

    def _counted(self) -> int:
        count = self.norm.num_batches_tracked
        return 0 if count is None else count._version


def _statistics(layer: _NormBase) -> list[Tensor]:
    mean, variance = layer.running_mean, layer.running_var
    return [] if mean is None or variance is None else [mean, variance]


def _buffers(layer: _NormBase) -> list[Tensor]:
    count = layer.num_batches_tracked
    return _statistics(layer) if count is None else [*_statistics(layer), count]
