"""Which plan holds for each training step: given by options, found in a checkpoint, or made from measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lightning_boa.errors import OptionError, UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    Orchestration,
    OrchestrationSettings,
    Schedule,
    equal_split,
)
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.saved_profile import SavedProfile

SWITCH = "LIGHTNING_BOA"


class StepPlans:
    """The plans of a training, past and to come.

    Args:
        options: what the user asked for.

    Attributes:
        orchestration: the loop that measures and plans; None before training and under a fixed plan.
        fixed: the schedule of a plan that nothing changes; `fixed_reason` says why.
        rows_of_loaders: each training loader's rows of a full step over all ranks; empty before they are known.
        batches_per_step: how many of the user's batches make a step: the ranks with which the training began.
    """

    def __init__(self, options: BoaOptions) -> None:
        self.options = options
        self.orchestration: Orchestration | None = None
        self.fixed: Schedule | None = None
        self.rows_of_loaders: tuple[int, ...] = ()
        self.batches_per_step: int | None = None
        self.fixed_reason = ""
        self._restart: Restart | None = None
        self._made_for: Mapping[str, Any] = {}
        self._settings: OrchestrationSettings | None = None
        self._has_begun = False

    @property
    def schedule(self) -> Schedule | None:
        """Which plan holds from which training step on; None before training."""
        return self.fixed if self.orchestration is None else self.orchestration.schedule

    @property
    def latest(self) -> BatchPlan | None:
        """The latest plan, in the warm-up the split that is tried; None before training."""
        return None if self.schedule is None else self.schedule.latest

    @property
    def permits_empty_ranks(self) -> bool:
        """Whether a rank may have no rows in a full step."""
        lower = () if self._settings is None else self._settings.lower
        least = lower if self.latest is None else self.latest.batch_sizes
        return 0 in least or (self.fixed is None and 0 in lower)

    def begin_fit(self) -> None:
        """A training begins: nothing of an earlier checkpoint holds, nor the rows of earlier loaders."""
        self._restart = None
        self._has_begun = False
        self.rows_of_loaders = ()
        self.batches_per_step = None

    def restore(self, restart: Restart) -> None:
        """Go on where a checkpoint stopped.

        Raises:
            UnsupportedError: the training loaders are set up already, for another global batch.
        """
        if self.rows_of_loaders not in ((), restart.rows_of_loaders):
            raise UnsupportedError(
                f"Expected to read the checkpoint's global batch of {restart.global_batch_size} rows before the"
                f" training loader is set up, which has {sum(self.rows_of_loaders)}. Ask for the loader or"
                " trainer.estimated_stepping_batches in configure_optimizers, not in setup."
            )
        self._restart = restart
        self.orchestration = None

    def state(self, seed: int) -> dict[str, Any] | None:
        """What a checkpoint holds, plain values only; None before a training."""
        if not self.rows_of_loaders or self.batches_per_step is None:
            return None
        orchestration = self.orchestration
        return Restart(
            rows_of_loaders=self.rows_of_loaders,
            batches_per_step=self.batches_per_step,
            seed=seed,
            orchestration=None if orchestration is None else orchestration.to_dict(),
            made_for=self._made_for,
        ).to_dict()

    def rows_of_full_step(self, loader: int, batch_size: int, ranks: int) -> int:
        """Rows of a full step of one of the training loaders, from its batch size, the options and the checkpoint."""
        asked = self.options.global_batch_size
        self.batches_per_step = ranks
        known = None
        if self._restart is not None:
            self.batches_per_step = self._restart.batches_per_step
            known = self._restart.agreed_rows(loader, asked)
        if known is not None:
            return known
        return batch_size * self.batches_per_step if asked is None else asked

    def use(
        self,
        global_batch_size: int,
        ranks: int,
        first_step: int,
        *,
        unit: int = 1,
        refuses_single_rows: bool = False,
        varying: bool = False,
    ) -> None:
        """Fix the plan that the options give, or begin anew with a plan made for other rows or bounds.

        Raises:
            OptionError, PlanError: rows or bounds that no plan can satisfy.
        """
        before = self._settings
        self._settings = self.options.settings(
            ranks,
            global_batch_size,
            unit=unit,
            refuses_single_rows=refuses_single_rows,
            varying=varying,
        )
        plan = self.options.plan(ranks, global_batch_size, unit=unit)
        if is_switched_off():
            self.keep(BatchPlan(self._settings.equal_batch_sizes), f"{SWITCH}=off, so equal shares")
            return
        if plan is not None:
            self.keep(plan, "fixed plan")
            return
        if ranks == 1:
            self.keep(
                equal_split(1, global_batch_size), "one device, so there is nothing to balance"
            )
            return
        self.fixed = None
        if self._has_begun and (self.orchestration is None or before != self._settings):
            if self.options.warmup == 0:
                raise OptionError(
                    "profile: expected the same rows of a step throughout, since warmup=0 leaves no step to measure in,"
                    f" got new training loaders with {global_batch_size} rows. Leave warmup out."
                )
            self.orchestration = Orchestration.begin(self._settings, first_step)

    def given(self, ranks: int, rows: int | None) -> BatchPlan:
        """The plan that the options give for steps of `rows` (None: of any size), else the equal split.

        Raises:
            OptionError: batch_sizes of the wrong length or sum.
        """
        sizes = self.options.batch_sizes
        if sizes is None or is_switched_off():
            return equal_split(ranks, rows or ranks)
        plan = self.options.plan(ranks, rows or sum(sizes))
        assert plan is not None
        return plan

    def keep(self, plan: BatchPlan, reason: str) -> None:
        """Nothing will change `plan`."""
        self.fixed_reason = reason
        self.orchestration = None
        self.fixed = Schedule.starting_with(plan)

    def begin(
        self, made_for: Mapping[str, Any], first_step: int, profile: SavedProfile | None = None
    ) -> None:
        """Measure and plan; go on with the plan of a checkpoint or an earlier fit that was made for the same, else of a
        profile.

        Raises:
            OptionError: a profile that cannot be used.
        """
        known: Mapping[str, Any] | None = None
        known_for = self._made_for
        if self.orchestration is not None:
            known = self.orchestration.to_dict()
        elif self._restart is not None:
            known, known_for = self._restart.orchestration, self._restart.made_for
        self._made_for = made_for
        self._has_begun = True
        if self.fixed is not None:
            return
        assert self._settings is not None
        if known is None or known_for != made_for:
            self.orchestration = Orchestration.begin(self._settings, first_step)
        else:
            self.orchestration = Orchestration.resume(self._settings, known, first_step)
        if profile is not None and self.orchestration.phase == "warmup":
            self.orchestration = profile.begin(self._settings, first_step)

    def split(self, plan: BatchPlan, step_rows: int) -> tuple[int, ...]:
        """Rows of each rank in a step of `step_rows` under `plan`."""
        return plan.rows_of(step_rows, self.options.least_rows)


def is_switched_off() -> bool:
    """Whether the environment asks for equal shares: LIGHTNING_BOA=off.

    Raises:
        OptionError: another value than "on" and "off".
    """
    value = os.environ.get(SWITCH, "").strip().lower() or "on"
    if value not in ("on", "off"):
        raise OptionError(
            f'{SWITCH}: expected "on" or "off" in the environment, got {value!r}. Set {SWITCH}=off for equal shares, or'
            " unset it."
        )
    return value == "off"
