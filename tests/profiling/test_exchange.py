from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_boa.errors import AgreementError, BoaError, MeasurementError
from lightning_boa.planning import StepRecord
from lightning_boa.profiling import (
    Exchange,
    check_digest,
    check_same,
    decide_once,
    exchange_records,
)
from tests.profiling.threaded_ranks import ThreadedRanks

CPU = torch.device("cpu")
CAPACITY = 128


def record(rank: int, step: int) -> StepRecord:
    return StepRecord(
        step=step,
        rank=rank,
        rows=rank + 1,
        step_rows=6,
        compute=(rank + 1) / 3 + step,
        loader_wait=0.1,
        communication=0.0,
        optimizer=1e-9,
        period=2.0 + step / 7,
        passes=rank + 1,
    )


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> ThreadedRanks:
    return ThreadedRanks(3, monkeypatch)


def test_every_rank_learns_all_figures_in_one_collective(three: ThreadedRanks) -> None:
    counts = (2, 0, 5)
    mine = [[record(rank, step) for step in range(counts[rank])] for rank in range(3)]

    outcomes = three.run(lambda rank: exchange_records(mine[rank], 10 + rank, 100 * rank, CPU))

    everything = Exchange(
        (*mine[0], *mine[1], *mine[2]), first_free_step=12, row_caps=(0, 100, 200)
    )
    assert outcomes == [everything] * 3
    assert three.collectives == ["all_gather"]


def test_whole_numbers_come_back_whole(three: ThreadedRanks) -> None:
    first, *_ = three.run(lambda rank: exchange_records([record(rank, 2**40)], 2**40 + 1, 7, CPU))

    assert first.first_free_step == 2**40 + 1
    for each in first.records:
        whole = each.step, each.rows, each.step_rows, each.rank, each.passes
        kinds = {type(value) for value in whole}
        assert kinds == {int}


def test_the_newest_records_are_sent(three: ThreadedRanks) -> None:
    many = CAPACITY + 9
    first, *_ = three.run(
        lambda rank: exchange_records([record(rank, step) for step in range(many)], many, None, CPU)
    )

    assert [each.step for each in first.records] == 3 * list(range(9, many))


@pytest.mark.parametrize("unknown", [0, 2])
def test_caps_are_used_only_where_every_rank_knows_its_own(
    three: ThreadedRanks, unknown: int
) -> None:
    outcomes = three.run(
        lambda rank: exchange_records([], 0, None if rank == unknown else 50, CPU).row_caps
    )

    assert outcomes == [None] * 3


def test_rank_0_decides_for_all(three: ThreadedRanks) -> None:
    asked: list[int] = []

    def decide(rank: int) -> dict[str, int]:
        asked.append(rank)
        return {"by": rank}

    outcomes = three.run(lambda rank: decide_once(lambda: decide(rank), CPU))

    assert outcomes == [{"by": 0}] * 3
    assert asked == [0]


def test_a_decision_may_be_none(three: ThreadedRanks) -> None:
    assert three.run(lambda rank: decide_once(lambda: None, CPU)) == [None] * 3


def test_every_rank_raises_what_rank_0_raised(three: ThreadedRanks) -> None:
    def fail() -> None:
        raise MeasurementError("too few sizes")

    outcomes = three.run(lambda rank: decide_once(fail, CPU))

    assert [type(outcome) for outcome in outcomes] == [MeasurementError] * 3
    assert [str(outcome) for outcome in outcomes] == ["too few sizes"] * 3


def test_an_error_that_cannot_travel_is_told_in_words(three: ThreadedRanks) -> None:
    """Rank 0 alone would fail to send it, and the others would wait for ever."""

    def fail() -> None:
        raise ValueError("no room", lambda: None)

    outcomes = three.run(lambda rank: decide_once(fail, CPU))

    assert [type(outcome) for outcome in outcomes] == [BoaError] * 3
    assert all("rank 0 failed" in str(each) and "no room" in str(each) for each in outcomes)


def test_equal_digests_pass_and_the_last_bit_counts(three: ThreadedRanks) -> None:
    largest = 2**63 - 1

    assert three.run(lambda rank: check_digest(largest, "plan", CPU)) == [None] * 3
    outcomes = three.run(lambda rank: check_digest(largest - (rank == 1), "plan", CPU))
    assert [type(outcome) for outcome in outcomes] == [AgreementError] * 3
    assert all("plan" in str(outcome) and "rank 1 differ" in str(outcome) for outcome in outcomes)


def test_all_ranks_that_differ_from_rank_0_are_named(three: ThreadedRanks) -> None:
    (message, *others) = three.run(lambda rank: str(check_error(rank)))

    assert "ranks 1, 2 differ from rank 0" in message
    assert others == [message, message]


def check_error(rank: int) -> AgreementError:
    with pytest.raises(AgreementError) as caught:
        check_digest(rank, "schedule of plans", CPU)
    return caught.value


def test_equal_facts_come_back_from_every_rank(three: ThreadedRanks) -> None:
    outcomes = three.run(lambda rank: check_same({"seed": 3, "rows": 67}))

    assert outcomes == [({"seed": 3, "rows": 67},) * 3] * 3


def test_the_first_fact_that_differs_is_told_with_values_and_ranks(three: ThreadedRanks) -> None:
    outcomes: list[Any] = three.run(
        lambda rank: check_same({"seed": 3, "rows": 60 + rank // 2, "world size": rank})
    )

    for outcome in outcomes:
        assert isinstance(outcome, AgreementError)
        assert "same rows on all ranks, got 60 on ranks 0, 1; 61 on rank 2." in str(outcome)


def test_values_that_look_alike_are_told_apart(three: ThreadedRanks) -> None:
    outcomes = three.run(lambda rank: check_same({"seed": "3" if rank == 1 else 3}))

    assert all("'3' on rank 1" in str(outcome) for outcome in outcomes)


def test_a_fact_that_some_ranks_lack_is_an_error_on_all(three: ThreadedRanks) -> None:
    outcomes = three.run(lambda rank: check_same({"a": 1} if rank == 0 else {"a": 1, "b": 2}))

    assert all("same b on all ranks, got None on rank 0; 2 on" in str(each) for each in outcomes)


@pytest.mark.usefixtures("gloo_alone")
def test_gloo_takes_every_collective() -> None:
    mine = [record(0, step) for step in range(3)]

    assert exchange_records(mine, 4, 9, CPU) == Exchange(tuple(mine), 4, (9,))
    assert exchange_records([], 0, None, CPU) == Exchange((), 0, None)
    assert decide_once(lambda: ("a", 1), CPU) == ("a", 1)
    assert check_same({"seed": 3}) == ({"seed": 3},)
    check_digest(2**63 - 1, "plan", CPU)
    with pytest.raises(MeasurementError):
        decide_once(lambda: record(0, 0) and StepRecord(0, 0, 1, 1, 0.0, 0.0, 0.0, 0.0, 1.0), CPU)
