"""Loaders of ranks that run their rows of a step in several passes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from lightning_boa.data import (
    BatchListSteps,
    EvenSteps,
    SampledOrder,
    SequentialOrder,
    Share,
    ShareBatchSampler,
    ShuffledOrder,
    Steps,
    boa_loader,
    cut,
    source_of,
)
from lightning_boa.errors import LoaderError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

Split = tuple[int, ...]
Step = tuple[Share, list[list[int]]]
SEED = 5
WORKERS = {
    "no workers": {},
    "a worker": {"num_workers": 1, "prefetch_factor": 3},
    "a worker that stays": {"num_workers": 1, "persistent_workers": True},
}


class Rows(Dataset[int]):
    """Row i is the number i."""

    def __getitem__(self, index: int) -> int:
        return index


@dataclass(frozen=True)
class Plan:
    """In step s ranks get rows in proportion to `weights[s]`, and cut them into passes of `sizes[s]`, `sizes[s + 1]` …

    Both begin again where they end.
    """

    weights: tuple[Split, ...]
    sizes: Split

    @property
    def ranks(self) -> range:
        return range(len(self.weights[0]))

    def rows_of(self, step: int, step_rows: int) -> Split:
        weights = self.weights[step % len(self.weights)]
        bounds = [total * step_rows // sum(weights) for total in accumulate(weights, initial=0)]
        return tuple(high - low for low, high in pairwise(bounds))

    def passes_of(self, step: int, rows: int) -> Split:
        assert rows > 0
        passes: list[int] = []
        while sum(passes) < rows:
            size = self.sizes[(step + len(passes)) % len(self.sizes)]
            passes.append(min(size, rows - sum(passes)))
        return tuple(passes)


@dataclass
class Progress:
    """Steps that are done, of the epoch and of the training."""

    position: int = 0
    done: int = 0

    def __call__(self) -> tuple[int, int]:
        return self.position, self.done


class Rank:
    """One rank's loader under a plan."""

    def __init__(self, plan: Plan, rank: int, user: DataLoader[Any], steps: Steps) -> None:
        self.plan, self.rank, self.steps = plan, rank, steps
        self.progress = Progress()
        self.shares: list[Share] = []
        self.loader: Any = boa_loader(
            user, self.sampler(passes_of=plan.passes_of), deliver=self.shares.append
        )

    def sampler(self, **options: Any) -> ShareBatchSampler:
        return ShareBatchSampler(
            self.steps,
            rank=self.rank,
            seed=SEED,
            rows_of=self.plan.rows_of,
            first_step=self.progress,
            **options,
        )

    def iterate(self, rows_in: Callable[[Any], list[int]] = list) -> Iterator[Step]:
        """The share of each step, and the rows of each of its batches."""
        self.shares.clear()
        for batch in self.loader:
            share = self.shares.pop()
            assert not self.shares
            yield share, [rows_in(each) for each in (batch, *share.later)]

    def whole_shares(self) -> list[list[int]]:
        """This rank's rows of each step, as they are without passes."""
        return list(self.sampler())

    def check(self, found: Sequence[Step]) -> None:
        """All that is said of a step in passes holds in all the steps."""
        whole = self.whole_shares()
        assert len(found) == len(whole)
        for ahead, ((share, batches), rows) in enumerate(zip(found, whole, strict=True)):
            step = self.progress.done + ahead
            assert share.step == step
            mine = self.plan.rows_of(step, share.step_rows)[self.rank]
            passes = self.plan.passes_of(step, mine) if mine else ()
            assert share.rows == mine
            assert share.passes == (passes if len(passes) > 1 else ())
            assert list(chain.from_iterable(batches)) == rows == list(share.numbers)
            assert tuple(map(len, batches)) == (passes if mine else (2,))
            assert len(share.later) == max(len(passes), 1) - 1
            assert share.fetched == len(batches[0])


plans = st.integers(1, 4).flatmap(
    lambda ranks: st.builds(
        Plan,
        st.lists(st.tuples(*[st.integers(0, 9)] * ranks).filter(any), min_size=1, max_size=4).map(
            tuple
        ),
        st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    )
)
steps = st.builds(
    EvenSteps,
    st.integers(0, 50).flatmap(
        lambda rows: st.sampled_from([ShuffledOrder(rows), SequentialOrder(rows)])
    ),
    st.integers(1, 20),
    st.booleans(),
)


def numbers(batch: Any) -> list[int]:
    found: list[int] = batch.tolist()
    return found


def of_rows(**options: Any) -> DataLoader[int]:
    return DataLoader(Rows(), 2, sampler=range(2), **options)


@given(plan=plans, steps=steps, done=st.integers(0, 9))
def test_passes_are_the_share_in_order_and_a_step_is_one_batch(
    plan: Plan, steps: EvenSteps, done: int
) -> None:
    by_rank = []
    for rank in plan.ranks:
        each = Rank(plan, rank, of_rows(), steps)
        each.progress.done = done
        found = list(each.iterate(numbers))
        each.check(found)
        assert len(each.loader) == len(found)
        by_rank.append([batches if share.rows else [] for share, batches in found])

    in_order = chain.from_iterable(chain.from_iterable(zip(*by_rank, strict=True)))
    used = len(steps) * steps.global_batch_size if steps.drop_last else steps.rows
    assert list(chain.from_iterable(in_order)) == list(steps.order.draw(SEED, 0))[:used]


@given(plan=plans, steps=steps, data=st.data())
def test_a_resume_goes_on_where_it_stopped(
    plan: Plan, steps: EvenSteps, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(steps)))
    for rank in plan.ranks:
        each = Rank(plan, rank, of_rows(), steps)
        whole = [batches for _, batches in each.iterate(numbers)]
        each.progress.position = each.progress.done = position
        rest = list(each.iterate(numbers))
        each.check(rest)
        assert [batches for _, batches in rest] == whole[position:]


@given(plan=plans, steps=steps, data=st.data())
def test_an_epoch_left_early_leaves_nothing_to_the_next(
    plan: Plan, steps: EvenSteps, data: st.DataObject
) -> None:
    each = Rank(plan, 0, of_rows(), steps)
    left = each.iterate(numbers)
    for _ in range(data.draw(st.integers(0, len(steps)))):
        next(left)
    left.close()
    each.check(list(each.iterate(numbers)))


@given(plan=plans, steps=steps, skip_ghosts=st.booleans())
def test_a_sampler_counts_lists_and_its_length_steps(
    plan: Plan, steps: EvenSteps, skip_ghosts: bool
) -> None:
    for rank in plan.ranks:
        each = Rank(plan, rank, of_rows(), steps)
        sampler = each.sampler(passes_of=plan.passes_of, skip_ghosts=skip_ghosts)
        whole = list(each.sampler(skip_ghosts=skip_ghosts))
        lists = list(sampler)

        assert sampler.iteration.lists == sampler.iteration.total == len(lists)
        assert [list(share.numbers) for share in sampler.iteration.shares] == whole
        assert list(chain.from_iterable(lists)) == list(chain.from_iterable(whole))
        assert len(sampler) == len(whole)


PLAN = Plan(((3, 5), (1, 1), (0, 1), (9, 1)), (2, 3, 1, 5))
STEPS = EvenSteps(ShuffledOrder(70), 12, drop_last=False)


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("rank", PLAN.ranks)
def test_workers_change_nothing(rank: int, options: dict[str, Any]) -> None:
    each = Rank(PLAN, rank, of_rows(**options), STEPS)
    left = each.iterate(numbers)
    for _ in range(2):
        next(left)
    left.close()
    for epoch in range(2):
        each.loader.batch_sampler.set_epoch(epoch)
        each.progress.done = epoch * len(STEPS)
        found = list(each.iterate(numbers))
        assert any(len(share.passes) > 2 for share, _ in found)
        expected = each.sampler()
        expected.set_epoch(epoch)
        assert [list(share.numbers) for share, _ in found] == list(expected)
        assert [tuple(map(len, batches)) for share, batches in found if share.rows] == [
            PLAN.passes_of(share.step, share.rows) for share, _ in found if share.rows
        ]
        assert [list(chain.from_iterable(batches)) for _, batches in found] == list(expected)


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_rows_can_be_read_again_in_other_passes_while_the_iteration_runs(
    options: dict[str, Any],
) -> None:
    each = Rank(PLAN, 1, of_rows(**options), STEPS)
    found = []
    for step in each.iterate(numbers):
        share, _ = step
        found.append(step)
        iteration, processes = each.loader.batch_sampler.iteration, workers()
        ahead = iteration.lists, list(iteration.shares), each.loader.batch_sampler.handed_out
        for passes in ((1,) * share.rows, (share.rows,), (1, share.rows - 1)):
            lists = cut(share.numbers, passes)
            again = each.loader.read_again(lists)
            assert [batch.tolist() for batch in again] == lists
        assert not each.shares
        assert each.loader.batch_sampler.iteration is iteration
        assert ahead == (
            iteration.lists,
            list(iteration.shares),
            each.loader.batch_sampler.handed_out,
        )
        assert workers() == processes
    each.check(found)


def workers() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


class Wrapping(DataLoader[int]):
    """Changes what is in its batches."""

    def __init__(self, key: str, **options: Any) -> None:
        self.key = key
        super().__init__(Rows(), 2, sampler=range(2), **options)

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {self.key: 10 * batch}

    def rows_in(self, batch: Any) -> list[int]:
        return [row // 10 for row in batch[self.key].tolist()]


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
def test_a_loader_of_the_users_class_wraps_every_pass(options: dict[str, Any]) -> None:
    user = Wrapping("x", **options)
    each = Rank(PLAN, 1, user, STEPS)
    found = []
    for share, batches in each.iterate(user.rows_in):
        found.append((share, batches))
        again = each.loader.read_again(cut(share.numbers, (1, share.rows - 1)))
        assert [user.rows_in(batch) for batch in again] == cut(share.numbers, (1, share.rows - 1))
    each.check(found)


class ByLists(Dataset[list[int]]):
    """Makes its batches itself."""

    def __getitem__(self, rows: Any) -> list[int]:
        assert isinstance(rows, list)
        return [10 * row for row in rows]


LISTS = [[4, 1, 7], [0], [2, 9, 3, 5], [6, 8], [11, 10, 12]]


class Lists:
    """Batches of the user's own, of other sizes each."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(LISTS)

    def __len__(self) -> int:
        return len(LISTS)


@pytest.mark.parametrize(
    ("user", "rows_in"),
    [
        (DataLoader(Rows(), batch_sampler=Lists()), numbers),
        (DataLoader(Rows(), batch_sampler=Lists(), num_workers=1), numbers),
        (
            DataLoader(ByLists(), batch_size=None, sampler=Lists()),
            lambda batch: [row // 10 for row in batch],
        ),
    ],
    ids=["batch_sampler", "batch_sampler and a worker", "lists beside batch_size=None"],
)
def test_batches_of_the_users_own_sampler_run_in_passes(
    user: DataLoader[Any], rows_in: Callable[[Any], list[int]]
) -> None:
    steps = source_of(user).steps(4, 2)
    assert isinstance(steps, BatchListSteps)
    plan = Plan(((1, 3), (1, 1), (0, 1)), (1, 2, 1))
    by_rank = []
    for rank in plan.ranks:
        each = Rank(plan, rank, user, steps)
        found = list(each.iterate(rows_in))
        each.check(found)
        assert len(each.loader) == len(found) == 3
        share = next(share for share, _ in found if share.passes)
        again = each.loader.read_again(cut(share.numbers, (share.rows - 1, 1)))
        assert [rows_in(batch) for batch in again] == cut(share.numbers, (share.rows - 1, 1))
        by_rank.append([rows for share, batches in found if share.rows for rows in batches])
    assert sorted(chain.from_iterable(chain.from_iterable(by_rank))) == list(range(13))


def test_rows_that_are_no_numbers_are_read_again_as_they_are() -> None:
    class Pairs(Dataset[Any]):
        def __getitem__(self, row: Any) -> tuple[int, str]:
            assert isinstance(row, tuple)
            return row

    pairs: Any = [(row, "abc"[row % 3]) for row in range(9)]
    user: DataLoader[Any] = DataLoader(Pairs(), 3, sampler=pairs, collate_fn=list)
    each = Rank(Plan(((1,),), (2, 3)), 0, user, EvenSteps(SampledOrder(pairs), 5, drop_last=False))
    found = list(each.iterate())
    assert [batches for _, batches in found] == [
        [pairs[:2], pairs[2:5]],
        [pairs[5:8], pairs[8:]],
    ]
    assert each.loader.read_again(cut(found[0][0].numbers, (4, 1))) == [pairs[:4], pairs[4:5]]


def test_the_wait_for_a_step_is_that_for_all_its_passes() -> None:
    now = [0.0]

    def slowly(rows: list[int]) -> list[int]:
        now[0] += len(rows)
        return rows

    shares: list[Share] = []
    each = Rank(Plan(((1,),), (2,)), 0, of_rows(), EvenSteps(SequentialOrder(8), 5, False))
    loader = boa_loader(
        of_rows(collate_fn=slowly),
        each.sampler(passes_of=each.plan.passes_of),
        deliver=shares.append,
        clock=lambda: now[0],
    )
    for _ in loader:
        now[0] += 100.0

    assert [share.wait for share in shares] == [5.0, 3.0]


class Stopping(DataLoader[int]):
    """Leaves out the last pass."""

    def __iter__(self) -> Any:
        batches = list(super().__iter__())
        return iter(batches[:-1])


class Joining(DataLoader[int]):
    """Puts the passes of a step together again."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        return (first for first, _ in zip(batches, batches, strict=False))


class Doubling(DataLoader[int]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch
            yield batch


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Stopping, "got 3 batches for 4 lists"),
        (Joining, "got 2 batches for 4 lists"),
        (Doubling, "got 2 batches for 1 lists"),
    ],
)
def test_an_iter_that_does_not_give_a_batch_a_pass_is_refused(kind: Any, message: str) -> None:
    plan = Plan(((1,),), (3,))
    each = Rank(plan, 0, kind(Rows(), 2, sampler=range(2)), EvenSteps(SequentialOrder(10), 5, True))
    with pytest.raises(LoaderError, match=message):
        list(each.iterate(numbers))


def test_passes_that_do_not_add_up_are_caught() -> None:
    each = Rank(Plan(((1,),), (3,)), 0, of_rows(), EvenSteps(SequentialOrder(10), 5, True))
    with pytest.raises(AssertionError, match=r"\(2, 2\) of 5 rows"):
        next(iter(each.sampler(passes_of=lambda step, rows: (2, 2))))


@given(rows=st.lists(st.integers(), max_size=20), data=st.data())
def test_a_cut_is_all_rows_in_order(rows: list[int], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted))
    passes = tuple(high - low for low, high in pairwise([0, *ends, len(rows)]))

    parts = cut(rows, passes)

    assert [len(part) for part in parts] == list(passes)
    assert list(chain.from_iterable(parts)) == rows
    assert cut(rows, ()) == [rows]
