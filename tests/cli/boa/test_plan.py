"""`boa plan`: its figures are those of the planner, its answers those of other plans."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_boa.cli.boa.fleet import Fleet, Network
from lightning_boa.cli.boa.sources import Member
from lightning_boa.cli.devices import Device
from lightning_boa.planning import (
    LinearTime,
    RingAllReduce,
    TimeModel,
    choose_workers,
    equal_split,
    plan_batches,
)
from lightning_boa.planning import allocation as planner
from lightning_boa.reports import plan_report

from .conftest import Boa

NEW, OLD = LinearTime(0.012, 0.0009), LinearTime(0.0, 0.0021)
PAIR = ("-d", "new=0.9ms+12ms", "-d", "old=2.1ms")
ROWS = 256


def test_a_plan_is_the_planners_beside_the_equal_split(boa: Boa) -> None:
    plan = boa("plan", *PAIR, "-b", ROWS, "--json").document["plan"]
    expected = plan_batches([NEW, OLD], ROWS)
    assert plan["batch_sizes"] == list(expected.batch_sizes)
    assert plan["step_seconds"] == pytest.approx(expected.step_seconds)
    assert plan["equal_step_seconds"] == pytest.approx(expected.equal_step_seconds)
    assert plan["gain"] == pytest.approx(plan["equal_step_seconds"] / plan["step_seconds"])
    assert plan["rows_per_second"] == pytest.approx(ROWS / plan["step_seconds"])
    new, old = plan["ranks"]
    assert (new["device"], new["rows"], new["equal_rows"]) == ("new", expected.batch_sizes[0], 128)
    assert new["seconds"] == pytest.approx(float(NEW.seconds(new["rows"])))
    assert old["equal_idle_share"] == 0
    assert new["equal_idle_share"] == pytest.approx(1 - (0.012 + 128 * 0.0009) / (128 * 0.0021))


def test_the_table_says_the_same_in_few_columns(boa: Boa) -> None:
    out = boa("plan", *PAIR, "-b", ROWS).out
    plan = boa("plan", *PAIR, "-b", ROWS, "--json").document["plan"]
    assert (
        max(map(len, (line for line in out.splitlines() if "|" not in line and "." not in line)))
        <= 80
    )
    (new,) = [line.split() for line in out.splitlines() if " new " in line]
    speed = plan["ranks"][0]["rows"] / plan["ranks"][0]["seconds"]
    assert new[:6] == ["0", "new", f"{speed:,.0f}", "128", str(plan["batch_sizes"][0]), "169.5"]
    assert "Equal split vs BOA, predicted" in out
    assert f"A step is {plan['gain']:.2f} times as fast as under the equal split" in out


def test_without_a_batch_it_is_that_of_a_demo(boa: Boa) -> None:
    assert boa("plan", *PAIR, "--json").document["plan"]["global_batch_size"] == 32


def test_equal_devices_gain_nothing(boa: Boa) -> None:
    out = boa("plan", "-d", "4xnew=1ms").out
    assert "The equal split is as fast, so there is next to nothing to gain." in out
    assert "nothing to balance" in boa("plan", "-d", "new=1ms").out


def test_bounds_hold_for_all_devices_or_each(boa: Boa) -> None:
    def rows(*options: str) -> list[int]:
        document = boa("plan", *PAIR, "-b", "100", "--json", *options).document
        found: list[int] = document["plan"]["batch_sizes"]
        return found

    free = rows()
    assert free[0] > 60
    assert rows("--max", "60") == [60, 40]
    assert rows("--max", "55,90") == [55, 45]
    assert rows("--min", "1,48") == [52, 48]
    assert rows("--granularity", "25") == [75, 25]


def test_a_bound_for_all_holds_for_a_new_device_too(boa: Boa) -> None:
    asked = ("--what-if", "add=next=0.1ms", "--max", "60", "-b", "100", "--json")
    (added,) = boa("plan", *PAIR, *asked).document["what_if"]
    assert added["batch_sizes"][2] == 60


def test_what_if_is_the_plan_of_the_other_devices(boa: Boa) -> None:
    questions = ("add=old", "add=2xold", "drop=old", "drop=rank 0", "add=next=0.5ms,drop=old")
    asked = [part for question in questions for part in ("--what-if", question)]
    document = boa("plan", *PAIR, "-b", ROWS, "--json", *asked).document
    others = ([NEW, OLD, OLD], [NEW, OLD, OLD, OLD], [NEW], [OLD], [NEW, LinearTime(0.0, 0.0005)])
    now = document["plan"]["rows_per_second"]
    for answer, question, models in zip(document["what_if"], questions, others, strict=True):
        expected = plan_batches(models, ROWS)
        assert answer["scenario"] == question
        assert answer["devices"] == len(models)
        assert answer["batch_sizes"] == list(expected.batch_sizes)
        assert answer["against_now"] == pytest.approx(ROWS / expected.step_seconds / now)  # type: ignore[operator]
    out = boa("plan", *PAIR, "-b", ROWS, *asked).out
    assert "The most rows per second: add=next=0.5ms,drop=old" in out
    assert "No scenario brings 1% more" in boa("plan", *PAIR, "--what-if", "drop=new").out


def test_the_batch_may_grow_with_the_devices(boa: Boa) -> None:
    document = boa("plan", *PAIR, "-b", ROWS, "--what-if", "add=2xnew", "--grow", "--json").document
    assert [each["global_batch_size"] for each in document["what_if"]] == [ROWS, 2 * ROWS]


def test_a_device_is_known_by_a_word_of_its_name_and_the_slower_one_is_added(
    boa: Boa, tmp_path: Path
) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(
        "devices:\n"
        "  - {name: NVIDIA GeForce RTX 3090, seconds_per_sample: 0.002}\n"
        "  - {name: NVIDIA GeForce RTX 3090, seconds_per_sample: 0.003}\n"
        "  - {name: NVIDIA GeForce RTX 4090, seconds_per_sample: 0.001}\n",
        encoding="utf-8",
    )
    document = boa(
        "plan", file, "--what-if", "add=3090", "--what-if", "drop=3090", "--json"
    ).document
    added, dropped = document["what_if"]
    assert added["ranks"][3]["seconds"] == pytest.approx(0.003 * added["ranks"][3]["rows"])
    assert [rank["device"][-4:] for rank in dropped["ranks"]] == ["3090", "4090"]
    assert dropped["ranks"][0]["seconds"] == pytest.approx(0.002 * dropped["ranks"][0]["rows"])


def test_a_sweep_says_where_it_stops_paying(boa: Boa) -> None:
    asked = ("plan", *PAIR, "-b", "1024,32,8192")
    document = boa(*asked, "--json").document
    assert [each["global_batch_size"] for each in document["sweep"]] == [32, 1024, 8192]
    for each in document["sweep"]:
        expected = plan_batches([NEW, OLD], each["global_batch_size"])
        assert each["batch_sizes"] == list(expected.batch_sizes)
    assert (
        document["advice"]
        == "From 1,024 rows on, larger batches bring at most 5% more rows per second."
    )
    assert document["advice"] in boa(*asked).out
    assert "Rows per second still rise at 64 rows." in boa("plan", *PAIR, "-b", "4,64").out


def test_one_global_batch_said_twice_is_no_sweep(boa: Boa) -> None:
    assert boa("plan", *PAIR, "-b", "64,64").out == boa("plan", *PAIR, "-b", "64").out


def test_a_huge_batch_is_planned_to_the_last_row(boa: Boa) -> None:
    asked = ("plan", "-d", "a=1ms", "-d", "b=3ms+1ms", "--json", "-b")
    for rows in (10**10, 2 * 10**10, 10**11, 10**12):
        assert sum(boa(*asked, rows).document["plan"]["batch_sizes"]) == rows


def test_a_question_that_cannot_be_met_leaves_the_others_their_answers(boa: Boa) -> None:
    asked = ("plan", *PAIR, "-b", "3", "--what-if", "add=2xold", "--what-if", "add=old")
    why = "a global batch of 3 rows cannot give each of 4 ranks a row"
    answer = boa(*asked)
    assert answer.code == 0
    assert "not possible: a global" in answer.out
    assert "No scenario brings" in answer.out or "The most rows per second: add=old" in answer.out
    refused, met = boa(*asked, "--json").document["what_if"]
    assert refused["not_possible"].startswith(why)
    assert (refused["devices"], refused["global_batch_size"]) == (4, 3)
    assert met["batch_sizes"] == [1, 1, 1]


NETWORK = ("--parameters", "25M", "--bandwidth", "10Gbit/s", "--latency", "50us")


def test_communication_counts_where_its_size_is_given(boa: Boa) -> None:
    ring = RingAllReduce(100e6, 1.25e9, 50e-6)
    plan = boa("plan", *PAIR, "-b", ROWS, *NETWORK, "--json").document["plan"]
    expected = plan_batches([NEW, OLD], ROWS)
    seconds = float(ring.seconds(2, 1.25e9))
    assert plan["communication_seconds"] == pytest.approx(seconds)
    assert plan["step_seconds"] == pytest.approx(expected.step_seconds + seconds)  # type: ignore[operator]
    assert plan["equal_step_seconds"] == pytest.approx(expected.equal_step_seconds + seconds)  # type: ignore[operator]
    assert plan["ranks"][0]["seconds"] == pytest.approx(expected.rank_seconds[0])  # type: ignore[index]


def test_the_advice_is_that_of_the_worker_set(boa: Boa) -> None:
    asked = ("plan", "-d", "new=0.9ms+12ms", "-d", "older=9ms", "-b", "32", *NETWORK)
    document = boa(*asked, "--json").document
    expected = choose_workers(
        [NEW, LinearTime(0.0, 0.009)], 32, RingAllReduce(100e6, 1.25e9, 50e-6)
    )
    assert document["workers"]["left_out"] == [1] == list(expected.left_out)
    assert document["workers"]["advice"] == expected.advice
    out = boa(*asked).out
    assert f"{expected.advice[1:]}." in out
    assert "slowest device (ms)" in out


def test_links_of_the_source_win_over_the_option_and_are_not_forgotten(
    boa: Boa, tmp_path: Path
) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(
        "latency: 1.0e-3\n"
        "devices: [{name: far, seconds_per_sample: 0.01, bandwidth: 1e6}, {name: near, seconds_per_sample: 0.01}]\n",
        encoding="utf-8",
    )
    assert "The links are given, but communication does not count" in boa("plan", file).out
    options = ("--gradient-bytes", "2MB", "--bandwidth", "1GB/s", "--json")
    plan = boa("plan", file, *options).document["plan"]
    assert plan["communication_seconds"] == pytest.approx(2 * (1e-3 + 1.0))


def test_a_picture_is_drawn(boa: Boa, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    assert boa("plan", *PAIR, "--picture", file).code == 0
    assert "Equal split" in file.read_text(encoding="utf-8") or file.stat().st_size > 1000


@settings(max_examples=25)
@given(
    times=st.lists(st.tuples(st.floats(0, 0.05), st.floats(0.0005, 0.01)), min_size=1, max_size=6),
    rows=st.integers(6, 300),
)
def test_no_equal_split_is_faster(times: list[tuple[float, float]], rows: int) -> None:
    models: list[TimeModel] = [LinearTime(*each) for each in times]
    members = tuple(
        Member(Device(name=str(rank), overhead=overhead, seconds_per_sample=slope))
        for rank, (overhead, slope) in enumerate(times)
    )
    outlook = Fleet(members, Network()).outlook(rows)
    equal = equal_split(len(models), rows).batch_sizes
    assert [rank.equal_rows for rank in outlook.report.ranks] == list(equal)
    assert outlook.report.gain is not None
    assert outlook.report.gain >= 1


def test_a_thousand_devices_are_a_few_lines_and_a_few_sweeps_over_all(
    boa: Boa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"  - {{name: kind {rank % 3}, seconds_per_sample: {0.001 + 1e-6 * (37 * rank % 101):g}, overhead: 0.01}}"
        for rank in range(1000)
    ]
    file = tmp_path / "devices.yaml"
    file.write_text("\n".join(["devices:", *lines]), encoding="utf-8")
    calls = Counter[str]()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, counted)

    count(planner.WorkerTimes, "most_rows")
    count(plan_report, "slowest")
    answer = boa("plan", file, "-b", "50000")
    assert answer.code == 0
    assert 0 < calls["most_rows"] < 200
    assert 0 < calls["slowest"] < 10
    assert len(answer.out.splitlines()) < 24
    (kind,) = [line.split() for line in answer.out.splitlines() if "kind 2" in line]
    assert kind[0] == "333"
