"""Which plan holds for each training step: given by options, found in a checkpoint, or made from measurements."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from lightning_boa.errors import OptionError, UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    Orchestration,
    OrchestrationSettings,
    Schedule,
    equal_split,
)
from lightning_boa.strategies.abilities import NO_ABILITIES, Abilities
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.saved_profile import SavedProfile

SWITCH = "LIGHTNING_BOA"
RUNS_ALL = (
    "no rank is parked, since training_step communicates over ranks (self.log(…, sync_dist=True) does in every step"
    " unless on_step=False; so does a metric that is computed there)"
)


class Planning(Protocol):
    """Makes the loop that measures and plans: `Orchestration` itself, or a rule of another system."""

    def begin(self, settings: OrchestrationSettings, first_step: int) -> Orchestration:
        """The loop before its first step."""

    def resume(
        self, settings: OrchestrationSettings, state_dict: Mapping[str, Any], first_step: int
    ) -> Orchestration:
        """The loop that goes on with an earlier state, as far as that fits."""


class StepPlans:
    """The plans of a training, past and to come.

    Args:
        options: what the user asked for.
        planning: makes the loop.

    Attributes:
        orchestration: the loop that measures and plans; None before training and under a fixed plan.
        fixed: the schedule of a plan that nothing changes; `fixed_reason` says why.
        rows_of_loaders: each training loader's rows of a full step over all ranks; empty before they are known.
        batches_per_step: how many of the user's batches make a step: the ranks with which the training began.
    """

    def __init__(self, options: BoaOptions, planning: Planning = Orchestration) -> None:
        self.options = options
        self._planning = planning
        self.orchestration: Orchestration | None = None
        self.fixed: Schedule | None = None
        self.rows_of_loaders: tuple[int, ...] = ()
        self.batches_per_step: int | None = None
        self.fixed_reason = ""
        self._restart: Restart | None = None
        self._batch_sizes: dict[int, int] = {}
        self._resumed_batch_sizes: dict[int, int] = {}
        self._differs_from_loaders = False
        self._made_for: Mapping[str, Any] = {}
        self._settings: OrchestrationSettings | None = None
        self._has_begun = False
        self._runs_all = False

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

    @property
    def parks(self) -> bool:
        """Whether a rank without rows does not run the model."""
        return self._settings is not None and self._settings.parks

    def parked_in(self, step: int, step_rows: int) -> tuple[int, ...]:
        """The ranks that do not run the model in a step of so many rows."""
        if not self.parks:
            return ()
        assert self.schedule is not None
        split = self.split(self.schedule.plan_at(step), step_rows)
        return tuple(rank for rank, rows in enumerate(split) if not rows)

    def run_all(self) -> None:
        """No rank is parked from here on."""
        if not self.parks:
            return
        assert self._settings is not None
        self._runs_all = True
        self._settings = self._without_parking(self._settings)
        if self.orchestration is not None:
            settings = self._without_parking(self.orchestration.settings)
            self.orchestration = replace(self.orchestration, settings=settings)
        rank_zero_info(f"boa: {RUNS_ALL}.")

    def _without_parking(self, settings: OrchestrationSettings) -> OrchestrationSettings:
        least = settings.least_rows if self.options.min_batch_size == 1 else 0
        lower = tuple(max(least, rows) for rows in settings.lower)
        return replace(settings, parks=False, lower=lower) if settings.parks else settings

    def begin_fit(self) -> None:
        """A training begins: nothing of an earlier checkpoint holds, nor the rows of earlier loaders."""
        self._restart = None
        self._has_begun = self._runs_all = False
        self._resumed_batch_sizes = {}
        self.rows_of_loaders = ()
        self.batches_per_step = None

    def restore(self, restart: Restart) -> None:
        """Go on where a checkpoint stopped. One that is read while training goes on (that of the learning-rate finder,
        whose steps are no part of the training) changes nothing here.

        Raises:
            UnsupportedError: the training loaders are set up already, for another global batch.
        """
        if self._has_begun:
            return
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
            batch_sizes_of_loaders=tuple(self._batch_sizes.values()),
        ).to_dict()

    def begin_loaders(self, number: int) -> None:
        """A set of so many training loaders is set up next.

        Raises:
            UnsupportedError: in the middle of an epoch, other than in the checkpoint.
        """
        self._batch_sizes = {}
        self._differs_from_loaders = False
        restart = self._restart
        if restart is None or self._has_begun or not restart.rows_of_loaders:
            return
        if not restart.check_number_of_loaders(number):
            rank_zero_warn(
                f"boa: the checkpoint's number of training loaders is {len(restart.rows_of_loaders)}, now it is"
                f" {number}; the batch sizes of the new ones count from here on."
            )
            self._restart = replace(restart, rows_of_loaders=())

    def rows_of_full_step(
        self, loader: int, batch_size: int, ranks: int, *, of_lists: bool = False
    ) -> int:
        """Rows of a full step of one of the training loaders, from its batch size, the options and the checkpoint.

        Args:
            of_lists: a step is made of the lists of a batch sampler, whatever the rows in them.
        """
        asked = self.options.global_batch_size
        self.batches_per_step = ranks
        self._batch_sizes[loader] = batch_size
        known = None
        if self._restart is not None:
            self.batches_per_step = self._restart.batches_per_step
            if of_lists:
                self._compare_lists(self._restart, loader, batch_size)
            else:
                known = self._known_rows(self._restart, loader, batch_size, ranks)
        if known is not None:
            return known
        return batch_size * self.batches_per_step if asked is None else asked

    def rows_of_own_batches(self, loader: int, batch_sizes: Sequence[int], rank: int) -> int:
        """Rows of a full step in which each rank has a batch of its own loader, whose batch sizes these are."""
        self.batches_per_step = len(batch_sizes)
        self._batch_sizes[loader] = batch_sizes[rank]
        return sum(batch_sizes)

    def _known_rows(self, restart: Restart, loader: int, batch_size: int, ranks: int) -> int | None:
        """The checkpoint's rows, as long as loaders that are set up anew keep the batch size of the first ones."""
        if self._has_begun and self._resumed_batch_sizes.get(loader) != batch_size:
            return None
        asked = self.options.global_batch_size
        known = restart.agreed_rows(loader, asked)
        is_new = loader not in self._resumed_batch_sizes
        self._resumed_batch_sizes[loader] = batch_size
        if known is None or asked is not None:
            return known
        now = batch_size * restart.batches_per_step
        self._differs_from_loaders |= known != now
        if (
            is_new
            and restart.has_other_batch_size(loader, batch_size)
            and known != batch_size * ranks
        ):
            option = f" global_batch_size={now} takes the new one, from an epoch's end on."
            rank_zero_warn(
                f"boa: the global batch stays the checkpoint's, {known} rows"
                f" (batch_size={restart.batch_sizes_of_loaders[loader]} when it was saved), although the loader has"
                f" batch_size={batch_size} now.{option if len(restart.rows_of_loaders) == 1 else ''}"
            )
        return known

    def _compare_lists(self, restart: Restart, loader: int, batch_size: int) -> None:
        is_new = loader not in self._resumed_batch_sizes
        self._resumed_batch_sizes[loader] = batch_size
        if is_new and restart.has_other_batch_size(loader, batch_size):
            rank_zero_warn(
                f"boa: the batch sampler has batch_size={batch_size} now,"
                f" {restart.batch_sizes_of_loaders[loader]} when the checkpoint was saved. Its new batches count; of an"
                " epoch that has begun rows may be used twice or not at all."
            )

    def _plan_of_options(self, ranks: int, rows: int, unit: int = 1) -> BatchPlan | None:
        try:
            return self.options.plan(ranks, rows, unit=unit)
        except OptionError as error:
            sizes = self.options.batch_sizes or ()
            if not self._differs_from_loaders or len(sizes) != ranks or sum(sizes) == rows:
                raise
            raise OptionError(
                f"{str(error).removesuffix('.')}. The {rows} rows are those of the checkpoint, not of the loader's"
                " batch_size; give batch_sizes with that sum, or global_batch_size and a checkpoint of an epoch's end."
            ) from None

    def use(
        self,
        global_batch_size: int,
        ranks: int,
        first_step: int,
        *,
        unit: int = 1,
        refuses_single_rows: bool = False,
        varying: bool = False,
        abilities: Abilities = NO_ABILITIES,
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
            abilities=abilities,
        )
        if self._runs_all:
            self._settings = self._without_parking(self._settings)
        plan = self._plan_of_options(ranks, global_batch_size, unit)
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
            self.orchestration = self._planning.begin(self._settings, first_step)

    def given(self, ranks: int, rows: int | None, *, unit: int = 1) -> BatchPlan:
        """The plan that the options give for steps of `rows` (None: of any size), else the equal split.

        Raises:
            OptionError: batch_sizes of the wrong length or sum.
        """
        sizes = self.options.batch_sizes
        if sizes is None or is_switched_off():
            units = equal_split(ranks, (rows or ranks) // unit)
            return BatchPlan(tuple(each * unit for each in units.batch_sizes))
        plan = self._plan_of_options(ranks, rows or sum(sizes), unit)
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
            self.orchestration = self._planning.begin(self._settings, first_step)
        else:
            self.orchestration = self._planning.resume(self._settings, known, first_step)
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
