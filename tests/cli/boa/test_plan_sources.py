"""Where `boa plan` and `boa simulate` get devices from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_boa.cli.boa.sources import shipped_clusters, source_of
from lightning_boa.planning import (
    BatchPlan,
    InPasses,
    LinearTime,
    MadeFor,
    Profile,
    TableTime,
    TimeFit,
    plan_batches,
)

from .conftest import Boa

DEVICES = """\
latency: 1.0e-4
times: 2.0
restart_seconds: 3
server_bandwidth: 1e9
devices:
  - {name: 3090, seconds_per_sample: 0.002, overhead: 0.01, floor: 0.02, count: 2}
  - {name: measured, batch_sizes: [8, 16, 32], seconds: [0.03, 0.04, 0.07], bandwidth: 1e8}
  - {name: little, seconds_per_sample: 1e-3, rows_at_once: 8, throttle: {5: 2.0}, fails_at: 9}
"""


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    file = tmp_path / "devices.yaml"
    file.write_text(DEVICES, encoding="utf-8")
    return file


def test_a_file_of_devices_is_read_with_all_that_it_says(devices: Path) -> None:
    source = source_of(str(devices), ())
    one, other, measured, little = source.devices
    assert one == other
    assert (one.name, one.time_model) == ("3090", LinearTime(0.02, 0.004, 0.04))
    assert measured.time_model == TableTime([8, 16, 32], [0.06, 0.08, 0.14])
    assert measured.bandwidth == 5e7
    assert little.time_model == InPasses(LinearTime(0.0, 0.002), 8)
    assert (little.throttle, little.fails_at) == ({5: 2.0}, 9)
    assert (source.latency, source.restart_seconds, source.server_bandwidth) == (2e-4, 3.0, 1e9)


def test_json_is_read_too_though_it_is_indented_with_tabs(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text(
        '{\n\t"devices": [{"name": "a", "seconds_per_sample": 0.1}]\n}', encoding="utf-8"
    )
    assert [device.name for device in source_of(str(file), ()).devices] == ["a"]


def test_passes_are_told(boa: Boa, devices: Path) -> None:
    answer = boa("plan", devices, "-b", "128")
    assert "rank 3 runs its" in answer.out
    plan = boa("plan", devices, "-b", "128", "--json").document["plan"]
    expected = plan_batches(
        [device.time_model for device in source_of(str(devices), ()).devices], 128
    )
    assert plan["batch_sizes"] == list(expected.batch_sizes)
    assert plan["rows_per_pass"] == list(expected.rows_per_pass or ())


def test_typed_devices_are_named_timed_and_counted() -> None:
    devices = source_of(None, ["2x RTX 3090 = 2.1ms", "4090=.9ms+12e3us", "a b=1s"]).devices
    assert [device.name for device in devices] == ["RTX 3090", "RTX 3090", "4090", "a b"]
    assert devices[0].seconds_per_sample == pytest.approx(0.0021)
    assert devices[2].seconds_per_sample == pytest.approx(0.0009)
    assert devices[2].overhead == pytest.approx(0.012)


def test_the_clusters_of_boa_train_are_known_by_name() -> None:
    assert {"four_devices", "thesis_8gpu"} <= set(shipped_clusters())
    assert "none" not in shipped_clusters()


@pytest.mark.parametrize("name", shipped_clusters())
def test_every_cluster_that_is_shipped_can_be_planned(boa: Boa, name: str) -> None:
    assert boa("plan", name, "--json").document["plan"]["gain"] >= 1


@pytest.mark.parametrize(
    "command", [("plan",), ("plan", "-b", "9,18"), ("simulate", "--steps", "5")]
)
def test_names_with_brackets_are_printed_as_they_are(
    boa: Boa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[red].yaml").write_text(
        "devices: [{name: 'A100 [sxm]', seconds_per_sample: 0.1, count: 9}]", encoding="utf-8"
    )
    answer = boa(command[0], "[red].yaml", *command[1:])
    assert "on [red].yaml" in answer.out or "for [red].yaml" in answer.out
    assert command[0] == "simulate" or "A100 [sxm]" in answer.out


FAST = TimeFit(LinearTime(0.01, 0.001), (8, 16), (0.018, 0.026), (4, 4), 0.01, 0.01)
MADE_FOR = MadeFor(
    devices=("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090"),
    parameters=10,
    sync_batch_norm=False,
    precision="32-true",
    batch_weight="samples",
    software={},
    global_batch_size=24,
    min_batch_size=(2, 1),
    max_batch_size=(24, 8),
    granularity=2,
)
PROFILE = Profile(MADE_FOR, (FAST, replace(FAST, seconds=(0.036, 0.052))), BatchPlan((16, 8)))


def saved(profile: Profile, folder: Path) -> Path:
    file = folder / "profile.json"
    file.write_text(profile.to_json(), encoding="utf-8")
    return file


def test_a_profile_brings_times_bounds_and_the_batch(tmp_path: Path, boa: Boa) -> None:
    file = saved(PROFILE, tmp_path)
    new, old = source_of(str(file), ()).members
    assert new.device.time_model.seconds(12) == pytest.approx(FAST.model.seconds(12), rel=1e-6)
    assert old.device.time_model.seconds(12) == pytest.approx(2 * FAST.model.seconds(12), rel=1e-6)
    assert [(each.least, each.most) for each in (new, old)] == [(2, None), (1, 8)]
    plan = boa("plan", file, "--json").document["plan"]
    models = [new.device.time_model, old.device.time_model]
    expected = plan_batches(
        models, 24, min_batch_size=[2, 1], max_batch_size=[24, 8], granularity=2
    )
    assert (plan["global_batch_size"], plan["batch_sizes"]) == (24, list(expected.batch_sizes))
    larger = boa("plan", file, "-b", "48", "--json").document["plan"]
    assert larger["batch_sizes"] == [40, 8]
    added = boa("plan", file, "--what-if", "add=3090", "--json").document["what_if"]
    assert added[0]["devices"] == 3


def test_the_plan_in_use_stays_where_no_other_is_clearly_faster(tmp_path: Path, boa: Boa) -> None:
    made_for = replace(
        MADE_FOR,
        global_batch_size=64,
        min_batch_size=(1, 1),
        max_batch_size=(64, 64),
        granularity=1,
    )
    fit = TimeFit(LinearTime(0.0004, 0.002), (32, 51), (0.0647, 0.10285), (4, 13), 0.005, 0.002)
    slow = replace(fit, batch_sizes=(13, 32), seconds=(0.1056, 0.2565), counts=(13, 4))
    file = saved(Profile(made_for, (fit, slow), BatchPlan((51, 13))), tmp_path)
    models = [member.device.time_model for member in source_of(str(file), ()).members]
    assert plan_batches(models, 64).batch_sizes == (52, 12)
    document = boa("plan", file, "--json").document["plan"]
    assert document["batch_sizes"] == [51, 13]
    assert document["step_seconds"] == pytest.approx(float(models[1].seconds(13)))
    assert "it is the plan that the training used" in document["reason"]
    assert boa("plan", file, "--max", "50", "--json").document["plan"]["batch_sizes"] == [50, 14]
    assert boa("plan", file, "--max", "52,12", "--json").document["plan"]["batch_sizes"] == [52, 12]
    assert sum(boa("plan", file, "-b", "128", "--json").document["plan"]["batch_sizes"]) == 128
    far = saved(Profile(made_for, (fit, slow), BatchPlan((32, 32))), tmp_path)
    assert boa("plan", far, "--json").document["plan"]["batch_sizes"] == [52, 12]


@pytest.mark.parametrize(("seconds", "is_said"), [("[2, 1, 3]", True), ("[2, 2, 3]", False)])
def test_measured_times_that_fall_are_told(
    tmp_path: Path, boa: Boa, seconds: str, is_said: bool
) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(
        f"devices: [{{name: odd, batch_sizes: [2, 4, 8], seconds: {seconds}}}]", encoding="utf-8"
    )
    said = "The measured seconds of odd fall where rows rise"
    for command in (("plan",), ("simulate", "--policies", "ddp", "--steps", "3")):
        assert (said in boa(*command, file).out) is is_said
        assert (said in boa(*command, file, "--json").document["note"]) is is_said


def test_a_device_that_never_had_rows_is_left_out_and_named(tmp_path: Path, boa: Boa) -> None:
    made_for = replace(MADE_FOR, min_batch_size=(0, 0), max_batch_size=(24, 24), parks=True)
    fit = replace(FAST, batch_sizes=(8, 24), seconds=(0.018, 0.034))
    file = saved(Profile(made_for, (fit, None), BatchPlan((24, 0))), tmp_path)
    assert boa("plan", file, "--json").document["plan"]["batch_sizes"] == [24]
    assert "Left out: rank 1, which never had rows" in boa("plan", file).out


def test_a_device_that_may_be_parked_takes_no_time_then(tmp_path: Path, boa: Boa) -> None:
    made_for = replace(MADE_FOR, min_batch_size=(0, 0), max_batch_size=(24, 24), parks=True)
    slow = replace(FAST, seconds=(0.8, 0.9))
    file = saved(Profile(made_for, (FAST, slow), BatchPlan((16, 8))), tmp_path)
    plan = boa("plan", file, "--json").document["plan"]
    assert plan["batch_sizes"] == [24, 0]
    assert plan["ranks"][1]["seconds"] == 0
    assert plan["ranks"][1]["idle_share"] == 1
