"""Slow devices on an ordinary machine: every rank's training step lasts as long as on the device it stands for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_boa.errors import OptionError
from lightning_boa.planning import RingAllReduce
from lightning_boa.wrong_lightning import refuse_mix

FORWARD_SHARE = 1 / 3
OUT_OF_MEMORY: type[RuntimeError] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)


def rows_of_batch(batch: Any) -> int:
    """Leading size of the first tensor with dimensions that is found in a batch, 1 where there is none."""
    return next(_leading_sizes(batch), 1)


def _leading_sizes(batch: Any) -> Iterator[int]:
    if isinstance(batch, Tensor):
        if batch.ndim:
            yield len(batch)
    elif isinstance(batch, Mapping):
        yield from _leading_sizes(list(batch.values()))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _leading_sizes(part)


def bytes_of(parameters: Iterable[Tensor]) -> int:
    """Bytes of the gradients of these parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


class Stopwatch:
    """Waits until a stretch of work has lasted its time; the work done meanwhile counts towards it.

    Args:
        clock: seconds, increasing.
        sleep: waits for some seconds.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def begin(self) -> None:
        """A stretch of work begins now."""
        self._began = self._clock()

    def wait_for(self, seconds: float) -> None:
        """Return when `seconds` have passed since the beginning."""
        remaining = self._began + seconds - self._clock()
        if remaining > 0:
            self._sleep(remaining)


class EmulatedMemory:
    """The memory of a device that holds so many rows at once: a gauge of bytes, of which a row takes one."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._held = 0

    def begin_step(self) -> int:
        """Nothing is held."""
        self._held = 0
        return 0

    def peak(self) -> int:
        """The most rows that were held at once since the step began."""
        return self._held

    def available(self) -> int:
        """The rows that it holds."""
        return self._rows

    def hold(self, rows: int) -> None:
        """A forward of so many rows begins.

        Raises:
            torch.OutOfMemoryError: they are too many.
        """
        if rows > self._rows:
            raise OUT_OF_MEMORY(
                f"CUDA out of memory (emulated): {rows} rows, and this device holds {self._rows} at once."
            )
        self._held = max(self._held, rows)


class EmulatedClusterBehaviour:
    """Rank i's training step of b rows lasts max(floor_i, overhead_i + b * seconds_per_sample_i).

    A third of it passes as the step begins, the rest inside backward, spread over the parameters, so that gradients
    become ready one after the other and communication overlaps as on a device. The real computation happens as well
    and counts towards that time (choose durations above it); time blocked in collectives before backward comes on top,
    as on a device. Where a step has several backwards (manual optimisation) they share the rest equally; where it runs
    in several passes each of them lasts as a step of its rows, and a parked rank's step takes no time.

    Each reduction of gradients under DDP takes all ranks as long as a ring of the emulated links does: 2 (k - 1)
    (latency + bytes / (k slowest bandwidth)) seconds for k ranks, after the backward and on top of the real exchange.
    To a parameter server and from it a rank's gradients take latency + bytes / bandwidth. Other collectives take their
    real time only.

    Args:
        seconds_per_sample: seconds for each row, one value per rank.
        overhead: seconds per step whatever its rows, a number or one value per rank.
        floor: least seconds of a step (latency), a number or one value per rank.
        names: what the devices are called in tables and pictures, one per rank.
        throttle: {rank: {step: factor}}: from this training step on the rank's step lasts `factor` times as long, until
            another factor follows (1.0: as fast as before). Steps are batches, counted since training began.
        rows_at_once: the most rows that a rank's memory holds in a forward and backward, a number or one (or None: any)
            per rank; more of them raise what CUDA raises.
        bandwidth: bytes per second over a rank's link, a number or one per rank; infinity: nothing is emulated.
        latency: seconds of an empty message.
        clock: seconds, increasing; a test may inject its own.
        sleep: waits for some seconds; a test may inject its own.
        work_clock: processor seconds of this thread; a test may inject its own.

    Raises:
        OptionError: a negative or non-finite time, lists of different lengths, a throttled rank or step that does not
            exist, a factor or a bandwidth that is not above 0.
    """

    def __init__(
        self,
        seconds_per_sample: Sequence[float],
        overhead: float | Sequence[float] = 0.0,
        floor: float | Sequence[float] = 0.0,
        names: Sequence[str] | None = None,
        throttle: Mapping[int, Mapping[int, float]] | None = None,
        rows_at_once: int | Sequence[int | None] | None = None,
        bandwidth: float | Sequence[float] = math.inf,
        latency: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__()
        self.seconds_per_sample = _numbers("seconds_per_sample", seconds_per_sample)
        ranks = len(self.seconds_per_sample)
        self.overhead = _per_rank("overhead", overhead, ranks)
        self.floor = _per_rank("floor", floor, ranks)
        _check_times("seconds_per_sample", self.seconds_per_sample)
        _check_times("overhead", self.overhead)
        _check_times("floor", self.floor)
        self.names = tuple(names) if names is not None else None
        if ranks == 0:
            raise OptionError("seconds_per_sample: expected one value per rank, got none.")
        if self.names is not None and len(self.names) != ranks:
            raise OptionError(
                f"names: expected one name for each of the {ranks} values of seconds_per_sample, got {names!r}."
            )
        self.throttle = _throttle(throttle or {}, ranks)
        self.rows_at_once = _rows_at_once(rows_at_once, ranks)
        self.memory: EmulatedMemory | None = None
        self.bandwidth = _per_rank("bandwidth", bandwidth, ranks)
        if not all(each > 0 for each in self.bandwidth):
            raise OptionError(
                f"bandwidth: expected bytes per second above 0, got {list(self.bandwidth)}."
            )
        (self.latency,) = _per_rank("latency", latency, 1)
        _check_times("latency", (self.latency,))
        self._stopwatch = Stopwatch(clock, sleep)
        self._sleep = sleep
        self._work_clock = work_clock
        self._handles: list[Any] = []
        self._rank = 0
        self._gradient_bytes = 0
        self._waits_for_entry = False
        self._step = 0
        self._batch_rows = 1
        self._duration = 0.0
        self._backward_lasts = 0.0
        self._work_before = 0.0
        self._gradients_seen = 0
        self._gradients_expected = 1
        self._backwards_seen = 0
        self._backwards_expected = 1

    def step_seconds(self, rank: int, rows: int, step: int = 0) -> float:
        """Seconds that `rank`'s training step of `rows` rows lasts, as the batch number `step` since training began."""
        lasting = self.overhead[rank] + rows * self.seconds_per_sample[rank]
        begun = [factor for first, factor in self.throttle.get(rank, ()) if first <= step]
        return max(self.floor[rank], lasting) * (begun[-1] if begun else 1.0)

    def exchange_seconds(self, ranks: Sequence[int], gradient_bytes: int) -> float:
        """Seconds in which ``ranks`` reduce so many bytes among themselves over the emulated network."""
        ring = RingAllReduce(gradient_bytes, bandwidth=1.0, latency=self.latency)
        return float(ring.seconds(len(ranks), min(self.bandwidth[rank] for rank in ranks)))

    def exchange(self, ranks: Sequence[int], gradient_bytes: int) -> None:
        """Pass the time in which ``ranks`` reduce so many bytes; to be called on each of them."""
        seconds = self.exchange_seconds(ranks, gradient_bytes)
        if seconds > 0:
            self._sleep(seconds)

    def transfer(self, gradient_bytes: int) -> None:
        """Pass the time in which so many bytes cross this rank's link, to a parameter server or from it."""
        seconds = self.latency + gradient_bytes / self.bandwidth[self._rank]
        if seconds > 0:
            self._sleep(seconds)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        refuse_mix(self, trainer)
        if len(self.seconds_per_sample) != trainer.world_size:
            raise OptionError(
                f"seconds_per_sample: expected one value per rank ({trainer.world_size}), got"
                f" {len(self.seconds_per_sample)}. Give EmulatedCluster as many devices as the trainer has."
            )
        self._rank = trainer.global_rank
        rows = self.rows_at_once[self._rank]
        self.memory = None if rows is None else EmulatedMemory(rows)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._release()
        trainable = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        self._gradients_expected = max(1, len(trainable))
        self._gradient_bytes = bytes_of(trainable)
        self._handles = [parameter.register_hook(self._on_gradient) for parameter in trainable]
        enter = StepEntry(partial(self._enter, trainer.strategy))
        self._handles.append(pl_module.register_forward_pre_hook(enter))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._waits_for_entry = True
        self._backwards_expected = max(1, self._backwards_seen)
        self._backwards_seen = 0
        self._step = _step_of(trainer) if self.throttle else 0
        self._batch_rows = rows_of_batch(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self._enter(trainer.strategy)
        worked = self._work_clock() - self._work_before
        self._gradients_seen = 0
        self._backwards_seen += 1
        backwards = 1 if _rows_of_pass(trainer.strategy) is not None else self._backwards_expected
        lasts = (1 - FORWARD_SHARE) * self._duration / backwards
        self._backward_lasts = lasts - worked
        self._stopwatch.begin()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._stopwatch.wait_for(self._backward_lasts)
        if self._has_network and _has_reduced(trainer):
            self.exchange(range(len(self.bandwidth)), self._gradient_bytes)
        self._gradients_expected = max(1, self._gradients_seen)
        self._work_before = self._work_clock()
        self._waits_for_entry = getattr(trainer.strategy, "has_more_passes", False)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._release()

    @property
    def _has_network(self) -> bool:
        return self.latency > 0 or min(self.bandwidth) < math.inf

    def _enter(self, strategy: Any) -> None:
        if self._waits_for_entry:
            rows = _rows_of_pass(strategy)
            rows = self._batch_rows if rows is None else rows
            if self.memory is not None:
                self.memory.hold(rows)
            self._waits_for_entry = False
            self._duration = self.step_seconds(self._rank, rows, self._step) if rows else 0.0
            self._stopwatch.begin()
            self._stopwatch.wait_for(FORWARD_SHARE * self._duration)
            self._work_before = self._work_clock()

    def _on_gradient(self, gradient: Tensor) -> None:
        self._gradients_seen += 1
        ready = min(1.0, self._gradients_seen / self._gradients_expected)
        self._stopwatch.wait_for(self._backward_lasts * ready)

    def _release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class StepEntry:
    """A forward pre-hook that calls a function; copies of the module lose it."""

    def __init__(self, enter: Callable[[], None] | None = None) -> None:
        self._enter = enter

    def __call__(self, *arguments: Any) -> None:
        if self._enter is not None:
            self._enter()

    def __reduce__(self) -> tuple[type[StepEntry], tuple[()]]:
        return StepEntry, ()


def _rows_of_pass(strategy: Any) -> int | None:
    """Rows of the pass that runs, 0 where a rank does not run the model; None where a step is one pass of its batch."""
    rows: int | None = getattr(strategy, "rows_of_pass", None)
    return rows


def _step_of(trainer: Any) -> int:
    """The batch that runs, counted since training began; where ranks are in different steps, this rank's own."""
    own: int | None = getattr(trainer.strategy, "emulated_step", None)
    return int(trainer.fit_loop.total_batch_idx) if own is None else own


def _has_reduced(trainer: Any) -> bool:
    """Whether the last backward has averaged gradients: DDP does, but not inside an accumulation window."""
    return bool(getattr(trainer.strategy.model, "require_forward_param_sync", False))


def _per_rank(name: str, value: float | Sequence[float], ranks: int) -> tuple[float, ...]:
    if isinstance(value, (int, float)):
        return (float(value),) * ranks
    values = _numbers(name, value)
    if len(values) != ranks:
        raise OptionError(
            f"{name}: expected a number or one value for each of {ranks} ranks, got {len(values)} values."
        )
    return values


def _rows_at_once(value: int | Sequence[int | None] | None, ranks: int) -> tuple[int | None, ...]:
    values = list(value) if isinstance(value, Sequence) else [value] * ranks
    are_counts = all(each is None or (isinstance(each, int) and each >= 1) for each in values)
    if len(values) != ranks or not are_counts:
        raise OptionError(
            f"rows_at_once: expected a whole number of at least 1, or one (or None) for each of {ranks} ranks, got"
            f" {value!r}."
        )
    return tuple(values)


def _numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: expected numbers, one per rank, got {values!r}.") from None


def _check_times(name: str, values: tuple[float, ...]) -> None:
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise OptionError(f"{name}: expected finite seconds of at least 0, got {list(values)}.")


def _throttle(
    throttle: Mapping[int, Mapping[int, float]], ranks: int
) -> dict[int, tuple[tuple[int, float], ...]]:
    """The first step and the factor of each stretch, by rank, in the order of the steps."""
    for rank, factors in throttle.items():
        if not (isinstance(rank, int) and 0 <= rank < ranks and isinstance(factors, Mapping)):
            raise OptionError(
                f"throttle: expected {{rank: {{step: factor}}}} with ranks 0 to {ranks - 1}, got {dict(throttle)!r}."
            )
        for step, factor in factors.items():
            is_step = isinstance(step, int) and step >= 0
            if not (is_step and math.isfinite(factor) and factor > 0):
                raise OptionError(
                    f"throttle: expected steps of at least 0 and finite factors above 0 for rank {rank}, got"
                    f" {dict(factors)!r}."
                )
    return {rank: tuple(sorted(factors.items())) for rank, factors in throttle.items()}
