"""How the doctor reads nvidia-smi, torch, control groups and a launcher's environment."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_boa.cli.doctor import nvidia_smi
from lightning_boa.cli.doctor.accelerators import read_accelerators, read_device
from lightning_boa.cli.doctor.facts import Process
from lightning_boa.cli.doctor.launches import Launch, launch_of
from lightning_boa.cli.doctor.nvidia_smi import NoAnswerError, ask_nvidia_smi, read_cards
from lightning_boa.cli.doctor.processor import read_processor
from lightning_boa.cli.doctor.software import TESTED, read_software
from lightning_boa.cli.doctor.speed import speed_of
from lightning_boa.errors import OptionError

ROOT = Path(__file__).parents[3]
REPORT = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>535.104.05</driver_version>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA GeForce RTX 3090</product_name>
    <uuid>GPU-111</uuid>
    <mig_mode><current_mig>N/A</current_mig></mig_mode>
    <pci>
      <pci_bus_id>00000000:01:00.0</pci_bus_id>
      <pci_gpu_link_info><link_widths>
        <max_link_width>16x</max_link_width><current_link_width>4x</current_link_width>
      </link_widths></pci_gpu_link_info>
    </pci>
    <compute_mode>Default</compute_mode>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
    </clocks_event_reasons>
    <fb_memory_usage><total>24576 MiB</total><used>910 MiB</used></fb_memory_usage>
    <temperature><gpu_temp>88 C</gpu_temp></temperature>
    <gpu_power_readings>
      <current_power_limit>250.00 W</current_power_limit><default_power_limit>350.00 W</default_power_limit>
    </gpu_power_readings>
    <clocks><sm_clock>210 MHz</sm_clock></clocks>
    <max_clocks><sm_clock>2100 MHz</sm_clock></max_clocks>
    <processes>
      <process_info>
        <pid>42</pid><type>C</type><process_name>python</process_name><used_memory>900 MiB</used_memory>
      </process_info>
      <process_info>
        <pid>43</pid><type>G</type><process_name>Xorg</process_name><used_memory>4 MiB</used_memory>
      </process_info>
    </processes>
  </gpu>
  <gpu id="00000000:02:00.0">
    <product_name>Tesla M40</product_name>
    <uuid>GPU-222</uuid>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <clocks_throttle_reasons>
      <clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap>
    </clocks_throttle_reasons>
    <power_readings><power_limit>180.00 W</power_limit></power_readings>
  </gpu>
</nvidia_smi_log>
"""
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)


def answers(report: str) -> Callable[..., str]:
    return lambda *arguments: TOPOLOGY if arguments[0] == "topo" else report


def test_what_nvidia_smi_says() -> None:
    cards = read_cards(answers(REPORT))
    first, second = cards.present
    assert cards.driver == "535.104.05"
    assert cards.links == "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X"
    assert (first.index, first.name, first.uuid) == (0, "NVIDIA GeForce RTX 3090", "GPU-111")
    assert (first.memory_mib, first.memory_used_mib, first.temperature) == (24576, 910, 88)
    assert (first.power_limit, first.default_power_limit) == (250, 350)
    assert (first.sm_clock_mhz, first.max_sm_clock_mhz) == (210, 2100)
    assert (first.link_width, first.max_link_width, first.mig) == (4, 16, False)
    assert first.throttled_by == ("heat (hardware)",)
    assert first.processes == (Process(42, "python", 900.0),)
    assert second.pci_bus_id == "00000000:02:00.0"
    assert (second.mig, second.power_limit, second.memory_mib) == (True, 180, None)
    assert second.throttled_by == ("its power limit",)


@pytest.mark.parametrize("said", ["", "Unable to determine the device handle", "<a><b></a>"])
def test_garbage_from_nvidia_smi_is_told(said: str) -> None:
    cards = read_cards(answers(said))
    assert (cards.present, cards.error) == ((), "nvidia-smi -q -x printed something else than XML")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'No devices were found'; exit 6", "failed with exit code 6: No devices were found"),
        ("exec sleep 60", "gave no answer within 0.2 s"),
    ],
)
def test_an_nvidia_smi_that_fails_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(nvidia_smi, "SECONDS", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NoAnswerError, match=said):
        ask_nvidia_smi("-q", "-x")
    assert said in read_cards().error
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert read_cards() == nvidia_smi.Cards()


def test_the_least_quota_of_version_2_counts(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    write(tmp_path / "proc/meminfo", "MemTotal:        1024 kB\nMemFree: 1 kB\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    read = read_processor(tmp_path)
    assert read.quota == 1.5
    assert read.memory_bytes == 2**20
    assert read.shared_memory_bytes is not None
    assert read.usable_cores == min(read.cores, 1.5)


@pytest.mark.parametrize(("quota", "expected"), [("50000", 0.5), ("-1", None), ("x", None)])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, expected: float | None) -> None:
    write(tmp_path / "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n2:memory:/docker/abc\n")
    write(tmp_path / "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", quota)
    write(tmp_path / "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000")
    assert read_processor(tmp_path).quota == expected


def test_inside_a_container_its_group_is_the_root(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/not/seen/here\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "200000 100000")
    assert read_processor(tmp_path).quota == 2.0
    assert read_processor(tmp_path / "elsewhere").quota is None


def test_cuda_devices_with_what_tells_them_apart() -> None:
    found = read_accelerators(torch_with([("RTX 4090", 8, 9), ("V100", 7, 0)]))
    new, old = found.devices
    assert found.api == "CUDA"
    assert (new.name, new.capability, new.bf16, old.bf16) == ("RTX 4090", "8.9", True, False)
    assert (new.uuid, new.pci_bus_id) == ("GPU-aa-0", "00000000:0a:00.0")
    assert found.peers == ((True, False), (False, True))
    assert found.architectures == ("sm_80",)


def test_devices_of_other_makers() -> None:
    rocm = read_accelerators(torch_with([("MI250", 9, 0)], hip="6.2"))
    assert (rocm.api, rocm.devices[0].capability, rocm.devices[0].bf16) == ("ROCm", "gfx90a", None)
    xpu: Any = torch_with([])
    xpu.xpu = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="Arc A770", total_memory=1),
    )
    assert read_accelerators(xpu).devices[0].kind == "xpu"
    mps: Any = torch_with([])
    mps.backends.mps.is_available = lambda: True
    assert read_accelerators(mps).api == "MPS"
    assert read_accelerators(torch_with([])).devices == ()


def test_the_device_of_a_rank() -> None:
    two = torch_with([("RTX 4090", 8, 9), ("V100", 7, 0)])
    assert [read_device(two, rank).index for rank in (0, 1, 2)] == [0, 1, 0]  # type: ignore[union-attr]
    assert read_device(torch_with([]), 1) is None


def test_a_driver_that_raises_is_told() -> None:
    broken: Any = torch_with([("V100", 7, 0)])

    def fail(index: int) -> None:
        raise RuntimeError("CUDA unknown error\nand more")

    broken.cuda.get_device_properties = fail
    assert read_accelerators(broken).error == "RuntimeError: CUDA unknown error"


def torch_with(cards: list[tuple[str, int, int]], hip: str | None = None) -> Any:
    def properties(index: int) -> Any:
        name, major, minor = cards[index]
        return SimpleNamespace(
            name=name,
            major=major,
            minor=minor,
            total_memory=2**34,
            uuid=f"aa-{index}",
            gcnArchName="gfx90a",
            pci_domain_id=0,
            pci_bus_id=10 + index,
            pci_device_id=0,
        )

    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: bool(cards),
            device_count=lambda: len(cards),
            get_device_properties=properties,
            get_arch_list=lambda: ["sm_80"],
            can_device_access_peer=lambda one, other: False,
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
        version=SimpleNamespace(hip=hip),
    )


def test_the_environment_of_a_launch() -> None:
    torchrun = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "there",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert launch_of(torchrun) == Launch(3, 4, 1, "there", 29500, by_agent=True)
    assert launch_of({"RANK": "3"}) is None
    assert launch_of({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}) is None
    with pytest.raises(OptionError, match=r"MASTER_PORT: expected a whole number .*, got 'x'"):
        launch_of({**torchrun, "MASTER_PORT": "x"})


def test_tested_versions_are_those_of_the_constraints() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for name, tested in TESTED.items():
        assert f"{name}=={tested}" in constraints


def test_software_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lightning_boa.cli.doctor.software.CLASSES_FOR", {"pytorch_lightning": "", "no.such": ""}
    )
    read = read_software(torch)
    assert read.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert [(each.name, each.registered) for each in read.lightnings] == [
        ("pytorch_lightning", True)
    ]
    versions = {package.name: package for package in read.packages}
    assert versions["torch"].version == version("torch")
    assert versions["torch"].is_accepted
    assert versions["lightning-boa"].version == version("lightning-boa")


def test_a_small_step_has_a_speed() -> None:
    speed = speed_of(torch.device("cpu"), rows=1, seconds=0.05)
    assert speed.rows_per_second > 0
    assert 0 <= speed.spread < math.inf


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
