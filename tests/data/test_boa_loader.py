from __future__ import annotations

import copy
import os
import pickle
from abc import ABCMeta
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lightning_boa.data import (
    EvenSteps,
    RowSource,
    SequentialOrder,
    ShareBatchSampler,
    ShuffledOrder,
    boa_loader,
    original_loader,
    source_of,
)
from lightning_boa.errors import LoaderError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

Split = tuple[int, ...]


class Rows(Dataset[int]):
    """Row i is the number i."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        return index


class Recorder:
    """A one-rank epoch of `rows` rows in steps of `batch`, that tells what its sampler has asked."""

    def __init__(self, rows: int, batch: int, split: Split | None = None, rank: int = 0) -> None:
        self.asked: list[int] = []
        self.done = 0
        self.split = split or (batch,)
        self.sampler = ShareBatchSampler(
            EvenSteps(SequentialOrder(rows), batch, drop_last=False),
            rank=rank,
            seed=0,
            rows_of=self.rows_of,
            first_step=lambda: (0, self.done),
        )

    def rows_of(self, step: int, rows: int) -> Split:
        self.asked.append(step)
        if rows == sum(self.split):
            return self.split
        return (rows, *[0] * (len(self.split) - 1))


def contents(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_a_twin_has_the_rows_of_the_sampler_and_everything_else_of_the_loader() -> None:
    generator = torch.Generator()
    loader = DataLoader(
        Rows(20), batch_size=4, shuffle=True, generator=generator, collate_fn=sum, drop_last=True
    )
    before = dict(loader.__dict__)
    recorder = Recorder(20, 6)

    twin = boa_loader(loader, recorder.sampler)

    assert list(twin) == [15, 51, 87, 37]
    assert len(twin) == 4
    assert isinstance(twin, DataLoader)
    assert twin.batch_sampler is recorder.sampler
    assert twin.dataset is loader.dataset
    assert twin.sampler is loader.sampler
    assert twin.generator is generator
    assert twin.collate_fn is sum
    assert loader.__dict__ == before
    assert len(loader) == 5


def test_a_twin_is_of_the_same_class_to_all_appearances() -> None:
    twin = boa_loader(DataLoader(Rows(4)), Recorder(4, 2).sampler)

    assert type(twin) is not DataLoader
    assert type(twin).__name__ == "DataLoader"
    assert type(twin).__qualname__ == "DataLoader"
    assert type(twin).__module__ == DataLoader.__module__
    assert type(twin).__doc__ == DataLoader.__doc__
    assert type(twin) is type(boa_loader(DataLoader(Rows(4)), Recorder(4, 2).sampler))


def test_nothing_happens_before_the_first_next() -> None:
    recorder = Recorder(12, 4)
    twin = boa_loader(DataLoader(Rows(12), 2, shuffle=True), recorder.sampler)
    state = torch.get_rng_state()

    batches = iter(twin)
    assert recorder.asked == []
    assert torch.equal(torch.get_rng_state(), state)
    recorder.done = 30

    assert next(batches).tolist() == [0, 1, 2, 3]
    assert recorder.asked == [30]


def test_iterators_that_are_never_asked_start_no_workers() -> None:
    loader: DataLoader[int] = DataLoader(Rows(12), 2, num_workers=1, persistent_workers=True)
    twin = boa_loader(loader, Recorder(12, 4).sampler)

    iter(twin)
    iter(twin)

    assert twin._iterator is None


@pytest.mark.parametrize("persistent", [False, True])
def test_handed_out_is_right_while_workers_read_ahead(persistent: bool) -> None:
    loader: DataLoader[int] = DataLoader(
        Rows(40), 4, num_workers=2, prefetch_factor=2, persistent_workers=persistent
    )
    recorder = Recorder(40, 4)
    twin = boa_loader(loader, recorder.sampler)

    for epoch in range(3):
        recorder.done = 10 * epoch
        ahead = []
        for index, batch in enumerate(twin):
            assert batch.tolist() == list(range(4 * index, 4 * index + 4))
            handed_out = recorder.sampler.handed_out
            assert handed_out == recorder.asked[-1]
            ahead.append(handed_out - (10 * epoch + index))
        assert ahead[-1] == 0
        assert max(ahead) == ahead[0] in (3, 4)
        assert recorder.asked == list(range(10 * (epoch + 1)))


def test_a_plan_agreed_beyond_every_read_ahead_loses_no_row() -> None:
    """Three ranks read 0, 2 and 4 batches ahead; the split changes after the second step."""
    rows, batch = 60, 6
    entries = [(0, (2, 2, 2))]

    def rows_of(step: int, step_rows: int) -> Split:
        return next(split for first, split in reversed(entries) if first <= step)

    twins = []
    for rank, workers in enumerate([0, 1, 2]):
        sampler = ShareBatchSampler(
            EvenSteps(ShuffledOrder(rows), batch, drop_last=False),
            rank=rank,
            seed=1,
            rows_of=rows_of,
            first_step=lambda: (0, 0),
        )
        twins.append(boa_loader(DataLoader(Rows(rows), 2, num_workers=workers), sampler))

    steps = []
    for step, shares in enumerate(zip(*twins, strict=True)):
        if step == 1:
            first_free = max(twin.batch_sampler.handed_out for twin in twins) + 1
            entries.append((first_free, (4, 1, 1)))
        steps.append([share.tolist() for share in shares])

    sizes = [tuple(map(len, shares)) for shares in steps]
    assert sizes == [(2, 2, 2)] * first_free + [(4, 1, 1)] * (10 - first_free)
    assert 2 < first_free < 8
    order = ShuffledOrder(rows).draw(1, 0).tolist()
    assert list(chain.from_iterable(chain.from_iterable(steps))) == order


class WorkerRows(Rows):
    def __getitem__(self, index: int) -> tuple[int, int, int]:  # type: ignore[override]
        info = get_worker_info()
        assert info is not None
        return index, os.getpid(), int(info.seed)


def test_persistent_workers_stay_the_same_over_epochs_and_leave_the_original_alone() -> None:
    loader: Any = DataLoader(
        WorkerRows(8), 2, num_workers=1, persistent_workers=True, pin_memory=False
    )
    original_pids = {int(pid) for _, pids, _ in loader for pid in pids}
    recorder = Recorder(8, 4)
    twin = boa_loader(loader, recorder.sampler)

    pids, epochs = set(), []
    for epoch in range(3):
        recorder.done = 2 * epoch
        batches = list(twin)
        epochs.append([rows.tolist() for rows, _, _ in batches])
        pids |= {int(pid) for _, worker, _ in batches for pid in worker}

    assert epochs == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3
    assert len(pids) == 1
    assert pids.isdisjoint(original_pids)
    assert twin._iterator is not None
    assert twin._iterator is not loader._iterator


def test_an_epoch_left_in_the_middle_starts_afresh_with_persistent_workers() -> None:
    loader: DataLoader[int] = DataLoader(Rows(20), 2, num_workers=1, persistent_workers=True)
    recorder = Recorder(20, 2)
    twin = boa_loader(loader, recorder.sampler)
    left = iter(twin)
    next(left)
    next(left)

    recorder.done = 2
    assert [row for batch in contents(twin) for row in batch] == list(range(20))
    assert recorder.sampler.handed_out == 11


def test_workers_keep_the_users_seeding() -> None:
    def seeds(loader: Any) -> set[int]:
        torch.manual_seed(7)
        return {int(seed) for _, _, worker in loader for seed in worker}

    loader: Any = DataLoader(WorkerRows(8), 2, num_workers=1)

    assert seeds(boa_loader(loader, Recorder(8, 4).sampler)) == seeds(loader)


def add_100(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.base = 100  # type: ignore[attr-defined]


class BasedRows(Rows):
    base = 0

    def __getitem__(self, index: int) -> int:
        return self.base + index


@pytest.mark.parametrize("loader_class", [DataLoader], ids=["spawn"])
def test_workers_may_be_spawned(loader_class: Any) -> None:
    loader = loader_class(
        BasedRows(4), 2, num_workers=1, multiprocessing_context="spawn", worker_init_fn=add_100
    )

    assert contents(boa_loader(loader, Recorder(4, 3).sampler)) == [[100, 101, 102], [103]]


class BatchedRows(Rows):
    """Fetches a batch at a time, as data sets of arrays do."""

    asked: list[list[int]] | None = None

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked = [*(self.asked or []), indices]
        return [-index for index in indices]


def test_getitems_of_the_data_set_gets_the_whole_share() -> None:
    data = BatchedRows(7)
    twin = boa_loader(DataLoader(data, 2), Recorder(7, 5).sampler)

    assert contents(twin) == [[0, -1, -2, -3, -4], [-5, -6]]
    assert data.asked == [[0, 1, 2, 3, 4], [5, 6]]


class ConstructedOnce(DataLoader[int]):
    """Needs an argument that is no DataLoader's, and counts its constructions."""

    constructed = 0

    def __init__(self, path: str, *, length: int) -> None:
        type(self).constructed += 1
        self.path = path
        self.extra = [path]
        super().__init__(Rows(length), batch_size=2)


class Wrapping(ConstructedOnce):
    """Yields dictionaries and claims a length of its own."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {self.path: batch}

    def __len__(self) -> int:
        return 1_000


class Slotted(DataLoader[int]):
    __slots__ = ("__scale", "unset")

    def __init__(self, scale: int) -> None:
        super().__init__(Rows(6), batch_size=2)
        self.__scale = scale

    def __iter__(self) -> Any:
        return (self.__scale * batch for batch in super().__iter__())


class Meta(ABCMeta):
    def __new__(mcs, name: str, bases: Any, namespace: Any, **options: Any) -> Any:
        return super().__new__(mcs, name, bases, namespace, **options)


class Registered(DataLoader[int], metaclass=Meta):
    registry: list[str] = []  # noqa: RUF012

    def __init_subclass__(cls, *, key: str) -> None:
        Registered.registry.append(key)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Named(Registered, key="named"):
    pass


def test_the_constructor_is_never_called() -> None:
    loader = ConstructedOnce("here", length=5)
    before = ConstructedOnce.constructed

    twin = boa_loader(loader, Recorder(5, 3).sampler)

    assert contents(twin) == [[0, 1, 2], [3, 4]]
    assert ConstructedOnce.constructed == before
    assert isinstance(twin, ConstructedOnce)
    assert twin.path == "here"
    assert twin.extra is loader.extra


def test_an_overridden_iter_runs_and_an_overridden_len_gives_way() -> None:
    twin = boa_loader(Wrapping("x", length=5), Recorder(5, 3).sampler)

    assert [batch["x"].tolist() for batch in twin] == [[0, 1, 2], [3, 4]]
    assert len(twin) == 2


def test_slots_are_copied() -> None:
    twin = boa_loader(Slotted(10), Recorder(6, 4).sampler)

    assert contents(twin) == [[0, 10, 20, 30], [40, 50]]
    assert not hasattr(twin, "unset")


def test_metaclasses_and_registries_do_not_mind() -> None:
    twin = boa_loader(Named(Rows(4), 2), Recorder(4, 3).sampler)

    assert contents(twin) == [[0, 1, 2], [3]]
    assert isinstance(twin, Named)
    assert Registered.registry == ["named"]


def test_a_loader_made_for_every_new_argument_keeps_its_own_type() -> None:
    class Local(DataLoader[int]):
        pass

    twin = boa_loader(Local(Rows(3), 2), Recorder(3, 2).sampler)

    assert isinstance(twin, Local)
    assert contents(twin) == [[0, 1], [2]]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_twin_can_be_copied_and_pickled(copied: Callable[[Any], Any]) -> None:
    sampler = ShareBatchSampler(
        EvenSteps(ShuffledOrder(6), 4, drop_last=False),
        rank=1,
        seed=0,
        rows_of=halves,
        first_step=beginning,
    )
    twin = boa_loader(Wrapping("x", length=6), sampler)
    twin.worker_init_fn = add_100
    twin.extra.append("later")

    other = copied(twin)

    assert isinstance(other, Wrapping)
    assert type(other) is type(twin)
    assert other.worker_init_fn is add_100
    assert other.extra == ["x", "later"]
    assert [b["x"].tolist() for b in other] == [b["x"].tolist() for b in twin]


def test_copies_do_not_share_persistent_workers() -> None:
    loader: DataLoader[int] = DataLoader(Rows(4), 2, num_workers=1, persistent_workers=True)
    twin = boa_loader(loader, Recorder(4, 2).sampler)
    list(twin)

    assert copy.copy(twin)._iterator is None


def halves(_: int, rows: int) -> Split:
    return rows // 2, rows - rows // 2


def beginning() -> tuple[int, int]:
    return 0, 0


def test_a_twin_of_a_twin_is_one_of_the_users_loader() -> None:
    loader = Wrapping("x", length=5)
    twin = boa_loader(boa_loader(loader, Recorder(5, 3).sampler), Recorder(5, 4).sampler)

    assert [batch["x"].tolist() for batch in twin] == [[0, 1, 2, 3], [4]]
    assert original_loader(twin) is loader
    assert original_loader(loader) is loader
    source = source_of(twin)
    assert isinstance(source, RowSource)
    assert source.order == SequentialOrder(5)


def test_last_wait_is_the_time_inside_next() -> None:
    now = [0.0]

    def slow_batch(rows: list[int]) -> int:
        now[0] += 2.0 + len(rows)
        return len(rows)

    loader: DataLoader[int] = DataLoader(Rows(7), 2, collate_fn=slow_batch)
    twin: Any = boa_loader(loader, Recorder(7, 3).sampler, clock=lambda: now[0])
    assert twin.last_wait == 0.0

    waits = []
    for _ in twin:
        now[0] += 100.0
        waits.append(twin.last_wait)

    assert waits == [5.0, 5.0, 3.0]


def test_the_state_is_empty_whatever_the_users_class_keeps() -> None:
    class Stateful(DataLoader[int]):
        def state_dict(self) -> dict[str, int]:
            return {"position": 3}

        def load_state_dict(self, state_dict: dict[str, int]) -> None:
            raise AssertionError("a position from elsewhere")

    twin: Any = boa_loader(Stateful(Rows(4), 2), Recorder(4, 2).sampler)

    assert twin.state_dict() == {}
    twin.load_state_dict({"position": 3})
    assert contents(twin) == [[0, 1], [2, 3]]


class Cached(DataLoader[int]):
    """Iterates over what it made in its constructor, not over its batch sampler."""

    def __init__(self) -> None:
        super().__init__(Rows(6), batch_size=2)
        self.batches = list(super().__iter__())

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.batches)


class Splitting(DataLoader[int]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch[:1]
            yield batch[1:]


class Merging(DataLoader[int]):
    def __iter__(self) -> Any:
        batches = super().__iter__()
        return (torch.cat(pair) for pair in zip(batches, batches, strict=False))


class Stopping(DataLoader[int]):
    def __iter__(self) -> Any:
        return iter([next(iter(super().__iter__()))])


class Empty(DataLoader[int]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (Cached(), "Cached.__iter__ .* got 1 batches for 0 lists"),
        (Splitting(Rows(6), 2), "Splitting.__iter__ .* got 2 batches for 1 lists"),
        (Merging(Rows(6), 2), "Merging.__iter__ .* got 1 batches for 2 lists"),
        (Stopping(Rows(6), 2), "Stopping.__iter__ .* got 1 batches for 2 lists"),
        (Empty(Rows(6), 2), "Empty.__iter__ .* got 0 batches for 2 lists"),
    ],
)
def test_an_iter_that_does_not_give_a_batch_a_list_is_refused(
    loader: DataLoader[int], message: str
) -> None:
    twin = boa_loader(loader, Recorder(6, 3).sampler)

    with pytest.raises(LoaderError, match=message):
        list(twin)


class Remembering(DataLoader[int]):
    """Replays its first epoch in the later ones."""

    def __iter__(self) -> Any:
        self.kept = getattr(self, "kept", None) or list(super().__iter__())
        return iter(self.kept)


def test_an_iter_that_replays_an_epoch_is_refused_in_the_second() -> None:
    twin = boa_loader(Remembering(Rows(6), 2), Recorder(6, 3).sampler)

    assert contents(twin) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(LoaderError, match="got 1 batches for 0 lists"):
        next(iter(twin))


def test_an_empty_epoch_is_no_error() -> None:
    assert contents(boa_loader(Empty(Rows(1), 2), Recorder(0, 3).sampler)) == []
    assert contents(boa_loader(DataLoader(Rows(1), 2), Recorder(0, 3).sampler)) == []


def test_two_iterations_at_once_do_not_disturb_each_other() -> None:
    twin = boa_loader(DataLoader(Rows(6), 2), Recorder(6, 2).sampler)

    first, second = iter(twin), iter(twin)
    begun = [next(first), next(second), next(first)]

    assert [batch.tolist() for batch in begun] == [[0, 1], [0, 1], [2, 3]]
    assert [batch.tolist() for batch in first] == [[4, 5]]
    assert [batch.tolist() for batch in second] == [[2, 3], [4, 5]]


def test_a_failing_data_set_fails_the_loader() -> None:
    class Failing(Rows):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise KeyError("row 3")
            return index

    with pytest.raises(KeyError, match="row 3"):
        list(boa_loader(DataLoader(Failing(6), 2), Recorder(6, 2).sampler))


def test_what_is_no_loader_is_refused() -> None:
    loader: Any = [1, 2]
    with pytest.raises(LoaderError, match=r"expected a torch\.utils\.data\.DataLoader, got list"):
        boa_loader(loader, Recorder(3, 1).sampler)


class ByLists(Dataset[list[int]]):
    """Makes its batches itself."""

    def __getitem__(self, rows: Any) -> list[int]:
        return [10 * row for row in rows]


def test_a_data_set_that_makes_its_batches_gets_the_lists_of_the_sampler() -> None:
    loader: DataLoader[list[int]] = DataLoader(ByLists(), batch_size=None, sampler=[[0, 1], [2]])
    twin = boa_loader(loader, Recorder(3, 2).sampler)

    assert list(twin) == [[0, 10], [20]]
    assert len(twin) == 2
