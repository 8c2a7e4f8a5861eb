"""I5 and I8: what ranks disagree on, or boa cannot do right, ends on every rank with one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, IterableDataset, Sampler

from lightning_boa import BoaStrategy
from lightning_boa.errors import AgreementError, BoaError
from lightning_boa.planning import Schedule
from lightning_boa.profiling import check_digest, check_same, decide_once
from tests.processes.ranks import outcomes_of_ranks, run_ranks
from tests.processes.training import NumberedRows, Regression, Training, quiet, trainer_options

RANKS = 2


class Stream(IterableDataset[Any]):
    def __init__(self, rows: int = 8) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        rows = NumberedRows(8)
        return (rows[row] for row in range(self.rows))


def plain_loader(rows: int = 32) -> DataLoader[Any]:
    return DataLoader(NumberedRows(rows), batch_size=4)


def fit(strategy: BoaStrategy, loader: Any, **options: Any) -> None:
    quiet()
    chosen = {**trainer_options(Training(epochs=1)), **options}
    pl.Trainer(strategy=strategy, devices=RANKS, **chosen).fit(Regression(), loader)


def wrong_length(rank: int) -> None:
    fit(BoaStrategy(batch_sizes=[4, 2, 2]), plain_loader())


def wrong_sum(rank: int) -> None:
    fit(BoaStrategy(batch_sizes=[4, 2]), plain_loader())


def other_plan_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(batch_sizes=[4 + rank, 4 - rank]), plain_loader())


def longer_data_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), plain_loader(32 + rank))


def other_options_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(granularity=1 + rank), plain_loader())


def other_batch_size_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), DataLoader(NumberedRows(32), batch_size=4 + rank))


def shuffled_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), DataLoader(NumberedRows(32), batch_size=4, shuffle=rank == 1))


def last_batch_left_out_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), DataLoader(NumberedRows(33), batch_size=4, drop_last=rank == 1))


def stream_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), DataLoader(Stream(), batch_size=4) if rank else plain_loader())


def batches_on_one_rank(rank: int) -> None:
    sampler = [list(range(first, first + 4)) for first in range(0, 32, 4)]
    lists = DataLoader(NumberedRows(32), batch_sampler=sampler)
    fit(BoaStrategy(), lists if rank else plain_loader())


def two_loaders_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), [plain_loader()] * (1 + rank))


def second_loader_a_stream_on_one_rank(rank: int) -> None:
    second = DataLoader(Stream(), batch_size=4) if rank else plain_loader()
    fit(BoaStrategy(), [plain_loader(), second])


def stream_that_cannot_be_planned_on_one_rank(rank: int) -> None:
    batches = DataLoader(Stream(), batch_size=4)
    fit(BoaStrategy(warmup=9), Forwarding(batches) if rank else batches)


class Forwarding:
    """Any iterable of batches, no loader of torch."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def shuffled_evaluation_on_one_rank(rank: int) -> None:
    quiet()
    loader = DataLoader(NumberedRows(32), batch_size=4, shuffle=rank == 1)
    chosen = trainer_options(Training(epochs=1))
    pl.Trainer(strategy=BoaStrategy(), devices=RANKS, **chosen).validate(Regression(), loader)


def other_window_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), plain_loader(), accumulate_grad_batches=1 + rank)


def more_epochs_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), plain_loader(), max_epochs=1 + rank)


def other_option_of_ddp_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(find_unused_parameters=rank == 1), plain_loader())


def checkpoints_on_one_rank(rank: int) -> None:
    quiet()
    options = {**trainer_options(Training(epochs=2)), "enable_checkpointing": rank == 1}
    callbacks = (
        [ModelCheckpoint("kept"), EarlyStopping("loss")] if rank else [EarlyStopping("loss")]
    )
    trainer = pl.Trainer(strategy=BoaStrategy(), devices=RANKS, callbacks=callbacks, **options)
    trainer.fit(Regression(), plain_loader())


def fit_and_validate(loaders: Any, **options: Any) -> None:
    quiet()
    chosen = {**trainer_options(Training(epochs=2)), **options}
    trainer = pl.Trainer(strategy=BoaStrategy(), devices=RANKS, **chosen)
    trainer.fit(Regression(), plain_loader(), loaders)


def validation_on_one_rank(rank: int) -> None:
    fit_and_validate(plain_loader() if rank else None)


def more_validation_loaders_on_one_rank(rank: int) -> None:
    fit_and_validate([plain_loader()] * (1 + rank))


def validation_stream_on_one_rank(rank: int) -> None:
    fit_and_validate(DataLoader(Stream(), batch_size=4) if rank else plain_loader())


def fewer_sanity_steps_on_one_rank(rank: int) -> None:
    fit_and_validate(plain_loader(), num_sanity_val_steps=2 * rank)


def reload_on_one_rank(rank: int) -> None:
    fit_and_validate(plain_loader(), reload_dataloaders_every_n_epochs=rank)


def other_schedule_on_one_rank(rank: int) -> None:
    if rank == 1:
        Schedule.digest = property(lambda schedule: 7)  # type: ignore[assignment]
    fit(BoaStrategy(), plain_loader(256))


def fewer_rows_than_ranks(rank: int) -> None:
    fit(BoaStrategy(global_batch_size=1), plain_loader())


def bounds_too_tight(rank: int) -> None:
    fit(BoaStrategy(max_batch_size=3), plain_loader())


def stream_that_is_empty_on_one_rank(rank: int) -> None:
    fit(BoaStrategy(), DataLoader(Stream(8 * (1 - rank)), batch_size=4))


def no_loader_of_torch(rank: int) -> None:
    fit(BoaStrategy(), [torch.zeros(4, 6)] * 3)


def collate_that_drops_rows(rank: int) -> None:
    loader = DataLoader(NumberedRows(32), batch_size=4, collate_fn=first_three)
    fit(BoaStrategy(batch_sizes=[4, 4]), loader)


def first_three(rows: list[Any]) -> Any:
    return torch.utils.data.default_collate(rows[:3])


def rank_zero_without_rows(rank: int) -> None:
    fit(BoaStrategy(batch_sizes=[0, 8]), plain_loader())


def gather_of_unequal_rows(rank: int) -> None:
    quiet()
    chosen = trainer_options(Training(epochs=1))
    trainer = pl.Trainer(strategy=BoaStrategy(batch_sizes=[5, 3]), devices=RANKS, **chosen)
    trainer.fit(Gathers(), plain_loader())


class Gathers(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.all_gather(batch[0])
        return super().training_step(batch, batch_idx)


class DropsLater:
    """A collate function that keeps all rows at first."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, rows: list[Any]) -> Any:
        self.batches += 1
        return torch.utils.data.default_collate(rows if self.batches < 3 else rows[:3])


def collate_that_drops_rows_later(rank: int) -> None:
    loader = DataLoader(NumberedRows(32), batch_size=4, collate_fn=DropsLater())
    fit(BoaStrategy(batch_sizes=[4, 4]), loader)


class RankDependent(Sampler[int]):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter(range(self.rank, self.rank + 8))


def sampler_that_depends_on_the_rank(rank: int) -> None:
    fit(BoaStrategy(), DataLoader(NumberedRows(32), batch_size=4, sampler=RankDependent(rank)))


def evaluation_sampler_that_depends_on_the_rank(rank: int) -> None:
    quiet()
    chosen = trainer_options(Training(epochs=1))
    loader = DataLoader(NumberedRows(32), batch_size=4, sampler=RankDependent(rank))
    pl.Trainer(strategy=BoaStrategy(), devices=RANKS, **chosen).validate(Regression(), loader)


def longer_evaluation_data_on_one_rank(rank: int) -> None:
    quiet()
    chosen = trainer_options(Training(epochs=1))
    trainer = pl.Trainer(strategy=BoaStrategy(), devices=RANKS, **chosen)
    trainer.validate(Regression(), plain_loader(31 + rank))


class FetchesItself(Regression):
    def validation_step(self, dataloader_iter: Any) -> None:
        batch, _, _ = next(dataloader_iter)
        self.log("val", self.errors(batch).mean(), sync_dist=True, batch_size=1)


def step_that_fetches_its_batch(rank: int) -> None:
    quiet()
    chosen = trainer_options(Training(epochs=1))
    pl.Trainer(strategy=BoaStrategy(), devices=RANKS, **chosen).validate(
        FetchesItself(), plain_loader()
    )


def synchronized_batch_norm_without_rows(rank: int) -> None:
    quiet()
    chosen = trainer_options(Training(epochs=1))
    trainer = pl.Trainer(strategy=BoaStrategy(), devices=RANKS, **chosen)
    trainer.fit(Synchronizes(), plain_loader(33))


class Synchronizes(Regression):
    """DDP refuses the layer on a CPU, but only while it wraps the module."""

    def on_fit_start(self) -> None:
        self.norm = torch.nn.SyncBatchNorm(6)


def other_size_of_process_group(rank: int) -> None:
    fit(BoaStrategy(), plain_loader())
    chosen = trainer_options(Training(epochs=1))
    pl.Trainer(strategy=BoaStrategy(), devices=3, **chosen).fit(Regression(), plain_loader())


REFUSED: dict[Callable[[int], None], tuple[str, ...]] = {
    wrong_length: ("OptionError", "batch_sizes", "2 ranks"),
    wrong_sum: ("OptionError", "batch_sizes", "sum"),
    other_plan_on_one_rank: ("AgreementError", "batch_sizes of BoaStrategy", "(4, 4) on rank 0"),
    longer_data_on_one_rank: ("AgreementError", "32 on rank 0", "33 on rank 1"),
    other_options_on_one_rank: (
        "AgreementError",
        "granularity of BoaStrategy",
        "1 on rank 0",
        "2 on rank 1",
    ),
    other_batch_size_on_one_rank: ("AgreementError", "8 on rank 0", "10 on rank 1"),
    shuffled_on_one_rank: (
        "AgreementError",
        "'SequentialOrder, drop_last=False' on rank 0",
        "'ShuffledOrder",
    ),
    last_batch_left_out_on_one_rank: (
        "AgreementError",
        "drop_last=False' on rank 0",
        "drop_last=True' on rank 1",
    ),
    stream_on_one_rank: ("AgreementError", "'rows by number' on rank 0", "'a stream' on rank 1"),
    second_loader_a_stream_on_one_rank: (
        "AgreementError",
        "'rows by number' on rank 0",
        "'a stream' on rank 1",
    ),
    stream_that_cannot_be_planned_on_one_rank: (
        "AgreementError",
        "'a stream in shares' on rank 0",
        "'a stream' on rank 1",
    ),
    batches_on_one_rank: ("AgreementError", "SequentialOrder", "'batches of list'"),
    two_loaders_on_one_rank: ("AgreementError", "1 on rank 0", "2 on rank 1"),
    shuffled_evaluation_on_one_rank: ("AgreementError", "validate data set", "ShuffledOrder"),
    other_window_on_one_rank: ("AgreementError", "accumulate_grad_batches", "2 on rank 1"),
    more_epochs_on_one_rank: ("AgreementError", "1 on rank 0", "2 on rank 1"),
    other_option_of_ddp_on_one_rank: (
        "AgreementError",
        "find_unused_parameters of DistributedDataParallel",
        "True on rank 1",
    ),
    checkpoints_on_one_rank: (
        "AgreementError",
        "callbacks that monitor a value",
        "['EarlyStopping', 'ModelCheckpoint'] on rank 1",
    ),
    validation_on_one_rank: ("AgreementError", "use of validation", "True on rank 1"),
    more_validation_loaders_on_one_rank: ("AgreementError", "1 on rank 0", "2 on rank 1"),
    validation_stream_on_one_rank: ("AgreementError", "(32, 4) on rank 0", "rank's own"),
    fewer_sanity_steps_on_one_rank: ("AgreementError", "num_sanity_val_steps", "2 on rank 1"),
    reload_on_one_rank: ("AgreementError", "reload_dataloaders_every_n_epochs", "1 on rank 1"),
    other_schedule_on_one_rank: ("AgreementError", "schedule of plans", "rank 1"),
    fewer_rows_than_ranks: ("PlanError", "min_batch_size=0"),
    bounds_too_tight: ("PlanError", "max_batch_size"),
    stream_that_is_empty_on_one_rank: ("LoaderError", "a batch on every rank", "none on [1]"),
    no_loader_of_torch: ("LoaderError", "a stream among them"),
    collate_that_drops_rows: ("UnsupportedError", "4 rows", "leading size is 3"),
    rank_zero_without_rows: ("OptionError", "batch_sizes", "rank 0"),
    gather_of_unequal_rows: ("UnsupportedError", "(5, 6), (3, 6)", "gather_rows"),
    collate_that_drops_rows_later: ("UnsupportedError", "4 rows", "leading size is 3"),
    sampler_that_depends_on_the_rank: ("AgreementError", "order of rows", "rank 1"),
    evaluation_sampler_that_depends_on_the_rank: ("AgreementError", "order of rows", "rank 1"),
    longer_evaluation_data_on_one_rank: (
        "AgreementError",
        "(31, 4) on rank 0",
        "(32, 4) on rank 1",
    ),
    step_that_fetches_its_batch: ("UnsupportedError", "dataloader_iter"),
    synchronized_batch_norm_without_rows: ("UnsupportedError", "drop_last=True"),
    other_size_of_process_group: ("UnsupportedError", "3 ranks", "one of 2"),
}


@pytest.mark.parametrize("refused", REFUSED, ids=lambda case: case.__name__)
def test_every_rank_ends_with_one_clear_error(refused: Callable[[int], None]) -> None:
    for kind, message in outcomes_of_ranks(refused, RANKS, timeout=20):
        assert kind == "error", message
        last = message.strip().splitlines()[-1]
        assert last.startswith("lightning_boa.errors."), message
        for part in REFUSED[refused]:
            assert part in last


def agree(rank: int) -> dict[str, str]:
    torch.distributed.init_process_group("gloo")
    device = torch.device("cpu")
    found = {"decision": decide_once(lambda: f"of rank {rank}", device)}
    check_digest(5, "plan", device)
    for name, attempt in {
        "digest": lambda: check_digest(7 if rank == 2 else 5, "plan", device),
        "fact": lambda: check_same({"rows": 10, "world size": rank // 2}),
        "failure": lambda: decide_once(fail, device),
    }.items():
        try:
            attempt()
        except (BoaError, ZeroDivisionError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    torch.distributed.barrier()
    return found


def fail() -> None:
    raise ZeroDivisionError("on rank 0 only")


def test_disagreement_names_the_ranks_and_failure_reaches_all() -> None:
    for found in run_ranks(agree, 3):
        assert found["decision"] == "of rank 0"
        assert found["digest"].startswith(f"{AgreementError.__name__}: ")
        assert "rank 2" in found["digest"]
        assert "rank 1" not in found["digest"]
        assert "world size" in found["fact"]
        assert "0 on ranks 0, 1; 1 on rank 2" in found["fact"]
        assert found["failure"] == "ZeroDivisionError: on rank 0 only"
