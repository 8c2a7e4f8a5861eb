from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_record import Saving
from lightning_boa.reports.run_words import (
    duration,
    headline,
    moment,
    next_step,
    on_an_axis,
    rows_in_words,
    saved,
    sentence,
    signed,
)
from tests.reports.runs import PAIR, Costs, Device, a_run, unmeasured


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1000 ms"),
        (1.0, "1.00 s"),
        (59.9, "59.9 s"),
        (59.96, "1 min"),
        (200.0, "3 min 20 s"),
        (3599.7, "1 h"),
        (7500.0, "2 h 5 min"),
        (-7500.0, "-2 h 5 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_seconds_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_small_words() -> None:
    assert on_an_axis(0.05) == "50 ms"
    assert on_an_axis(0) == "0"
    assert signed(-0.0001) == "+0.0 %"
    assert signed(-0.0123) == "-1.2 %"
    assert sentence("nothing to do") == "Nothing to do."
    assert moment("2026-11-30T14:33:41.047204+00:00") == "2026-11-30 14:33"
    assert moment("yesterday") == "yesterday"
    assert rows_in_words((3, 5)) == "3 / 5"
    assert rows_in_words(tuple(range(100, 1100))) == "1000 ranks, 100 to 1,099 rows"


def test_the_time_saved_is_told_only_where_it_is_no_noise() -> None:
    assert saved(Saving(300.0, 2.0, 200.0, 50)) == (
        "5 min saved (± 2.00 s) in 50 steps: 3 min 20 s instead of 8 min 20 s"
    )
    assert saved(Saving(-30.0, 2.0, 200.0, 50)).startswith("30.0 s lost")
    assert saved(Saving(3.0, 2.0, 200.0, 50)).startswith("nothing saved that noise")
    assert saved(Saving(0.0, 0.0, 200.0, 50)) == "nothing saved: shares were equal in all 50 steps"
    assert saved(None) == ""


def test_the_headline_is_the_gain_or_why_there_is_none() -> None:
    record = a_run(PAIR, 64)
    large, below = headline(RunFigures(record))
    assert large == f"{RunFigures(record).gain:.2f} times as fast"
    assert below == "As with equal shares of the same batch, over 300 steps."
    short = RunFigures(replace(record, saving=None))
    assert headline(short)[1].endswith("by the steps that the warm-up measured of both.")
    even = a_run((Device("a", 0.001), Device("a", 0.001)), 64, hindrance="the devices are alike")
    assert headline(RunFigures(even)) == ("Nothing to gain", "The devices are alike.")
    assert headline(RunFigures(unmeasured(["cpu"], 8))) == (
        "No gain measured",
        "These shares were given.",
    )


def test_what_to_do_next_names_what_holds_the_run_back() -> None:
    def told(**costs: float) -> str:
        return next_step(RunFigures(a_run(PAIR, 64, costs=Costs(**costs))))

    assert "num_workers" in told(loader=0.05)
    assert "accumulate_grad_batches" in told(communication=0.1)
    assert told().startswith("The devices are balanced")
    assert next_step(RunFigures(unmeasured(["cpu"], 8))).startswith("No measured step")
    record = a_run(PAIR, 64)
    fast, slow = record.plan.ranks
    ranks = (replace(fast, boa_seconds=None), replace(slow, boa_seconds=None))
    unknown = replace(record, plan=replace(record.plan, ranks=ranks))
    assert next_step(RunFigures(unknown)).startswith("With equal shares devices wait in 33 %")
    lame = replace(record.plan, ranks=(replace(fast, boa_seconds=0.01), slow))
    assert "still wait" in next_step(RunFigures(replace(record, plan=lame)))
