"""What people do with a trainer beyond one plain fit, two ranks in one launch."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateFinder
from pytorch_lightning.tuner import Tuner
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from lightning_boa import BoaStrategy
from lightning_boa.planning import Orchestration
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    FEATURES,
    NumberedRows,
    Regression,
    Training,
    logged_values,
    quiet,
    relative_error,
    trainer_options,
)
from tests.processes.virtual_time import MeasuresVirtualTime, emulated

pytestmark = pytest.mark.full

RANKS = 2


def trainer_with(strategy: BoaStrategy | None = None, **options: Any) -> pl.Trainer:
    quiet()
    pl.seed_everything(3)
    chosen = {**trainer_options(Training(epochs=2)), **options}
    return pl.Trainer(strategy=strategy or BoaStrategy(), devices=RANKS, **chosen)


def measuring_trainer(*callbacks: Any, **options: Any) -> pl.Trainer:
    """Its two devices are equal, in a time that nothing disturbs."""
    strategy = MeasuresVirtualTime()
    cluster = emulated(strategy, [1.0, 1.0])
    return trainer_with(strategy, callbacks=[*callbacks, cluster], **options)


def loader(rows: int = 64, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(NumberedRows(rows), batch_size=batch_size, **options)


class ReadsAhead(DataLoader[Any]):
    """Fetches in a thread of its own, as far ahead as it can."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        queue: Queue[Any] = Queue(maxsize=3)
        thread = threading.Thread(target=self._fill, args=(queue, super().__iter__()))
        thread.start()
        while (batch := queue.get()) is not None:
            yield batch
        thread.join()

    @staticmethod
    def _fill(queue: Queue[Any], batches: Iterator[Any]) -> None:
        for batch in batches:
            queue.put(batch)
        queue.put(None)


def read_ahead_in_a_thread(rank: int) -> list[list[int]]:
    trainer, module = trainer_with(max_epochs=4), Regression()
    trainer.fit(module, ReadsAhead(NumberedRows(400), batch_size=8, shuffle=True))
    return module.seen


def weighted_sampler(rank: int) -> list[list[int]]:
    trainer, module = trainer_with(), Regression()
    torch.manual_seed(rank)
    sampler = WeightedRandomSampler([1.0 + row for row in range(64)], 64)
    trainer.fit(module, loader(sampler=sampler))
    return module.seen


class Counting(Regression):
    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.register_buffer("validated", torch.zeros(1))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.validated = self.validated + len(batch[0])


def buffers_in_validation(rank: int) -> float:
    module = Counting()
    trainer_with().validate(module, loader(5), verbose=False)
    return float(module.validated)


class Normed(Regression):
    """BatchNorm refuses a single row."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.norm = nn.BatchNorm1d(FEATURES).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step([self.norm(batch[0]), *batch[1:]], batch_idx)


def last_batch_of_three_rows_with_batch_norm(rank: int) -> list[list[int]]:
    trainer, module = trainer_with(BoaStrategy(batch_sizes=[4, 12])), Normed()
    trainer.fit(module, loader(64 + 3, batch_size=8))
    return module.seen


class NormedOverTime(Normed):
    """Each row has several values of a channel, so that BatchNorm takes a single one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2), nn.Flatten()).double()


def single_rows_with_batch_norm(rank: int) -> list[str]:
    trainer = trainer_with(BoaStrategy(batch_sizes=[1, 3]), max_epochs=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(NormedOverTime(), loader(batch_size=2))
    return [str(each.message) for each in caught if "a single row" in str(each.message)]


def evaluation_after_fit(rank: int) -> tuple[Any, ...]:
    trainer, module = trainer_with(BoaStrategy(batch_sizes=[3, 5])), Regression()
    trainer.fit(module, loader())
    path = Path("kept.ckpt").absolute()
    trainer.save_checkpoint(path)
    trainer.validate(module, loader(), verbose=False)
    trainer.test(AlsoForTest(), loader(), ckpt_path=str(path), weights_only=False, verbose=False)
    plan = trainer.strategy.plan
    trainer.save_checkpoint(path)
    state = torch.load(path, weights_only=True)["lightning_boa"]
    return plan.batch_sizes, sum(state["rows_of_loaders"]), state["seed"]


class AlsoForTest(Regression):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)


def learning_rate_finder(rank: int) -> bool:
    module = WithRate()
    found = Tuner(trainer_with()).lr_find(module, loader(), num_training=10)
    return found is not None and len(found.results["loss"]) == 10


class WithRate(Regression):
    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.lr = 0.01

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class OfSeveralLoaders(WithRate):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        parts = list(batch.values()) if isinstance(batch, dict) else [batch]
        losses = [super(OfSeveralLoaders, self).training_step(part, batch_idx) for part in parts]
        return torch.stack(losses).sum()


class Shard(IterableDataset[Any]):
    """A stream of this rank's own rows."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        rows = NumberedRows(64)
        return (rows[row] for row in range(self.rank, 64, RANKS))


class FindsInEachEpoch(LearningRateFinder):
    """As Lightning's documentation has it."""

    def on_fit_start(self, *arguments: Any) -> None: ...

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.lr_find(trainer, pl_module)


def two_loaders() -> dict[str, DataLoader[Any]]:
    return {"a": loader(batch_size=4), "b": loader(32, batch_size=2)}


FINDS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "measured": ({}, lambda rank: loader(shuffle=True)),
    "fixed plan": ({"batch_sizes": [5, 3]}, lambda rank: loader(shuffle=True)),
    "two loaders": ({"batch_sizes": [9, 3]}, lambda rank: two_loaders()),
    "two loaders, measured": ({}, lambda rank: two_loaders()),
    "stream": ({}, lambda rank: DataLoader(Shard(rank), batch_size=4)),
    "stream, fixed plan": (
        {"batch_sizes": [6, 2]},
        lambda rank: DataLoader(Shard(rank), batch_size=4),
    ),
}


def learning_rate_finder_in_a_fit(rank: int) -> dict[Any, Any]:
    """How far the weights are from those of the same training without it, the steps and the plan."""
    found: dict[Any, Any] = {}
    for name, (options, data) in FINDS.items():
        modules = []
        for kind in (None, LearningRateFinder, FindsInEachEpoch):
            finder = [] if kind is None else [kind(num_training_steps=6, update_attr=False)]
            trainer = (
                trainer_with(BoaStrategy(**options), callbacks=finder, max_epochs=3)
                if options
                else measuring_trainer(*finder, max_epochs=3)
            )
            modules.append(module := OfSeveralLoaders())
            trainer.fit(module, data(rank))
            strategy = trainer.strategy
            found[name, kind] = (
                relative_error(*(list(each.parameters()) for each in (module, modules[0]))),
                trainer.global_step,
                strategy.plan.batch_sizes,
                strategy.orchestration is not None and strategy.orchestration.phase,
            )
        trainer = trainer_with(BoaStrategy(**options))
        rates = Tuner(trainer).lr_find(OfSeveralLoaders(), data(rank), num_training=6)
        found[name, Tuner] = len(rates.results["loss"])
    return found


class OtherInEachEpoch(OfSeveralLoaders):
    def train_dataloader(self) -> Any:
        epoch = self.trainer.current_epoch
        return two_loaders() if epoch % 2 else DataLoader(Shard(self.global_rank), batch_size=6)


def a_stream_then_two_loaders(rank: int) -> tuple[int, int, bool]:
    """Both have as many rows in a step."""
    trainer = trainer_with(max_epochs=4, reload_dataloaders_every_n_epochs=1)
    trainer.fit(module := OtherInEachEpoch())
    return trainer.global_step, len(module.seen), trainer.strategy.fixed_schedule is None


class LargerEachEpoch(Regression):
    """Its loader's batches are 4, 8 and 12 rows a rank."""

    def train_dataloader(self) -> DataLoader[Any]:
        return loader(batch_size=4 * (self.trainer.current_epoch + 1))


def batches_that_grow(rank: int) -> tuple[Any, ...]:
    module = LargerEachEpoch(schedules=False)
    trainer = trainer_with(max_epochs=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(module)
    return module.seen, trainer.strategy.plan.global_batch_size


def pickled_while_it_trains(rank: int) -> bool:
    module = Regression()
    keeper = Pickles()
    trainer_with(callbacks=[keeper]).fit(module, loader())
    return keeper.pickled


class Pickles(pl.Callback):
    def __init__(self) -> None:
        self.pickled = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        torch.save(pl_module, io.BytesIO())
        self.pickled = True


class StepsAfterwards(Regression):
    """Manual optimisation that goes on after its step."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.manual_backward(self.errors(self.batch).mean())


def backward_outside_the_step(rank: int) -> str:
    try:
        trainer_with().fit(StepsAfterwards(), loader())
    except Exception as error:
        return str(error)
    return "nothing"


def two_evaluation_loaders(rank: int) -> dict[str, float]:
    trainer = trainer_with()
    trainer.validate(TwoLoaders(), [loader(5), loader(7)], verbose=False)
    return outcome_metrics(trainer)


class TwoLoaders(Regression):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("rows", float(len(batch[2])), reduce_fx="sum", sync_dist=True)


def outcome_metrics(trainer: pl.Trainer) -> dict[str, float]:
    return logged_values(trainer)


def averaged_weights(rank: int) -> int:
    module = Regression(schedules=False)
    callback = pl.callbacks.WeightAveraging()
    trainer_with(callbacks=[callback]).fit(module, loader())
    return len(module.seen)


def plan_for_another_model(rank: int) -> tuple[str, str]:
    """A resumed plan stays for the same devices and model; for others the warm-up begins anew."""
    trainer = measuring_trainer()
    trainer.fit(Regression(schedules=False), loader(400))
    before: Orchestration = trainer.strategy.orchestration
    trainer.strategy.begin_planning()
    same = trainer.strategy.orchestration.phase
    trainer.strategy.orchestration = before
    trainer.strategy.device_names = ("another", "device")
    trainer.strategy.begin_planning()
    return same, trainer.strategy.orchestration.phase


def back_under_ddp(rank: int) -> tuple[int, list[int]]:
    path = Path("boa.ckpt").absolute()
    trainer = trainer_with(max_epochs=1)
    trainer.fit(Regression(schedules=False), loader())
    trainer.save_checkpoint(path)
    quiet()
    module = Regression(schedules=False)
    again = pl.Trainer(strategy="ddp", devices=RANKS, **trainer_options(Training(epochs=2)))
    again.fit(module, loader(), ckpt_path=str(path), weights_only=False)
    return again.global_step, sorted(row for step in module.seen for row in step)


SCENES: tuple[Callable[[int], Any], ...] = (
    read_ahead_in_a_thread,
    weighted_sampler,
    buffers_in_validation,
    last_batch_of_three_rows_with_batch_norm,
    single_rows_with_batch_norm,
    evaluation_after_fit,
    learning_rate_finder,
    learning_rate_finder_in_a_fit,
    a_stream_then_two_loaders,
    batches_that_grow,
    pickled_while_it_trains,
    backward_outside_the_step,
    two_evaluation_loaders,
    averaged_weights,
    plan_for_another_model,
    back_under_ddp,
)


def play(rank: int) -> dict[str, Any]:
    return {scene.__name__: scene(rank) for scene in SCENES}


@pytest.fixture(scope="module")
def played() -> list[dict[str, Any]]:
    return run_ranks(play, RANKS)


def rows_by_step(played: list[dict[str, Any]], scene: str) -> list[list[int]]:
    seen = [found[scene] for found in played]
    return [[*one, *other] for one, other in zip(*seen, strict=True)]


def test_a_loader_that_reads_ahead_in_a_thread_loses_and_repeats_no_row(played: Any) -> None:
    steps = rows_by_step(played, "read_ahead_in_a_thread")
    assert [len(step) for step in steps] == [16] * 100
    for epoch in range(4):
        rows = [row for step in steps[25 * epoch : 25 * (epoch + 1)] for row in step]
        assert sorted(rows) == list(range(400))


def test_a_custom_sampler_is_drawn_once_for_all_ranks(played: Any) -> None:
    steps = rows_by_step(played, "weighted_sampler")
    first, second = steps[:8], steps[8:]
    assert [len(step) for step in steps] == [8] * 16
    assert first != second


def test_buffers_count_every_row_of_an_evaluation_once(played: Any) -> None:
    assert [found["buffers_in_validation"] for found in played] == [3.0, 2.0]


def test_no_rank_gets_a_single_row_of_a_short_batch(played: Any) -> None:
    steps = [found["last_batch_of_three_rows_with_batch_norm"] for found in played]
    assert [len(step) for step in steps[0]] == [4, 4, 4, 4, 3] * 2
    assert [len(step) for step in steps[1]] == [12, 12, 12, 12, 0] * 2


def test_a_single_row_beside_batch_norm_is_warned_about(played: Any) -> None:
    (message,) = played[0]["single_rows_with_batch_norm"]
    assert "which BatchNorm refuses" in message


def test_evaluation_leaves_the_plan_and_the_state_of_training(played: Any) -> None:
    for found in played:
        assert found["evaluation_after_fit"] == ((3, 5), 8, 3)


def test_the_learning_rate_finder_runs_with_equal_shares(played: Any) -> None:
    assert all(found["learning_rate_finder"] for found in played)


@pytest.mark.parametrize("name", FINDS)
def test_the_learning_rate_finder_leaves_no_trace_in_a_training(played: Any, name: str) -> None:
    planned = "planned" if "measured" in name else False
    for found in (each["learning_rate_finder_in_a_fit"] for each in played):
        _, steps, plan, phase = found[name, None]
        for kind in (LearningRateFinder, FindsInEachEpoch):
            error, *others = found[name, kind]
            assert error < 1e-10
            assert others[0] == steps
            assert others[2] == phase == planned
            assert sum(others[1]) == sum(plan)
        assert found[name, Tuner] == 6


def test_a_stream_and_several_loaders_may_follow_one_another(played: Any) -> None:
    for found in played:
        of_stream, of_two = 2 * 6, 2 * 8
        steps, seen, is_measured = found["a_stream_then_two_loaders"]
        assert (steps, seen) == (of_stream + of_two, of_stream + 2 * of_two)
        assert is_measured


def test_a_global_batch_that_grows_is_planned_anew(played: Any) -> None:
    steps = [
        (*one, *other)
        for one, other in zip(*(f["batches_that_grow"][0] for f in played), strict=True)
    ]
    assert [len(step) for step in steps] == [8] * 8 + [16] * 4 + [24, 24, 16]
    assert played[0]["batches_that_grow"][1] == 24


def test_a_module_can_be_pickled_while_it_trains(played: Any) -> None:
    assert all(found["pickled_while_it_trains"] for found in played)


def test_a_backward_outside_the_step_is_refused(played: Any) -> None:
    for found in played:
        assert "manual_backward inside training_step" in found["backward_outside_the_step"]


def test_several_evaluation_loaders_in_turn(played: Any) -> None:
    for found in played:
        assert found["two_evaluation_loaders"] == {
            "rows/dataloader_idx_0": 5.0,
            "rows/dataloader_idx_1": 7.0,
        }


def test_averaged_weights_are_no_hindrance(played: Any) -> None:
    assert [found["averaged_weights"] for found in played] == [16, 16]


def test_a_plan_is_for_the_devices_and_the_model_it_was_made_for(played: Any) -> None:
    for found in played:
        assert found["plan_for_another_model"] == ("planned", "warmup")


def test_a_checkpoint_of_an_epochs_end_goes_on_under_ddp(played: Any) -> None:
    (steps, one), (_, other) = (found["back_under_ddp"] for found in played)
    assert steps == 16
    assert sorted([*one, *other]) == list(range(64))
