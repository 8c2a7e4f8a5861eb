from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_boa.errors import OptionError
from lightning_boa.reports.run_figures import RunFigures
from tests.reports.runs import PAIR, THROTTLED, a_run, unmeasured

pytest.importorskip("matplotlib")

from lightning_boa.reports.run_pictures import run_figure, save_run_picture


def test_a_panel_for_each_split_and_one_for_the_run() -> None:
    *panels, run = run_figure(RunFigures(a_run(THROTTLED, 128, blocks=40))).get_axes()
    titles = [axes.get_title("left") for axes in panels]
    assert [title.split(":")[0] for title in titles] == ["Equal shares", "BOA, from step 165 on"]
    assert run.get_title("left") == "The run over time"
    period, equal, changed, beyond = run.get_lines()
    assert len(period.get_xdata()) == 20 + 40
    assert len(equal.get_xdata()) == 40
    assert list(changed.get_xdata()) == [165, 165]
    assert list(beyond.get_xdata()) == [0]
    assert "one measured time is longer" in run.get_xlabel()


def test_names_are_no_mathematics(tmp_path: Path) -> None:
    record = a_run(PAIR, 64, blocks=2)
    ranks = tuple(replace(rank, device="$\\frac{$") for rank in record.plan.ranks)
    named = replace(
        record, devices=("$\\frac{$",) * 2, plan=replace(record.plan, ranks=ranks), saving=None
    )
    save_run_picture(RunFigures(named), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_measured_is_nothing_to_draw() -> None:
    with pytest.raises(OptionError, match="expected a run whose steps were measured"):
        run_figure(RunFigures(unmeasured(["cpu"], 8)))
