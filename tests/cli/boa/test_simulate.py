"""`boa simulate`: its figures are those of the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.progress import Progress

from lightning_boa.cli.boa.policies import NAMES, policies_of
from lightning_boa.cli.boa.simulate import Part
from lightning_boa.planning import LinearTime
from lightning_boa.simulation import (
    Asynchronous,
    BackupWorkers,
    Boa,
    Cluster,
    EqualSplit,
    Links,
    compare,
    simulate,
)

from .conftest import Boa as BoaCommand

TRIO = ("-d", "2xnew=1ms", "-d", "old=4ms")
CLUSTER = Cluster((LinearTime(0.0, 0.001),) * 2 + (LinearTime(0.0, 0.004),), noise=0.05)
CHANGING = """\
restart_seconds: 0.5
devices:
  - {name: hot, seconds_per_sample: 0.001, throttle: {10: 2.0, 30: 1.0}}
  - {name: lost, seconds_per_sample: 0.001, fails_at: 20}
  - {name: steady, seconds_per_sample: 0.001, overhead: 0.001}
"""


def test_the_figures_are_those_of_the_simulator(boa: BoaCommand) -> None:
    asked = ("--policies", "ddp,backup_workers=2,asynchronous=3,boa", "--steps", "60", "-b", "48")
    document = boa("simulate", *TRIO, *asked, "--noise", "0.05", "--seed", "7", "--json").document
    policies = [EqualSplit(), BackupWorkers(2), Asynchronous(3), Boa()]
    expected = compare(CLUSTER, policies, global_batch_size=48, steps=60, seed=7)
    equal = expected[0].rows_per_second
    assert document["devices"] == ["new", "new", "old"]
    for told, simulated in zip(document["policies"], expected, strict=True):
        assert told["policy"] == simulated.policy
        assert told["median_step_seconds"] == pytest.approx(simulated.median_step_seconds)
        assert told["rows_per_second"] == pytest.approx(simulated.rows_per_second)
        assert told["dropped_share"] == pytest.approx(simulated.dropped_share)
        assert told["idle_share"] == pytest.approx(list(simulated.idle_share))
        assert told["against_equal"] == pytest.approx(simulated.rows_per_second / equal)
    asynchronous = expected[2].staleness
    age = sum(old * count for old, count in asynchronous.items()) / sum(asynchronous.values())
    assert document["policies"][2]["gradient_age"] == pytest.approx(age)


def test_all_policies_are_compared_unless_some_are_named(boa: BoaCommand) -> None:
    document = boa("simulate", *TRIO, "--steps", "5", "--json").document
    assert [each["name"] for each in document["policies"]] == list(NAMES)
    assert document["global_batch_size"] == 48
    assert list(policies_of("boa, ddp")) == ["boa", "ddp"]


def test_the_equal_split_is_the_measure_though_nobody_asked_for_it(boa: BoaCommand) -> None:
    document = boa("simulate", *TRIO, "--policies", "boa", "--noise", "0", "--json").document
    (told,) = document["policies"]
    assert told["against_equal"] == pytest.approx(told["rows_per_second"] * 16 * 0.004 / 48)


def test_the_table_names_the_fastest_and_the_price_of_the_others(boa: BoaCommand) -> None:
    answer = boa("simulate", *TRIO, "--steps", "100", "--policies", "ddp,backup_workers,boa")
    assert answer.err == ""
    assert "100 steps of 48 rows on typed devices" in answer.out
    assert "Of those that use every row in its step, BOA is fastest: " in answer.out
    assert "1 backup worker reaches" in answer.out
    assert "but drops 33.3 % of the rows." in answer.out
    assert max(map(len, answer.out.split("Of those")[0].splitlines())) <= 80


def test_what_happens_on_the_way_is_simulated_and_said(boa: BoaCommand, tmp_path: Path) -> None:
    file = tmp_path / "changing.yaml"
    file.write_text(CHANGING, encoding="utf-8")
    asked = ("simulate", file, "--policies", "ddp", "--noise", "0", "-b", "30")
    answer = boa(*asked, "--steps", "25")
    assert "From step 10 on hot (rank 0) takes 2 times as long as at first." in answer.out
    assert "From step 20 on lost (rank 1) takes no part: it has failed." in answer.out
    assert "From step 30" not in answer.out
    assert (
        "From step 30 on hot (rank 0) is as fast as at first." in boa(*asked, "--steps", "31").out
    )
    (told,) = boa(*asked, "--steps", "25", "--json").document["policies"]
    assert told["seconds"] == pytest.approx(10 * 0.011 + 10 * 0.020 + 0.5 + 5 * 0.030)


def test_communication_counts_where_its_size_is_given(boa: BoaCommand) -> None:
    asked = ("--policies", "ddp,parameter_server", "--steps", "20", "--noise", "0", "--json")
    network = ("--gradient-bytes", "10MB", "--bandwidth", "1GB/s", "--latency", "1ms")
    document = boa("simulate", *TRIO, *asked, *network).document
    cluster = Cluster(CLUSTER.time_models, links=Links(10e6, 1e9, 1e-3))
    (expected,) = compare(cluster, [EqualSplit()], global_batch_size=48, steps=20)
    assert document["policies"][0]["median_step_seconds"] == pytest.approx(
        expected.median_step_seconds
    )
    assert expected.median_step_seconds > 0.064 + 4 * 1e-3


def test_one_device_has_no_backup(boa: BoaCommand) -> None:
    document = boa("simulate", "-d", "alone=1ms", "--steps", "3", "--json").document
    names = [each["name"] for each in document["policies"]]
    assert names == [name for name in NAMES if name != "backup_workers"]


def test_no_backup_worker_is_a_server_that_waits_for_all(boa: BoaCommand) -> None:
    asked = ("--policies", "parameter_server,backup_workers=0", "--steps", "20", "--json")
    server, nobody = boa("simulate", *TRIO, *asked).document["policies"]
    assert nobody["rows_per_second"] == server["rows_per_second"]
    assert nobody["dropped_share"] == 0


def test_progress_is_told_from_the_start_to_the_end() -> None:
    for policy in policies_of(",".join(NAMES)).values():
        told: list[float] = []
        simulate(CLUSTER, policy, global_batch_size=48, steps=20, progress=told.append)
        assert told[0] == 0
        assert told == sorted(told)
        assert 0.9 <= told[-1] <= 1


def test_a_terminal_shows_the_part_that_is_done() -> None:
    shown = Progress(disable=True)
    task = shown.add_task("Simulating", total=7)
    part = Part(shown, task, 2)
    for done in (0.0, 0.001, 0.5):
        part(done)
    assert shown.tasks[0].completed == 2.5


def test_a_picture_is_drawn(boa: BoaCommand, tmp_path: Path) -> None:
    file = tmp_path / "systems.png"
    answer = boa("simulate", *TRIO, "--steps", "30", "--policies", "ddp,boa", "--picture", file)
    assert (answer.code, answer.err) == (0, "")
    assert file.read_bytes().startswith(b"\x89PNG")
