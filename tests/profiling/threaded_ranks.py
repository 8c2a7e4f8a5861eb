"""Several ranks as threads of one process: torch.distributed's collectives, exchanged through a shared list."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT_SECONDS = 20.0


class ThreadedRanks:
    """Stands for `ranks` processes; every collective has to be called by all of them with equal shapes."""

    def __init__(self, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks = ranks
        self.collectives: list[str] = []
        self._mine = threading.local()
        self._barrier = threading.Barrier(ranks, timeout=TIMEOUT_SECONDS)
        self._given: list[Any] = [None] * ranks
        for collective in (
            self.get_rank,
            self.get_world_size,
            self.all_reduce,
            self.all_gather,
            self.all_gather_object,
            self.broadcast_object_list,
        ):
            monkeypatch.setattr(dist, collective.__name__, collective)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Each rank's function(rank), in order; what a rank raised stands in place of its result."""
        with ThreadPoolExecutor(self.ranks) as pool:
            return list(pool.map(lambda rank: self._run(function, rank), range(self.ranks)))

    def get_rank(self) -> int:
        rank: int = self._mine.rank
        return rank

    def get_world_size(self) -> int:
        return self.ranks

    def all_reduce(self, tensor: Tensor) -> None:
        given = self._exchange("all_reduce", tensor.clone())
        tensor.copy_(torch.stack(given).sum(0))

    def all_gather(self, gathered: list[Tensor], tensor: Tensor) -> None:
        given = self._exchange("all_gather", tensor.clone())
        for mine, theirs in zip(gathered, given, strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            mine.copy_(theirs)

    def all_gather_object(self, gathered: list[Any], thing: Any) -> None:
        gathered[:] = self._exchange("all_gather_object", pickle.loads(pickle.dumps(thing)))

    def broadcast_object_list(self, things: list[Any], src: int, device: Any = None) -> None:
        given = self._exchange("broadcast_object_list", copy.copy(things))
        things[:] = pickle.loads(pickle.dumps(given[src]))

    def _run(self, function: Callable[[int], Any], rank: int) -> Any:
        self._mine.rank = rank
        try:
            return function(rank)
        except threading.BrokenBarrierError:
            raise
        except Exception as error:
            return error

    def _exchange(self, name: str, mine: Any) -> list[Any]:
        rank = self.get_rank()
        self._given[rank] = (name, mine)
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        assert {other for other, _ in given} == {name}, "ranks met in different collectives"
        if rank == 0:
            self.collectives.append(name)
        return [thing for _, thing in given]
