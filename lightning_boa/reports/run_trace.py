"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Chrome's Trace Event Format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_boa.reports.run_figures import RunFigures, StepParts
from lightning_boa.reports.run_panels import PARTS
from lightning_boa.reports.run_words import rows_in_words

MICROSECONDS = 1e6
PROCESS = 1
MOST_EVENTS_OF_BLOCKS = 200_000

Event = dict[str, Any]


def trace_of(figures: RunFigures) -> dict[str, Any]:
    """The JSON object of the trace: a thread per rank, on it the parts of each measured step.

    The warm-up's steps are laid one after another, and after them the blocks: of each its mean step, at the time at
    which it began if all steps until the next block have lasted as long. Steps that nobody measured leave gaps; of very
    many blocks some show no parts.
    """
    record = figures.record
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "strategy": record.strategy,
            "global_batch_size": str(record.global_batch_size),
            "outcome": record.outcome,
            **record.software,
        },
        "traceEvents": [*_names(figures), *_steps(figures)],
    }


def _names(figures: RunFigures) -> Iterator[Event]:
    yield _named("process_name", 0, name=figures.record.strategy)
    for rank, device in enumerate(figures.record.devices):
        yield _named("thread_name", rank, name=f"rank {rank}: {device}")
        yield _named("thread_sort_index", rank, sort_index=rank)


def _steps(figures: RunFigures) -> Iterator[Event]:
    record, begin = figures.record, 0.0
    for number, step in figures.by_step.items():
        exposed = min((each.communication for each in step if each.rows), default=0.0)
        length = max(each.period for each in step)
        yield from _plans(figures, number, number + 1, begin)
        yield _counter("step time (ms)", begin, measured=1000 * length)
        for each in step:
            parts = StepParts.of(each, exposed)
            yield from _parts(each.rank, begin, length, parts, number, each.rows)
        begin += length
    ends = [*(block.step for block in record.blocks[1:]), record.last_step + 1]
    events = len(record.blocks) * len(record.devices) * len(PARTS)
    every = -(-events // MOST_EVENTS_OF_BLOCKS)
    for number, (block, end) in enumerate(zip(record.blocks, ends, strict=False)):
        end = max(end, block.step + 1)
        yield from _plans(figures, block.step, end, begin)
        equal = 1000 * block.equal_period
        yield _counter("step time (ms)", begin, measured=1000 * block.period, equal_shares=equal)
        yield _counter("idle (%)", begin, idle=100 * block.idle_share)
        if number % every == 0:
            for rank, rows in enumerate(block.batch_sizes):
                parts = StepParts.of_block(block, block.busy[rank])
                yield from _parts(rank, begin, block.period, parts, block.step, rows)
        begin += block.period * (end - block.step)


def _plans(figures: RunFigures, first: int, end: int, begin: float) -> Iterator[Event]:
    """An instant for each plan that began in steps ``first`` to ``end``."""
    for step, sizes in figures.record.plans:
        if first <= step < end:
            yield {
                "name": f"plan from step {step}",
                "cat": "plan",
                "ph": "i",
                "s": "p",
                "ts": begin * MICROSECONDS,
                "pid": PROCESS,
                "tid": 0,
                "args": {"rows": rows_in_words(sizes)},
            }


def _parts(
    rank: int, begin: float, length: float, parts: StepParts, step: int, rows: int
) -> Iterator[Event]:
    """The parts one after another; what noise adds beyond the step's end is cut off, since events do not overlap."""
    end = begin + length
    for part, seconds in parts.named().items():
        seconds = min(seconds, end - begin)
        if part != "rest" and seconds > 0:
            yield {
                "name": PARTS[part],
                "cat": part,
                "ph": "X",
                "ts": begin * MICROSECONDS,
                "dur": seconds * MICROSECONDS,
                "pid": PROCESS,
                "tid": rank,
                "args": {"step": step, "rows": rows},
            }
        begin += seconds


def _counter(name: str, begin: float, **values: float) -> Event:
    return {
        "name": name,
        "ph": "C",
        "ts": begin * MICROSECONDS,
        "pid": PROCESS,
        "tid": 0,
        "args": values,
    }


def _named(what: str, rank: int, **values: str | int) -> Event:
    return {"name": what, "ph": "M", "ts": 0, "pid": PROCESS, "tid": rank, "args": values}
