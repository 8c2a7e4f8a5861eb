"""Two ranks that share one device, over gloo.

Lightning refuses devices=2 where there is one device; a strategy that brings its parallel_devices is asked nothing. The
ranks are spawned, because CUDA cannot be used in a fork of a process that has used it.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch.multiprocessing import start_processes

from tests.processes.ranks import RankError, _free_port
from tests.processes.training import (
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    trainer_options,
    with_options,
)

RANKS = 2
TIMEOUT_SECONDS = 240.0


def run_two_ranks(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Each rank's result of function(rank, *arguments), in order; raises what a rank raised."""
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            _run_rank,
            (function, _free_port(), folder, arguments),
            nprocs=RANKS,
            join=False,
            daemon=True,
            start_method="spawn",
        )
        ends = time.monotonic() + TIMEOUT_SECONDS
        while not context.join(timeout=1.0):
            if time.monotonic() > ends:
                for process in context.processes:
                    process.kill()
                    process.join()
                raise RankError(f"no result within {TIMEOUT_SECONDS:.0f} s")
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(RANKS)]


def _run_rank(
    rank: int,
    function: Callable[..., Any],
    port: int,
    folder: str,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        LOCAL_RANK=str(rank), NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.chdir(folder)
    Path(folder, str(rank)).write_bytes(pickle.dumps(function(rank, *arguments)))
    os._exit(0)  # gloo sometimes aborts at the interpreter's exit


def on_device(training: Training, device: torch.device) -> Training:
    return with_options(training, trainer={**training.trainer, "accelerator": device.type})


def train_each(
    rank: int, device: torch.device, trainings: dict[str, Training]
) -> dict[str, Outcome]:
    """Train each of them under BoaStrategy, on one of two ranks."""
    return {
        name: _train(rank, device, on_device(training, device))
        for name, training in trainings.items()
    }


def _train(rank: int, device: torch.device, training: Training) -> Outcome:
    from lightning_boa import BoaStrategy

    quiet()
    pl.seed_everything(training.seed)
    module = Regression(training.sum_loss, training.single, training.schedules)
    strategy = BoaStrategy(
        global_batch_size=training.global_batch_size,
        parallel_devices=[device] * RANKS,
        process_group_backend="gloo",
        cluster_environment=LightningEnvironment(),
        **training.strategy,
    )
    trainer = pl.Trainer(strategy=strategy, **trainer_options(training))
    assert (trainer.world_size, trainer.global_rank) == (RANKS, rank)
    assert strategy.root_device == device
    torch.manual_seed(rank)
    trainer.fit(module, *loaders(training, batch_size=3))
    return outcome(trainer, module)
