"""What the benchmarks with processes share: ranks forked on this machine, a timer, and a quiet trainer."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn


def run_ranks(function: Callable[..., Any], ranks: int, *arguments: Any) -> Any:
    """Rank 0's result of function(rank, *arguments), run by `ranks` processes; raises if one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _run_rank,
            args=(function, ranks, _free_port(), folder, arguments),
            nprocs=ranks,
            start_method="fork",
        )
        return pickle.loads(Path(folder, "result").read_bytes())


def _run_rank(
    rank: int,
    function: Callable[..., Any],
    ranks: int,
    port: int,
    folder: str,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.update(
        LOCAL_RANK=str(rank),
        NODE_RANK="0",
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.chdir(folder)
    result = function(rank, *arguments)
    if rank == 0:
        Path(folder, "result").write_bytes(pickle.dumps(result))
    torch.distributed.barrier()
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class StepTimer(pl.Callback):
    """Seconds of each step from its start to the next one's, once the strategy has done measuring; then it stops."""

    def __init__(self, steps: int, skip: int = 2) -> None:
        self.seconds: list[float] = []
        self.warmup_seconds: list[float] = []
        self._steps = steps
        self._skip = skip
        self._began: float | None = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if self._began is not None:
            measured = self.seconds if self._is_settled(trainer) else self.warmup_seconds
            measured.append(now - self._began)
        self._began = now
        if len(self.seconds) >= self._steps + self._skip:
            trainer.should_stop = True

    @property
    def measured(self) -> list[float]:
        """The steps without the first ones."""
        return self.seconds[self._skip :]

    def _is_settled(self, trainer: pl.Trainer) -> bool:
        orchestration = getattr(trainer.strategy, "orchestration", None)
        return orchestration is None or orchestration.exchange_after is None


class Network(pl.LightningModule):
    """Two linear layers; about features * width parameters."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rows, targets = batch
        return nn.functional.mse_loss(self.net(rows), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def quiet_trainer(strategy: Any, ranks: int, callbacks: list[pl.Callback]) -> pl.Trainer:
    """A trainer on the CPU that prints and writes nothing and never ends by itself."""
    return pl.Trainer(
        strategy=strategy,
        devices=ranks,
        accelerator="cpu",
        max_epochs=-1,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
