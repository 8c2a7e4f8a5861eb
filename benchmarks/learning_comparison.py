"""What all policies learn of handwritten digits in which time, at the same global batch."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed
from compared_clusters import ComparedCluster
from compared_policies import ComparedPolicy
from local_ranks import quiet_trainer, run_ranks
from rich.console import Console
from torch.nn import functional as F

from lightning_boa.cli.convnet import ConvNet
from lightning_boa.cli.digits import DigitsData
from lightning_boa.reports.comparison import LearningCurve, learning_table

REFERENCE = "ddp"
TOLERANCE = 1.05


def compare_learning(
    cluster: ComparedCluster,
    policies: Mapping[str, ComparedPolicy],
    options: argparse.Namespace,
    picture: Path | None,
    console: Console,
) -> dict[str, Any]:
    """Each policy's validation loss over time, printed as a table."""
    DigitsData()
    found = run_ranks(run_rank, cluster.ranks, cluster, policies, options.epochs)
    curves = {key: LearningCurve(policies[key].name, *each) for key, each in found.items()}
    reference = curves.get(REFERENCE, next(iter(curves.values())))
    loss = TOLERANCE * reference.losses[-1]
    title = f"{cluster.name}: {options.epochs} epochs of handwritten digits, {cluster.global_batch_size} rows a step"
    console.print(learning_table(title, [*curves.values()], loss))
    if picture is not None:
        from lightning_boa.reports.comparison_pictures import learning_figure

        learning_figure(title, [*curves.values()], loss).savefig(picture, dpi=150)
    return {
        "cluster": cluster.name,
        "ranks": cluster.ranks,
        "global_batch_size": cluster.global_batch_size,
        "slowest_seconds": round(cluster.slowest_seconds, 4),
        "loss": round(loss, 5),
        "policies": {key: figures_of(curve, loss) for key, curve in curves.items()},
        "passed": True,
    }


def figures_of(curve: LearningCurve, loss: float) -> dict[str, Any]:
    """The curve as plain values; a loss that is no number is None."""
    return {
        "policy": curve.policy,
        "seconds_to_loss": curve.seconds_to(loss),
        "seconds": [round(each, 3) for each in curve.seconds],
        "rows": list(curve.rows),
        "losses": [round(each, 5) if math.isfinite(each) else None for each in curve.losses],
    }


class ValidationLog(pl.Callback):
    """Validation loss after each epoch, computed at once on rank 0 and not counted as training."""

    def __init__(self, data: DigitsData) -> None:
        self.seconds: list[float] = []
        self.rows: list[int] = []
        self.losses: list[float] = []
        self._pictures, self._labels = data.test_set[:]
        self._rows_per_epoch = len(data.train_set)
        self._began = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stopped = time.perf_counter()
        self.seconds.append(stopped - self._began)
        self.rows.append((trainer.current_epoch + 1) * self._rows_per_epoch)
        if trainer.is_global_zero:
            with torch.no_grad():
                loss = F.cross_entropy(pl_module(self._pictures), self._labels)
            self.losses.append(float(loss))
        self._began += time.perf_counter() - stopped


def run_rank(
    rank: int, cluster: ComparedCluster, policies: Mapping[str, ComparedPolicy], epochs: int
) -> dict[str, tuple[tuple[float, ...], tuple[int, ...], tuple[float, ...]]]:
    """Seconds, rows and losses of each policy, on rank 0."""
    found = {}
    for key, policy in policies.items():
        pl.seed_everything(1, verbose=False)
        data = DigitsData(batch_size=cluster.rows_per_device)
        log = ValidationLog(data)
        trainer = quiet_trainer(
            policy.strategy(), cluster.ranks, [cluster.emulation(), log], max_epochs=epochs
        )
        trainer.fit(ConvNet(), data)
        torch.distributed.barrier()
        found[key] = tuple(log.seconds), tuple(log.rows), tuple(log.losses)
        if rank == 0:
            print(
                f"  {policy.name}: loss {log.losses[-1]:.3f} after {log.seconds[-1]:.1f} s",
                flush=True,
            )
    return found
