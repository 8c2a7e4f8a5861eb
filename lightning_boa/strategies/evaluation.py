"""Validation and test under shares: what this rank may be given, and where all ranks must be together."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from lightning_boa.data import Share, original_loader
from lightning_boa.errors import UnsupportedError
from lightning_boa.strategies import trainer_seam
from lightning_boa.strategies.batch_rows import RowCheck
from lightning_boa.strategies.evaluation_steps import EvaluationSteps


class Evaluation:
    """The validations and tests of one process group.

    Args:
        rank: this rank.
        world_size: all of them.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._checks: MutableMapping[Any, RowCheck] = WeakKeyDictionary()
        self._steps: EvaluationSteps | None = None
        self._group: Any = None

    def begin(self, trainer: Any) -> None:
        """The loaders of a validation or test are there."""
        refuse_loaders_side_by_side(trainer)
        _, loaders = trainer_seam.evaluation_mode(trainer)
        if self._world_size > 1 and any(original_loader(each) is each for each in loaders):
            if self._group is None:
                self._group = dist.new_group(backend="gloo")
            self._steps = EvaluationSteps(self._rank, self._world_size, self._group)

    def end(self) -> None:
        """It is over."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None

    def begin_step(self, trainer: Any) -> None:
        """One of its steps begins."""
        if self._steps is not None:
            number, _ = trainer_seam.evaluation_step(trainer)
            self._steps.begin(number)

    def end_step(self, trainer: Any) -> None:
        """All hooks of the step have run."""
        if self._steps is not None:
            _, is_last = trainer_seam.evaluation_step(trainer)
            self._steps.end(is_last=is_last)

    def end_steps(self) -> None:
        """This rank has no further step."""
        if self._steps is not None:
            self._steps.end_all()

    def agree(self) -> None:
        """All ranks exchange something next.

        Raises:
            AgreementError: on every rank, where they are not in the same step.
        """
        if self._steps is not None:
            self._steps.agree()

    def check(self, loader: Any, batch: Any, share: Share) -> None:
        """Whether a batch holds this rank's rows.

        Raises:
            UnsupportedError: it shows others.
        """
        self._checks.setdefault(loader, RowCheck())(batch, share, self._rank)


def refuse_loaders_side_by_side(trainer: Any) -> None:
    """Loaders that are read in turns have no common step.

    Raises:
        UnsupportedError: several loaders of validation or test are combined in another way than one after the other.
    """
    mode, loaders = trainer_seam.evaluation_mode(trainer)
    shared = [loader for loader in loaders if original_loader(loader) is not loader]
    if mode != "sequential" and shared and len(loaders) > 1:
        raise UnsupportedError(
            f'Expected validation and test loaders in the mode "sequential", got "{mode}": a rank may have rows'
            " of one loader in a step and none of another. Pass the loaders as a list, or use"
            ' strategy="ddp".'
        )
