"""The curves of a run over its steps, as SVG paths in a box of 1000 x 100."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from lightning_boa.reports.run_figures import Point, RunFigures
from lightning_boa.reports.run_words import duration, on_an_axis
from lightning_boa.reports.tables import percent
from lightning_boa.reports.ticks import Tick, nice_ticks

WIDTH, HEIGHT = 1000, 100
MOST_POINTS = 300
MOST_NUMBERED_MARKS = 12
ROOM_OF_WORDS = 0.08


@dataclass(frozen=True)
class Column:
    """Part of the width that tells its figures when the pointer is over it."""

    begin: float
    width: float
    words: str


@dataclass(frozen=True)
class Curves:
    """Paths of the step time, the equal split's, the area between, and the idle share; places are shares of the width
    or, from the top, of the height. ``beyond`` marks what is longer than the chart is high."""

    period: str
    equal: str
    between: str
    idle: str
    warm_up_end: float
    marks: tuple[Tick, ...]
    beyond: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    seconds: tuple[Tick, ...]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, figures: RunFigures) -> Curves | None:
        """None where fewer than two steps were measured."""
        points = _thinned(figures.points)
        if len(points) < 2:
            return None
        first, last = points[0].step, points[-1].step
        span = max(1, last - first)
        top = figures.axis_end

        def across(step: float) -> float:
            return min(1.0, max(0.0, (step - first) / span))

        def down(seconds: float) -> float:
            return 1 - seconds / top

        equal = [point for point in points if point.equal_period is not None]
        changes = figures.record.rebalancings
        numbered = len(changes) <= MOST_NUMBERED_MARKS
        blocks = figures.record.blocks
        return cls(
            period=_path([(across(each.step), down(each.period)) for each in points]),
            equal=_path([(across(each.step), down(each.equal_period or 0.0)) for each in equal]),
            between=_area(
                [(across(each.step), down(each.equal_period or 0.0)) for each in equal],
                [(across(each.step), down(each.period)) for each in equal],
            ),
            idle=_area(
                [(across(each.step), 1 - each.idle) for each in points],
                [(across(each.step), 1.0) for each in points],
            ),
            warm_up_end=across(blocks[0].step) if blocks else 1.0,
            marks=tuple(
                Tick(across(change.step), str(number) if numbered else "")
                for number, change in enumerate(changes, start=1)
                if first <= change.step <= last
            ),
            beyond=_beyond(figures.beyond, across),
            steps=tuple(
                Tick(across(step), f"{step:,.0f}") for step in nice_ticks(first, last, number=5)
            ),
            seconds=tuple(
                Tick(down(seconds), on_an_axis(seconds))
                for seconds in nice_ticks(0.0, top, number=5)
            ),
            columns=_columns(points, across),
        )


def _beyond(points: Sequence[Point], across: Callable[[float], float]) -> tuple[Tick, ...]:
    """A mark for each, the longest first; with its seconds where no longer one has its own there."""
    marks: list[Tick] = []
    for point in sorted(points, key=lambda each: -each.longest)[:MOST_POINTS]:
        place = across(point.step)
        is_free = all(abs(place - mark.place) > ROOM_OF_WORDS for mark in marks if mark.words)
        marks.append(Tick(place, duration(point.longest) if is_free else ""))
    return tuple(marks)


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most some points, each the mean of those that it stands for."""
    size = math.ceil(len(points) / MOST_POINTS) or 1
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return tuple(_mean(group) for group in groups)


def _mean(points: Sequence[Point]) -> Point:
    equal = [point.equal_period for point in points if point.equal_period is not None]
    return Point(
        step=points[0].step,
        period=fmean(point.period for point in points),
        idle=fmean(point.idle for point in points),
        equal_period=fmean(equal) if equal else None,
    )


def _columns(points: Sequence[Point], across: Callable[[float], float]) -> tuple[Column, ...]:
    places = [across(point.step) for point in points]
    edges = [places[0], *((one + other) / 2 for one, other in pairwise(places)), places[-1]]
    return tuple(
        Column(begin, end - begin, _words(point))
        for point, (begin, end) in zip(points, pairwise(edges), strict=True)
    )


def _words(point: Point) -> str:
    equal = "" if point.equal_period is None else f", equal shares {duration(point.equal_period)}"
    return f"step {point.step:,}: {duration(point.period)}{equal}, idle {percent(point.idle)}"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + " ".join(map(_place, places)) if places else ""


def _area(above: Sequence[tuple[float, float]], below: Sequence[tuple[float, float]]) -> str:
    return _path([*above, *reversed(below)]) + "Z" if above else ""


def _place(place: tuple[float, float]) -> str:
    return f"{WIDTH * place[0]:.1f},{HEIGHT * place[1]:.2f}"
