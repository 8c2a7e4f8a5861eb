"""The options of BoaStrategy, checked where they are declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from math import lcm
from numbers import Integral
from os import PathLike, fspath
from typing import Any, Literal

from torch.nn.parallel import DistributedDataParallel

from lightning_boa.errors import OptionError
from lightning_boa.planning import (
    BATCH_WEIGHTS,
    LEAST_ROWS,
    BatchPlan,
    OrchestrationSettings,
    fixed_plan,
    row_bounds,
)
from lightning_boa.reports.run_record import IN_LOG_FOLDER
from lightning_boa.strategies.abilities import NO_ABILITIES, Abilities

REFUSED = {
    "process_group": "boa shares each step among all ranks, so gradients must be averaged over all of them",
    "model_averaging_period": "averaged models know nothing of the rows behind them",
}
REBALANCE = ("auto", "epoch", "off")
BY_MEMORY: Literal["auto"] = "auto"
WORKER_SET = ("advise", "all", "auto")
BatchWeight = Literal["samples", "sum", "none"] | Callable[[Any], Any]


@dataclass(frozen=True)
class BoaOptions:
    """What a user may set; see `BoaStrategy` for the meaning of each option.

    Raises:
        OptionError: a value of the wrong kind or range; the message begins with the option's name.
    """

    global_batch_size: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    warmup: Literal["auto"] | int = "auto"
    rebalance: Literal["auto", "epoch", "off"] = "auto"
    batch_weight: BatchWeight | None = None
    granularity: int = 1
    min_batch_size: int | tuple[int, ...] = 1
    max_batch_size: int | tuple[int | None, ...] | Literal["auto"] | None = None
    worker_set: Literal["advise", "all", "auto"] = "advise"
    profile: str | None = None
    verbose: bool = True
    record: str | None = IN_LOG_FOLDER

    def __post_init__(self) -> None:
        if self.global_batch_size is not None:
            check_whole("global_batch_size", self.global_batch_size, least=1)
        check_whole("granularity", self.granularity, least=1)
        if self.warmup != "auto":
            least = 1 if self.batch_sizes is None and self.warmup != 0 else 0
            check_whole("warmup", self.warmup, least=least, otherwise='"auto" or ')
        if self.rebalance not in REBALANCE:
            raise OptionError(
                f"rebalance: expected one of {', '.join(map(repr, REBALANCE))}, got {self.rebalance!r}."
            )
        if self.worker_set not in WORKER_SET:
            raise OptionError(
                f"worker_set: expected one of {', '.join(map(repr, WORKER_SET))}, got {self.worker_set!r}."
            )
        rule = self.batch_weight
        if rule is not None and not callable(rule) and rule not in BATCH_WEIGHTS:
            raise OptionError(
                f"batch_weight: expected one of {', '.join(map(repr, BATCH_WEIGHTS))}, or a function batch -> float,"
                f" got {rule!r}. Use 'samples' where the loss is a mean over rows, 'sum' where it is a sum."
            )
        _check_rows("min_batch_size", self.min_batch_size)
        if self.max_batch_size not in (None, BY_MEMORY):
            _check_rows("max_batch_size", self.max_batch_size, or_none=True)
        if self.profile is not None and (not isinstance(self.profile, str) or not self.profile):
            raise OptionError(
                f"profile: expected the path of a file, which need not exist, got {self.profile!r}."
            )
        if not isinstance(self.verbose, bool):
            raise OptionError(f"verbose: expected True or False, got {self.verbose!r}.")
        if self.record is not None and (not isinstance(self.record, str) or not self.record):
            raise OptionError(
                f'record: expected "auto", None or the path of a file, which is written, got {self.record!r}.'
            )
        if self.batch_sizes is None:
            if self.warmup == 0 and self.profile is None:
                raise OptionError(
                    "warmup: 0 leaves nothing to plan from. Give batch_sizes=[…], a profile, or a warm-up of some"
                    " steps."
                )
            return
        if not isinstance(self.batch_sizes, tuple):
            raise OptionError(
                f"batch_sizes: expected a list with one number per rank, got {self.batch_sizes!r}."
            )
        _check_rows("batch_sizes", self.batch_sizes)
        for name, without_effect in {
            "warmup": ("auto", 0),
            "rebalance": ("auto", "off"),
            "granularity": (1,),
            "min_batch_size": (1,),
            "max_batch_size": (None,),
            "worker_set": ("advise", "all"),
            "profile": (None,),
        }.items():
            if getattr(self, name) not in without_effect:
                raise OptionError(
                    f"{name}: has no meaning beside batch_sizes, a fixed plan. Give one of the two."
                )

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether a share may be larger than what its rank's memory holds at once, and then runs in several passes."""
        return self.max_batch_size == BY_MEMORY

    @property
    def parks(self) -> bool:
        """Whether a rank whose computation does not pay may be left without rows."""
        return self.worker_set == "auto"

    @property
    def least_rows(self) -> int:
        """Fewest rows of a rank that has any, in a short last step."""
        asked = self.min_batch_size
        return max(LEAST_ROWS, asked if isinstance(asked, int) else max(asked))

    @property
    def plans_streams(self) -> bool:
        """Whether the shares of a stream may differ, which uses up the ranks' streams at different speeds."""
        return self.batch_sizes is not None or self.warmup != "auto"

    def refuse_for_own_batches(self) -> None:
        """Refuse what means nothing where each rank trains on the batches of its own loader.

        Raises:
            OptionError: the first such option that is set.
        """
        for name, unset in (
            ("batch_sizes", None),
            ("warmup", "auto"),
            ("global_batch_size", None),
        ):
            if getattr(self, name) != unset:
                raise OptionError(
                    f"{name}: expected none where each rank trains on the batches of its own loader, got"
                    f" {getattr(self, name)!r}. Only a DataLoader with a batch_size reads as many rows as a plan says,"
                    " of a map-style data set, or of an IterableDataset beside batch_sizes or a warmup of some steps."
                )
        self.refuse_said_rows("the batches of each rank's own loader")

    def refuse_said_rows(self, batches: str) -> None:
        """Refuse what is said of the rows of a step where they are not known beforehand.

        Raises:
            OptionError: the first such option that is set.
        """
        for name, unset in (
            ("granularity", 1),
            ("min_batch_size", 1),
            ("max_batch_size", None),
            ("profile", None),
        ):
            if getattr(self, name) != unset:
                raise OptionError(
                    f"{name}: expected none with {batches}, got {getattr(self, name)!r}. Leave it out."
                )

    @property
    def facts(self) -> dict[str, Any]:
        """What all ranks must have set alike, in words that do not depend on the process."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said["batch_weight"] = rule_name(self.batch_weight)
        said["profile"] = "a file" if self.profile is not None else None
        said["record"] = self.record if self.record in (None, IN_LOG_FOLDER) else "a file"
        return {f"{name} of BoaStrategy": value for name, value in said.items()}

    def check_for(self, ranks: int, batch_size: int) -> None:
        """Refuse what no training could do with so many ranks and one loader of such batches.

        Raises:
            OptionError, PlanError: what `settings` or `plan` would say.
        """
        rows = ranks * batch_size if self.global_batch_size is None else self.global_batch_size
        self.settings(ranks, rows, abilities=Abilities(parks=self.parks, parks_first=self.parks))
        self.plan(ranks, rows)

    def plan(self, world_size: int, global_batch_size: int, *, unit: int = 1) -> BatchPlan | None:
        """The fixed plan, None where the devices are to be measured.

        Args:
            unit: rows that cannot be divided, because several loaders are split in the same proportion.

        Raises:
            OptionError: batch_sizes of the wrong length or sum, or not in whole units.
        """
        if self.batch_sizes is None:
            return None
        if unit > 1 and sum(self.batch_sizes) != global_batch_size:
            raise OptionError(
                f"batch_sizes: expected the sum {global_batch_size}, the rows of all training loaders in a step, got"
                f" {list(self.batch_sizes)} with the sum {sum(self.batch_sizes)}. Count the rows of all loaders"
                " together."
            )
        plan = fixed_plan(
            self.batch_sizes, world_size=world_size, global_batch_size=global_batch_size
        )
        if plan.batch_sizes[0] == 0:
            raise OptionError(
                f"batch_sizes: expected rows for rank 0, got {list(plan.batch_sizes)}. DDP spreads rank 0's buffers"
                " (BatchNorm's statistics) and its logged values; leave another rank without rows."
            )
        if unit > 1 and any(rows == 0 or rows % unit for rows in plan.batch_sizes):
            raise OptionError(
                f"batch_sizes: expected multiples of {unit} with several training loaders, got"
                f" {list(plan.batch_sizes)}."
                " Every rank's part of each loader must be the same."
            )
        return plan

    def settings(
        self,
        world_size: int,
        global_batch_size: int,
        *,
        unit: int = 1,
        refuses_single_rows: bool = False,
        varying: bool = False,
        abilities: Abilities = NO_ABILITIES,
    ) -> OrchestrationSettings:
        """What the planning loop has to know.

        Args:
            unit: rows that cannot be divided, because several loaders are split in the same proportion.
            refuses_single_rows: the model has layers (BatchNorm) that refuse one row; where the global batch permits it
                no rank gets fewer than two.
            varying: steps may have any number of rows.
            abilities: what may be planned beside shares.

        Raises:
            PlanError: bounds that no plan can satisfy.
        """
        most = self.max_batch_size
        if isinstance(most, tuple):
            most = tuple(global_batch_size if each is None else each for each in most)
        granularity = lcm(self.granularity, unit)
        lower, upper = row_bounds(
            world_size,
            global_batch_size,
            min_batch_size=self.min_batch_size,
            max_batch_size=None if most == BY_MEMORY else most,
            granularity=granularity,
        )
        if abilities.parks and self.min_batch_size == 1:
            lower = (0,) * world_size
        if not abilities.parks_first:
            lower = (max(1, lower[0]), *lower[1:])
        if unit > 1:
            lower = tuple(max(unit, rows) for rows in lower)
        needs_two = refuses_single_rows and global_batch_size >= LEAST_ROWS * world_size
        if needs_two:
            lower = tuple(
                min(LEAST_ROWS, top) if rows == 1 else rows
                for rows, top in zip(lower, upper, strict=True)
            )
        return OrchestrationSettings(
            world_size=world_size,
            global_batch_size=global_batch_size,
            lower=lower,
            upper=upper,
            granularity=granularity,
            warmup=self.warmup if self.warmup != 0 else "auto",
            rebalance=self.rebalance,
            varying=varying,
            in_passes=abilities.in_passes,
            parks=abilities.parks,
            least_rows=LEAST_ROWS if needs_two else 1,
        )


def rule_name(rule: object) -> str:
    """What a `batch_weight` is called, the same in every process."""
    return str(getattr(rule, "__qualname__", type(rule).__name__) if callable(rule) else rule)


def path_text(path: Any) -> Any:
    """A path as its text; anything else comes back as it is, for the option's own check to refuse."""
    return fspath(path) if isinstance(path, PathLike) else path


def whole_numbers(value: Any) -> Any:
    """A whole number of any kind as an int, a list of any kind (numpy's, omegaconf's) as a tuple of them.

    Anything else comes back as it is, for the option's own check to refuse.
    """
    if not isinstance(value, bool) and isinstance(value, Integral):
        return int(value)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(whole_numbers(each) for each in value)
    return value


def check_known(
    options: Mapping[str, Any],
    strategy: Callable[..., Any],
    *,
    name_of_ours: str = "BoaStrategy",
    ours: Iterable[str] | None = None,
) -> None:
    """Refuse an option that neither `strategy` nor DistributedDataParallel takes.

    Args:
        name_of_ours: the strategy that was given the options.
        ours: its own options, those of BoaStrategy unless given.

    Raises:
        OptionError: its name, and the names that are known.
    """
    known = {*_parameters(strategy), *_parameters(DistributedDataParallel.__init__)}
    known |= {field.name for field in fields(BoaOptions)} if ours is None else set(ours)
    known -= {"self", "module", "kwargs"}
    for name, reason in REFUSED.items():
        if options.get(name) is not None:
            raise OptionError(f'{name}: {reason}. Leave it out, or train with strategy="ddp".')
    for name in options:
        if name not in known:
            raise OptionError(
                f"{name}: is no option of {name_of_ours}. Known are {', '.join(sorted(known))}."
            )


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(signature(function).parameters)


def check_whole(name: str, value: object, *, least: int, otherwise: str = "") -> None:
    """Refuse an option that is no whole number of at least `least`.

    Raises:
        OptionError: it is not; the message says what else it may be, if anything.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(
            f"{name}: expected {otherwise}a whole number of at least {least}, got {value!r}."
        )


def _check_rows(name: str, value: object, *, or_none: bool = False) -> None:
    if value == ():
        raise OptionError(f"{name}: expected one number per rank, got an empty list.")
    for rows in value if isinstance(value, tuple) else (value,):
        if not (or_none and rows is None):
            check_whole(name, rows, least=0)
