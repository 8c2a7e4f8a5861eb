from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_boa.data import (
    GlobalOrder,
    RowSource,
    SampledOrder,
    SequentialOrder,
    ShuffledOrder,
    digest,
    source_of,
)
from lightning_boa.errors import LoaderError

ROWS = 40
EPOCHS = st.integers(0, 50)
SEEDS = st.integers(0, 2**32 - 1)


class DrawingSampler(Sampler[int]):
    """Yields `ROWS` rows, each from one call of `draw`."""

    def __init__(self, draw: Callable[[], int], **generators: Any) -> None:
        self.draw = draw
        self.__dict__.update(generators)

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        return (self.draw() for _ in range(ROWS))


class WrappingSampler(Sampler[int]):
    def __init__(self, inner: Sampler[int]) -> None:
        self.inner = inner
        self.itself = self

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


def torch_generator_sampler(seed: int) -> Sampler[int]:
    generator = torch.Generator().manual_seed(seed)
    return RandomSampler(range(ROWS), replacement=True, generator=generator)


def numpy_generator_sampler(seed: int) -> Sampler[int]:
    rng = np.random.default_rng(seed)
    return DrawingSampler(lambda: int(rng.integers(ROWS)), rng=rng)


def philox_generator_sampler(seed: int) -> Sampler[int]:
    rng = np.random.Generator(np.random.Philox(seed))
    return DrawingSampler(lambda: int(rng.integers(ROWS)), rng=rng)


def numpy_random_state_sampler(seed: int) -> Sampler[int]:
    rng = np.random.RandomState(seed)
    rng.standard_normal()
    return DrawingSampler(lambda: round(1000 * rng.standard_normal()), rng=rng)


def python_generator_sampler(seed: int) -> Sampler[int]:
    rng = random.Random(seed)
    return DrawingSampler(lambda: rng.randrange(ROWS), rng=rng)


SAMPLERS: dict[str, Callable[[int], Sampler[int]]] = {
    "torch": lambda _: DrawingSampler(lambda: int(torch.randint(ROWS, ()))),
    "numpy": lambda _: DrawingSampler(lambda: int(np.random.randint(ROWS))),
    "numpy-gauss": lambda _: DrawingSampler(lambda: round(1000 * np.random.standard_normal())),
    "python": lambda _: DrawingSampler(lambda: random.randrange(ROWS)),
    "python-gauss": lambda _: DrawingSampler(lambda: round(1000 * random.gauss(0, 1))),
    "weighted": lambda _: WeightedRandomSampler([1.0 + i for i in range(ROWS)], ROWS),
    "subset": lambda _: SubsetRandomSampler(range(100, 100 + ROWS)),
    "replacement": lambda _: RandomSampler(range(ROWS), replacement=True),
    "own torch generator": torch_generator_sampler,
    "own numpy generator": numpy_generator_sampler,
    "own philox generator": philox_generator_sampler,
    "own numpy random state": numpy_random_state_sampler,
    "own python generator": python_generator_sampler,
    "generator of a sampler inside": lambda seed: WrappingSampler(torch_generator_sampler(seed)),
}


def disturb_global_generators(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    np.random.standard_normal()
    random.seed(seed)
    random.gauss(0, 1)


def global_draws() -> tuple[Any, ...]:
    return torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1)


@given(rows=st.integers(0, 200))
def test_sequential_order_is_the_stored_order(rows: int) -> None:
    order = SequentialOrder(rows)

    assert len(order) == rows
    assert order.draw(1, 0) == order.draw(2, 9) == range(rows)


@given(rows=st.integers(1, 300), seed=SEEDS, epoch=EPOCHS)
def test_shuffled_order_is_the_permutation_of_distributed_sampler(
    rows: int, seed: int, epoch: int
) -> None:
    reference = DistributedSampler(range(rows), num_replicas=1, rank=0, seed=seed)  # type: ignore[var-annotated, arg-type]
    reference.set_epoch(epoch)

    drawn = ShuffledOrder(rows).draw(seed, epoch)

    assert drawn.dtype == np.int32
    assert drawn.tolist() == list(reference)


def test_long_permutation_in_four_bytes_equals_the_one_in_eight() -> None:
    rows = 1_000_003
    drawn = ShuffledOrder(rows).draw(3, 4)

    generator = torch.Generator().manual_seed(7)
    assert np.array_equal(drawn, torch.randperm(rows, generator=generator).numpy())
    assert drawn.nbytes == 4 * rows


def test_shuffled_order_differs_between_epochs_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = (ShuffledOrder(ROWS).draw(0, epoch).tolist() for epoch in (0, 1))

    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_sampled_order_is_the_same_on_ranks_whose_generators_differ(
    make: Callable[[int], Sampler[int]],
) -> None:
    drawn = []
    for rank in range(3):
        disturb_global_generators(rank)
        order = SampledOrder(make(rank))
        drawn.append([list(order.draw(5, epoch)) for epoch in (0, 1, 0)])

    assert drawn[0] == drawn[1] == drawn[2]
    first, second, first_again = drawn[0]
    assert first == first_again
    assert first != second


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_sampled_order_puts_every_generator_back(make: Callable[[int], Sampler[int]]) -> None:
    disturb_global_generators(1)
    undisturbed = global_draws(), list(make(1)), global_draws()

    sampler = make(1)
    disturb_global_generators(1)
    SampledOrder(sampler).draw(5, 0)
    assert (global_draws(), list(sampler), global_draws()) == undisturbed


def test_generators_are_put_back_when_the_sampler_fails() -> None:
    def fail() -> int:
        torch.rand(1)
        raise RuntimeError("no more rows")

    disturb_global_generators(1)
    expected = global_draws()
    disturb_global_generators(1)
    with pytest.raises(RuntimeError, match="no more rows"):
        SampledOrder(DrawingSampler(fail)).draw(0, 0)
    assert global_draws() == expected


def test_a_system_generator_is_left_to_itself() -> None:
    sampler = DrawingSampler(lambda: 0, rng=random.SystemRandom())

    assert list(SampledOrder(sampler).draw(0, 0)) == [0] * ROWS


def test_set_epoch_reaches_the_custom_sampler() -> None:
    class EpochSampler(DrawingSampler):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    sampler = EpochSampler(lambda: sampler.epoch)

    assert list(SampledOrder(sampler).draw(0, 7)) == [7] * ROWS


def test_set_epoch_reaches_the_sampler_inside_a_custom_sampler() -> None:
    class EpochSampler(DrawingSampler):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    inside = EpochSampler(lambda: 0)
    outside = DrawingSampler(lambda: inside.epoch, sampler=inside)

    assert list(SampledOrder(outside).draw(0, 7)) == [7] * ROWS


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1), (2, 3)],
        ["a", "b"],
        [True, False],
        [np.int64(3), np.int64(1)],
        [2**70, 1],
        [*range(70_000), "last"],
        [torch.tensor(1), torch.tensor(0)],
    ],
    ids=["tuples", "strings", "bools", "numpy", "huge", "mixed", "tensors"],
)
def test_rows_that_are_no_plain_ints_stay_the_objects_they_are(rows: list[Any]) -> None:
    drawn = SampledOrder(rows).draw(0, 0)

    assert isinstance(drawn, list)
    assert drawn == rows
    assert [type(row) for row in drawn] == [type(row) for row in rows]


@pytest.mark.parametrize("rows", [0, 1, 65_536, 65_537, 140_000])
def test_plain_ints_are_kept_as_an_array(rows: int) -> None:
    drawn = SampledOrder(list(range(rows))).draw(0, 0)

    assert isinstance(drawn, np.ndarray)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == list(range(rows))


class MisjudgedSampler(Sampler[int]):
    def __init__(self, claimed: int, yielded: Callable[[], Iterator[int]]) -> None:
        self.claimed = claimed
        self.yielded = yielded

    def __len__(self) -> int:
        return self.claimed

    def __iter__(self) -> Iterator[int]:
        return self.yielded()


def endless() -> Iterator[int]:
    while True:
        yield 0


@pytest.mark.parametrize(
    ("yielded", "got"),
    [
        (lambda: iter(range(9)), "got 9"),
        (lambda: iter(range(11)), "got more"),
        (endless, "got more"),
    ],
    ids=["short", "long", "endless"],
)
def test_a_sampler_with_a_wrong_length_is_refused(
    yielded: Callable[[], Iterator[int]], got: str
) -> None:
    with pytest.raises(LoaderError, match=f"expected 10 rows in epoch 2.*MisjudgedSampler.*{got}"):
        SampledOrder(MisjudgedSampler(10, yielded)).draw(0, 2)


def test_a_sampler_without_a_length_is_refused() -> None:
    with pytest.raises(LoaderError, match="expected a sampler with __len__, got generator"):
        SampledOrder(i for i in range(3))


DATA: Any = list(range(ROWS))


class SubclassedSequentialSampler(SequentialSampler):
    pass


def order_in(loader: DataLoader[Any]) -> GlobalOrder:
    source = source_of(loader)
    assert isinstance(source, RowSource)
    return source.order


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(DATA, 4), SequentialOrder(ROWS)),
        (DataLoader(DATA, 4, shuffle=True), ShuffledOrder(ROWS)),
        (DataLoader(DATA, 4, shuffle=True, generator=torch.Generator()), ShuffledOrder(ROWS)),
        (DataLoader(DATA, 4, sampler=SequentialSampler(range(7))), SequentialOrder(7)),
        (DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=ROWS)), ShuffledOrder(ROWS)),
        (DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 3, 1)), ShuffledOrder(ROWS)),
        (
            DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 3, 1, shuffle=False)),
            SequentialOrder(ROWS),
        ),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, True)),
            ShuffledOrder(ROWS),
        ),
    ],
)
def test_order_of_loader(loader: DataLoader[Any], expected: GlobalOrder) -> None:
    assert order_in(loader) == expected
    assert isinstance(order_in(loader), GlobalOrder)


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(DATA, replacement=True),
        RandomSampler(DATA, num_samples=ROWS - 1),
        RandomSampler(DATA, num_samples=ROWS + 1),
        WeightedRandomSampler([1.0] * ROWS, 10),
        SubclassedSequentialSampler(DATA),
        [3, 1, 2],
    ],
)
def test_order_of_other_samplers_is_drawn(sampler: Any) -> None:
    order = order_in(DataLoader(DATA, 4, sampler=sampler))

    assert isinstance(order, SampledOrder)
    assert len(order) == len(order.draw(0, 0)) == len(sampler)


def test_order_of_loader_draws_nothing() -> None:
    def fail() -> int:
        raise AssertionError("drawn")

    assert len(order_in(DataLoader(DATA, 4, sampler=DrawingSampler(fail)))) == ROWS


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class TimmSampler(DrawingSampler):
    num_replicas = 2
    rank = 0


class SubclassedDistributedSampler(DistributedSampler[int]):
    pass


def loader_out_of_order() -> DataLoader[Any]:
    loader: DataLoader[Any] = DataLoader(DATA, 4)
    loader.in_order = False  # type: ignore[attr-defined, unused-ignore]
    return loader


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: [1, 2], "expected a torch.utils.data.DataLoader .* got list"),
    "a stream": (lambda: DataLoader(Stream(), 2), "a stream has no positions"),
    "out of order": (loader_out_of_order, "got in_order=False"),
    "a sampler per rank": (
        lambda: DataLoader(DATA, 4, sampler=TimmSampler(lambda: 0)),
        "the same rows on every rank, got .*TimmSampler",
    ),
    "a distributed sampler of the user": (
        lambda: DataLoader(DATA, 4, sampler=SubclassedDistributedSampler(DATA, 2, 0)),
        "the same rows on every rank, got .*SubclassedDistributedSampler",
    ),
    "a sampler without a length": (
        lambda: DataLoader(DATA, 4, sampler=(i for i in range(3))),
        "expected a sampler with __len__",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_loaders_that_cannot_be_split_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(LoaderError, match=message) as caught:
        source_of(make())
    assert str(caught.value).endswith(".")


def test_batch_size_and_drop_last_come_from_the_batch_sampler() -> None:
    plain = source_of(DataLoader(DATA, 4, drop_last=True))
    wrapped = source_of(DataLoader(DATA, batch_sampler=BatchSampler(range(9), 3, True)))
    whole = source_of(DataLoader(DATA, 4))

    assert isinstance(plain, RowSource)
    assert isinstance(wrapped, RowSource)
    assert isinstance(whole, RowSource)
    assert (plain.batch_size, plain.drop_last) == (4, True)
    assert (wrapped.batch_size, wrapped.drop_last) == (3, True)
    assert whole.drop_last is False


@given(rows=st.lists(st.integers(-(2**40), 2**40)), at=st.integers(0))
def test_digest_tells_orders_apart_by_value(rows: list[int], at: int) -> None:
    array = np.array(rows, dtype=np.int64)
    changed = array.copy()
    if rows:
        changed[at % len(rows)] += 1

    assert 0 <= digest(array) < 2**63
    assert digest(array) == digest(array.copy())
    assert (digest(changed) == digest(array)) == (not rows)


def test_digest_is_the_same_in_every_process_and_for_every_kind_of_integers() -> None:
    rows = 100_000
    assert (
        digest(range(rows))
        == digest(np.arange(rows, dtype=np.int32))
        == digest(np.arange(rows, dtype=np.int64))
        == 5812974573930821334
    )
    assert digest(["a", (1, 2)]) != digest(["a", (1, 3)])
    assert digest([*"ab"]) == digest([*"ab"])
