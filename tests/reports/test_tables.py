from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from lightning_boa.planning import Rebalancing
from lightning_boa.reports import (
    PlanReport,
    RankReport,
    comparison_table,
    plan_table,
    rebalancing_table,
)

REPORT = PlanReport(
    (
        RankReport(0, "GTX 1080", 8, 12, 0.008, 0.012, 0.0115),
        RankReport(1, "M2000", 8, 4, 0.024, 0.0108, 0.0115),
    ),
    equal_step_seconds=0.025,
    boa_step_seconds=0.0125,
)


def test_the_plan_has_a_line_for_each_rank() -> None:
    lines = _text(plan_table(REPORT)).splitlines()
    (fast,) = [line for line in lines if "GTX 1080" in line]
    assert _cells(fast) == ["0", "GTX 1080", "1,000", "8", "12", "11.5", "12.0", "67 %", "0 %"]
    (slow,) = [line for line in lines if "M2000" in line]
    assert _cells(slow) == ["1", "M2000", "370", "8", "4", "11.5", "10.8", "0 %", "10 %"]


def test_the_comparison_shows_both_measured_steps_and_the_ceiling() -> None:
    lines = _text(comparison_table(REPORT)).splitlines()
    (step,) = [line for line in lines if "step time" in line]
    assert _cells(step)[1:] == ["25.0", "12.5", "2.00 x", "2.00 x"]


def test_a_change_of_the_plan_shows_what_was_seen_expected_and_measured() -> None:
    change = Rebalancing(164, (16, 16), (21, 11), (1.0, 2.0), 0.52, 0.108, 0.072)
    pending = Rebalancing(300, (21, 11), (16, 16), (1.0, 1.0), 0.31, 0.072)
    text = _text(rebalancing_table([change, pending]))
    for words in ("164", "21 / 11", "rank 1 takes 2.00", "108.0", "72.0", "1.52 x", "1.50 x"):
        assert words in text
    (last,) = [line for line in text.splitlines() if line.strip().startswith("300")]
    assert _cells(last)[-3:] == ["-", "1.31 x", "-"]


def test_unknown_figures_are_dashes() -> None:
    report = PlanReport((RankReport(0, "cpu", 8, 8), RankReport(1, "cpu", 8, 8)))
    (first, second) = [line for line in _text(plan_table(report)).splitlines() if "cpu" in line]
    assert _cells(first) == ["0", "cpu", "-", "8", "8", "-", "-", "-", "-"]
    assert _cells(second)[0] == "1"
    (step,) = [line for line in _text(comparison_table(report)).splitlines() if "step" in line]
    assert _cells(step)[1:] == ["-", "-", "-", "-"]


def test_a_plan_of_another_system_is_called_by_its_name() -> None:
    for name, heading in (("LB-BSP", "LB-BSP"), ("proportional", "plan")):
        report = replace(REPORT, name=name)
        plan, comparison = _text(plan_table(report)), _text(comparison_table(report))
        assert plan.count(heading) == 2
        assert name in comparison
        assert not {"BOA", "…"} & {word for text in (plan, comparison) for word in text.split()}


@pytest.mark.parametrize("device", ["cpu (x86_64)", "NVIDIA GeForce RTX 3080 Ti Laptop GPU"])
def test_figures_fit_a_terminal_of_80_columns(device: str) -> None:
    ranks = tuple(RankReport(rank, device, 512, 512, 0.9, 0.9, 0.9) for rank in range(12))
    lines = _text(plan_table(PlanReport(ranks))).splitlines()
    assert sum(line.count("900.0") == 2 and line.count("512") == 2 for line in lines) == 12
    assert not any("…" in line for line in lines)


def _text(table: Table) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _cells(line: str) -> list[str]:
    return [cell for cell in re.split(r" {2,}", line.strip()) if cell]
