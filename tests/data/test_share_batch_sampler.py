from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_boa.data import (
    EvenSteps,
    SampledOrder,
    SequentialOrder,
    ShareBatchSampler,
    ShuffledOrder,
    digest,
)
from lightning_boa.errors import LoaderError

Split = tuple[int, ...]


def split_by(weights: Split, rows: int) -> Split:
    """`rows` in proportion to `weights`; ranks may get none."""
    bounds = [total * rows // sum(weights) for total in accumulate(weights, initial=0)]
    return tuple(high - low for low, high in pairwise(bounds))


@dataclass(frozen=True)
class Plans:
    """Other weights from each of the steps in `entries` on."""

    entries: tuple[tuple[int, Split], ...]

    @property
    def world_size(self) -> int:
        return len(self.entries[0][1])

    def rows_of(self, step: int, step_rows: int) -> Split:
        weights = next(weights for first, weights in reversed(self.entries) if first <= step)
        return split_by(weights, step_rows)


@st.composite
def plans(draw: st.DrawFn) -> Plans:
    world_size = draw(st.integers(1, 8))
    weights = st.lists(st.integers(0, 9), min_size=world_size, max_size=world_size).filter(any)
    later = draw(st.dictionaries(st.integers(1, 40), weights, max_size=6))
    return Plans(tuple((s, tuple(w)) for s, w in sorted({0: draw(weights), **later}.items())))


@dataclass(frozen=True)
class Run:
    """The samplers of all ranks; `order` of `rows` rows."""

    plans: Plans
    order: ShuffledOrder | SequentialOrder
    global_batch_size: int
    drop_last: bool
    seed: int = 3

    @property
    def steps(self) -> int:
        full, rest = divmod(len(self.order), self.global_batch_size)
        return full + (rest > 0 and not self.drop_last)

    def step_rows(self, position: int) -> int:
        return min(self.global_batch_size, len(self.order) - position * self.global_batch_size)

    def sampler(
        self, rank: int, position: int = 0, done: int = 0, **options: Any
    ) -> ShareBatchSampler:
        return ShareBatchSampler(
            EvenSteps(self.order, self.global_batch_size, drop_last=self.drop_last),
            rank=rank,
            seed=self.seed,
            rows_of=self.plans.rows_of,
            first_step=lambda: (position, done),
            **options,
        )

    def lists(self, rank: int, epoch: int, position: int = 0) -> list[list[int]]:
        sampler = self.sampler(rank, position, epoch * self.steps + position)
        sampler.set_epoch(epoch)
        return list(sampler)

    def union(self, epoch: int, position: int = 0) -> list[list[int]]:
        """All ranks' rows of each step, ghosts left out, after a check of what ghosts are."""
        by_rank = [self.lists(rank, epoch, position) for rank in range(self.plans.world_size)]
        assert {len(lists) for lists in by_rank} == {self.steps - position}
        union = []
        for ahead, shares in enumerate(zip(*by_rank, strict=True)):
            here = position + ahead
            split = self.plans.rows_of(epoch * self.steps + here, self.step_rows(here))
            real = [rows for rows, count in zip(shares, split, strict=True) if count]
            ghosts = [rows for rows, count in zip(shares, split, strict=True) if not count]
            assert [len(rows) for rows in real] == [count for count in split if count]
            union.append(list(chain.from_iterable(real)))
            assert all(rows == (union[-1] * 2)[:2] for rows in ghosts)
        return union


@st.composite
def runs(draw: st.DrawFn) -> Run:
    rows = draw(st.integers(0, 60))
    return Run(
        plans=draw(plans()),
        order=draw(st.sampled_from([ShuffledOrder(rows), SequentialOrder(rows)])),
        global_batch_size=draw(st.integers(1, 17)),
        drop_last=draw(st.booleans()),
    )


@given(run=runs(), epoch=st.integers(0, 4))
def test_every_row_once_and_in_the_global_order(run: Run, epoch: int) -> None:
    expected = list(run.order.draw(run.seed, epoch))
    used = run.steps * run.global_batch_size if run.drop_last else len(expected)

    union = run.union(epoch)

    assert list(chain.from_iterable(union)) == expected[:used]
    assert [len(rows) for rows in union] == [run.step_rows(s) for s in range(run.steps)]


@given(run=runs(), other=plans(), epoch=st.integers(0, 2), data=st.data())
def test_a_resume_goes_on_where_it_stopped_on_any_ranks(
    run: Run, other: Plans, epoch: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, run.steps))
    resumed = Run(other, run.order, run.global_batch_size, run.drop_last)

    for rank in range(run.plans.world_size):
        assert run.lists(rank, epoch, position) == run.lists(rank, epoch)[position:]
    assert resumed.union(epoch, position) == run.union(epoch)[position:]


@given(run=runs(), other=plans())
def test_steps_depend_on_rows_and_global_batch_alone(run: Run, other: Plans) -> None:
    samplers = [
        Run(these, run.order, run.global_batch_size, run.drop_last).sampler(rank)
        for these in (run.plans, other)
        for rank in range(these.world_size)
    ]

    assert {len(sampler) for sampler in samplers} == {run.steps}


@given(run=runs(), epoch=st.integers(0, 2), data=st.data())
def test_handed_out_is_the_step_of_the_list_just_given(
    run: Run, epoch: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, run.steps))
    done = epoch * run.steps + position
    sampler = run.sampler(0, position, done)
    assert sampler.handed_out == -1

    seen = [sampler.handed_out for _ in sampler]

    assert seen == list(range(done, done + run.steps - position))


@given(run=runs(), data=st.data())
def test_skipped_ghosts_leave_the_other_rows_as_they_are(run: Run, data: st.DataObject) -> None:
    fixed = Run(Plans(run.plans.entries[:1]), run.order, run.global_batch_size, run.drop_last)
    rank = data.draw(st.integers(0, fixed.plans.world_size - 1))
    rows = [fixed.plans.rows_of(0, fixed.step_rows(s))[rank] for s in range(fixed.steps)]

    sampler = fixed.sampler(rank, skip_ghosts=True)
    lists = list(sampler)

    assert len(sampler) == len(lists) == sampler.iteration.lists == sampler.iteration.total
    expected = fixed.lists(rank, 0)
    assert lists == [step for step, count in zip(expected, rows, strict=True) if count]

    position = data.draw(st.integers(0, fixed.steps))
    resumed = fixed.sampler(rank, position, position, skip_ghosts=True)
    rest = list(resumed)
    assert rest == lists[len(lists) - len(rest) :]
    assert resumed.iteration.total == len(rest) == sum(count > 0 for count in rows[position:])


def test_skipped_ghosts_keep_the_split_their_length_was_told_from() -> None:
    split = [(0, 4)]
    sampler = ShareBatchSampler(
        EvenSteps(SequentialOrder(10), 4, drop_last=False),
        rank=0,
        seed=0,
        rows_of=lambda _, rows: split[-1] if rows == 4 else (rows, 0),
        first_step=lambda: (0, 0),
        skip_ghosts=True,
    )
    split.append((4, 0))

    assert len(sampler) == 1
    assert list(sampler) == [[8, 9]]
    assert sampler.handed_out == 2


def sequential(rows: int, split: Split, rank: int, **options: Any) -> ShareBatchSampler:
    settings: dict[str, Any] = {
        "rank": rank,
        "seed": 0,
        "rows_of": lambda _, step_rows: split_by(split, step_rows),
        "first_step": lambda: (0, 0),
    }
    steps = EvenSteps(SequentialOrder(rows), sum(split), drop_last=False)
    return ShareBatchSampler(steps, **settings | options)


@pytest.mark.parametrize(
    ("split", "lists"),
    [
        ((5, 2, 1), [[[0, 1, 2, 3, 4], [8, 9]], [[5, 6], [8, 9]], [[7], [10]]]),
        ((1, 7), [[[0], [8, 9]], [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]]),
        ((0, 8), [[[0, 1], [8, 9]], [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]]),
        ((8,), [[[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]]),
    ],
)
def test_shares_of_named_plans(split: Split, lists: list[list[list[int]]]) -> None:
    def rows_of(_: int, rows: int) -> Split:
        return split if rows == 8 else {3: (2, 0, 1), 2: (0, 3), 1: (3,)}[len(split)]

    assert [
        list(sequential(11, split, rank, rows_of=rows_of)) for rank in range(len(split))
    ] == lists


def test_256_rows_on_7_ranks() -> None:
    split = (37, 37, 37, 37, 36, 36, 36)
    shares = [next(iter(sequential(1000, split, rank))) for rank in range(7)]

    assert [len(share) for share in shares] == list(split)
    assert list(chain.from_iterable(shares)) == list(range(256))


def test_a_last_step_of_one_row_makes_ghosts_of_that_row_twice() -> None:
    last = [list(sequential(9, (2, 2, 2, 2), rank))[-1] for rank in range(4)]

    assert sorted(last) == [[8], [8, 8], [8, 8], [8, 8]]


def test_nothing_is_read_before_the_first_next() -> None:
    asked: list[str] = []

    class WatchedOrder(SequentialOrder):
        def draw(self, seed: int, epoch: int) -> range:
            asked.append(f"draw {epoch}")
            return super().draw(seed, epoch)

    position = [0]
    split = [(4, 4)]

    def first_step() -> tuple[int, int]:
        asked.append("first_step")
        return position[0], 10 + position[0]

    def rows_of(step: int, rows: int) -> Split:
        asked.append(f"rows {step}")
        return split[-1]

    sampler = ShareBatchSampler(
        EvenSteps(WatchedOrder(32), 8, drop_last=False),
        rank=1,
        seed=0,
        rows_of=rows_of,
        first_step=first_step,
    )
    assert len(sampler) == 4
    lists = iter(sampler)
    assert asked == []

    sampler.sampler.set_epoch(5)
    position.append(position.pop() + 2)
    split.append((2, 6))
    assert next(lists) == [18, 19, 20, 21, 22, 23]
    assert asked == ["first_step", "draw 5", "rows 12"]

    split.append((7, 1))
    assert next(lists) == [31]
    assert asked[3:] == ["rows 13"]


def test_first_step_may_set_the_epoch() -> None:
    def first_step() -> tuple[int, int]:
        sampler.set_epoch(4)
        return 0, 0

    sampler = ShareBatchSampler(
        EvenSteps(ShuffledOrder(8), 8, drop_last=False),
        rank=0,
        seed=1,
        rows_of=lambda _, rows: (rows,),
        first_step=first_step,
    )

    assert list(sampler) == [ShuffledOrder(8).draw(1, 4).tolist()]


def test_rows_are_plain_ints_and_other_objects_stay() -> None:
    shuffled = ShareBatchSampler(
        EvenSteps(ShuffledOrder(4), 4, drop_last=False),
        rank=0,
        seed=0,
        rows_of=lambda _, rows: (rows,),
        first_step=lambda: (0, 0),
    )
    assert {type(row) for row in next(iter(shuffled))} == {int}

    pairs: Any = [(0, "a"), (1, "b"), (2, "c")]
    paired = ShareBatchSampler(
        EvenSteps(SampledOrder(pairs), 3, drop_last=False),
        rank=1,
        seed=0,
        rows_of=lambda _, rows: (1, 2),
        first_step=lambda: (0, 0),
    )
    assert next(iter(paired)) == pairs[1:]


def test_check_order_sees_the_digest_before_any_row() -> None:
    seen: list[int] = []
    sampler = sequential(8, (2, 2), 0, check_order=seen.append)
    lists = iter(sampler)
    assert seen == []

    next(lists)
    assert seen == [digest(range(8))]

    def refuse(_: int) -> None:
        raise LoaderError("ranks 0 and 1 drew other rows")

    with pytest.raises(LoaderError, match="ranks 0 and 1"):
        next(iter(sequential(8, (2, 2), 0, check_order=refuse)))


def test_batch_size_is_that_of_the_step_handed_out_last() -> None:
    plans = Plans(((0, (4, 4)), (1, (2, 6))))
    sampler = Run(plans, SequentialOrder(16), 8, False).sampler(1)
    assert sampler.batch_size == 4

    list(sampler)
    assert sampler.batch_size == 6


@given(n=st.integers(0, 30), b=st.integers(1, 9))
def test_a_sampler_can_be_iterated_again_and_left_in_the_middle(n: int, b: int) -> None:
    assume(n > 2 * b)
    sampler = sequential(n, (b,), 0)
    left = iter(sampler)
    next(left)
    next(left)

    assert list(chain.from_iterable(sampler)) == list(range(n))


def test_senseless_arguments_are_refused() -> None:
    with pytest.raises(LoaderError, match="got rank=-1"):
        sequential(4, (2, 2), -1)
    with pytest.raises(LoaderError, match="got global_batch_size=0"):
        EvenSteps(SequentialOrder(4), 0, drop_last=False)


@pytest.mark.parametrize(
    "rows_of",
    [lambda _, rows: (rows, 1), lambda _, rows: (rows + 1, -1), lambda _, rows: (rows,)],
    ids=["too many rows", "negative rows", "too few ranks"],
)
def test_a_split_that_does_not_add_up_is_caught(
    rows_of: Callable[[int, int], Split],
) -> None:
    with pytest.raises(AssertionError):
        next(iter(sequential(4, (2, 2), 1, rows_of=rows_of)))
