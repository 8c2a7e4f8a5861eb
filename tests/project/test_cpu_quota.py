from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lightning_boa.planning import LinearTime

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = (128, 256, 512, 768)
DEVICES = (LinearTime(0.0, 1e-4), LinearTime(0.0, 3e-4))


@pytest.fixture(autouse=True)
def benchmarks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def groups_module() -> Any:
    return import_module("cpu_groups")


@pytest.fixture
def benchmark() -> Any:
    return import_module("cpu_quota")


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a folder with files pass for a mounted hierarchy; as in a real one, files hinder no removal."""
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)

    def mount(kind: str, options: str, **files: str) -> Path:
        root = tmp_path / "cgroup"
        root.mkdir()
        for name, text in files.items():
            (root / f"cgroup.{name}").write_text(text)
        mounts = tmp_path / "mounts"
        mounts.write_text(f"proc /proc proc rw 0 0\n{kind} {root} {kind} {options} 0 0\n")
        return mounts

    return mount


def settings_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_version_1_limits_each_group(groups_module: Any, mounted: Callable[..., Path]) -> None:
    with groups_module.cpu_groups([1.0, 0.33], mounted("cgroup", "rw,cpu")) as groups:
        assert settings_in(groups[0].parent) == {"cpu.shares": "262144"}
        assert [settings_in(group) for group in groups] == [
            {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "10000"},
            {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "3300"},
        ]


@pytest.mark.parametrize(
    ("passed_on", "written"), [("memory", "+cpu"), ("cpu memory", "cpu memory")]
)
def test_version_2_limits_each_group(
    passed_on: str, written: str, groups_module: Any, mounted: Callable[..., Path]
) -> None:
    mounts = mounted("cgroup2", "rw", controllers="cpu memory\n", subtree_control=passed_on)
    with groups_module.cpu_groups([0.5], mounts) as groups:
        parent = groups[0].parent
        assert (parent.parent / "cgroup.subtree_control").read_text() == written
        assert settings_in(parent) == {"cgroup.subtree_control": "+cpu", "cpu.weight": "10000"}
        assert settings_in(groups[0]) == {"cpu.max": "5000 10000"}


def interrupt(group: Path, member: int) -> None:
    (group / "cgroup.procs").write_text(f"{member}\n")
    raise KeyboardInterrupt


def test_an_interruption_leaves_neither_groups_nor_processes(
    groups_module: Any, mounted: Callable[..., Path], tmp_path: Path
) -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as process,
        pytest.raises(KeyboardInterrupt),
        groups_module.cpu_groups([1.0, 0.5], mounted("cgroup", "rw,cpu")) as groups,
    ):
        interrupt(groups[1], process.pid)
    assert process.returncode == -signal.SIGKILL
    assert not list((tmp_path / "cgroup").iterdir())


def test_a_quota_that_the_kernel_refuses_leaves_no_groups(
    groups_module: Any,
    mounted: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = Path.write_text

    def refuse_quota(path: Path, text: str) -> int:
        if path.name == "cpu.cfs_quota_us":
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(path, text)

    mounts = mounted("cgroup", "rw,cpu")
    monkeypatch.setattr(Path, "write_text", refuse_quota)
    with (
        pytest.raises(groups_module.NoCpuGroupsError, match=r"cfs_quota_us .*Invalid argument"),
        groups_module.cpu_groups([1.0], mounts),
    ):
        pytest.fail("no group was made")
    assert not list((tmp_path / "cgroup").iterdir())


@pytest.mark.parametrize(
    ("mounts", "reason"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("proc /proc proc rw 0 0\n", "no control groups with the cpu controller are mounted"),
        ("cgroup /nowhere cgroup rw,cpuacct 0 0\n", "no control groups with the cpu controller"),
        ("cgroup2 /nowhere cgroup2 rw 0 0\n", "no control groups with the cpu controller"),
        ("cgroup /nowhere cgroup rw,cpu 0 0\n", "cannot be written (No such file or directory)"),
    ],
)
def test_without_control_groups_it_says_why_in_one_sentence(
    mounts: str | None,
    reason: str,
    benchmark: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "mounts"
    if mounts is not None:
        path.write_text(mounts)
    assert benchmark.main(["--launches=1"], path) == 2
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("Processors cannot be limited here: ")
    assert reason in said
    assert said.endswith("; run it as root on a Linux machine whose control groups may be written.")


def launch_with(boa_seconds: float, ddp_seconds: float = 0.1536) -> dict[str, Any]:
    """What a launch finds on devices of speeds 3 and 1 that allow 2.0; the machine is slower from turn to turn."""
    slower = (1.0, 2.0, 4.0)

    def run(seconds: float, plan: tuple[int, int] | None) -> dict[str, Any]:
        measured = [factor * seconds for factor in slower]
        return {"seconds": measured, "warmup_steps": 0, "plan": plan}

    return {
        "runs": {"ddp": run(ddp_seconds, None), "boa": run(boa_seconds, (768, 256))},
        "alone": [
            {size: [factor * float(device.seconds(size)) for factor in slower] for size in SIZES}
            for device in DEVICES
        ],
    }


def test_the_gain_is_compared_with_what_the_speeds_allow(benchmark: Any) -> None:
    found = benchmark.evaluate(launch_with(boa_seconds=0.08), 1024)
    assert found["equal_seconds_alone"] == [0.1024, 0.3072]
    assert (found["best_plan"], found["best_seconds_alone"]) == ((768, 256), 0.1536)
    assert found["spread_alone"] == [0.75, 0.75]
    assert found["seconds"] == {"ddp": 0.3072, "boa": 0.16}
    assert found["allowed"] == 2.0
    assert found["gains"] == {"ddp": 1.0, "boa": 1.92}
    assert found["part_of_allowed"] == 0.96


def test_a_disturbed_turn_of_one_policy_does_not_count(benchmark: Any) -> None:
    launch = launch_with(boa_seconds=0.08)
    launch["runs"]["boa"]["seconds"][1] *= 10
    assert benchmark.evaluate(launch, 1024)["gains"]["boa"] == 1.92


@pytest.mark.parametrize(
    ("slowest_boa", "status", "reached"), [(0.0850, 0, 3), (0.0857, 1, 2)], ids=["enough", "not"]
)
def test_one_launch_below_what_is_wanted_fails_the_benchmark(
    slowest_boa: float,
    status: int,
    reached: int,
    benchmark: Any,
    mounted: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = iter(launch_with(boa_seconds=seconds) for seconds in (0.08, slowest_boa, 0.08))
    monkeypatch.setattr(benchmark, "run_ranks", lambda *_: next(found))
    assert benchmark.main(["--launches=3"], mounted("cgroup", "rw,cpu")) == status
    *_, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert (summary["reached"], len(summary["launches"])) == (reached, 3)


def test_lb_bsp_is_measured_once_its_shares_have_arrived(benchmark: Any) -> None:
    courses = benchmark.courses_of([1.0, 0.33], 1024)
    assert courses["lb_bsp"].skip == 4 + (770 - 512) // 16
    assert {course.skip for name, course in courses.items() if name != "lb_bsp"} == {2}


@pytest.mark.parametrize("quota", ["0.05", "1.5"])
def test_a_quota_out_of_range_is_refused(
    quota: str, benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        benchmark.parse(["--quotas", "1.0", quota])
    assert f"expected 0.1 to 1 core, got {quota}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--quotas 1.0 0.5 0.5", "--rows: expected a multiple of 3 ranks, got 1024"),
        ("--turns 1", "--turns: expected at least 2, got 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    given: str, message: str, benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        benchmark.parse(given.split())
    assert message in capsys.readouterr().err
