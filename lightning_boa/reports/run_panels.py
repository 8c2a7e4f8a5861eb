"""Where the bars of typical steps, of idle time and of predictions lie, as shares of their track's width."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_boa.reports.run_figures import Lane, RunFigures, TypicalStep
from lightning_boa.reports.run_words import duration, on_an_axis
from lightning_boa.reports.ticks import Tick, nice_ticks

PARTS = {
    "loader_wait": "waits for its batch",
    "compute": "computes",
    "waiting": "waits for others",
    "communication": "communicates",
    "optimizer": "optimizer",
    "rest": "the rest",
}
NOT_TOLD_APART = (
    "communication and optimizer are in the rest, since they are not told apart after the warm-up"
)
LEAST_RANGE = 0.02
ERRORS = 2


@dataclass(frozen=True)
class Bar:
    """A part of a step from ``begin`` on, both as shares of the longest step."""

    part: str
    begin: float
    width: float
    words: str


@dataclass(frozen=True)
class LaneBars:
    lane: Lane
    rows: int
    bars: tuple[Bar, ...]
    words: str


@dataclass(frozen=True)
class Panel:
    """A typical step of one split; ``end`` as a share of the longest of all panels."""

    title: str
    note: str
    seconds: float
    end: float
    lanes: tuple[LaneBars, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class IdleLane:
    lane: Lane
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Difference:
    """Measured over predicted seconds less 1, its doubt (two standard errors), and where both lie, as shares."""

    lane: Lane
    value: float
    doubt: float | None
    place: float
    doubt_begin: float
    doubt_width: float


@dataclass(frozen=True)
class Differences:
    """``most`` is the difference at either end of the track."""

    most: float
    lanes: tuple[Difference, ...]


def panels_of(figures: RunFigures) -> tuple[Panel, ...]:
    """The equal split, the plan where it is another one, and the last plan where it has changed; on one time axis."""
    name, changes = figures.record.plan.name, figures.record.rebalancings
    steps = [("Equal shares", "", figures.equal_step)]
    if not figures.is_equal or figures.equal_step is None:
        steps.append((name, "", figures.planned_step))
    if changes:
        since = f"{name}, from step {changes[-1].step:,} on"
        equal = figures.latest_equal_seconds
        instead = "" if equal is None else f"equal shares would take {duration(equal)} now; "
        steps.append((since, instead + NOT_TOLD_APART, figures.latest_step))
    known = [(title, note, step) for title, note, step in steps if step is not None]
    longest = max((step.seconds for _, _, step in known), default=1.0)
    return tuple(_panel(figures, title, note, step, longest) for title, note, step in known)


def idle_of(figures: RunFigures) -> tuple[IdleLane, ...]:
    """The share in which each shown rank waits for the slowest, under the equal split and under the plan."""
    plan = figures.record.plan
    lanes = [
        IdleLane(
            lane,
            plan.equal_idle_share(plan.ranks[lane.rank]),
            plan.boa_idle_share(plan.ranks[lane.rank]),
        )
        for lane in figures.lanes
    ]
    return tuple(lane for lane in lanes if lane.before is not None or lane.after is not None)


def differences_of(figures: RunFigures) -> Differences | None:
    """Predicted beside measured; None where no rank has both."""
    known = []
    for lane in figures.lanes:
        rank = figures.record.plan.ranks[lane.rank]
        if rank.predicted_seconds and rank.boa_seconds:
            error = rank.predicted_error
            doubt = None if error is None else ERRORS * error / rank.predicted_seconds
            known.append((lane, rank.boa_seconds / rank.predicted_seconds - 1, doubt))
    if not known:
        return None
    most = 1.1 * max(LEAST_RANGE, *(max(abs(value), doubt or 0.0) for _, value, doubt in known))
    return Differences(
        most,
        tuple(
            Difference(
                lane=lane,
                value=value,
                doubt=doubt,
                place=0.5 + value / most / 2,
                doubt_begin=0.5 - (doubt or 0.0) / most / 2,
                doubt_width=(doubt or 0.0) / most,
            )
            for lane, value, doubt in known
        ),
    )


def _panel(figures: RunFigures, title: str, note: str, step: TypicalStep, longest: float) -> Panel:
    return Panel(
        title=title,
        note=note,
        seconds=step.seconds,
        end=step.seconds / longest,
        lanes=tuple(_lane_bars(lane, step, longest) for lane in figures.lanes),
        ticks=tuple(
            Tick(seconds / longest, on_an_axis(seconds))
            for seconds in nice_ticks(0.0, longest, number=5)
        ),
    )


def _lane_bars(lane: Lane, step: TypicalStep, longest: float) -> LaneBars:
    parts = step.ranks[lane.rank].named()
    begin, bars = 0.0, []
    for part, seconds in parts.items():
        if seconds > 0:
            words = f"{PARTS[part]} {duration(seconds)}"
            bars.append(Bar(part, begin / longest, seconds / longest, words))
        begin += seconds
    return LaneBars(
        lane=lane,
        rows=step.batch_sizes[lane.rank],
        bars=tuple(bars),
        words=", ".join(bar.words for bar in bars),
    )
