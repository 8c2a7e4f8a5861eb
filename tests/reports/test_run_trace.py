"""The trace against the fields that Chrome's Trace Event Format documents."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from lightning_boa.reports import run_trace
from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_trace import trace_of
from tests.reports.runs import PAIR, THROTTLED, a_run, unmeasured

NEEDED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "cat", "ph", "ts", "pid", "tid", "s", "args"},
    "C": {"name", "ph", "ts", "pid", "tid", "args"},
    "M": {"name", "ph", "ts", "pid", "tid", "args"},
}


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(
        json.dumps(trace_of(RunFigures(a_run(THROTTLED, 128, blocks=40))), allow_nan=False)
    )
    return read


def test_every_event_has_the_fields_of_its_phase(trace: dict[str, Any]) -> None:
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert set(event) == NEEDED[event["ph"]]
        assert event["ts"] >= 0
        assert event.get("s", "p") in "gpt"
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())


def test_a_rank_is_a_thread_with_its_name(trace: dict[str, Any]) -> None:
    names = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names == {0: "rank 0: cool", 1: "rank 1: hot", 2: "rank 2: cool", 3: "rank 3: cool"}


def test_the_parts_of_a_thread_follow_one_another(trace: dict[str, Any]) -> None:
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads[event["tid"]].append((event["ts"], event["dur"]))
    for spans in threads.values():
        assert spans == sorted(spans)
        for (begin, length), (after, _) in pairwise(spans):
            assert length > 0
            assert begin + length <= after + 1e-3


def test_microseconds_add_up_to_the_steps(trace: dict[str, Any]) -> None:
    record = a_run(THROTTLED, 128, blocks=40)
    by_step = RunFigures(record).by_step
    warm_up = sum(max(each.period for each in step) for step in by_step.values())
    first = next(
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["args"]["step"] == record.blocks[0].step
    )
    assert first["ts"] == pytest.approx(1e6 * warm_up)
    computing = [
        event["dur"]
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] == "compute" and event["tid"] == 1
    ]
    assert computing[0] == pytest.approx(1e6 * by_step[0][1].compute)
    assert computing[-1] == pytest.approx(
        1e6 * record.blocks[-1].compute * record.blocks[-1].busy[1]
    )


def test_plans_are_instants(trace: dict[str, Any]) -> None:
    plans = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    record = a_run(THROTTLED, 128, blocks=40)
    assert [event["name"] for event in plans] == [
        f"plan from step {step}" for step, _ in record.plans
    ]
    assert plans[-1]["args"]["rows"] == "37 / 18 / 37 / 36"


def test_an_empty_run_has_names_only() -> None:
    events = trace_of(RunFigures(unmeasured(["cpu"], 8)))["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}


def test_very_many_blocks_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = RunFigures(a_run(PAIR, 64, blocks=100))
    monkeypatch.setattr(run_trace, "MOST_EVENTS_OF_BLOCKS", 300)
    shown = {
        event["args"]["step"]
        for event in trace_of(figures)["traceEvents"]
        if event["ph"] == "X" and event["args"]["step"] >= 20
    }
    assert shown == {block.step for block in figures.record.blocks[::4]}
