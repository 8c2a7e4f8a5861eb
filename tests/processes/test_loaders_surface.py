"""Whatever loader a user has: batch samplers, batches made by the data set, several loaders, streams, own splits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    Subset,
    default_collate,
)
from torchmetrics import MeanMetric

from lightning_boa import BoaStrategy, gather_rows
from tests.processes.ranks import outcomes_of_ranks, run_ranks
from tests.processes.training import (
    NumberedRows,
    Regression,
    Training,
    logged_values,
    quiet,
    relative_error,
    trainer_options,
)

pytestmark = pytest.mark.full

RANKS = 2
DATA = 200
Steps = list[list[int]]


def trainer_with(strategy: BoaStrategy | None, **options: Any) -> pl.Trainer:
    quiet()
    pl.seed_everything(3)
    chosen = {**trainer_options(Training(epochs=2)), **options}
    if strategy is None:
        return pl.Trainer(devices=1, **{"use_distributed_sampler": True, **chosen})
    return pl.Trainer(strategy=strategy, devices=RANKS, **chosen)


def trained(strategy: BoaStrategy, loader: Any, module: Any = None, **options: Any) -> Any:
    """Rows of each step on this rank, and the weights."""
    module = module or Regression(schedules=False)
    trainer = trainer_with(strategy, **options)
    trainer.fit(module, loader)
    return module.seen, [p.detach().clone() for p in module.parameters()], trainer.global_step


def alone(steps_of_epochs: Sequence[Steps], module: Any = None) -> list[Tensor]:
    """The weights of a single device that trains on these global batches."""
    module = module or Regression(schedules=False)
    trainer_with(None, max_epochs=1).fit(
        module,
        DataLoader(NumberedRows(DATA), batch_sampler=list(chain(*steps_of_epochs))),
    )
    return [p.detach().clone() for p in module.parameters()]


class NeedsMore(BatchSampler):
    """A batch sampler that cannot be made again from its attributes."""

    def __init__(self, rows: Sequence[int], batch_size: int, required: str) -> None:
        super().__init__(SequentialSampler(rows), batch_size, drop_last=False)
        assert required == "needed"


def subclass_with_another_argument(rank: int) -> Any:
    loader = DataLoader(NumberedRows(DATA), batch_sampler=NeedsMore(range(37), 4, "needed"))
    return trained(BoaStrategy(batch_sizes=[5, 3]), loader)


LENGTHS = [[0, 1, 2, 3, 4, 5], [6], [7, 8], [9, 10, 11], [12, 13, 14, 15, 16], [17, 18], [19]]


def batches_of_varying_size(rank: int) -> Any:
    return trained(
        BoaStrategy(batch_sizes=[3, 1]), DataLoader(NumberedRows(DATA), batch_sampler=LENGTHS)
    )


class Lying:
    """A batch sampler that says more than it has."""

    batch_size = 4

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[4 * batch + row for row in range(4)] for batch in range(6)])


def a_length_that_lies(rank: int) -> Any:
    return trained(BoaStrategy(), DataLoader(NumberedRows(DATA), batch_sampler=Lying()))


class ByLists(Dataset[Any]):
    """Makes its batches itself."""

    def __init__(self) -> None:
        self.rows = NumberedRows(DATA)

    def __len__(self) -> int:
        return 30

    def __getitem__(self, rows: list[int]) -> Any:
        return default_collate([self.rows[row] for row in rows])


def batches_made_by_the_data_set(rank: int) -> Any:
    lists = BatchSampler(SequentialSampler(range(30)), 5, drop_last=False)
    loader = DataLoader(ByLists(), batch_size=None, sampler=lists)
    return trained(BoaStrategy(batch_sizes=[2, 8]), loader)


class Unsized:
    """Batches of a shuffled epoch, without a length."""

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.randperm(32).tolist()
        return (rows[first : first + 4] for first in range(0, 32, 4))


def batches_without_a_length(rank: int) -> Any:
    torch.manual_seed(rank)
    return trained(
        BoaStrategy(batch_sizes=[3, 1]), DataLoader(NumberedRows(DATA), batch_sampler=Unsized())
    )


class BothLoaders(Regression):
    """The sum of the means over two loaders, or the mean over all rows."""

    def __init__(self, over_all: bool = False) -> None:
        super().__init__(schedules=False)
        self.over_all = over_all
        self.others: Steps = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(batch["a"][2].tolist())
        self.others.append(batch["b"][2].tolist())
        one, other = self.errors(batch["a"]), self.errors(batch["b"])
        if self.over_all:
            return torch.cat([one, other]).mean()
        return one.mean() + other.mean()


def two(a: int, b: int, **options: Any) -> dict[str, DataLoader[Any]]:
    return {
        "a": DataLoader(NumberedRows(32), batch_size=a, **options),
        "b": DataLoader(NumberedRows(12), batch_size=b),
    }


def two_loaders(rank: int) -> Any:
    """8 and 4 rows a step: units of 2 and 1 rows, of which the ranks have 3 and 1."""
    found = {}
    for over_all in (False, True):
        module = BothLoaders(over_all)
        found[over_all] = (
            *trained(BoaStrategy(batch_sizes=[9, 3]), two(4, 2), module),
            module.others,
        )
    return found


def two_loaders_alone(over_all: bool) -> list[Tensor]:
    module = BothLoaders(over_all)
    trainer_with(None).fit(module, two(8, 4))
    return [p.detach().clone() for p in module.parameters()]


def two_loaders_that_are_measured(rank: int) -> Any:
    trainer = trainer_with(BoaStrategy(warmup=9), max_epochs=3)
    trainer.fit(BothLoaders(), two(4, 2))
    plan = trainer.strategy.plan
    return plan.global_batch_size, [rows % 3 for rows in plan.batch_sizes]


def the_shortest_of_two_loaders(rank: int) -> Any:
    module = BothLoaders()
    loaders = CombinedLoader(two(4, 2), "min_size")
    return (*trained(BoaStrategy(batch_sizes=[9, 3]), loaders, module), module.others)


def two_loaders_with_a_last_step_of_one_row(rank: int) -> str:
    loaders = [
        DataLoader(NumberedRows(33), batch_size=4),
        DataLoader(NumberedRows(12), batch_size=2),
    ]
    return refusal(lambda: trained(BoaStrategy(), loaders))


def refusal(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Shard(IterableDataset[Any]):
    """Rows of one rank: rank, rank + ranks, …, up to `end`."""

    def __init__(self, rank: int, end: int) -> None:
        self.rank, self.end, self.rows = rank, end, NumberedRows(DATA)

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[row] for row in range(self.rank, self.end, RANKS))


def streams_of_two_lengths(rank: int) -> Any:
    """20 and 11 rows in batches of 4: the second rank's third batch is its last, of 3 rows."""
    return trained(BoaStrategy(), DataLoader(Shard(rank, 40 - 18 * rank), batch_size=4))


def streams_with_a_plan(rank: int) -> Any:
    return trained(
        BoaStrategy(batch_sizes=[6, 2]), DataLoader(Shard(rank, 64), batch_size=4), max_epochs=1
    )


def a_stream_that_validates_in_between(rank: int) -> Any:
    module = Regression(schedules=False)
    trainer = trainer_with(BoaStrategy(), val_check_interval=2, limit_train_batches=5)
    trainer.fit(
        module,
        DataLoader(Shard(rank, 200), batch_size=4),
        DataLoader(NumberedRows(7), batch_size=2),
    )
    return module.seen, float(trainer.callback_metrics["one"])


class Batches:
    """No loader of torch."""

    def __init__(self, lists: Steps) -> None:
        self.lists, self.rows = lists, NumberedRows(DATA)

    def __len__(self) -> int:
        return len(self.lists)

    def __iter__(self) -> Iterator[Any]:
        return (default_collate([self.rows[row] for row in rows]) for rows in self.lists)


def batches_of_any_iterable(rank: int) -> Any:
    mine = [[0, 1, 2], [3, 4], [5]] if rank == 0 else [[10], [11, 12, 13], [14, 15]]
    return trained(BoaStrategy(), Batches(mine))


class Texts(Batches):
    """Batches of text that is not yet made into rows."""

    def __iter__(self) -> Iterator[Any]:
        return (" ".join(map(str, rows)) for rows in self.lists)


class Packed(Batches):
    """Batches whose tensors differ in their leading size: rows, and the lengths of two sentences."""

    def __iter__(self) -> Iterator[Any]:
        return ([*batch, torch.zeros(1 + len(batch[0]))] for batch in super().__iter__())


class CountsItself(Regression):
    """Says that its loss is a mean over rows, which its batches do not show where they are read."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.counted: list[tuple[int, int]] = []

    def boa_batch_weight(self, batch: Any) -> int:
        return len(batch[0])

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not isinstance(batch, str):
            return batch
        rows = NumberedRows(DATA)
        return default_collate([rows[int(row)] for row in batch.split()])

    def errors(self, batch: Any) -> Tensor:
        return super().errors(batch[:3])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        share = self.trainer.strategy.share
        self.counted.append((share.rows, share.step_rows))
        return super().training_step(batch, batch_idx)


def batches_that_show_no_rows(rank: int) -> Any:
    mine = [[0, 1, 2], [3, 4], [5]] if rank == 0 else [[10], [11, 12, 13], [14, 15]]
    found = {}
    for kind in (Texts, Packed):
        module = CountsItself()
        found[kind.__name__] = (*trained(BoaStrategy(), kind(mine), module), module.counted)
    return found


class WholeBatches(Dataset[Any]):
    """Whole batches of the ranks, one after the other."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> Any:
        rows = NumberedRows(DATA)
        return default_collate([rows[row] for row in range(10 * number, 11 * number + 1)])


def items_that_are_whole_batches(rank: int) -> Any:
    by_boa = refusal(lambda: trained(BoaStrategy(), DataLoader(WholeBatches(), batch_size=None)))
    mine = Subset(WholeBatches(), range(rank, 6, RANKS))
    own = DataLoader(mine, batch_size=None)
    return by_boa, trained(BoaStrategy(), own, use_distributed_sampler=False)


class Own(Sampler[int]):
    """A user's own split: other rows on each rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self.rank, 100 * self.rank + 11))


def the_users_own_split(rank: int) -> Any:
    loader = DataLoader(NumberedRows(DATA), batch_size=4, sampler=Own(rank))
    return trained(BoaStrategy(), loader, use_distributed_sampler=False)


def the_users_own_batch_sizes(rank: int) -> Any:
    mine = Subset(NumberedRows(DATA), range(18) if rank == 0 else range(100, 106))
    loader = DataLoader(mine, batch_size=(6, 2)[rank])
    strategy = BoaStrategy()
    found = trained(strategy, loader, use_distributed_sampler=False)
    return *found, strategy.plan.batch_sizes


class OwnOfOtherLengths(Own):
    def __len__(self) -> int:
        return 11 - 2 * self.rank


def own_splits_of_two_lengths(rank: int) -> str:
    loader = DataLoader(NumberedRows(DATA), batch_size=2, sampler=OwnOfOtherLengths(rank))
    return refusal(lambda: trained(BoaStrategy(), loader, use_distributed_sampler=False))


class StopsAfter(pl.Callback):
    def __init__(self, steps: int, path: Path) -> None:
        self.steps, self.path = steps, path

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)


def batch_lists_go_on_in_the_middle(rank: int) -> Any:
    path = Path("lists.ckpt").absolute()

    def loader() -> DataLoader[Any]:
        return DataLoader(NumberedRows(DATA), batch_sampler=NeedsMore(range(37), 4, "needed"))

    whole = trained(BoaStrategy(batch_sizes=[5, 3]), loader(), callbacks=[StopsAfter(7, path)])
    module = Regression(schedules=False)
    trainer = trainer_with(BoaStrategy(batch_sizes=[5, 3]))
    trainer.fit(module, loader(), ckpt_path=str(path), weights_only=False)
    return whole, module.seen, [p.detach().clone() for p in module.parameters()]


def two_loaders_go_on_in_the_middle(rank: int) -> Any:
    """The shorter one, cycled through, is in its second round."""
    path = Path("two.ckpt").absolute()
    whole = BothLoaders()
    trained(BoaStrategy(batch_sizes=[9, 3]), two(2, 4), whole, callbacks=[StopsAfter(7, path)])
    module = BothLoaders()
    trainer = trainer_with(BoaStrategy(batch_sizes=[9, 3]))
    trainer.fit(module, two(2, 4), ckpt_path=str(path), weights_only=False)
    return whole.seen[7:] == module.seen, whole.others[7:] == module.others, len(module.seen)


def other_loaders_go_on_in_the_middle(rank: int) -> Any:
    path = Path("two.ckpt").absolute()
    trained(BoaStrategy(), two(2, 4), BothLoaders(), callbacks=[StopsAfter(7, path)])

    def go_on(data: Any, sizes: list[int] | None = None) -> int:
        trainer = trainer_with(BoaStrategy(batch_sizes=sizes))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(BothLoaders(), data, ckpt_path=str(path), weights_only=False)
        said.extend(str(each.message) for each in caught if "checkpoint's" in str(each.message))
        return trainer.global_step

    said: list[str] = []
    one_less = refusal(lambda: go_on(two(2, 4)["a"]))
    other_sum = refusal(lambda: go_on(two(3, 6), [15, 3]))
    return one_less, other_sum, go_on(two(3, 6)), said


def evaluation_of_batch_lists(rank: int) -> dict[str, float]:
    trainer = trainer_with(BoaStrategy())
    module = CountsRows()
    trainer.validate(module, DataLoader(NumberedRows(DATA), batch_sampler=LENGTHS), verbose=False)
    rows = float(trainer.callback_metrics["rows"])
    predicted = trainer.predict(module, DataLoader(NumberedRows(DATA), batch_sampler=LENGTHS))
    return {
        "rows": rows,
        "predicted": float(sum(len(batch) for batch in predicted)),
    }


class MeanOfRows(Regression):
    """Logs the mean number of the rows of each loader."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("mean", batch[2].double().mean(), sync_dist=True, on_step=False, on_epoch=True)


def evaluation_of_rows_and_a_stream(rank: int) -> dict[bool, dict[str, float]]:
    """The first steps of a loader beside a stream are read ahead."""
    found = {}
    for stream_first in (False, True):
        loaders: list[Any] = [
            DataLoader(NumberedRows(11), batch_size=2),
            DataLoader(Shard(rank, 20), batch_size=2),
        ]
        trainer = trainer_with(BoaStrategy())
        trainer.validate(MeanOfRows(), loaders[:: -1 if stream_first else 1], verbose=False)
        found[stream_first] = logged_values(trainer)
    return found


def drops_a_row(rows: list[Any]) -> Any:
    return default_collate(rows[:1])


def rows_that_collate_drops(rank: int) -> dict[str, str]:
    def loader(batch_size: int = 2, collate: Any = drops_a_row) -> DataLoader[Any]:
        return DataLoader(NumberedRows(24), batch_size=batch_size, collate_fn=collate)

    def evaluate(stage: str, module: Any) -> Any:
        return getattr(trainer_with(BoaStrategy()), stage)(module, loader(), verbose=False)

    found = {
        stage: refusal(lambda stage=stage: evaluate(stage, CountsRows()))  # type: ignore[misc]
        for stage in ("validate", "test")
    }
    sanity = trainer_with(BoaStrategy(), num_sanity_val_steps=1)
    found["fit"] = refusal(lambda: sanity.fit(CountsRows(), loader(collate=None), loader()))
    trainer = trainer_with(BoaStrategy(), num_sanity_val_steps=1, max_epochs=1)
    found["weighted"] = refusal(lambda: trainer.fit(CountsItself(), loader(), loader()))
    return found


class Combines(Regression):
    """Counts all steps."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.steps += 1

    test_step = validation_step


def evaluation_side_by_side(rank: int) -> dict[str, Any]:
    module = Combines()
    side_by_side = CombinedLoader(two(4, 2), "min_size")
    training = two(4, 2)["a"]
    found: dict[str, Any] = {
        stage: refusal(
            lambda steps=steps: trainer_with(BoaStrategy(), num_sanity_val_steps=steps).fit(  # type: ignore[misc]
                module, training, side_by_side
            )
        )
        for stage, steps in (("fit", 0), ("sanity check", 2))
    }
    for stage in ("validate", "test"):
        evaluate = getattr(trainer_with(BoaStrategy()), stage)
        found[stage] = refusal(lambda evaluate=evaluate: evaluate(module, side_by_side))  # type: ignore[misc]
    predicting = trainer_with(BoaStrategy())
    found["predict"] = refusal(lambda: predicting.predict(CountsRows(), side_by_side))
    found["steps"] = module.steps
    single = CombinedLoader([DataLoader(NumberedRows(7), batch_size=2)], "max_size")
    found["single"] = refusal(lambda: trainer_with(BoaStrategy()).test(Single(), single))
    return found


class Exchanges(Regression):
    """Evaluates rows of its own rank; exchanges something in each step, or at the end alone."""

    def __init__(self, exchange: str, logs: bool, measures: bool) -> None:
        super().__init__(schedules=False)
        self.exchange = exchange
        self.logs = logs
        self.mean = MeanMetric() if measures else None

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append(batch[2].tolist())
        if self.mean is not None:
            self.mean.update(batch[2])
            self.log("mean", self.mean)
        if self.logs:
            rows = float(len(batch[2]))
            self.log("rows", rows, on_step=self.exchange == "log", on_epoch=True, sync_dist=True)
        if self.exchange == "gather":
            self.all_gather(batch[2].sum())
        elif self.exchange == "rows":
            gather_rows(batch[2])

    def on_validation_batch_end(self, *arguments: Any) -> None:
        if self.exchange == "late":
            self.trainer.strategy.barrier()


UNEQUAL, EQUAL, EMPTY, TWICE = (40, 22), (40, 39), (40, 0), (40, 22, 16)
EXCHANGES = ("log", "gather", "rows", "late")


def evaluation_of_streams(rank: int) -> dict[Any, Any]:
    """Streams in batches of 4: 5 and 3 of them, 5 and 5, 5 and none."""
    found: dict[Any, Any] = {}
    for ends in (EQUAL, UNEQUAL, EMPTY, TWICE):
        for exchange in ("nothing", *EXCHANGES):
            logs = ends != EMPTY or exchange == "log"
            module = Exchanges(exchange, logs, logs and exchange == "nothing")
            trainer = trainer_with(BoaStrategy())
            streams = [DataLoader(Shard(rank, ends[rank]), batch_size=4)]
            streams += [DataLoader(Shard(rank, end), batch_size=4) for end in ends[RANKS:]]
            refused = refusal(lambda: trainer.validate(module, streams, verbose=False))  # noqa: B023
            metrics = logged_values(trainer)
            found[ends, exchange] = refused, module.seen, metrics
    return found


def exchanges_beside_a_metric(rank: int) -> None:
    stream = DataLoader(Shard(rank, UNEQUAL[rank]), batch_size=4)
    trainer_with(BoaStrategy()).validate(Exchanges("log", True, True), stream, verbose=False)


class Single(Combines):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        super().test_step(batch[0], batch_idx)


class CountsRows(Regression):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("rows", float(len(batch[2])), reduce_fx="sum", sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return batch[2]


SCENES: tuple[Callable[[int], Any], ...] = (
    subclass_with_another_argument,
    batches_of_varying_size,
    a_length_that_lies,
    batches_made_by_the_data_set,
    batches_without_a_length,
    two_loaders,
    two_loaders_that_are_measured,
    the_shortest_of_two_loaders,
    two_loaders_with_a_last_step_of_one_row,
    streams_of_two_lengths,
    streams_with_a_plan,
    a_stream_that_validates_in_between,
    batches_of_any_iterable,
    batches_that_show_no_rows,
    items_that_are_whole_batches,
    evaluation_side_by_side,
    evaluation_of_streams,
    evaluation_of_rows_and_a_stream,
    rows_that_collate_drops,
    the_users_own_split,
    the_users_own_batch_sizes,
    own_splits_of_two_lengths,
    batch_lists_go_on_in_the_middle,
    two_loaders_go_on_in_the_middle,
    other_loaders_go_on_in_the_middle,
    evaluation_of_batch_lists,
)


def play(rank: int) -> dict[str, Any]:
    return {scene.__name__: scene(rank) for scene in SCENES}


@pytest.fixture(scope="module")
def played() -> list[dict[str, Any]]:
    return run_ranks(play, RANKS)


def scene_of(played: list[dict[str, Any]], scene: Callable[..., Any]) -> list[Any]:
    return [found[scene.__name__] for found in played]


def steps_together(ranks: list[Any]) -> Steps:
    return [list(chain(*shares)) for shares in zip(*(found[0] for found in ranks), strict=True)]


def assert_trained_like_one(ranks: list[Any], steps: Sequence[Steps], module: Any = None) -> None:
    assert steps_together(ranks) == list(chain(*steps))
    for found in ranks:
        assert relative_error(found[1], alone(steps, module)) < 1e-10


def in_steps_of(rows: int, size: int) -> Steps:
    return [list(range(rows))[first : first + size] for first in range(0, rows, size)]


def test_a_batch_sampler_with_arguments_of_its_own(played: Any) -> None:
    ranks = scene_of(played, subclass_with_another_argument)
    assert_trained_like_one(ranks, [in_steps_of(37, 8)] * 2)
    assert [len(share) for share in ranks[0][0]][:4] == [5, 5, 5, 5]


def test_batches_of_varying_size_are_split_in_proportion(played: Any) -> None:
    ranks = scene_of(played, batches_of_varying_size)
    steps = [[*LENGTHS[first], *chain(*LENGTHS[first + 1 : first + 2])] for first in (0, 2, 4, 6)]
    assert_trained_like_one(ranks, [steps] * 2)
    assert [len(share) for share in ranks[1][0]][:3] == [2, 1, 2]


def test_an_epoch_ends_where_its_batches_end(played: Any) -> None:
    ranks = scene_of(played, a_length_that_lies)
    assert steps_together(ranks) == in_steps_of(24, 8) * 2
    assert [found[2] for found in ranks] == [6, 6]


def test_a_data_set_that_makes_its_batches_gets_each_ranks_rows(played: Any) -> None:
    assert_trained_like_one(
        scene_of(played, batches_made_by_the_data_set), [in_steps_of(30, 10)] * 2
    )


def test_batches_without_a_length_are_drawn_alike(played: Any) -> None:
    ranks = scene_of(played, batches_without_a_length)
    steps = steps_together(ranks)
    first, second = steps[:4], steps[4:]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(32))
    assert first != second
    assert_trained_like_one(ranks, [first, second])


@pytest.mark.parametrize("over_all", [False, True], ids=["sum of means", "mean over all rows"])
def test_two_loaders_are_split_in_the_same_proportion(played: Any, over_all: bool) -> None:
    ranks = [found[over_all] for found in scene_of(played, two_loaders)]
    assert steps_together(ranks) == in_steps_of(32, 8) * 2
    others = [list(chain(*shares)) for shares in zip(*(found[3] for found in ranks), strict=True)]
    assert others == [*in_steps_of(12, 4), [0, 1, 2, 3]] * 2
    assert [len(share) for share in ranks[0][0]] == [6] * 8
    for found in ranks:
        assert relative_error(found[1], two_loaders_alone(over_all)) < 1e-10


def test_a_plan_for_two_loaders_keeps_to_their_units(played: Any) -> None:
    for found in scene_of(played, two_loaders_that_are_measured):
        assert found == (12, [0, 0])


def test_the_shorter_of_two_loaders_may_end_the_epoch(played: Any) -> None:
    ranks = scene_of(played, the_shortest_of_two_loaders)
    assert steps_together(ranks) == in_steps_of(24, 8) * 2


def test_two_loaders_need_a_row_for_each_rank(played: Any) -> None:
    for message in scene_of(played, two_loaders_with_a_last_step_of_one_row):
        assert message.startswith("LoaderError")
        assert "drop_last=True" in message


def test_streams_stop_together_and_are_weighted_by_their_rows(played: Any) -> None:
    ranks = scene_of(played, streams_of_two_lengths)
    assert [len(share) for share in ranks[0][0]] == [4, 4, 4] * 2
    assert [len(share) for share in ranks[1][0]] == [4, 4, 3] * 2
    steps = steps_together(ranks)
    assert_trained_like_one(ranks, [steps[:3], steps[3:]])


def test_a_fixed_plan_decides_how_much_of_its_stream_a_rank_reads(played: Any) -> None:
    ranks = scene_of(played, streams_with_a_plan)
    assert [len(share) for share in ranks[0][0]] == [6] * 5 + [2]
    assert [len(share) for share in ranks[1][0]] == [2] * 6
    assert_trained_like_one(ranks, [steps_together(ranks)])


def test_validation_does_not_mix_with_a_batch_that_was_read_ahead(played: Any) -> None:
    for seen, one in scene_of(played, a_stream_that_validates_in_between):
        assert [len(share) for share in seen] == [4] * 10
        assert one == 1.0


def test_batches_of_any_iterable_are_weighted_by_their_rows(played: Any) -> None:
    ranks = scene_of(played, batches_of_any_iterable)
    epoch = [[0, 1, 2, 10], [3, 4, 11, 12, 13], [5, 14, 15]]
    assert_trained_like_one(ranks, [epoch] * 2)


@pytest.mark.parametrize("kind", [Texts, Packed])
def test_batches_that_show_no_rows_are_weighted_by_what_the_user_counts(
    played: Any, kind: type[Batches]
) -> None:
    ranks = [found[kind.__name__] for found in scene_of(played, batches_that_show_no_rows)]
    epoch = [[0, 1, 2, 10], [3, 4, 11, 12, 13], [5, 14, 15]]
    assert_trained_like_one(ranks, [epoch] * 2)
    assert [found[3] for found in ranks] == [[(1, 2)] * 6] * 2


def test_items_that_are_whole_batches_are_split_by_the_user(played: Any) -> None:
    ranks = scene_of(played, items_that_are_whole_batches)
    assert all(message.startswith("LoaderError: expected a sampler") for message, _ in ranks)
    of_items = [[*range(10 * item, 11 * item + 1)] for item in range(6)]
    epoch = [of_items[item] + of_items[item + 1] for item in (0, 2, 4)]
    assert_trained_like_one([found for _, found in ranks], [epoch] * 2)


def test_evaluation_loaders_side_by_side_are_refused_before_the_first_step(played: Any) -> None:
    for found in scene_of(played, evaluation_side_by_side):
        for stage in ("fit", "sanity check", "validate", "test"):
            assert found[stage].startswith("UnsupportedError: Expected validation and test loaders")
        assert found["predict"].startswith("ValueError: `trainer.predict()` only supports")
        assert found["steps"] == 0
        assert found["single"] == "nothing"


def rows_of_stream(rank: int, end: int) -> list[int]:
    return list(range(rank, end, RANKS))


@pytest.mark.parametrize("ends", [EQUAL, UNEQUAL, EMPTY, TWICE])
def test_streams_of_any_length_are_evaluated_whole(played: Any, ends: tuple[int, ...]) -> None:
    for rank, found in enumerate(scene_of(played, evaluation_of_streams)):
        refused, seen, metrics = found[ends, "nothing"]
        assert refused == "nothing"
        mine = rows_of_stream(rank, ends[rank])
        for end in ends[RANKS:]:
            mine += rows_of_stream(rank, end)
        assert list(chain(*seen)) == mine
        if ends == UNEQUAL:
            assert metrics["mean"] == pytest.approx(sum([*range(0, 40, 2), *range(1, 22, 2)]) / 31)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_streams_of_one_length_may_exchange_in_their_steps(played: Any, exchange: str) -> None:
    for found in scene_of(played, evaluation_of_streams):
        refused, seen, _ = found[EQUAL, exchange]
        assert refused == "nothing"
        assert len(seen) == 5


@pytest.mark.parametrize("ends", [UNEQUAL, EMPTY, TWICE])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_exchange_that_a_rank_without_a_batch_misses_is_refused_on_all(
    played: Any, ends: tuple[int, ...], exchange: str
) -> None:
    for found in scene_of(played, evaluation_of_streams):
        refused = found[ends, exchange][0]
        assert refused.startswith("AgreementError: Expected all ranks in the same step"), refused


def test_an_exchange_that_is_missed_is_refused_while_a_metric_waits() -> None:
    """torchmetrics does not ask the strategy: the rank that has ended waits in it, the others tell."""
    (kind, message), (other, _) = outcomes_of_ranks(exchanges_beside_a_metric, RANKS, timeout=60)
    assert kind == "error"
    assert "step 4 on rank 0; no step on rank 1" in message
    assert other != "result"


def test_a_split_of_the_users_stays_and_is_weighted(played: Any) -> None:
    ranks = scene_of(played, the_users_own_split)
    epoch = [[*range(a, a + n), *range(100 + a, 100 + a + n)] for a, n in ((0, 4), (4, 4), (8, 3))]
    assert_trained_like_one(ranks, [epoch] * 2)


def test_each_ranks_own_loader_may_have_its_own_batch_size(played: Any) -> None:
    ranks = scene_of(played, the_users_own_batch_sizes)
    epoch = [[*range(6 * step, 6 * step + 6), 100 + 2 * step, 101 + 2 * step] for step in range(3)]
    assert_trained_like_one(ranks, [epoch] * 2)
    assert [found[3] for found in ranks] == [(6, 2)] * 2


@pytest.mark.parametrize("stream_first", [False, True])
def test_rows_and_a_stream_are_evaluated_in_any_order(played: Any, stream_first: bool) -> None:
    for found in scene_of(played, evaluation_of_rows_and_a_stream):
        rows, stream = (f"mean/dataloader_idx_{int(number == stream_first)}" for number in (1, 0))
        assert found[stream_first][rows] == pytest.approx(5.0, rel=1e-12)
        assert found[stream_first][stream] == pytest.approx(9.5, rel=1e-12)


@pytest.mark.parametrize("stage", ["validate", "test", "fit"])
def test_rows_that_collate_drops_are_noticed_in_evaluation(played: Any, stage: str) -> None:
    for found in scene_of(played, rows_that_collate_drops):
        assert found[stage].startswith("UnsupportedError: Expected a batch of 2 rows")
        assert "boa_batch_weight" in found[stage]


def test_a_loss_that_says_what_it_counts_may_drop_rows(played: Any) -> None:
    for found in scene_of(played, rows_that_collate_drops):
        assert found["weighted"] == "nothing"


def test_own_splits_must_have_as_many_batches_on_each_rank(played: Any) -> None:
    for message in scene_of(played, own_splits_of_two_lengths):
        assert message.startswith("AgreementError")
        assert "6 on rank 0; 5 on rank 1" in message


def test_batch_lists_go_on_in_the_middle_of_an_epoch(played: Any) -> None:
    ranks = scene_of(played, batch_lists_go_on_in_the_middle)
    for whole, seen, weights in ranks:
        assert seen == whole[0][7:]
        assert relative_error(weights, whole[1]) < 1e-12


def test_two_loaders_go_on_in_the_middle_of_an_epoch(played: Any) -> None:
    for found in scene_of(played, two_loaders_go_on_in_the_middle):
        assert found == (True, True, 16 - 7)


def test_other_loaders_than_in_the_checkpoint_are_noticed(played: Any) -> None:
    for rank, found in enumerate(scene_of(played, other_loaders_go_on_in_the_middle)):
        one_less, other_sum, steps, said = found
        assert "as in the checkpoint, 2, got 1" in one_less
        assert "those of the checkpoint" in other_sum
        assert steps == 16
        texts = [text.partition("boa: ")[2] for text in said]
        assert len(texts) == (2 if rank == 0 else 0)
        assert all(text.startswith("the global batch stays the checkpoint's") for text in texts)


def test_every_row_of_batch_lists_is_evaluated_once(played: Any) -> None:
    found = scene_of(played, evaluation_of_batch_lists)
    assert [metrics["rows"] for metrics in found] == [20.0, 20.0]
    assert sum(metrics["predicted"] for metrics in found) == 20.0
