"""What `boa plan` answers to questions: other devices, other global batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from lightning_boa.cli.boa.fleet import WORTH_SAYING, Outlook
from lightning_boa.reports.folded import by_name
from lightning_boa.reports.tables import factor, milliseconds, new_table

PAYING = 0.05
RANKS_LISTED = 8
NO_FIGURES = ("-",) * 4


@dataclass(frozen=True)
class Scenario:
    """Other devices, or another global batch.

    Args:
        name: the question.
        devices: how many there are.
        outlook: the plan for them.
    """

    name: str
    devices: int
    outlook: Outlook

    def against(self, now: Scenario) -> float:
        """How many times as many rows per second."""
        return self.outlook.rows_per_second / now.outlook.rows_per_second

    def to_dict(self, now: Scenario) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "devices": self.devices,
            **plan_dict(self.outlook),
            "against_now": self.against(now),
        }


@dataclass(frozen=True)
class Impossible:
    """A question without an answer.

    Args:
        name: the question.
        devices: how many there would be.
        rows: of the global batch.
        reason: why no plan exists.
    """

    name: str
    devices: int
    rows: int
    reason: str

    def to_dict(self, now: Scenario) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "devices": self.devices,
            "global_batch_size": self.rows,
            "not_possible": self.reason,
        }


def plan_dict(outlook: Outlook) -> dict[str, Any]:
    """A predicted plan as plain values."""
    report = outlook.report
    return {
        **outlook.to_dict(),
        "reason": report.reason,
        "ranks": [
            {
                "rank": rank.rank,
                "device": rank.device,
                "equal_rows": rank.equal_rows,
                "rows": rank.boa_rows,
                "equal_seconds": rank.equal_seconds,
                "seconds": rank.boa_seconds,
                "equal_idle_share": report.equal_idle_share(rank),
                "idle_share": report.boa_idle_share(rank),
            }
            for rank in report.ranks
        ],
    }


def scenario_table(now: Scenario, scenarios: Sequence[Scenario | Impossible]) -> Table:
    """One line per scenario, the present devices first; of one that is not possible it says why."""
    table = new_table("What if")
    table.add_column("scenario", overflow="fold")
    for heading in ("devices", "rows", "equal\n(ms)", "BOA\n(ms)", "rows/s", "against\nnow"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in (now, *scenarios):
        name = each.name.replace(",", ", ")
        if isinstance(each, Impossible):
            said = f"{name}\nnot possible: {each.reason}"
            table.add_row(Text(said), f"{each.devices:,}", f"{each.rows:,}", *NO_FIGURES)
            continue
        table.add_row(
            Text(name),
            f"{each.devices:,}",
            *_figures(each.outlook),
            factor(each.against(now)),
        )
    return table


def best_scenario(now: Scenario, scenarios: Sequence[Scenario]) -> str:
    """One sentence: which scenario is fastest."""
    best = max(scenarios, key=lambda each: each.against(now))
    gain = best.against(now)
    rows = best.outlook.plan.global_batch_size
    if gain < 1 + WORTH_SAYING:
        return (
            f"No scenario brings {WORTH_SAYING:.0%} more rows per second than the present devices."
        )
    grown = "" if rows == now.outlook.plan.global_batch_size else f" with {rows:,} rows a step"
    return f"The most rows per second: {best.name}{grown}, {gain:.2f} times as many as now."


def sweep_table(name: str, outlooks: Sequence[Outlook], devices: Sequence[str]) -> Table:
    """One line per global batch."""
    table = new_table(f"Global batches on {name}")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("shares", overflow="fold")
    for heading in ("equal\n(ms)", "BOA\n(ms)", "rows/s", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outlook in outlooks:
        rows, *times = _figures(outlook)
        sizes = outlook.plan.batch_sizes
        shares = (
            "/".join(map(str, sizes)) if len(sizes) <= RANKS_LISTED else by_name(sizes, devices)
        )
        table.add_row(rows, Text(shares), *times, factor(outlook.report.gain))
    return table


def where_it_stops_paying(outlooks: Sequence[Outlook]) -> str:
    """One sentence: from which global batch on larger ones bring next to no more rows per second."""
    most = max(outlook.rows_per_second for outlook in outlooks)
    enough = next(each for each in outlooks if each.rows_per_second >= (1 - PAYING) * most)
    rows = enough.plan.global_batch_size
    if enough is outlooks[-1]:
        return f"Rows per second still rise at {rows:,} rows."
    return f"From {rows:,} rows on, larger batches bring at most {PAYING:.0%} more rows per second."


def _figures(outlook: Outlook) -> tuple[str, ...]:
    return (
        f"{outlook.plan.global_batch_size:,}",
        milliseconds(outlook.report.equal_step_seconds),
        milliseconds(outlook.report.boa_step_seconds),
        f"{outlook.rows_per_second:,.0f}",
    )
