"""The figures of a block: who gets them, when, and what becomes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lightning_boa.planning import BLOCK_STEPS
from lightning_boa.profiling import BlockExchange, BlockFigures

NAN = float("nan")


class Gather:
    """Stands for an all-gather that is finished when somebody waits for it."""

    def __init__(self) -> None:
        self.others: list[list[float]] = []
        self.calls: list[tuple[torch.Tensor, Any]] = []
        self.waited = 0
        self._finish: Any = None

    def __call__(
        self, gathered: list[torch.Tensor], mine: torch.Tensor, *, group: Any, async_op: bool
    ) -> Gather:
        assert async_op
        self.calls.append((mine.clone(), group))
        rows = [mine, *torch.tensor(self.others, dtype=torch.float64)]
        self._finish = lambda: [place.copy_(row) for place, row in zip(gathered, rows, strict=True)]
        return self

    def wait(self) -> None:
        self.waited += 1
        self._finish()


@pytest.fixture
def gather(monkeypatch: pytest.MonkeyPatch) -> Gather:
    gather = Gather()
    monkeypatch.setattr(dist, "all_gather", gather)
    return gather


def send(exchange: BlockExchange, ratio: float, *, wants_change: bool = False) -> None:
    exchange.send(
        wants_change=wants_change, ratios=[ratio] * BLOCK_STEPS, period=2.0, loader_wait=0.25
    )


def test_every_rank_gets_all_figures_and_waits_only_when_it_receives(gather: Gather) -> None:
    gather.others = [[0.0, 3.0, 0.5, 1.0, 2.0, 3.0, 4.0, NAN]]
    exchange = BlockExchange(2, "group")
    assert not exchange.is_under_way
    send(exchange, 1.5, wants_change=True)
    assert exchange.is_under_way
    assert gather.waited == 0
    figures = exchange.receive()
    assert gather.waited == 1
    assert not exchange.is_under_way
    assert figures.wants_change is True
    assert figures.ratios.tolist()[0] == [1.5] * 5
    assert figures.ratios[1] == pytest.approx([1.0, 2.0, 3.0, 4.0, NAN], nan_ok=True)
    assert figures.periods.tolist() == [2.0, 3.0]
    assert figures.loader_waits.tolist() == [0.25, 0.5]


def test_a_rank_sends_64_bytes_to_its_group(gather: Gather) -> None:
    gather.others = [[0.0] * 8]
    send(BlockExchange(2, "group"), 1.0)
    ((mine, group),) = gather.calls
    assert mine.numel() * mine.element_size() == 64
    assert group == "group"


def test_only_rank_0_has_a_say(gather: Gather) -> None:
    gather.others = [[1.0, 2.0, 0.0, *[1.0] * 5]]
    exchange = BlockExchange(2, None)
    send(exchange, 1.0, wants_change=False)
    assert exchange.receive().wants_change is False


def test_figures_stay_as_they_were_when_the_next_ones_arrive(gather: Gather) -> None:
    gather.others = [[0.0, 2.0, 0.0, *[1.0] * 5]]
    exchange = BlockExchange(2, None)
    send(exchange, 1.0)
    first = exchange.receive()
    send(exchange, 7.0)
    second = exchange.receive()
    assert (first.ratios[0, 0], second.ratios[0, 0]) == (1.0, 7.0)


@pytest.mark.usefixtures("gloo_alone")
def test_gloo_takes_it() -> None:
    exchange = BlockExchange(1, None)
    for ratio in (1.25, NAN):
        send(exchange, ratio, wants_change=True)
        figures = exchange.receive()
        assert figures.wants_change is True
        assert figures.ratios == pytest.approx(np.full((1, 5), ratio), nan_ok=True)
        assert (figures.periods[0], figures.loader_waits[0]) == (2.0, 0.25)


def figures(ratios: Any, periods: Any = (2.0, 3.0)) -> BlockFigures:
    return BlockFigures(False, np.asarray(ratios), np.asarray(periods), np.asarray([0.5, 0.25]))


def test_a_block_has_the_longest_period_and_wait() -> None:
    block = figures([[1.0] * 5, [4.0] * 5]).block_from(40)
    assert block is not None
    assert block.scales == pytest.approx((0.5, 2.0))
    assert (block.period, block.loader_wait, block.first_step) == (3.0, 0.5, 40)


def test_a_step_that_one_rank_lacks_does_not_count() -> None:
    ratios = [[1.0, 1.0, 1.0, NAN, NAN], [4.0] * 5]
    assert figures(ratios).block_from(40) == figures(np.asarray(ratios)[:, :3]).block_from(40)
    ratios[1][0] = NAN
    assert figures(ratios).block_from(40) is None


@pytest.mark.parametrize("periods", [(2.0, NAN), (NAN, NAN)])
def test_a_rank_that_measured_nothing_leaves_no_block(periods: Any) -> None:
    assert figures([[1.0] * 5, [4.0] * 5], periods).block_from(40) is None
