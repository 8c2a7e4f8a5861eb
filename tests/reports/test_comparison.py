from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from lightning_boa.reports.comparison import (
    LearningCurve,
    PolicyFigures,
    learning_table,
    policy_table,
    ranked_otherwise,
)

EQUAL = PolicyFigures("equal split", 1.02, 1.0, 125.4, 0.0, (0.8, 0.02), 0.0, (0.8, 0.0))
BACKUP = PolicyFigures("1 backup worker", 0.42, 0.4, 266.7, 0.125, (0.1, 0.3), 0.125, (0.1, 0.3))
CURVE = LearningCurve("BOA", (1.0, 2.0, 3.0, 4.0), (10, 20, 30, 40), (0.9, 0.4, 0.5, 0.3))


def test_a_policy_has_a_line_with_what_it_dropped_and_how_long_its_ranks_waited() -> None:
    lines = _text(policy_table("thesis", [EQUAL, BACKUP])).splitlines()
    (equal,) = [line for line in lines if "equal split" in line]
    (backup,) = [line for line in lines if "backup" in line]
    assert _cells(equal) == [
        "equal split",
        "1.020",
        "1.000",
        "1.020",
        "125",
        "0.0 %",
        "41 %",
        "2-80 %",
    ]
    assert _cells(backup)[4:] == ["267", "12.5 %", "20 %", "10-30 %"]


@pytest.mark.parametrize(
    ("seconds", "simulated", "is_otherwise"),
    [
        (0.9, 1.1, True),
        (0.9, 0.9, False),
        (1.0, 1.01, False),
        (0.9, 1.0, True),
        (1.01, 0.9, False),
        (1.03, 0.9, True),
    ],
    ids=[
        "the other way round",
        "alike",
        "too near to tell",
        "measured apart, simulated alike",
        "simulated apart, measured a little in the same order",
        "simulated apart, measured a little the other way round",
    ],
)
def test_the_simulator_has_to_rank_what_differs(
    seconds: float, simulated: float, is_otherwise: bool
) -> None:
    other = replace(EQUAL, policy="other", step_seconds=seconds, simulated_seconds=simulated)
    pairs = ranked_otherwise([EQUAL, other], same=0.05)
    assert pairs == ([(EQUAL, other)] if is_otherwise else [])


def test_a_curve_tells_when_a_loss_was_first_reached() -> None:
    assert CURVE.seconds_to(0.4) == 2.0
    assert CURVE.seconds_to(0.35) == 4.0
    assert CURVE.seconds_to(0.1) is None


def test_a_policy_that_diverged_never_reaches_the_loss() -> None:
    lost = replace(CURVE, policy="asynchronous", losses=(0.9, math.nan, math.nan, math.nan))
    lines = _text(learning_table("digits", [CURVE, lost], 0.4)).splitlines()
    (line,) = [line for line in lines if "asynchronous" in line]
    assert _cells(line) == ["asynchronous", "-", "4.0", "nan"]
    (line,) = [line for line in lines if "BOA" in line]
    assert _cells(line) == ["BOA", "2.0", "4.0", "0.300"]


def _text(table: Table) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
