from __future__ import annotations

from pathlib import Path

import pytest

from lightning_boa.errors import OptionError
from lightning_boa.reports import PlanReport, RankReport

pytest.importorskip("matplotlib")

from lightning_boa.reports.pictures import plan_figure, save_plan_picture

REPORT = PlanReport(
    (
        RankReport(0, "fast", 8, 12, 0.008, 0.012, 0.0115),
        RankReport(1, "slow", 8, 4, 0.024, 0.0108, 0.0115),
    ),
)


def test_compute_and_idle_time_fill_the_step() -> None:
    upper, lower = plan_figure(REPORT).axes
    assert upper.get_title("left") == "Equal split: 24.0 ms"
    assert lower.get_title("left") == "BOA: 12.0 ms"
    compute, idle = upper.containers
    assert [bar.get_width() for bar in compute] == pytest.approx([8, 24])
    assert [bar.get_width() for bar in idle] == pytest.approx([16, 0])


def test_predictions_stand_in_for_a_plan_not_yet_measured() -> None:
    ranks = tuple(
        RankReport(rank.rank, rank.device, 8, rank.boa_rows, rank.equal_seconds, None, 0.0115)
        for rank in REPORT.ranks
    )
    _, lower = plan_figure(PlanReport(ranks)).axes
    assert lower.get_title("left") == "BOA: 11.5 ms"


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    path = save_plan_picture(REPORT, tmp_path / "plan.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_unknown_times_cannot_be_drawn() -> None:
    with pytest.raises(OptionError, match="train for more steps"):
        plan_figure(PlanReport((RankReport(0, "cpu", 8, 8),)))
