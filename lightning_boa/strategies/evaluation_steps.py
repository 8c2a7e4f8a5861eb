"""Whether all ranks are in the same step of an evaluation in which each rank reads a loader of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_boa.errors import AgreementError

BETWEEN_STEPS, THE_END = 0, -1
NAMES = {BETWEEN_STEPS: "no step", THE_END: "the end"}


class EvaluationSteps:
    """Compares the ranks' steps before each collective of the strategy.

    In steps without any, no rank waits for another: one that has ended says so in passing.

    Args:
        rank: this rank.
        world_size: all of them.
        group: of all ranks on the host, in which nothing else is exchanged.
    """

    def __init__(self, rank: int, world_size: int, group: Any) -> None:
        self._rank = rank
        self._world_size = world_size
        self._group = group
        self._step = BETWEEN_STEPS
        self._has_ended = False
        self._unread: tuple[Tensor, Any] | None = None

    def begin(self, step: int) -> None:
        """A step begins, which has this number above 0 on every rank that is in it."""
        self._step = step

    def end(self, *, is_last: bool) -> None:
        """The step is over."""
        self._step = BETWEEN_STEPS
        if is_last:
            self.end_all()

    def end_all(self) -> None:
        """This rank has no further step; can be called more than once."""
        if not self._has_ended:
            self._has_ended = True
            self._unread = self._send()

    def agree(self) -> None:
        """A collective comes next.

        Raises:
            AgreementError: on every rank, where some are in a step that others are not in.
        """
        unread, self._unread = self._unread, None
        if unread is not None:
            _check(*unread)
        _check(*self._send())

    def close(self) -> None:
        """The evaluation is over: the others have nothing to exchange any more.

        Raises:
            AgreementError: they have.
        """
        self.end_all()
        self._step = THE_END
        self.agree()

    def _send(self) -> tuple[Tensor, Any]:
        steps = torch.zeros(self._world_size, dtype=torch.int64)
        steps[self._rank] = self._step
        return steps, dist.all_reduce(steps, group=self._group, async_op=True)


def _check(steps: Tensor, work: Any) -> None:
    work.wait()
    places = [NAMES.get(step, f"step {step}") for step in steps.tolist()]
    if len(set(places)) > 1:
        found = "; ".join(f"{place} on rank {rank}" for rank, place in enumerate(places))
        raise AgreementError(
            "Expected all ranks in the same step of the evaluation where they exchange something (on_step=True with"
            f" sync_dist=True, all_gather), got {found}: their loaders end after different numbers of batches. Give"
            " each rank as many, or exchange at the end of the epoch only, with at least one batch for each rank."
        )
