"""Asynchronous training through a server that takes each gradient as it arrives."""

from __future__ import annotations

import os
from typing import Any

from typing_extensions import override

from lightning_boa.baselines.chunks import Chunks
from lightning_boa.baselines.rules import AsTheyArrive, Rule
from lightning_boa.baselines.through_server import ThroughServerBehaviour
from lightning_boa.data import RowSource, source_of
from lightning_boa.errors import UnsupportedError
from lightning_boa.strategies import trainer_seam
from lightning_boa.strategies.options import check_whole


class AsynchronousBehaviour(ThroughServerBehaviour):
    """Each rank's gradient changes the weights as it arrives, whatever others have changed since it was begun.

    A baseline to compare with. An epoch has an update for each batch of the loader, so as many as there are ranks for a
    global batch. A rank takes the next batch of the epoch when it needs one, so that fast ranks take more. A gradient
    counts its part of the global batch, so that an epoch moves the weights as far as a synchronous one; with optimizers
    to which the length of a gradient says nothing (Adam), take a smaller learning rate. All ranks come together at the
    end of an epoch, and where validation begins.

    Args:
        staleness: by how many gradients of the epoch a rank may be ahead of the slowest one when it begins another (Ho
            et al., 2013); None: by any number.
        **ddp_kwargs: what Lightning's DDPStrategy takes, but for the options of DistributedDataParallel.

    Raises:
        OptionError: a negative number.
    """

    def __init__(self, *, staleness: int | None = None, **ddp_kwargs: Any) -> None:
        if staleness is not None:
            check_whole("staleness", staleness, least=0)
        self.staleness = staleness
        super().__init__(**ddp_kwargs)
        self._chunks: Chunks | None = None
        self._computed = 0

    @property
    @override
    def facts(self) -> dict[str, Any]:
        return {"staleness": self.staleness}

    @property
    @override
    def updates_per_step(self) -> int:
        return self.world_size

    @property
    @override
    def emulated_step(self) -> int:
        return self._computed

    @override
    def make_rule(self, workers: int) -> Rule:
        return AsTheyArrive(workers, self.staleness)

    @override
    def weight(self, rows: int) -> float:
        assert self._chunks is not None
        return rows / (self._chunks.batch_size * self.world_size)

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if self._trainer.overfit_batches:
            raise UnsupportedError(
                f"Expected overfit_batches=0 under {type(self).__name__}, got {self._trainer.overfit_batches}: which"
                ' rows are used would depend on the ranks\' speed. Use strategy="boa" or "ddp".'
            )

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._computed = 0

    @override
    def _prepare_loader(self, loader: Any, stage: str) -> Any:
        super()._prepare_loader(loader, stage)
        if stage != trainer_seam.TRAIN:
            return None
        source = source_of(loader)
        if not isinstance(source, RowSource) or not trainer_seam.uses_distributed_sampler(
            self._trainer
        ):
            raise UnsupportedError(
                f"Expected a loader with a batch_size and a sampler of rows under {type(self).__name__}, got one that"
                " makes its batches itself."
            )
        self._chunks = Chunks(
            source,
            workers=self.world_size,
            seed=self.broadcast(int(os.environ.get("PL_GLOBAL_SEED", 0))),
            epoch=lambda: int(self._trainer.current_epoch),
            claim=lambda epoch, chunks: self._server_link.claim(epoch, chunks),
            is_behind=lambda: self._is_behind,
        )
        return self._chunks

    @override
    def _is_to_compute(self, batch: Any, *, is_first: bool) -> bool:
        chunks = self._chunks
        assert chunks is not None
        if chunks.rows is None:
            return False
        if not self._is_behind and self.staleness is not None:
            self._known += self._server_link.ask(self._step)
        if self._is_behind and not is_first:
            return False
        self._batch_rows = chunks.take()
        self._computed += 1
        return True
