"""What a training measured and planned, kept as JSON for later ones on the same devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from lightning_boa.errors import OptionError
from lightning_boa.planning.bounds import is_count
from lightning_boa.planning.fitting import TimeFit, fit_medians
from lightning_boa.planning.orchestration import Orchestration
from lightning_boa.planning.passes import usual_pass
from lightning_boa.planning.plan import BatchPlan
from lightning_boa.planning.settings import OrchestrationSettings

VERSION = 1
MOST = 10**12


@dataclass(frozen=True)
class MadeFor:
    """Where the figures of a profile hold.

    ``devices`` has one name per rank, ``software`` the version of each package that matters, ``min_batch_size`` and
    ``max_batch_size`` the least and most rows of each rank. ``in_passes`` tells that ranks may run their rows in
    several passes, ``parks`` that they may be left without rows.
    """

    devices: tuple[str, ...]
    parameters: int
    sync_batch_norm: bool
    precision: str
    batch_weight: str
    software: Mapping[str, str]
    global_batch_size: int
    min_batch_size: tuple[int, ...]
    max_batch_size: tuple[int, ...]
    granularity: int
    in_passes: bool = False
    parks: bool = False

    @classmethod
    def of(cls, settings: OrchestrationSettings, **facts: Any) -> MadeFor:
        """What ``settings`` say of the rows, and the other fields as ``facts``."""
        return cls(
            global_batch_size=settings.global_batch_size,
            min_batch_size=settings.lower,
            max_batch_size=settings.upper,
            granularity=settings.granularity,
            in_passes=settings.in_passes,
            parks=settings.parks,
            **facts,
        )

    def difference(self, present: MadeFor) -> str | None:
        """The first fact that is another one at ``present``, with both values; None where all are the same."""
        then, now = self._facts(), present._facts()
        for name in {**then, **now}:
            if then.get(name) != now.get(name):
                return f"the {name} was {then.get(name)!r}, and here it is {now.get(name)!r}"
        return None

    def _facts(self) -> dict[str, Any]:
        return {
            "number of devices": len(self.devices),
            **{f"device of rank {rank}": name for rank, name in enumerate(self.devices)},
            "number of parameters": self.parameters,
            "use of SyncBatchNorm": self.sync_batch_norm,
            "precision": self.precision,
            "batch_weight": self.batch_weight,
            **{f"version of {package}": version for package, version in self.software.items()},
            "global batch": self.global_batch_size,
            "list of least rows": list(self.min_batch_size),
            "list of most rows": list(self.max_batch_size),
            "granularity": self.granularity,
            "leave to run several passes": self.in_passes,
            "leave to park ranks": self.parks,
        }


@dataclass(frozen=True)
class Profile:
    """A plan, what it was made for, and the fit of each rank behind it (None for one that never had rows)."""

    made_for: MadeFor
    fits: tuple[TimeFit | None, ...]
    plan: BatchPlan

    @classmethod
    def of(cls, state: Orchestration, made_for: MadeFor) -> Profile:
        """What ``state`` has measured; it must have measured its plan."""
        return cls(made_for, state.fits, state.plan)

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        values = {
            "version": VERSION,
            "made_for": asdict(self.made_for),
            "plan": self.plan.to_dict(),
            "ranks": [None if fit is None else fit.to_dict() for fit in self.fits],
        }
        return json.dumps(values, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, file: str = "the profile") -> Profile:
        """The profile whose `to_json` gave ``text``.

        Args:
            file: what messages call the place that the text comes from.

        Raises:
            OptionError: no JSON, another version, or a value of the wrong kind, length or range; the message begins
                with ``profile`` and names the value.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise refused(file, "JSON", f"another text ({error})") from error
        version = values.get("version") if isinstance(values, dict) else None
        if type(version) is not int or version != VERSION:
            raise refused(file, f"a profile of version {VERSION}", f"version {version!r}")
        whole = _Object.of(values, "", ("version", "made_for", "plan", "ranks"), file)
        made_for = _made_for(whole.part("made_for", *_names(MadeFor)))
        world_size = len(made_for.devices)
        plan = _plan(whole.part("plan", *_names(BatchPlan)), made_for)
        ranks = whole.take("ranks", *_list_of(_or_none(_MAPPING), world_size))
        fits = tuple(
            _fit(each, f"ranks[{rank}]", usual_pass(rows, len(plan.passes_of(rank, rows))), file)
            for rank, (each, rows) in enumerate(zip(ranks, plan.batch_sizes, strict=True))
        )
        return cls(made_for, fits, plan)


def refused(file: str, expected: str, got: str) -> OptionError:
    """The error about a file that cannot be used."""
    return OptionError(
        f"profile: expected {expected} in {file}, got {got}. Delete the file to have the devices measured anew."
    )


Check = tuple[str, Callable[[Any], bool]]


@dataclass(frozen=True)
class _Object:
    """A JSON object whose values are taken one by one, each with a check.

    Values that a file of an earlier release lacks have a default.
    """

    values: Mapping[str, Any]
    place: str
    file: str

    @classmethod
    def of(
        cls,
        values: Any,
        place: str,
        names: Sequence[str],
        file: str,
        defaults: Mapping[str, Any] | None = None,
    ) -> _Object:
        whole = place or "the whole"
        if not isinstance(values, dict):
            raise refused(file, f"{whole} to be an object", repr(values))
        values = {**(defaults or {}), **values}
        for name in {**dict.fromkeys(names), **values}:
            if name not in values or name not in names:
                found = "it is missing" if name in names else f"also {name!r}"
                raise refused(
                    file, f"{whole} to have {name if name in names else list(names)}", found
                )
        return cls(values, place, file)

    def part(self, name: str, names: Sequence[str], defaults: Mapping[str, Any]) -> _Object:
        return _Object.of(self.values[name], self._place_of(name), names, self.file, defaults)

    def take(self, name: str, expected: str, accepts: Callable[[Any], bool]) -> Any:
        value = self.values[name]
        if not accepts(value):
            raise refused(self.file, f"{self._place_of(name)} to be {expected}", repr(value))
        return value

    def take_list(self, name: str, check: Check, length: int | None = None) -> tuple[Any, ...]:
        return tuple(self.take(name, *_list_of(check, length)))

    def _place_of(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST


_MAPPING: Check = ("an object", lambda value: isinstance(value, dict))
_TEXT: Check = ("a text", lambda value: isinstance(value, str))
_TRUTH: Check = ("true or false", lambda value: isinstance(value, bool))
_ROWS: Check = ("a whole number of at least 0", lambda value: is_count(value) and value <= MOST)
_COUNT: Check = ("a whole number of at least 1", lambda value: _ROWS[1](value) and value >= 1)
_SECONDS: Check = (
    f"seconds from {1 / MOST:g} to {MOST:g}",
    lambda value: _is_number(value) and value >= 1 / MOST,
)
_AMOUNT: Check = (f"a number from 0 to {MOST:g}", lambda value: _is_number(value) and value >= 0)
_VERSIONS: Check = (
    "an object of texts",
    lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
)


def _list_of(check: Check, length: int | None) -> Check:
    expected, accepts = check

    def accepts_all(values: Any) -> bool:
        fits = isinstance(values, list) and (
            len(values) >= 1 if length is None else len(values) == length
        )
        return fits and all(map(accepts, values))

    return f"a list of {'one or more' if length is None else length}, each {expected}", accepts_all


def _or_none(check: Check) -> Check:
    expected, accepts = check
    return f"{expected} or null", lambda value: value is None or accepts(value)


def _made_for(values: _Object) -> MadeFor:
    devices = values.take_list("devices", _TEXT)
    rows = partial(values.take_list, check=_ROWS, length=len(devices))
    return MadeFor(
        devices=devices,
        parameters=values.take("parameters", *_ROWS),
        sync_batch_norm=values.take("sync_batch_norm", *_TRUTH),
        precision=values.take("precision", *_TEXT),
        batch_weight=values.take("batch_weight", *_TEXT),
        software=dict(values.take("software", *_VERSIONS)),
        global_batch_size=values.take("global_batch_size", *_COUNT),
        min_batch_size=rows("min_batch_size"),
        max_batch_size=rows("max_batch_size"),
        granularity=values.take("granularity", *_COUNT),
        in_passes=values.take("in_passes", *_TRUTH),
        parks=values.take("parks", *_TRUTH),
    )


def _plan(values: _Object, made_for: MadeFor) -> BatchPlan:
    world_size = len(made_for.devices)
    sizes = values.take_list("batch_sizes", _ROWS, world_size)
    bounds = zip(made_for.min_batch_size, sizes, made_for.max_batch_size, strict=True)
    values.take(
        "batch_sizes",
        f"{made_for.global_batch_size} rows in all, in multiples of {made_for.granularity} but for one rank,"
        f" from {list(made_for.min_batch_size)} to {list(made_for.max_batch_size)}",
        lambda _: (
            sum(sizes) == made_for.global_batch_size
            and all(low <= size <= high for low, size, high in bounds)
            and sum(size % made_for.granularity > 0 for size in sizes) <= 1
        ),
    )
    rank_seconds = values.take("rank_seconds", *_or_none(_list_of(_AMOUNT, world_size)))
    rows_per_pass = values.take("rows_per_pass", *_or_none(_list_of(_or_none(_COUNT), world_size)))
    return BatchPlan(
        batch_sizes=sizes,
        step_seconds=values.take("step_seconds", *_or_none(_SECONDS)),
        rank_seconds=None if rank_seconds is None else tuple(rank_seconds),
        equal_step_seconds=values.take("equal_step_seconds", *_or_none(_SECONDS)),
        rows_per_pass=None if rows_per_pass is None else tuple(rows_per_pass),
    )


def _fit(value: Any, place: str, rows: int, file: str) -> TimeFit | None:
    """The fit of a rank whose usual pass has ``rows`` in the plan."""
    if value is None and rows == 0:
        return None
    values = _Object.of(value, place, ("batch_sizes", "seconds", "counts", "noise"), file)
    sizes = values.take(
        "batch_sizes",
        "a list of rising whole numbers of at least 1"
        + (f", among them the plan's {rows}" if rows else ""),
        lambda sizes: (
            _list_of(_COUNT, None)[1](sizes)
            and sizes == sorted(set(sizes))
            and (rows == 0 or rows in sizes)
        ),
    )
    return fit_medians(
        sizes,
        values.take_list("seconds", _SECONDS, len(sizes)),
        values.take_list("counts", _COUNT, len(sizes)),
        values.take("noise", *_AMOUNT),
    )


_ADDED = ("in_passes", "parks", "rows_per_pass")


def _names(kind: type[Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the fields, and the defaults of those that later releases have added."""
    defaults = {field.name: field.default for field in fields(kind) if field.name in _ADDED}
    return tuple(field.name for field in fields(kind)), defaults
