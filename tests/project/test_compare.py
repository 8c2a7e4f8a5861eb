"""benchmarks/compare.py: the parts that need no processes, and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_boa.reports.comparison import PolicyFigures, Timeline

pytest.importorskip("sklearn", reason="it sets variables at its first import")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def parts() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import compare
        import compared_clusters
        import compared_policies
        import comparison_checks
        import recorded_steps
        import step_comparison

        yield SimpleNamespace(
            clusters=compared_clusters,
            policies=compared_policies.POLICIES,
            records=recorded_steps,
            steps=step_comparison,
            checks=comparison_checks,
            compare=compare,
        )


@pytest.fixture(scope="module")
def thesis(parts: SimpleNamespace) -> Any:
    return parts.clusters.cluster_of(
        "thesis_8gpu", slowest=1.0, rows_per_device=16, model=parts.steps.network()
    )


@pytest.mark.parametrize(
    "given",
    [
        "--steps 0",
        "--rows -1",
        "--repetitions x",
        "--slowest nan",
        "--slowest 0",
        "--cluster none",
        "--cluster nonsense",
        "--policies nonsense",
        "--picture /nowhere/picture.png",
        "--picture picture.txt",
    ],
)
def test_senseless_options_are_refused_before_anything_runs(
    parts: SimpleNamespace, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parts.compare.parse(given.split())
    assert left.value.code == 2
    assert f"argument {given.split()[0]}: " in capsys.readouterr().err


def test_a_window_of_a_server_counts_updates_rows_and_idle_time(parts: SimpleNamespace) -> None:
    record = parts.records.RankRecord
    updates = (((0, 0, 8), (1, 0, 8)), ((0, 1, 8),), ((0, 2, 8),), ((0, 3, 8), (1, 3, 8)))
    fast = record(
        starts=(0.0, 1.0, 2.0, 3.0, 4.0),
        spans=((0, 0.0, 0.5), (1, 1.0, 1.5), (2, 2.0, 2.5), (3, 3.0, 3.5)),
        settled=0,
        updates=updates,
    )
    slow = record(
        starts=(0.0, 1.1, 2.9, 3.1, 4.2),
        spans=((0, 0.0, 1.0), (1, 1.1, 2.9), (3, 3.1, 4.0)),
        settled=0,
    )
    window = parts.records.window_of(
        [fast, slow], "backup", ("fast", "slow"), first=1, steps=2, global_batch_size=16
    )
    assert window.step_seconds == (1.0, 1.0)
    assert window.rows_used == 16
    assert window.idle_share == pytest.approx((0.5, 0.1))
    assert window.timeline.step_ends == (0.0, 1.0, 2.0)
    fast_spans, slow_spans = window.timeline.spans
    assert [span.is_used for span in fast_spans] == [True, True, True]
    assert [(span.begin, span.is_used) for span in slow_spans] == [
        (pytest.approx(0.1), False),
        (pytest.approx(2.1), True),
    ]


def test_a_step_of_an_asynchronous_policy_is_as_many_updates_as_there_are_ranks(
    parts: SimpleNamespace,
) -> None:
    one = parts.records.RankRecord(tuple(map(float, range(9))), (), 0, None)
    window = parts.records.window_of(
        [one, one],
        "asynchronous",
        ("a", "b"),
        first=1,
        steps=3,
        global_batch_size=4,
        updates_per_step=2,
    )
    assert window.step_seconds == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="expected 5 steps"):
        parts.records.window_of(
            [one, one],
            "asynchronous",
            ("a", "b"),
            first=1,
            steps=4,
            global_batch_size=4,
            updates_per_step=2,
        )


def test_the_slowest_device_needs_the_seconds_that_are_asked_for(thesis: Any) -> None:
    emulated = thesis.emulation()
    assert thesis.slowest_seconds == pytest.approx(1.0)
    assert emulated.step_seconds(2, 16) == pytest.approx(1.0)
    assert emulated.step_seconds(0, 16) == pytest.approx(5 / 24.5)


def test_predicted_is_the_window_alone(parts: SimpleNamespace, thesis: Any) -> None:
    boa = thesis.prediction(parts.policies["boa"], 40, 10)
    assert boa.step_seconds == pytest.approx([thesis.optimum_seconds] * 10, rel=1e-3)
    assert boa.idle_share[0] == pytest.approx(0.0, abs=1e-9)
    assert boa.idle_share[1] == pytest.approx(1 - 11 * 10 / (23 * 5))
    equal = thesis.prediction(parts.policies["ddp"], 3, 10)
    assert equal.idle_share[2] == pytest.approx(0.0, abs=1e-9)
    assert equal.idle_share[0] == pytest.approx(1 - 5 / 24.5)
    backup = thesis.prediction(parts.policies["backup_workers"], 3, 10)
    assert backup.dropped_share == pytest.approx(1 / 8)


def test_shares_that_move_a_row_a_step_settle_late(parts: SimpleNamespace, thesis: Any) -> None:
    assert thesis.settled_after(parts.policies["ddp"], 12) == 0
    first = thesis.settled_after(parts.policies["lb_bsp"], 12)
    seconds = thesis.prediction(parts.policies["lb_bsp"], first, 12).step_seconds
    assert 15 < first < 40
    assert max(seconds) < 1.2 * thesis.optimum_seconds


def test_what_a_step_costs_besides_is_added_to_each_simulated_step(
    parts: SimpleNamespace, thesis: Any
) -> None:
    for key in ("ddp", "parameter_server", "backup_workers", "bounded"):
        policy = parts.policies[key]
        alone, with_rest = (thesis.prediction(policy, 5, 10, rest) for rest in (0.0, 0.02))
        more = sum(with_rest.step_seconds) - sum(alone.step_seconds)
        assert more / 10 == pytest.approx(0.02), key


def test_the_costs_of_a_step_are_what_is_measured_above_the_simulated_one(
    parts: SimpleNamespace, thesis: Any
) -> None:
    measured = parts.records.MeasuredWindow(3, (1.04, 1.02, 1.03), 384, (), Timeline("", (), ()))
    rest = parts.steps.rest_of(thesis, parts.policies["ddp"], [measured])
    assert rest == pytest.approx(0.03)
    figures = parts.steps.figures_of(thesis, parts.policies["backup_workers"], [measured], rest)
    assert figures.simulated_seconds == pytest.approx(10 / 24.5 + rest)


def test_where_devices_change_all_policies_are_measured_around_it(parts: SimpleNamespace) -> None:
    drifting = parts.clusters.cluster_of(
        "cloud_spot_mix", slowest=None, rows_per_device=16, model=parts.steps.network()
    )
    assert drifting.changes == (50, 75, 100)
    windows = [parts.steps.window(drifting, policy, 12) for policy in parts.policies.values()]
    assert set(windows) == {parts.steps.Window(30, 90, waits_for_plan=False)}


def test_elsewhere_settled_steps_are_measured(parts: SimpleNamespace, thesis: Any) -> None:
    windows = {
        key: parts.steps.window(thesis, policy, 12) for key, policy in parts.policies.items()
    }
    assert windows["ddp"] == parts.steps.Window(3, 12, waits_for_plan=False)
    assert windows["boa"] == parts.steps.Window(3, 12, waits_for_plan=True)
    assert windows["lb_bsp"].first > 15


@pytest.mark.parametrize(
    ("measured", "failed"),
    [
        ({}, []),
        ({"backup_workers": 0.34}, ["within 3%", "needs 1.13 times BOA's step, and drops 12.5%"]),
        ({"boa": 0.32}, ["within 3%", "BOA's step is 1.067 times"]),
        ({"asynchronous": 0.45}, ["within 3%", "not 1 backup worker and asynchronous"]),
    ],
    ids=["all is well", "a slow BOA", "above the optimum", "another order"],
)
def test_a_check_fails_where_it_should(
    parts: SimpleNamespace, thesis: Any, measured: dict[str, float], failed: list[str]
) -> None:
    simulated = {"ddp": 1.01, "backup_workers": 0.42, "asynchronous": 0.31, "boa": 0.3}
    figures = {
        key: PolicyFigures(
            parts.policies[key].name,
            measured.get(key, seconds),
            seconds,
            rows_per_second=1.0,
            dropped_share=0.125 * (key == "backup_workers"),
            idle_share=(0.1,),
            simulated_dropped_share=0.0,
            simulated_idle_share=(0.1,),
        )
        for key, seconds in simulated.items()
    }
    checks = parts.checks.checks_of(thesis, figures, rest=0.3 - thesis.optimum_seconds)
    texts = [check.text for check in checks if not check.passed]
    assert len(checks) == 4
    assert len(texts) == len(failed)
    assert all(part in text for part, text in zip(failed, texts, strict=True))


@pytest.mark.full
def test_the_command_prints_a_table_and_one_line_of_json(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [
        *(sys.executable, str(BENCHMARKS / "compare.py"), "--cluster=two_generation_pair"),
        *("--policies", "ddp", "backup_workers", "asynchronous", "boa"),
        *("--slowest=0.1", "--repetitions=1", "--steps=3", "--picture=picture.png"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    summary = json.loads(done.stdout.splitlines()[-1])
    (cluster,) = summary["clusters"]

    assert done.returncode == (0 if summary["passed"] else 1)
    assert list(cluster["policies"]) == ["ddp", "backup_workers", "asynchronous", "boa"]
    assert cluster["policies"]["ddp"]["dropped_share"] == 0
    assert cluster["policies"]["backup_workers"]["dropped_share"] == 0.5
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_command_compares_what_is_learned(tmp_path: Path) -> None:
    command = [
        *(sys.executable, str(BENCHMARKS / "compare.py"), "--cluster=two_generation_pair"),
        *("--policies", "ddp", "boa", "--slowest=0.05", "--learning", "--epochs=2"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    (cluster,) = json.loads(done.stdout.splitlines()[-1])["clusters"]
    for curve in cluster["policies"].values():
        assert curve["rows"] == [1438, 2876]
        assert curve["losses"][1] < curve["losses"][0] < 2.3
