"""A run's plan and what it gained, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lightning_boa.planning import Rebalancing
from lightning_boa.reports.plan_report import PlanReport, RankReport

UNKNOWN = "-"
WIDEST_NAME = 6


def plan_table(report: PlanReport) -> Table:
    """One line per rank: device, speed, rows, predicted and measured compute time of a step, idle share.

    Where nothing was measured there is one column of times.
    """
    table = new_table("Plan")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("device", overflow="fold")
    for heading in headings_of(report):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank in report.ranks:
        table.add_row(str(rank.rank), Text(rank.device), *_figures(report, rank))
    return table


def headings_of(report: PlanReport) -> tuple[str, ...]:
    """Of the columns of figures in a table of a plan."""
    name = _heading_of(report.name)
    times = ("predicted\n(ms)", "measured\n(ms)") if report.is_measured else ("step\n(ms)",)
    return (
        "speed\n(rows/s)",
        "rows,\nequal",
        f"rows,\n{name}",
        *times,
        "idle,\nequal",
        f"idle,\n{name}",
    )


def comparison_table(report: PlanReport) -> Table:
    """The step time under the equal split and under BOA, the gain, and the linear ceiling."""
    origin = "both measured in this run" if report.is_measured else "predicted"
    table = new_table(f"Equal split vs {report.name}, {origin}")
    table.add_column("", no_wrap=True)
    for heading in ("equal split", report.name, "gain", "linear ceiling"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(
        "step time (ms)",
        milliseconds(report.equal_step_seconds),
        milliseconds(report.boa_step_seconds),
        factor(report.gain),
        factor(report.linear_ceiling),
    )
    if report.is_measured or report.boa_compute_seconds != report.boa_step_seconds:
        table.add_row(
            "slowest device (ms)",
            milliseconds(report.equal_compute_seconds),
            milliseconds(report.boa_compute_seconds),
            factor(report.compute_gain),
            "",
        )
    return table


def rebalancing_table(changes: Sequence[Rebalancing]) -> Table:
    """One line per change of the plan: first step, rows, what was seen, the step before and after it."""
    table = new_table("Changes of the plan since, each compared with the plan before it")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("rows per rank", overflow="fold")
    table.add_column("what was seen", overflow="fold")
    for heading in ("before\n(ms)", "after\n(ms)", "gain,\nexpected", "gain,\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for change in changes:
        table.add_row(
            str(change.step),
            " / ".join(map(str, change.batch_sizes)),
            change.observation,
            milliseconds(change.seconds_before),
            milliseconds(change.seconds_after),
            factor(1 + change.expected_gain),
            factor(None if change.gain is None else 1 + change.gain),
        )
    return table


def _heading_of(name: str) -> str:
    """A name that fits over a column of figures."""
    return name if len(name) <= WIDEST_NAME else "plan"


def new_table(title: str) -> Table:
    """An empty table in the style of all."""
    return Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{1000 * seconds:{',.1f' if seconds >= 0.001 else '.3g'}}"


def factor(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} x"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f} %"


def _figures(report: PlanReport, rank: RankReport) -> tuple[str, ...]:
    speed = rank.samples_per_second
    times = (rank.predicted_seconds, rank.boa_seconds)
    return (
        UNKNOWN if speed is None else f"{speed:,.0f}",
        str(rank.equal_rows),
        str(rank.boa_rows),
        *map(milliseconds, times if report.is_measured else times[1:]),
        percent(report.equal_idle_share(rank)),
        percent(report.boa_idle_share(rank)),
    )
