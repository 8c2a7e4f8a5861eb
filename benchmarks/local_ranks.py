"""What the benchmarks with processes share: ranks forked on this machine, a timer, and a quiet trainer."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
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
            measured = self.seconds if has_measured(trainer) else self.warmup_seconds
            measured.append(now - self._began)
        self._began = now
        if len(self.seconds) >= self._steps + self._skip:
            trainer.should_stop = True

    @property
    def measured(self) -> list[float]:
        """The steps without the first ones."""
        return self.seconds[self._skip :]


def has_measured(trainer: pl.Trainer) -> bool:
    """Whether the trainer's strategy is not, or no longer, measuring for a plan."""
    orchestration = getattr(trainer.strategy, "orchestration", None)
    return orchestration is None or orchestration.exchange_after is None


class Turns:
    """Lets one of several trainings run at a time, each in its thread; all ranks hand over at the same steps."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = order
        self._present = 0
        self._changed = threading.Condition()

    def run(self, trainings: Mapping[str, Callable[[], Any]]) -> None:
        """Run each training when its turn has come, until all have ended."""
        threads = [
            threading.Thread(target=self._run, args=(name, trainings[name])) for name in self._order
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, name: str, training: Callable[[], Any]) -> None:
        self.wait_for(name)
        try:
            training()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        self.hand_over()

    def wait_for(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._order[self._present] == name)

    def hand_over(self) -> None:
        with self._changed:
            self._present = (self._present + 1) % len(self._order)
            self._changed.notify_all()


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


def quiet_trainer(
    strategy: Any, ranks: int, callbacks: list[pl.Callback], max_epochs: int = -1
) -> pl.Trainer:
    """A trainer on the CPU that prints and writes nothing; it never ends by itself unless after `max_epochs`."""
    return pl.Trainer(
        strategy=strategy,
        devices=ranks,
        accelerator="cpu",
        max_epochs=max_epochs,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
