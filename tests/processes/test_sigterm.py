"""SIGTERM on one rank or on all: every rank stops before the same step, and what is saved then goes on exactly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_boa import BoaStrategy
from lightning_boa.reports.run_record import FILE_NAME, RunRecord
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    rows_of_steps,
    train_alone,
    trainer_options,
    with_options,
)

TRAINING = Training(rows=67, global_batch_size=8, epochs=3, schedules=False)
STEPS_OF_EPOCH = 9
SIGNALLED = {
    "one rank": (1,),
    "rank 0": (0,),
    "all ranks": (0, 1),
    "all ranks in a window": (0, 1),
    "all ranks in the last step of an epoch": (0, 1),
}
IN_STEP = {"all ranks in the last step of an epoch": STEPS_OF_EPOCH - 1}
WINDOW = {"all ranks in a window": 2}


class Signalled(Regression):
    """Sends SIGTERM to its own process in one step, and waits there until rank 0 knows."""

    def __init__(self, step: int, ranks: tuple[int, ...]) -> None:
        super().__init__(schedules=False)
        self.step = step
        self.ranks = ranks

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.fit_loop.total_batch_idx == self.step:
            if self.trainer.global_rank in self.ranks:
                os.kill(os.getpid(), signal.SIGTERM)
            while self.trainer.global_rank == 0 and not self.trainer.strategy.is_to_stop:
                time.sleep(0.01)
        return super().training_step(batch, batch_idx)


def stop_and_go_on(rank: int, folder: str) -> dict[str, tuple[Outcome, Outcome, str]]:
    found = {}
    for case, ranks in SIGNALLED.items():
        training = with_options(TRAINING, trainer={"accumulate_grad_batches": WINDOW.get(case, 1)})
        keeper = ModelCheckpoint(
            Path(folder, case), filename="stopped", save_on_exception=True, every_n_epochs=100
        )
        stopped = Signalled(IN_STEP.get(case, 13), ranks)
        with pytest.raises(SystemExit):
            fit(training, stopped, callbacks=[keeper])
        record = Path(FILE_NAME)
        ended = RunRecord.from_json(record.read_bytes()).outcome if rank == 0 else "stopped"
        goes_on = Regression(schedules=False)
        path = str(Path(folder, case, "stopped.ckpt"))
        rest = fit(training, goes_on, ckpt_path=path)
        found[case] = (outcome(stopped.trainer, stopped), rest, ended)
    return found


def fit(
    training: Training, module: Regression, callbacks: Any = (), ckpt_path: str | None = None
) -> Outcome:
    quiet()
    pl.seed_everything(training.seed)
    options = {**trainer_options(training), "enable_checkpointing": bool(callbacks)}
    strategy = BoaStrategy(batch_sizes=[5, 3])
    trainer = pl.Trainer(strategy=strategy, devices=2, callbacks=list(callbacks), **options)
    trainer.fit(module, *loaders(training, batch_size=4), ckpt_path=ckpt_path)
    return outcome(trainer, module)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = str(tmp_path_factory.mktemp("stopped"))
    return run_ranks(stop_and_go_on, 2, folder, timeout=60)


@pytest.mark.parametrize("case", SIGNALLED)
def test_all_ranks_stop_before_the_same_step_and_go_on(outcomes: list[Any], case: str) -> None:
    window = WINDOW.get(case, 1)
    alone = train_alone(
        with_options(TRAINING, trainer={"accumulate_grad_batches": window}),
        Regression(schedules=False),
    )
    stopped = [found[case][0] for found in outcomes]
    rest = [found[case][1] for found in outcomes]
    done = IN_STEP.get(case, 13) + 1
    assert [len(each.seen) for each in stopped] == [done, done]
    assert [found[case][2] for found in outcomes] == ["stopped", "stopped"]
    done -= done % STEPS_OF_EPOCH % window
    used = rows_of_steps(stopped)[:done] + rows_of_steps(rest)
    assert used == alone.seen
    for each in rest:
        assert each.steps == alone.steps
        assert relative_error(each.weights, alone.weights) < 1e-10
