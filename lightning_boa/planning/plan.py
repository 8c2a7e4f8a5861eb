"""The rows of every rank in a step: the plan, and the ways to make one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lightning_boa.errors import OptionError, PlanError
from lightning_boa.planning.allocation import allocate, apportion
from lightning_boa.planning.bounds import is_count, positive_integer, row_bounds
from lightning_boa.planning.passes import InPasses, pass_sizes, passes_needed
from lightning_boa.planning.time_models import LinearTime, TimeModel

LEAST_ROWS = 2


@dataclass(frozen=True)
class BatchPlan:
    """Rows of each rank in a full step, and what is known of its time.

    ``step_seconds`` is the step under this plan, ``rank_seconds`` the part of each rank,
    ``equal_step_seconds`` the step under the equal split; all predicted or measured seconds of
    computation, or None. ``rows_per_pass`` are the most rows that each rank runs at once, None where
    it runs any number.
    """

    batch_sizes: tuple[int, ...]
    step_seconds: float | None = None
    rank_seconds: tuple[float, ...] | None = None
    equal_step_seconds: float | None = None
    rows_per_pass: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        for size in self.batch_sizes:
            if not is_count(size):
                raise PlanError(f"batch_sizes: expected whole numbers >= 0, got {size!r}")
        sizes = tuple(int(size) for size in self.batch_sizes)
        if sum(sizes) == 0:
            raise PlanError(f"batch_sizes: expected at least one rank with rows, got {list(sizes)}")
        if self.rank_seconds is not None and len(self.rank_seconds) != len(sizes):
            raise PlanError(
                f"rank_seconds: expected {len(sizes)} times, got {len(self.rank_seconds)}"
            )
        object.__setattr__(self, "batch_sizes", sizes)
        object.__setattr__(self, "rows_per_pass", self._checked_rows_per_pass())

    def _checked_rows_per_pass(self) -> tuple[int | None, ...] | None:
        if self.rows_per_pass is None or all(most is None for most in self.rows_per_pass):
            return None
        if len(self.rows_per_pass) != self.world_size:
            raise PlanError(
                f"rows_per_pass: expected one number or None for each of {self.world_size} ranks, "
                f"got {list(self.rows_per_pass)}"
            )
        for most in self.rows_per_pass:
            if most is not None and not (is_count(most) and most >= 1):
                raise PlanError(f"rows_per_pass: expected whole numbers >= 1 or None, got {most!r}")
        return tuple(None if most is None else int(most) for most in self.rows_per_pass)

    @property
    def world_size(self) -> int:
        return len(self.batch_sizes)

    @property
    def global_batch_size(self) -> int:
        return sum(self.batch_sizes)

    @property
    def ranks_with_rows(self) -> frozenset[int]:
        return frozenset(rank for rank, rows in enumerate(self.batch_sizes) if rows)

    @property
    def digest(self) -> int:
        """63 bits of ``batch_sizes`` and ``rows_per_pass``, the same in every process and on every machine."""
        if self.rows_per_pass is None:
            return digest(self.batch_sizes)
        return digest([*self.batch_sizes, -1, *(most or 0 for most in self.rows_per_pass)])

    @property
    def linear_ceiling(self) -> float | None:
        """Greatest speed-up over the equal split for times proportional to rows.

        Mean speed / slowest speed, with the speeds ``batch_sizes / rank_seconds``; None where a
        rank has no rows or no time.
        """
        if self.rank_seconds is None or not all(self.batch_sizes) or not all(self.rank_seconds):
            return None
        speeds = [
            size / seconds
            for size, seconds in zip(self.batch_sizes, self.rank_seconds, strict=True)
        ]
        return sum(speeds) / len(speeds) / min(speeds)

    def rows_of(self, step_rows: int, least: int = LEAST_ROWS) -> tuple[int, ...]:
        """Rows of each rank in a step of ``step_rows``, which may be a short last batch.

        More rows than the global batch (batches of varying size) are split in the same proportion.
        In a short one a rank has no rows or at least ``least`` (or its whole part, if that is less), as far as its rows
        go round: BatchNorm refuses a single row. The first rank with rows in the plan always has some.

        Raises:
            PlanError: no rows.
        """
        whole = self.global_batch_size
        if step_rows == whole:
            return self.batch_sizes
        if step_rows < 1:
            raise PlanError(f"a step has at least 1 row, got {step_rows}")
        if step_rows > whole:
            return apportion(self.batch_sizes, step_rows)
        return _short_split(self.batch_sizes, step_rows, least)

    def passes_of(self, rank: int, rows: int) -> tuple[int, ...]:
        """The rows of each pass in which ``rank`` runs ``rows`` rows."""
        return pass_sizes(rows, None if self.rows_per_pass is None else self.rows_per_pass[rank])

    @property
    def pass_counts(self) -> tuple[int, ...]:
        """In how many passes each rank runs its rows of a full step."""
        most = self.rows_per_pass or (None,) * self.world_size
        return tuple(map(passes_needed, self.batch_sizes, most))

    @property
    def has_passes(self) -> bool:
        """Whether some rank needs more than one pass for its rows of a full step."""
        return max(self.pass_counts) > 1

    def in_passes(self, row_caps: Sequence[int | None], step_rows: int | None = None) -> BatchPlan:
        """This plan in passes of at most ``row_caps`` rows on each rank that needs several of them.

        Such a rank gets the largest pass of its even cut, so that a cap which changes a little makes no other plan.
        ``step_rows`` are the most rows of a step, the full step's unless given.
        """
        steps = {self.batch_sizes, self.rows_of(max(step_rows or 0, self.global_batch_size))}
        needed = tuple(
            max(-(-step[rank] // passes_needed(step[rank], cap)) for step in steps)
            if cap is not None and any(step[rank] > cap for step in steps)
            else None
            for rank, cap in enumerate(row_caps)
        )
        return replace(self, rows_per_pass=needed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads."""
        return {
            "batch_sizes": list(self.batch_sizes),
            "step_seconds": self.step_seconds,
            "rank_seconds": None if self.rank_seconds is None else list(self.rank_seconds),
            "equal_step_seconds": self.equal_step_seconds,
            "rows_per_pass": None if self.rows_per_pass is None else list(self.rows_per_pass),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BatchPlan:
        """The plan whose `to_dict` gave ``values``."""
        seconds, most = values["rank_seconds"], values.get("rows_per_pass")
        return cls(
            batch_sizes=tuple(values["batch_sizes"]),
            step_seconds=values["step_seconds"],
            rank_seconds=None if seconds is None else tuple(seconds),
            equal_step_seconds=values["equal_step_seconds"],
            rows_per_pass=None if most is None else tuple(most),
        )


def _short_split(batch_sizes: tuple[int, ...], rows: int, least: int) -> tuple[int, ...]:
    """A split in proportion to ``batch_sizes`` among as many ranks as can have ``least`` rows, the largest ones."""
    first = next(rank for rank, size in enumerate(batch_sizes) if size)
    by_size = sorted(range(len(batch_sizes)), key=lambda rank: (rank != first, -batch_sizes[rank]))
    taking = min(max(1, rows // least), len(by_size))
    while sum(batch_sizes[rank] for rank in by_size[:taking]) < rows:
        taking += 1
    kept = set(by_size[:taking])
    upper = [size if rank in kept else 0 for rank, size in enumerate(batch_sizes)]
    lower = [min(least, size) for size in upper]
    if sum(lower) > rows:
        lower = [int(rank == first) for rank in range(len(batch_sizes))]
    return apportion(upper, rows, lower=lower, upper=upper)


def equal_split(
    world_size: int,
    global_batch_size: int,
    *,
    granularity: int = 1,
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
) -> BatchPlan:
    """The plan of plain data-parallel training: the same rows on every rank.

    The remainder goes to the first ranks. Bounds bend it as little as they must. ``lower`` is 0
    and ``upper`` the whole batch unless given.
    """
    positive_integer("world_size", world_size)
    positive_integer("global_batch_size", global_batch_size)
    return BatchPlan(
        tuple(
            allocate(
                [LinearTime(0.0, 1.0)] * world_size,
                global_batch_size,
                lower=0 if lower is None else lower,
                upper=global_batch_size if upper is None else upper,
                granularity=granularity,
            ).tolist()
        )
    )


def plan_batches(
    time_models: Sequence[TimeModel],
    global_batch_size: int,
    *,
    granularity: int = 1,
    min_batch_size: int | Sequence[int] = 1,
    max_batch_size: int | Sequence[int] | None = None,
    prefer: ArrayLike | None = None,
) -> BatchPlan:
    """The plan whose slowest rank is fastest, with predicted seconds.

    Among equally fast plans the one nearest to ``prefer`` (rows per rank; default: the equal split)
    is taken. A rank whose model is `InPasses` has ``rows_per_pass`` where it needs several.

    Raises:
        OptionError: an option of the wrong kind or length; the message begins with its name.
        PlanError: a global batch size, bounds and a granularity that exclude every plan.
    """
    if len(time_models) == 0:
        raise OptionError("time_models: expected one model per rank, got none")
    world_size = len(time_models)
    lower, upper = row_bounds(
        world_size,
        global_batch_size,
        min_batch_size=min_batch_size,
        max_batch_size=max_batch_size,
        granularity=granularity,
    )
    split = allocate(
        time_models,
        global_batch_size,
        lower=lower,
        upper=upper,
        granularity=granularity,
        prefer=prefer,
    )
    caps = [model.rows_per_pass if isinstance(model, InPasses) else None for model in time_models]
    return predicted_plan(time_models, split.tolist()).in_passes(caps)


def predicted_plan(time_models: Sequence[TimeModel], batch_sizes: Sequence[int]) -> BatchPlan:
    """The plan of ``batch_sizes`` with the seconds that ``time_models`` predict."""
    equal = equal_split(len(batch_sizes), sum(batch_sizes)).batch_sizes
    seconds = _seconds(time_models, batch_sizes)
    return BatchPlan(
        batch_sizes=tuple(batch_sizes),
        step_seconds=max(seconds),
        rank_seconds=seconds,
        equal_step_seconds=max(_seconds(time_models, equal)),
    )


def fixed_plan(
    batch_sizes: object, *, world_size: int, global_batch_size: int | None = None
) -> BatchPlan:
    """The plan given by the option ``batch_sizes``, checked against the ranks and the global batch.

    Raises:
        OptionError: the wrong length, values or sum; the message begins with ``batch_sizes``.
    """
    if not isinstance(batch_sizes, Sequence | np.ndarray) or isinstance(batch_sizes, str):
        raise OptionError(
            f"batch_sizes: expected a list with one number per rank, got {batch_sizes!r}"
        )
    sizes = list(batch_sizes)
    if len(sizes) != world_size:
        raise OptionError(
            f"batch_sizes: expected one number for each of the {world_size} ranks, "
            f"got {len(sizes)}: {sizes}"
        )
    for size in sizes:
        if not is_count(size):
            raise OptionError(f"batch_sizes: expected whole numbers >= 0, got {size!r}")
    if sum(sizes) == 0:
        raise OptionError(f"batch_sizes: expected at least one rank with rows, got {sizes}")
    if global_batch_size is not None and sum(sizes) != global_batch_size:
        raise OptionError(
            f"batch_sizes: expected the sum {global_batch_size} of global_batch_size, "
            f"got {sizes} with the sum {sum(sizes)}"
        )
    return BatchPlan(tuple(sizes))


def digest(numbers: Sequence[int]) -> int:
    """63 bits of a sequence of integers, the same in every process and on every machine."""
    text = ",".join(str(number) for number in numbers)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _seconds(time_models: Sequence[TimeModel], rows: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(model.seconds(size)) for model, size in zip(time_models, rows, strict=True))
