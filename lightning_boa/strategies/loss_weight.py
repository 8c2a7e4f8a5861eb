"""The factor of a rank's loss, for gradients that are averaged over all ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightning_boa.data import Share
from lightning_boa.errors import OptionError
from lightning_boa.planning import BATCH_WEIGHTS, gradient_weight
from lightning_boa.strategies import ghost

DECLARATION = "boa_batch_weight"
MOST_WITHOUT_WEIGHT = 10
Rule = str | Callable[[Any], Any]


def rule_of(asked: Rule | None, module: nn.Module) -> Rule:
    """How the loss is weighted: as the option says, else as the module declares, else as a mean over rows.

    Raises:
        OptionError: the module declares neither one of the known words nor a method.
    """
    rule = asked if asked is not None else getattr(module, DECLARATION, BATCH_WEIGHTS[0])
    if not callable(rule) and rule not in BATCH_WEIGHTS:
        raise OptionError(
            f"{DECLARATION}: expected {type(module).__name__} to declare one of"
            f" {', '.join(map(repr, BATCH_WEIGHTS))}, or a method batch -> float, got {rule!r}."
        )
    return rule


def is_said(asked: Rule | None, module: nn.Module) -> bool:
    """Whether the user has said what the loss is a mean over."""
    return asked is not None or hasattr(module, DECLARATION)


class LossWeight:
    """The weight of one training step after the other.

    Under a callable rule the rank's loss is a mean over `mass` things (tokens that count, class weights), so it weighs
    mass_i W / sum_j mass_j. The sum travels while the forward runs.

    Args:
        rule: "samples", "sum", "none", or a function of the batch that gives the rank's mass.
        rank: this rank.
        world_size: ranks that the gradient is averaged over.
        device: where the process group wants its tensors.
    """

    def __init__(self, rule: Rule, rank: int, world_size: int, device: torch.device) -> None:
        self._rule = rule
        self._rank = rank
        self._without_weight: int | None = 0
        self._world_size = world_size
        self._device = device
        self._share: Share | None = None
        self._mass = 0.0
        self._total: Tensor | None = None
        self._work: Any = None

    @property
    def needs_batches(self) -> bool:
        """Whether what a step weighs can only be said by its batches."""
        return callable(self._rule)

    def begin(self, share: Share, *batches: Any) -> None:
        """A step begins, with the batches of all its passes; under a callable rule every rank must call this.

        Raises:
            OptionError: a mass that is negative or no finite number.
        """
        self._share = share
        if not callable(self._rule):
            return
        masses = [self._mass_of(batch) for batch in batches] if share.rows else []
        self._mass = sum(masses)
        if share.rows and self._without_weight is not None:
            self._warn_of_batches_without_weight()
        self._total = torch.tensor([self._mass], dtype=torch.float64, device=self._device)
        self._work = dist.all_reduce(self._total, async_op=True) if self._world_size > 1 else None
        for mass in (*masses, self._mass):
            if not math.isfinite(mass) or mass < 0:
                raise _no_mass(mass)

    def begin_pass(self, rows: int, batch: Any) -> None:
        """What is weighed next is the loss of so many of the step's rows, which are in this batch."""
        assert self._share is not None
        self._share = self._share._replace(rows=rows)
        if callable(self._rule):
            self._mass = self._mass_of(batch)

    @property
    def is_under_way(self) -> bool:
        """Whether the sum of all ranks' masses has not arrived yet."""
        return self._work is not None

    def arrive(self) -> None:
        """Wait for the sum of all ranks' masses."""
        self._work.wait()
        self._work = None

    def of(self, loss: Tensor) -> Tensor:
        """The loss, weighted; cut off where this rank's part counts for nothing."""
        if self._is_cut_off:
            return ghost.without_gradient(loss)
        assert self._share is not None
        if callable(self._rule):
            return loss * self._factor(loss)
        weight = gradient_weight(
            self._share.rows, self._share.step_rows, self._world_size, self._rule
        )
        return loss if weight == 1.0 else loss * weight

    def gradients(self, module: nn.Module) -> AbstractContextManager[None]:
        """Around a backward: every parameter's gradient is zero where this rank's part counts for nothing."""
        return ghost.without_gradients(module) if self._is_cut_off else nullcontext()

    def _mass_of(self, batch: Any) -> float:
        assert callable(self._rule)
        return _number(self._rule(batch))

    @property
    def _is_cut_off(self) -> bool:
        assert self._share is not None
        return self._share.rows == 0 or (callable(self._rule) and self._mass == 0.0)

    def _warn_of_batches_without_weight(self) -> None:
        assert self._without_weight is not None
        self._without_weight = None if self._mass else self._without_weight + 1
        if self._without_weight == MOST_WITHOUT_WEIGHT:
            self._without_weight = None
            warnings.warn(
                f"boa: batch_weight gave 0 for each of the first {MOST_WITHOUT_WEIGHT} batches with rows on rank"
                f" {self._rank}, so nothing has been learned from them. Check what it counts.",
                stacklevel=2,
            )

    def _factor(self, loss: Tensor) -> Tensor:
        assert self._total is not None
        return (self._mass * self._world_size / self._total[0]).to(loss.dtype)


def _number(mass: Any) -> float:
    is_truth = isinstance(mass, bool) or getattr(mass, "dtype", None) in (torch.bool, bool)
    try:
        if is_truth or isinstance(mass, str):
            raise TypeError
        return float(mass)
    except (TypeError, ValueError, RuntimeError):
        raise _no_mass(mass) from None


def _no_mass(mass: Any) -> OptionError:
    return OptionError(
        f"batch_weight: expected a finite number of at least 0 for each batch, got {mass!r}. Return how many things the"
        " loss is a mean over, or the sum of their weights."
    )
