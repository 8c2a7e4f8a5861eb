"""Figures for loggers, the last words of a training, and the text of a terminal."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from lightning_boa.planning import StepRecord, measure_split
from lightning_boa.reports import PlanReport, RankReport, plan_table
from lightning_boa.reports.run_record import BlockRecord, RunRecord, Saving
from lightning_boa.reports.step_metrics import StepFigures
from lightning_boa.reports.summary import summary
from lightning_boa.reports.terminal import as_text


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_block_in_the_names_of_loggers() -> None:
    figures = StepFigures.of_block(BlockRecord(7, (12, 4, 0), 0.2, 0.05, 0.1, (1.0, 0.5, 0.0), 0.4))
    assert figures.logged == pytest.approx(
        {
            "boa/step_seconds": 0.2,
            "boa/idle_share": 0.5,
            "boa/loader_share": 0.25,
            "boa/rank0/rows": 12,
            "boa/rank0/idle_share": 0,
            "boa/rank1/rows": 4,
            "boa/rank1/idle_share": 0.5,
            "boa/rank2/rows": 0,
            "boa/rank2/idle_share": 1,
        }
    )
    assert figures.in_bar == {"boa_ms": 200.0, "boa_idle": 0.5}


def test_measured_steps_in_the_same_names() -> None:
    records = [
        StepRecord(step, rank, 8, 16, 0.1 * (1 + rank), 0.05 * rank, 0.0, 0.0, 0.25)
        for step in range(3)
        for rank in range(2)
    ]
    measured = measure_split(records, (8, 8))
    assert measured is not None
    figures = StepFigures.of_measurement(measured)
    assert figures.logged["boa/step_seconds"] == 0.25
    assert figures.logged["boa/loader_share"] == pytest.approx(0.2)
    assert figures.logged["boa/rank0/idle_share"] == pytest.approx(0.5)


def test_of_very_many_ranks_only_the_extremes() -> None:
    ranks = 65
    rows, busy = tuple(range(ranks)), tuple(rank / 64 for rank in range(ranks))
    logged = StepFigures(1.0, 0.0, rows, busy).logged
    assert len(logged) == 7
    assert logged["boa/ranks/least_rows"] == 0
    assert logged["boa/ranks/most_rows"] == 64
    assert logged["boa/ranks/most_idle_share"] == 1
    assert len(StepFigures(1.0, 0.0, rows[:64], busy[:64]).logged) == 3 + 2 * 64


def test_of_very_many_ranks_the_table_shows_the_extremes() -> None:
    ranks = tuple(RankReport(rank, "a", 8, (7 * rank) % 100) for rank in range(100))
    report = PlanReport(ranks)
    assert report.of_extreme_ranks(100) is report
    shown = report.of_extreme_ranks(10).ranks
    assert sorted(rank.boa_rows for rank in shown) == [*range(5), *range(95, 100)]
    assert [rank.rank for rank in shown] == sorted(rank.rank for rank in shown)


def record(saving: Saving | None, hindrance: str = "") -> RunRecord:
    plan = PlanReport((RankReport(0, "a", 8, 12), RankReport(1, "b", 8, 4)))
    return RunRecord("S", ("a", "b"), 16, "finished", 9, plan, hindrance, saving=saving)


def test_the_last_words() -> None:
    assert summary(record(Saving(120.0, 3.0, 100.0, 1000))) == (
        "2 min saved (± 3.00 s) in the 1,000 steps since the warm-up: 100 ms a step instead of 220 ms under the"
        " equal split, 2.20 times as fast."
    )
    rough = summary(record(Saving(3.79, 1.74, 2.99, 96)))
    assert rough.endswith("under the equal split, about 2.3 times as fast.")
    assert "10.0 s lost" in summary(record(Saving(-10.0, 1.0, 100.0, 1000)))
    assert summary(record(Saving(1.0, 1.0, 100.0, 9), "too little")) == "Too little."
    assert summary(record(None, "nothing was measured")) == "Nothing was measured."
    assert summary(record(None)).startswith(
        "The training ended before enough steps had been watched"
    )
    assert summary(record(Saving(0.0, 0.0, 0.0, 0))) == summary(record(None))
    assert "Nothing saved that noise does not explain" in summary(record(Saving(1.0, 1.0, 9.0, 9)))
    assert "shares were equal" in summary(record(Saving(0.0, 0.0, 9.0, 9)))
    plan = PlanReport(record(None).plan.ranks, equal_step_seconds=0.2, boa_step_seconds=0.1)
    assert summary(replace(record(None), plan=plan)) == (
        "As the warm-up has measured it, a step takes 100 ms instead of 200 ms under the equal split, 2.00 times as"
        " fast."
    )
    both = summary(record(Saving(3.0, 1.0, 100.0, 1000), "the devices differ too little"))
    assert "saved" in both
    assert both.endswith("The devices differ too little.")


def test_a_log_file_gets_plain_text_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "")
    monkeypatch.setenv("COLUMNS", "300")
    long = RankReport(0, "a name of a device " * 20, 8, 8)
    text = as_text(plan_table(PlanReport((long,))), "a sentence " * 20, file=StringIO())
    table, words = text.rsplit("\n", 1)
    assert "\x1b" not in text
    assert max(map(len, table.splitlines())) <= 100
    assert len(words) > 200
    assert all(line == line.rstrip() for line in text.splitlines())


def test_an_output_that_lacks_a_character_gets_another_one() -> None:
    ascii_only = TextIOWrapper(BytesIO(), encoding="ascii")
    text = as_text(
        plan_table(PlanReport((RankReport(0, "Gerät", 8, 8),))), "± 3 s", file=ascii_only
    )
    ascii_only.write(text)
    assert "Ger?t" in text
    assert text.endswith("? 3 s")


def test_a_terminal_gets_its_width_and_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "72")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    text = as_text(plan_table(PlanReport((RankReport(0, "a" * 90, 8, 8),))), file=Terminal())
    assert "\x1b[1m" in text


def test_the_page_about_it_names_every_figure() -> None:
    page = (Path(__file__).parents[2] / "docs" / "in-training.md").read_text(encoding="utf-8")
    figures = StepFigures(1.0, 0.0, (1,), (1.0,)), StepFigures(1.0, 0.0, (1,) * 65, (1.0,) * 65)
    for each in figures:
        for name in {**each.logged, **each.in_bar}:
            assert f"`{name}`" in page
