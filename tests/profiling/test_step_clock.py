from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch

from lightning_boa.planning import StepRecord
from lightning_boa.profiling import AcceleratorTimeline, StepClock


@pytest.fixture
def clock(ticker: Any) -> StepClock:
    return StepClock(rank=2, clock=ticker)


@pytest.fixture
def device_clock(ticker: Any, stream: Any) -> StepClock:
    timeline = AcceleratorTimeline(torch.device("cuda"), new_event=stream)
    return StepClock(rank=0, timeline=timeline, clock=ticker)


def run_step(clock: StepClock, time: Any, step: int = 0, compute: float = 1.0) -> None:
    clock.begin(step, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    time.passes(compute)
    clock.end()


def test_a_step_of_automatic_optimization(clock: StepClock, ticker: Any) -> None:
    ticker.passes(0.5)
    clock.begin(7, rows=3, step_rows=8, loader_wait=0.5)
    clock.switch("optimizer")
    ticker.passes(0.25)
    clock.enter_compute()
    ticker.passes(2.0)
    clock.switch("compute")
    ticker.passes(4.0)
    clock.switch("communication")
    ticker.passes(8.0)
    clock.switch("optimizer")
    ticker.passes(16.0)
    clock.switch(None)
    ticker.passes(32.0)
    clock.end()

    assert clock.records() == [
        StepRecord(
            step=7,
            rank=2,
            rows=3,
            step_rows=8,
            compute=6.0,
            loader_wait=0.5,
            communication=8.0,
            optimizer=16.0,
            period=62.75,
        )
    ]


def test_several_backwards_and_optimizers_add_up(clock: StepClock, ticker: Any) -> None:
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    for scale in (1.0, 10.0):
        ticker.passes(1.0 * scale)
        clock.switch("compute")
        ticker.passes(2.0 * scale)
        clock.switch("communication")
        ticker.passes(3.0 * scale)
        clock.switch("compute")
        ticker.passes(4.0 * scale)
        clock.switch("optimizer")
        ticker.passes(5.0 * scale)
        clock.switch("compute")
    ticker.passes(100.0)
    clock.switch(None)
    ticker.passes(1000.0)
    clock.end()

    (record,) = clock.records()
    assert record.compute == 7.0 * 11 + 100.0
    assert record.communication == 3.0 * 11
    assert record.optimizer == 5.0 * 11


def test_only_the_first_entry_of_a_step_counts(clock: StepClock, ticker: Any) -> None:
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    ticker.passes(1.0)
    clock.switch("optimizer")
    clock.enter_compute()
    ticker.passes(2.0)
    clock.end()
    run_step(clock, ticker, step=1, compute=4.0)

    first, second = clock.records()
    assert (first.compute, first.optimizer) == (1.0, 2.0)
    assert second.compute == 4.0


def test_a_collective_interrupts_and_resumes(clock: StepClock, ticker: Any) -> None:
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    ticker.passes(1.0)
    with clock.communicating():
        ticker.passes(2.0)
        with clock.communicating():
            ticker.passes(4.0)
        ticker.passes(8.0)
    ticker.passes(16.0)
    clock.switch("optimizer")
    with clock.communicating():
        ticker.passes(32.0)
    ticker.passes(64.0)
    clock.end()

    (record,) = clock.records()
    assert record.compute == 17.0
    assert record.communication == 46.0
    assert record.optimizer == 64.0


def test_a_collective_that_fails_resumes_too(clock: StepClock, ticker: Any) -> None:
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    with suppress(RuntimeError), clock.communicating():
        ticker.passes(2.0)
        raise RuntimeError("lost")
    ticker.passes(4.0)
    clock.end()

    (record,) = clock.records()
    assert (record.compute, record.communication) == (4.0, 2.0)


def test_a_collective_before_the_entry_is_not_of_the_step(clock: StepClock, ticker: Any) -> None:
    with clock.communicating():
        ticker.passes(1.0)
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    with clock.communicating():
        ticker.passes(2.0)
    clock.enter_compute()
    ticker.passes(4.0)
    clock.switch(None)
    with clock.communicating():
        ticker.passes(8.0)
    clock.end()

    (record,) = clock.records()
    assert (record.compute, record.communication) == (4.0, 0.0)


def test_periods_follow_one_another_without_a_gap(clock: StepClock, ticker: Any) -> None:
    ticker.passes(3.0)
    clock.begin(0, rows=3, step_rows=8, loader_wait=3.0)
    clock.enter_compute()
    ticker.passes(1.0)
    clock.end()
    ticker.passes(10.0)
    clock.begin(1, rows=3, step_rows=8, loader_wait=6.0)
    clock.enter_compute()
    ticker.passes(1.0)
    clock.end()

    assert [record.period for record in clock.records()] == [4.0, 11.0]


def test_an_interruption_makes_the_period_start_anew(clock: StepClock, ticker: Any) -> None:
    run_step(clock, ticker)
    ticker.passes(1000.0)
    clock.interrupt()
    ticker.passes(2.0)
    clock.begin(1, rows=3, step_rows=8, loader_wait=2.0)
    clock.enter_compute()
    ticker.passes(1.0)
    clock.end()

    assert [record.period for record in clock.records()] == [1.0, 3.0]


def test_a_step_that_never_ended_is_left_out(clock: StepClock, ticker: Any) -> None:
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    ticker.passes(50.0)
    clock.interrupt()
    run_step(clock, ticker, step=1)

    (record,) = clock.records()
    assert (record.step, record.compute, record.period) == (1, 1.0, 1.0)


def test_a_step_that_never_ended_does_not_end_once_the_clock_is_off(
    clock: StepClock, ticker: Any
) -> None:
    clock.begin(1, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    ticker.passes(1.0)
    clock.enabled = False
    clock.begin(2, rows=3, step_rows=8, loader_wait=0.0)
    clock.end()

    assert clock.records() == []


def test_the_newest_steps_are_kept(ticker: Any) -> None:
    clock = StepClock(rank=0, clock=ticker, capacity=3)
    for step in range(5):
        run_step(clock, ticker, step)

    assert [record.step for record in clock.records()] == [2, 3, 4]
    assert clock.records() == []
    for step in range(5, 10):
        run_step(clock, ticker, step)
    assert [record.step for record in clock.records()] == [7, 8, 9]


def test_a_disabled_clock_marks_nothing(device_clock: StepClock, ticker: Any, stream: Any) -> None:
    device_clock.enabled = False
    device_clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    device_clock.enter_compute()
    with device_clock.communicating():
        device_clock.switch("optimizer")
    device_clock.end()

    assert device_clock.records() == []
    assert ticker.readings == 0
    assert stream.events == []
    assert stream.synchronizations == 0


def test_time_while_disabled_belongs_to_no_period(clock: StepClock, ticker: Any) -> None:
    run_step(clock, ticker, step=0)
    clock.enabled = False
    run_step(clock, ticker, step=1, compute=500.0)
    clock.enabled = True
    run_step(clock, ticker, step=2)

    assert [record.period for record in clock.records()] == [1.0, 1.0]


def test_the_device_is_waited_for_once_when_records_are_read(
    device_clock: StepClock, ticker: Any, stream: Any
) -> None:
    for step in range(6):
        device_clock.begin(step, rows=3, step_rows=8, loader_wait=0.0)
        device_clock.enter_compute()
        stream.passes(1.0)
        with device_clock.communicating():
            stream.passes(0.25)
        stream.passes(1.0)
        device_clock.switch("optimizer")
        stream.passes(0.5)
        device_clock.switch(None)
        ticker.passes(0.125)
        device_clock.end()
    assert stream.synchronizations == 0

    records = device_clock.records()

    assert stream.synchronizations == 1
    assert len(records) == 6
    for record in records:
        assert record.compute == pytest.approx(2.0)
        assert record.communication == pytest.approx(0.25)
        assert record.optimizer == pytest.approx(0.5)
        assert record.period == 0.125
    assert device_clock.records() == []
    assert stream.synchronizations == 1


def test_an_activity_that_goes_on_costs_no_further_event(
    device_clock: StepClock, stream: Any
) -> None:
    device_clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    device_clock.enter_compute()
    for _ in range(100):
        device_clock.switch("compute")
        device_clock.enter_compute()

    assert len(stream.events) == 1


def test_a_step_counts_its_passes_and_the_next_one_anew(clock: StepClock, ticker: Any) -> None:
    clock.count_passes(7)
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    clock.count_passes(2)
    clock.enter_compute()
    ticker.passes(1.0)
    clock.count_passes(3)
    clock.end()
    clock.count_passes(9)
    run_step(clock, ticker, step=1)

    assert [record.passes for record in clock.records()] == [3, 1]


def test_the_seconds_of_all_passes_add_up(clock: StepClock, ticker: Any) -> None:
    clock.begin(0, rows=3, step_rows=8, loader_wait=0.0)
    for _ in range(3):
        clock.enter_compute()
        ticker.passes(1.0)
        clock.switch("compute")
        ticker.passes(2.0)
    clock.count_passes(3)
    clock.end()

    (record,) = clock.records()
    assert (record.compute, record.period, record.passes) == (9.0, 9.0, 3)


def test_a_step_that_is_left_out_gives_no_record_and_the_next_period_begins_anew(
    clock: StepClock, ticker: Any
) -> None:
    run_step(clock, ticker, step=0)
    clock.begin(1, rows=3, step_rows=8, loader_wait=0.0)
    clock.enter_compute()
    ticker.passes(100.0)
    clock.leave_out()
    clock.count_passes(2)
    with clock.communicating():
        ticker.passes(100.0)
    clock.enter_compute()
    clock.switch("optimizer")
    ticker.passes(100.0)
    clock.end()
    ticker.passes(0.5)
    clock.begin(2, rows=3, step_rows=8, loader_wait=0.5)
    clock.enter_compute()
    ticker.passes(2.0)
    clock.end()
    run_step(clock, ticker, step=3)

    records = clock.records()
    assert [record.step for record in records] == [0, 2, 3]
    assert [record.compute for record in records] == [1.0, 2.0, 1.0]
    assert [record.period for record in records] == [1.0, 2.5, 1.0]
    assert [record.passes for record in records] == [1, 1, 1]
