"""How long all-reduces take among groups of ranks, timed while all ranks stand still."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from lightning_boa.profiling.timelines import Timeline, timeline_of

BUCKET_BYTES = 25 * 2**20
LEAST_BYTES = 2**20
SECONDS_OF_A_REDUCTION = 0.2
REPEATS = 3
BYTES_TO_SPARE = 2**30


class NetworkProbe:
    """Times all-reduces among groups of ranks; every rank calls each method at the same point with the same arguments.

    A group is a process group of its own while it is timed, and gone afterwards: under NCCL some tenths of a second and
    some ten MB of the device's memory, under gloo some milliseconds. It then runs four all-reduces of a DDP bucket
    (25 MiB, or all gradients where they are less), of which the first one is not counted; over a slow network of less,
    so that each takes about a fifth of a second.

    Args:
        device: where the gradients are.
        timeline: where moments are marked; that of the device unless a test brings its own.
    """

    def __init__(self, device: torch.device, timeline: Timeline | None = None) -> None:
        self._device = device
        self._timeline = timeline or timeline_of(device)
        self._emulated: list[Callable[[Sequence[int], int], None]] = []

    def emulate(self, exchange: Callable[[Sequence[int], int], None]) -> None:
        """Let ``exchange(ranks, bytes)`` pass an emulated network's time after each all-reduce."""
        self._emulated.append(exchange)

    def hosts(self) -> tuple[str, ...]:
        """The name of each rank's machine."""
        names: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(names, socket.gethostname())
        return tuple(names)

    def has_room(self) -> bool:
        """Whether every rank's device has memory to spare for a communicator more."""
        gathered = self._gather(torch.tensor([float(self._spare_bytes())], dtype=torch.float64))
        return all(float(each) >= BYTES_TO_SPARE for each in gathered)

    def seconds(
        self, groups: Sequence[Sequence[int]], gradient_bytes: int, expected: float
    ) -> tuple[float, ...]:
        """Seconds that an all-reduce of ``gradient_bytes`` takes within each group, the same on every rank.

        What the last rank of a group to arrive needs; the median of three.

        Args:
            groups: ranks of each group, at least two.
            gradient_bytes: of all gradients.
            expected: seconds that all ranks are likely to need for them.
        """
        payload_bytes = _payload_bytes(gradient_bytes, expected)
        payload = torch.zeros(max(1, payload_bytes // 4), dtype=torch.float32, device=self._device)
        timed = [self._timed(list(ranks), payload) for ranks in groups]
        mine = torch.tensor(timed, dtype=torch.float64)
        slowest_to_arrive = torch.stack(self._gather(mine)).amin(0)
        whole = gradient_bytes / (payload.numel() * payload.element_size())
        return tuple(whole * median(repeats) for repeats in slowest_to_arrive.tolist())

    def _timed(self, ranks: list[int], payload: torch.Tensor) -> list[float]:
        """Seconds of each counted all-reduce; infinity where this rank is no member."""
        with _group_of(ranks) as group:
            if dist.get_rank() not in ranks:
                return [inf] * REPEATS
            return [self._reduce(ranks, payload, group) for _ in range(1 + REPEATS)][1:]

    def _reduce(self, ranks: list[int], payload: torch.Tensor, group: Any) -> float:
        begin = self._timeline.mark()
        dist.all_reduce(payload, group=group)
        for exchange in self._emulated:
            exchange(ranks, payload.numel() * payload.element_size())
        end = self._timeline.mark()
        self._timeline.settle(end)
        return self._timeline.seconds(begin, end)

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        mine = mine.to(self._device, torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine)
        return [each.cpu() for each in gathered]

    def _spare_bytes(self) -> float:
        if self._device.type != "cuda":
            return inf
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(self._device)[0])


@contextmanager
def _group_of(ranks: list[int]) -> Iterator[Any]:
    """A process group of these ranks, None (the default one) where they are all."""
    if len(ranks) == dist.get_world_size():
        yield None
        return
    group = dist.new_group(ranks)
    yield group
    if dist.get_rank() in ranks:
        dist.destroy_process_group(group)


def _payload_bytes(gradient_bytes: int, expected: float) -> int:
    """As much as is exchanged in a short time, a MiB at least, a bucket at most."""
    part = min(1.0, SECONDS_OF_A_REDUCTION / expected) if expected > 0 else 1.0
    return min(gradient_bytes, BUCKET_BYTES, max(LEAST_BYTES, int(gradient_bytes * part)))
