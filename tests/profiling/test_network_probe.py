from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lightning_boa.profiling import HostTimeline, NetworkProbe

CPU = torch.device("cpu")
MIB = 2**20


@dataclass
class OneOfThree:
    """Rank 1 of three, as far as a probe sees the others: `theirs` is what the others' tables hold."""

    monkeypatch: pytest.MonkeyPatch
    theirs: float = inf
    now: float = 0.0
    reduced: list[tuple[Any, int]] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    destroyed: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, function in {
            "get_rank": lambda: 1,
            "get_world_size": lambda: 3,
            "all_reduce": self.all_reduce,
            "all_gather": self.all_gather,
            "new_group": self.new_group,
            "destroy_process_group": self.destroyed.append,
        }.items():
            self.monkeypatch.setattr(dist, name, function)

    def all_reduce(self, tensor: Tensor, group: Any = None) -> None:
        self.reduced.append((group, tensor.numel() * tensor.element_size()))
        self.now += float(len(self.reduced) % 4)

    def all_gather(self, gathered: list[Tensor], tensor: Tensor) -> None:
        for rank, each in enumerate(gathered):
            each.copy_(tensor if rank == 1 else torch.full_like(tensor, self.theirs))

    def new_group(self, ranks: list[int]) -> str:
        self.groups.append(ranks)
        return f"group of {ranks}"

    def probe(self) -> NetworkProbe:
        return NetworkProbe(CPU, HostTimeline(lambda: self.now))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> OneOfThree:
    return OneOfThree(monkeypatch)


def test_the_first_of_four_reductions_does_not_count(ranks: OneOfThree) -> None:
    """They take 1, 2, 3 and 0 seconds: the median of the last three is 2."""
    assert ranks.probe().seconds([(0, 1, 2)], 400, 0.1) == (2.0,)
    assert ranks.reduced == [(None, 400)] * 4
    assert ranks.groups == ranks.destroyed == []


def test_what_the_last_rank_to_arrive_needs_is_the_exchange(ranks: OneOfThree) -> None:
    ranks.theirs = 0.5
    assert ranks.probe().seconds([(0, 1, 2)], 400, 0.1) == (0.5,)


def test_a_rank_helps_to_make_every_group_and_reduces_in_its_own(ranks: OneOfThree) -> None:
    assert ranks.probe().seconds([(0, 1), (0, 2)], 400, 0.1) == (2.0, inf)
    assert ranks.groups == [[0, 1], [0, 2]]
    assert ranks.reduced == [("group of [0, 1]", 400)] * 4
    assert ranks.destroyed == ["group of [0, 1]"]


def test_an_emulated_network_passes_its_time_too(ranks: OneOfThree) -> None:
    asked: list[tuple[Any, int]] = []

    def exchange(members: Any, size: int) -> None:
        asked.append((list(members), size))
        ranks.now += 10.0

    probe = ranks.probe()
    probe.emulate(exchange)
    assert probe.seconds([(0, 1)], 400, 0.1) == (12.0,)
    assert asked == [([0, 1], 400)] * 4


@pytest.mark.parametrize(
    ("gradient_bytes", "expected", "payload"),
    [
        (1000, 0.01, 1000),
        (1000, 1000.0, 1000),
        (25 * MIB, 0.2, 25 * MIB),
        (100 * MIB, 0.2, 25 * MIB),
        (100 * MIB, 2.0, 10 * MIB),
        (100 * MIB, 200.0, MIB),
        (100 * MIB, 0.0, 25 * MIB),
    ],
)
def test_no_more_is_sent_than_shows_the_network(
    ranks: OneOfThree, gradient_bytes: int, expected: float, payload: int
) -> None:
    (seconds,) = ranks.probe().seconds([(0, 1, 2)], gradient_bytes, expected)
    assert {size for _, size in ranks.reduced} == {payload}
    assert seconds == 2.0 * gradient_bytes / payload


def test_every_rank_needs_room_for_a_communicator(ranks: OneOfThree) -> None:
    assert ranks.probe().has_room()
    ranks.theirs = 2.0**29
    assert not ranks.probe().has_room()
