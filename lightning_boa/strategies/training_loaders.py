"""The training loaders of a fit: one, several that are split in the same proportion, or streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from lightning_boa.data import BatchSource, RowSource, Source
from lightning_boa.errors import LoaderError, OptionError
from lightning_boa.planning import BatchPlan
from lightning_boa.strategies.abilities import NO_ABILITIES, Abilities
from lightning_boa.strategies.step_plans import StepPlans

OWN_BATCHES = "each rank trains on the batches of its own loader, weighted by their rows"
PROPORTIONS = "fixed proportions"


@dataclass(frozen=True)
class Part:
    """One loader: its rows in a full step over all ranks, its source (None for a stream), its length (a stream's in
    batches of this rank) and the rows of each rank's batches where no plan decides them."""

    name: str
    rows: int
    source: Source | None
    length: int | None
    own_rows: tuple[int, ...] | None

    @property
    def usual_rows(self) -> int | None:
        """Rows of a full step, None where steps have any size."""
        is_usual = self.source is None or self.source.has_usual_size
        return self.rows if is_usual else None


class TrainingLoaders:
    """Collects the loaders of a fit as Lightning sets them up, one after the other, and shares out their rows.

    Rows of several loaders are split in units: a unit holds B_k / G rows of each loader k, where B_k are its rows in a
    full step and G their greatest common divisor. So every rank has the same part of each, and one weight is right for
    a mean over all rows as for a sum of the loaders' means.

    Args:
        plans: is told the rows of a step once all loaders are known.
        ranks: the world size.
    """

    def __init__(self, plans: StepPlans, ranks: int) -> None:
        self._plans = plans
        self._ranks = ranks
        self._parts: list[Part] = []
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether loaders are being set up, and the rows of a step are not settled yet."""
        return self._is_open

    @property
    def next_number(self) -> int:
        """The number of the loader that is added next."""
        return len(self._parts)

    @property
    def is_single(self) -> bool:
        """Whether each step has one batch."""
        return len(self._parts) == 1

    @property
    def is_divisible(self) -> bool:
        """Whether a rank's rows of a step can be read as several batches."""
        return self.is_single and not self.is_stream

    @property
    def is_stream(self) -> bool:
        """Whether what ranks read is not decided here."""
        return any(part.source is None for part in self._parts)

    @property
    def global_batch_size(self) -> int:
        """Rows of a full step of all loaders and ranks together."""
        return sum(part.rows for part in self._parts)

    @property
    def unit(self) -> int:
        """Rows that cannot be divided, of all loaders together."""
        if self.is_single:
            return 1
        return self.global_batch_size // gcd(*(part.rows for part in self._parts))

    @property
    def facts(self) -> dict[str, Any]:
        """What all ranks must have in common."""
        facts: dict[str, Any] = {}
        for part in self._parts:
            things = "rows" if isinstance(part.source, RowSource) else "batches"
            facts[f"sampling of the {part.name}"] = part.source and part.source.sampling
            facts[f"{things} in the {part.name}"] = part.length
        facts["global batch size"] = self.global_batch_size
        return facts

    def begin(self) -> None:
        """A new set of loaders is set up, in place of another one."""
        self._is_open, self._parts = True, []

    def add(self, rows: int, source: Source) -> int:
        """A loader is set up; returns its number in the set.

        Raises:
            UnsupportedError, OptionError: loaders that cannot be combined, or options that several loaders exclude.
        """
        return self._add(rows, source, source.length)

    def add_stream(
        self, rows: int, length: int | None, own_rows: tuple[int, ...] | None = None
    ) -> int:
        """The same for a stream, of `length` batches on this rank.

        Args:
            own_rows: rows of each rank's batches, where a rank takes the batches of its own loader as they are.

        Raises:
            OptionError: an option that means nothing where each rank trains on the batches of its own loader.
        """
        if own_rows is not None:
            self._plans.options.refuse_for_own_batches()
        return self._add(rows, None, length, own_rows)

    def _add(
        self,
        rows: int,
        source: Source | None,
        length: int | None,
        own_rows: tuple[int, ...] | None = None,
    ) -> int:
        number = len(self._parts)
        name = "training data set" if number == 0 else f"training data set {number + 1}"
        self._parts.append(Part(name, rows, source, length, own_rows))
        if number and self._plans.options.global_batch_size is not None:
            raise OptionError(
                "global_batch_size: expected none with several training loaders, got"
                f" {self._plans.options.global_batch_size}. Give each loader its own batch_size; a step holds that"
                " times the ranks of each."
            )
        if number and self.is_stream:
            raise LoaderError(
                "expected several training loaders to be DataLoaders with map-style data sets, got a stream among"
                ' them. Combine the data sets in one, or train with strategy="ddp".'
            )
        self._plans.rows_of_loaders = tuple(part.rows for part in self._parts)
        return number

    def close(
        self,
        first_step: int,
        *,
        refuses_single_rows: bool,
        weighs_rows: bool,
        abilities: Abilities,
    ) -> None:
        """All loaders are set up: settle the rows of a step.

        Args:
            refuses_single_rows: the model has layers that refuse a single row.
            abilities: what the module's steps permit.
            weighs_rows: the user has said what the loss is a mean over; else it may be a sum of the loaders' means, for
                which every rank must have the same part of each loader in every step.

        Raises:
            OptionError, PlanError, LoaderError: rows that cannot be split.
        """
        self._is_open = False
        first = self._parts[0]
        if not self.is_single:
            for part in self._parts:
                self._check_short_step(part, weighs_rows)
        elif first.own_rows is not None:
            self._plans.keep(BatchPlan(first.own_rows), OWN_BATCHES)
            return
        elif first.usual_rows is None:
            self._plans.options.refuse_said_rows("batches of any size")
            if self._plans.options.batch_sizes is not None:
                self._plans.keep(self._plans.given(self._ranks, None), PROPORTIONS)
                return
        self._plans.use(
            self.global_batch_size,
            self._ranks,
            first_step,
            unit=self.unit,
            refuses_single_rows=refuses_single_rows,
            varying=isinstance(first.source, BatchSource),
            abilities=abilities if self.is_divisible else NO_ABILITIES,
        )
        if self.is_stream and self._plans.permits_empty_ranks:
            raise OptionError(
                "batch_sizes: expected rows for every rank of a stream, which ends where a rank has none. Give each"
                " rank at least one row."
            )

    def rows_of(self, number: int, step: int, step_rows: int) -> Sequence[int]:
        """Rows of each rank in a step of one loader, which has `step_rows` in it."""
        part, schedule = self._parts[number], self._plans.schedule
        if self._is_open and (
            schedule is None or schedule.latest.global_batch_size != self.global_batch_size
        ):
            rows_of_step = part.usual_rows if self.is_single else self.global_batch_size
            plan = self._plans.given(self._ranks, rows_of_step, unit=self.unit)
        else:
            assert schedule is not None
            plan = schedule.plan_at(step)
        if self.is_single:
            return self._plans.split(plan, step_rows)
        units = [size // self.unit for size in plan.batch_sizes]
        if step_rows % sum(units) == 0:
            return [each * (step_rows // sum(units)) for each in units]
        rows = [each * (part.rows // sum(units)) for each in units]
        return BatchPlan(tuple(rows)).rows_of(step_rows, least=1)

    def passes_of(self, rank: int, step: int, rows: int) -> tuple[int, ...]:
        """The passes in which a rank runs its rows of a step."""
        schedule = self._plans.schedule
        if self._is_open or schedule is None:
            return (rows,)
        return schedule.plan_at(step).passes_of(rank, rows)

    def last_rows(self) -> tuple[int, ...]:
        """Rows of the steps that are shorter than the others, as far as they are known."""
        return tuple(
            short
            for part in self._parts
            if part.source is not None
            if (short := part.source.steps(part.rows, self._ranks).short_rows)
        )

    def _check_short_step(self, part: Part, weighs_rows: bool) -> None:
        assert part.source is not None
        short = part.source.steps(part.rows, self._ranks).short_rows
        units = self.global_batch_size // self.unit
        if short and short >= self._ranks and short % units and not weighs_rows:
            raise LoaderError(
                f"expected every rank to have the same part of each training loader in every step, got a last step of"
                f" {short} rows in the {part.name}, no multiple of {units}. Leave the short last batch out"
                ' (drop_last=True), or say batch_weight="samples" if the loss is a mean over the rows of all loaders.'
            )
        if short is None or 0 < short < self._ranks:
            raise LoaderError(
                f"expected at least one row for each of {self._ranks} ranks in every step of several training loaders,"
                f" got {'batches of any size' if short is None else f'a last step of {short}'} in the {part.name}."
                " Leave the short last batch out (drop_last=True), or combine the data sets in one loader."
            )
