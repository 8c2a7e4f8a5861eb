"""Ranks that are killed, fail or hang: the others end soon, say which one it was, and the last checkpoint goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_boa import BoaStrategy
from tests.processes.ranks import outcomes_of_ranks, run_ranks
from tests.processes.training import (
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    train_alone,
    trainer_options,
)

SHARES = [5, 1, 3]
TRAINING = Training(rows=67, global_batch_size=9, epochs=3, schedules=False)
STEPS_OF_EPOCH = 8
SAVED_EVERY = 3
KILLED_IN = STEPS_OF_EPOCH + 5
LAST_SAVED = 12
ENDED = "ended without a word (killed?), last heard of up to a second earlier, after step "
TIME_LIMIT = timedelta(seconds=3)


class WritesRows(Regression):
    """Writes the rows of each step to a file of this rank, which stays if the rank does not; strikes in one step."""

    def __init__(self, file: Path, strikes: Callable[[Path], None] | None = None) -> None:
        super().__init__(schedules=False)
        self.file = file
        self.strikes = strikes

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.strikes is not None and self.trainer.global_step == KILLED_IN:
            self.strikes(self.file)
        loss = super().training_step(batch, batch_idx)
        with self.file.open("a") as file:
            file.write(json.dumps(self.seen[-1]) + "\n")
        return loss


def kill(file: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(file: Path) -> None:
    raise ValueError("a bad row\nand more")


def wait_for_the_others(file: Path) -> None:
    others = [file.with_name(f"{rank} has ended") for rank in range(3) if str(rank) != file.name]
    while not any(other.exists() for other in others):
        time.sleep(0.05)


def train(
    rank: int,
    ranks: int,
    folder: str,
    struck: int,
    strikes: Any,
    saves_at_last: bool = False,
    **fit: Any,
) -> Outcome:
    quiet()
    pl.seed_everything(TRAINING.seed)
    module = WritesRows(Path(folder, str(rank)), strikes if rank == struck else None)
    keeper = ModelCheckpoint(
        folder,
        filename="{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=SAVED_EVERY,
        save_top_k=-1,
        save_on_exception=saves_at_last,
    )
    options = {**trainer_options(TRAINING), "enable_checkpointing": True, "callbacks": [keeper]}
    shares = SHARES if ranks == 3 else [2, 7]
    strategy = BoaStrategy(batch_sizes=shares, timeout=TIME_LIMIT)
    trainer = pl.Trainer(strategy=strategy, devices=ranks, **options)
    try:
        trainer.fit(module, *loaders(TRAINING, batch_size=3), **fit)
    except Exception:
        Path(folder, f"{rank} has ended").touch()
        raise
    return outcome(trainer, module)


def rows_of(folder: Path, ranks: int, first: int, last: int) -> list[list[int]]:
    """The rows of all ranks in the steps from `first` to before `last`, sorted within each step."""
    written = [
        [json.loads(line) for line in Path(folder, str(rank)).read_text().splitlines()]
        for rank in range(ranks)
    ]
    return [sorted(row for rows in written for row in rows[step]) for step in range(first, last)]


def errors_of(outcomes: list[tuple[str, Any]]) -> dict[int, str]:
    return {rank: found for rank, (kind, found) in enumerate(outcomes) if kind == "error"}


def last_error(traceback: str) -> str:
    """What follows the last "Traceback", from the error's name on."""
    lines = traceback.strip().splitlines()
    first = max(index for index, line in enumerate(lines) if line.startswith("  "))
    return "\n".join(lines[first + 1 :])


@pytest.mark.parametrize(
    ("saved", "saves_at_last"),
    [(LAST_SAVED, False), (KILLED_IN, True)],
    ids=["the last regular checkpoint", "a checkpoint of the survivors"],
)
def test_a_killed_rank_is_named_and_fewer_ranks_go_on(
    tmp_path: Path, saved: int, saves_at_last: bool
) -> None:
    outcomes = outcomes_of_ranks(train, 3, 3, str(tmp_path), 2, kill, saves_at_last, timeout=60)
    errors = errors_of(outcomes)
    assert sorted(errors) == [0, 1], outcomes
    for each in errors.values():
        assert "gloo" in last_error(each)
        assert f"boa: rank 2 {ENDED}" in last_error(each)

    resumed = tmp_path / "resumed"
    resumed.mkdir()
    path = tmp_path / f"{saved}.ckpt"
    ends = run_ranks(resume, 2, 2, str(resumed), str(path))
    alone = train_alone(TRAINING, Regression(schedules=False))
    before = rows_of(tmp_path, 3, 0, saved)
    after = rows_of(resumed, 2, 0, 3 * STEPS_OF_EPOCH - saved)
    used = before + after
    for epoch in range(3):
        steps = used[epoch * STEPS_OF_EPOCH : (epoch + 1) * STEPS_OF_EPOCH]
        assert sorted(row for rows in steps for row in rows) == list(range(67))
    assert used == [sorted(rows) for rows in alone.seen]
    for end in ends:
        assert end.steps == alone.steps
        assert relative_error(end.weights, alone.weights) < 1e-10


def resume(rank: int, ranks: int, folder: str, path: str) -> Outcome:
    return train(rank, ranks, folder, -1, None, ckpt_path=path)


@pytest.mark.parametrize(
    ("struck", "strikes", "saves_at_last", "said"),
    [
        (0, kill, False, f"boa: rank 0 {ENDED}"),
        (1, fail, False, "boa: rank 1 failed after step 13: ValueError: a bad row;"),
        (1, fail, True, "boa: rank 1 failed after step 13: ValueError: a bad row;"),
        (
            1,
            wait_for_the_others,
            False,
            "boa: rank 1 is there but did not come along, after step 13;",
        ),
    ],
    ids=["rank 0 killed", "an error", "an error and a last checkpoint", "a rank that hangs"],
)
def test_the_others_say_who_it_was(
    tmp_path: Path, struck: int, strikes: Callable[[Path], None], saves_at_last: bool, said: str
) -> None:
    outcomes = outcomes_of_ranks(
        train, 3, 3, str(tmp_path), struck, strikes, saves_at_last, timeout=60
    )
    errors = errors_of(outcomes)
    others = {0, 1, 2} - {struck}
    assert others <= set(errors), outcomes
    for rank in others:
        assert said in last_error(errors[rank])
