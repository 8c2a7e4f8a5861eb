from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_boa.reports.plan_report import UNFINISHED
from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_record import Saving
from lightning_boa.reports.run_words import (
    beyond,
    duration,
    from_to,
    headline,
    hindrance,
    moment,
    next_step,
    on_an_axis,
    rows_in_words,
    saved,
    sentence,
    signed,
    which,
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
    assert from_to(98.0, 102.0) == "100"
    assert from_to(159.0, 1479.0) == "159 to 1,479"
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
    assert headline(short)[1].endswith("as measured in the warm-up, without a known error.")
    even = a_run((Device("a", 0.001), Device("a", 0.001)), 64, hindrance="the devices are alike")
    assert headline(RunFigures(even)) == ("Nothing to gain", "The devices are alike.")
    assert headline(RunFigures(unmeasured(["cpu"], 8))) == (
        "No gain measured",
        "These shares were given.",
    )


def test_a_loss_and_an_unsure_saving_are_told_as_such() -> None:
    def of(seconds: float, error: float) -> RunFigures:
        return RunFigures(replace(a_run(PAIR, 64), saving=Saving(seconds, error, 10.0, 50)))

    sure, rough, lost, unsure = of(10, 1), of(10, 4), of(-5, 2.4), of(-5, 2.6)
    assert [each.verdict for each in (sure, rough, lost, unsure)] == [
        "saved",
        "saved",
        "lost",
        "unsure",
    ]
    assert headline(sure)[0] == "2.00 times as fast"
    assert headline(rough)[0] == "About 2.0 times as fast"
    assert headline(lost)[0] == "About 0.5 times as fast"
    assert headline(unsure) == (
        "No sure gain",
        "Measured: 0.5 times as fast as with equal shares of the same batch, over 50 steps; "
        "the noise of the measurement explains as much.",
    )
    assert next_step(lost).startswith("The plan cost time by this measurement")
    assert next_step(unsure).startswith("Noise hides what the plan gains")
    assert next_step(rough).startswith("The devices are balanced")
    assert of(0, 0).verdict == RunFigures(unmeasured(["cpu"], 8)).verdict == "unknown"


def test_a_prediction_is_no_reason_why_no_gain_was_measured() -> None:
    record = a_run(PAIR, 64, blocks=0)
    reason = "a step is predicted to take 58% of its time"
    ranks = tuple(replace(rank, boa_seconds=None) for rank in record.plan.ranks)
    plan = replace(record.plan, ranks=ranks, boa_step_seconds=None, reason=reason)
    figures = RunFigures(replace(record, plan=plan, hindrance=reason))
    assert headline(figures) == (
        "No gain measured",
        f"Too few steps came after the plan to measure what it gained; {reason}.",
    )
    assert hindrance(figures) == ""
    slow = RunFigures(replace(figures.record, hindrance="the loader is slow"))
    assert headline(slow)[1] == "The loader is slow."


def test_leaving_out_batch_sizes_is_advised_only_where_they_were_given() -> None:
    given = unmeasured(["cpu", "cpu"], 8)
    assert "without batch_sizes" in next_step(RunFigures(given))
    equal = replace(given, hindrance="SyncBatchNorm waits: nothing was measured")
    assert next_step(RunFigures(equal)).endswith("SyncBatchNorm waits: nothing was measured.")
    short = replace(given, plan=replace(given.plan, reason=UNFINISHED), outcome="finished")
    assert next_step(RunFigures(short)).endswith("train for more steps than the warm-up takes.")
    failed = replace(short, outcome="ValueError: my own")
    assert next_step(RunFigures(failed)).startswith("The training ended before a step was measured")


def test_ranks_of_a_kind_are_named_where_another_has_its_name() -> None:
    alike = RunFigures(a_run([Device("a", 0.001)] * 6 + [Device("a", 0.003)], 256))
    assert [which(kind, alike) for kind in alike.kinds] == ["ranks 0, 1, 2, 3 and 2 more", "rank 6"]
    pair = RunFigures(a_run(PAIR, 64))
    assert [which(kind, pair) for kind in pair.kinds] == ["", ""]


def test_what_the_chart_leaves_out_is_told() -> None:
    record = a_run(PAIR, 64)
    settling = duration(RunFigures(record).points[0].period)
    assert beyond(RunFigures(record)) == (
        f"one measured time is longer than the chart is high: {settling}, at step 0"
    )
    spike = replace(record.blocks[20], period=1.7)
    blocks = (*record.blocks[:20], spike, *record.blocks[21:])
    assert beyond(RunFigures(replace(record, blocks=blocks))) == (
        "2 measured times are longer than the chart is high; the longest: 1.70 s, at step 120"
    )
    assert beyond(RunFigures(replace(record, steps=record.steps[4:]))) == ""


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
