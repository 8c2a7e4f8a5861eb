"""Ranks that have no rows and do not run the model, and what the others do for them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import rank_names
from lightning_boa.strategies import trainer_seam


class Parking:
    """Which ranks are parked in the step that runs.

    In the first step of an epoch a parked rank runs the model all the same, on rows that count for nothing, so that
    whatever is logged and counted has begun there as well. In all others it rests.

    Args:
        rank: this rank.
        device: where the process group's backend wants its tensors.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._device = device
        self._parked: tuple[int, ...] = ()
        self._resting: tuple[int, ...] = ()
        self._has_begun = self._had_rows = False
        self._in_epoch: set[int] = set()

    @property
    def rests(self) -> bool:
        """Whether this rank does not run the model in this step."""
        return self._rank in self._resting

    @property
    def runs_all(self) -> bool:
        """Whether all ranks run the model in this step, parked ones on rows that count for nothing."""
        return bool(self._parked) and not self._resting

    @property
    def was_used(self) -> bool:
        """Whether some rank was parked in this epoch."""
        return bool(self._in_epoch)

    def begin_epoch(self) -> None:
        """No step of this epoch has run."""
        self._has_begun = self._had_rows = False
        self._in_epoch = set()

    def begin_step(self, parked: tuple[int, ...]) -> None:
        """A training step begins, in which these ranks are parked."""
        self._parked = parked
        self._resting = parked if self._has_begun else ()
        self._has_begun = True
        self._had_rows = self._had_rows or self._rank not in parked
        self._in_epoch.update(parked)

    def refuse_collectives(self) -> None:
        """A collective of the module's own runs in its training step, which ranks that rest do not meet.

        Raises:
            UnsupportedError: some rank rests.
        """
        if self._resting:
            raise UnsupportedError(
                f"Expected no collective inside training_step (all_gather, self.log(…, on_step=True, sync_dist=True))"
                f" after the first step of an epoch without any, since {rank_names(self._resting)} then do not run the"
                ' model. Let worker_set be "advise", which leaves every rank its rows.'
            )

    def end_step(self, trainer: Any) -> None:
        """All hooks of a training step have run: rank 0, whose values are logged, learns those of a rank with rows."""
        if 0 not in self._parked:
            return
        source = self._first_with_rows()
        values = trainer_seam.logged_values(trainer) if self._rank == source else []
        values = self._from(source, values)
        if self._rank == 0:
            for value in values:
                trainer_seam.log_for(trainer, value)

    def end_epoch(self, trainer: Any) -> None:
        """An epoch is over: ranks that were parked in it know whatever others have logged, as counting for nothing.

        What each rank logs for itself alone is that of a rank with rows where this rank had none in the whole epoch.
        """
        if not self._in_epoch:
            return
        source = self._first_with_rows()
        names = trainer_seam.logged_values(trainer) if self._rank == source else []
        names = self._from(source, names)
        if self._rank in self._in_epoch:
            for value in names:
                trainer_seam.log_if_missing(trainer, value)
                if not self._had_rows:
                    trainer_seam.log_epoch_for(trainer, value)

    def _first_with_rows(self) -> int:
        return next(rank for rank in range(dist.get_world_size()) if rank not in self._parked)

    def _from(self, source: int, thing: Any) -> Any:
        box = [thing]
        dist.broadcast_object_list(box, src=source, device=self._device)
        return box[0]
