"""A plan of many ranks as a table: one line for the devices of one name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from lightning_boa.reports.plan_report import PlanReport, RankReport
from lightning_boa.reports.tables import (
    UNKNOWN,
    headings_of,
    milliseconds,
    new_table,
    percent,
    plan_table,
)

MOST_RANKS = 32
MOST_LINES = 32
OTHERS = "others ({} names)"


def folded_plan_table(report: PlanReport) -> Table:
    """The table of a predicted plan; from 33 ranks on a line is all devices of a name, with the range of each figure.

    Of more than 32 names the most frequent ones have a line of their own.
    """
    if len(report.ranks) <= MOST_RANKS:
        return plan_table(report)
    table = new_table("Plan")
    table.add_column("ranks", justify="right", no_wrap=True)
    table.add_column("devices", overflow="fold")
    for heading in headings_of(report):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, ranks in _groups(report.ranks):
        table.add_row(
            f"{len(ranks):,}",
            Text(name),
            _range([rank.samples_per_second for rank in ranks], lambda speed: f"{speed:,.0f}"),
            _range([rank.equal_rows for rank in ranks], str),
            _range([rank.boa_rows for rank in ranks], str),
            _range([rank.boa_seconds for rank in ranks], milliseconds),
            _range([report.equal_idle_share(rank) for rank in ranks], percent),
            _range([report.boa_idle_share(rank) for rank in ranks], percent),
        )
    return table


def by_name(values: Sequence[int], names: Sequence[str]) -> str:
    """ "22-23 x 4090, 10 x 3090": the range of whole numbers of each name."""
    groups: dict[str, list[int]] = {}
    for name, value in zip(names, values, strict=True):
        groups.setdefault(name, []).append(value)
    return ", ".join(f"{name} {_range(group, str)}" for name, group in groups.items())


def _groups(ranks: Sequence[RankReport]) -> list[tuple[str, list[RankReport]]]:
    by_device: dict[str, list[RankReport]] = {}
    for rank in ranks:
        by_device.setdefault(rank.device, []).append(rank)
    if len(by_device) <= MOST_LINES:
        return list(by_device.items())
    groups = sorted(by_device.items(), key=lambda group: -len(group[1]))
    own, others = groups[: MOST_LINES - 1], groups[MOST_LINES - 1 :]
    rest = [rank for _, members in others for rank in members]
    return [*own, (OTHERS.format(len(others)), rest)]


def _range(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return UNKNOWN
    least, most = text(min(known)), text(max(known))
    return least if least == most else f"{least.removesuffix(' %')}-{most}"
