"""What the examination has found, in plain values; `--json` prints them as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]
BACKENDS = {"cuda": "nccl", "xpu": "xccl"}  # of process groups; elsewhere gloo, on the processor


@dataclass(frozen=True)
class Finding:
    """One thing worth saying: `what` is there, and how to `mend` it; "" where there is nothing to mend."""

    level: Level
    what: str
    mend: str = ""


@dataclass(frozen=True)
class Device:
    """A device in torch's order.

    `kind` is torch's name of it ("cuda", also for ROCm; "xpu", "mps"), `capability` CUDA's ("8.9") or AMD's
    architecture. `bf16` says whether it computes in bfloat16 by itself; None where that is not known.
    """

    index: int
    kind: str
    name: str
    uuid: str = ""
    memory_bytes: int | None = None
    capability: str = ""
    pci_bus_id: str = ""
    bf16: bool | None = None


@dataclass(frozen=True)
class Accelerators:
    """What torch drives.

    `api` is "CUDA", "ROCm", "XPU", "MPS" or "". `architectures` are those that torch was built for. `peers[i][j]` says
    whether device i reads the memory of device j without the host; empty where that is not known.
    """

    api: str = ""
    devices: tuple[Device, ...] = ()
    architectures: tuple[str, ...] = ()
    peers: tuple[tuple[bool, ...], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Process:
    """A process that computes on a card."""

    pid: int
    name: str
    memory_mib: float | None = None


@dataclass(frozen=True)
class Card:
    """A card in nvidia-smi's order, which is that of the PCI bus; None and "" where nvidia-smi does not say."""

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    memory_mib: float | None = None
    memory_used_mib: float | None = None
    temperature: float | None = None
    power_limit: float | None = None
    default_power_limit: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttled_by: tuple[str, ...] = ()
    mig: bool = False
    compute_mode: str = ""
    link_width: int | None = None
    max_link_width: int | None = None
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Cards:
    """What nvidia-smi says; `error` where it is there but cannot be used. `links` is its topology, as it prints it."""

    present: tuple[Card, ...] = ()
    driver: str = ""
    links: str = ""
    error: str = ""


@dataclass(frozen=True)
class Processor:
    """`cores` are those this process may run on, `quota` those that its control group pays for."""

    cores: int
    quota: float | None = None
    memory_bytes: int | None = None
    shared_memory_bytes: int | None = None

    @property
    def usable_cores(self) -> float:
        """Cores' worth of time that all ranks together may use."""
        return self.cores if self.quota is None else min(self.cores, self.quota)


@dataclass(frozen=True)
class Package:
    """An installed package; `accepted` is the range that lightning-boa asks for, `tested` the version of its tests."""

    name: str
    version: str
    accepted: str = ""
    is_accepted: bool = True
    tested: str = ""


@dataclass(frozen=True)
class LightningPackage:
    """A Lightning, and whether Trainer(strategy="boa") works there; `error` where it cannot be imported."""

    name: str
    registered: bool
    error: str = ""


@dataclass(frozen=True)
class Software:
    """`cuda` and `nccl` are what torch was built with, "" without CUDA."""

    python: str
    packages: tuple[Package, ...] = ()
    lightnings: tuple[LightningPackage, ...] = ()
    cuda: str = ""
    nccl: str = ""


@dataclass(frozen=True)
class RankFacts:
    """One rank of the group: where it is and on what."""

    rank: int
    host: str
    device: Device | None = None
    python: str = ""
    torch: str = ""
    lightning_boa: str = ""


@dataclass(frozen=True)
class PairSeconds:
    """Seconds of an all-reduce between two ranks."""

    ranks: tuple[int, int]
    seconds: float


@dataclass(frozen=True)
class Speed:
    """Rows per second of a small training step, and by which part of it repeats differ."""

    rows_per_second: float
    spread: float


@dataclass(frozen=True)
class Group:
    """What a process group of real ranks has shown; seconds of an all-reduce of 4 bytes and of `large_bytes`.

    `speeds` are of a small training step on each rank's device, all at the same time; empty where ranks share a device.
    `trouble` names the rank for which the others waited; "" where all came through.
    """

    backend: str
    ranks: tuple[RankFacts, ...] = ()
    small_seconds: float | None = None
    large_bytes: int = 0
    large_seconds: float | None = None
    pairs: tuple[PairSeconds, ...] = ()
    speeds: tuple[Speed, ...] = ()
    trouble: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Machine:
    """What this machine has.

    `meeting_mistake` is what keeps ranks that a training starts here from meeting; "" where nothing does.
    """

    host: str
    accelerators: Accelerators
    cards: Cards
    processor: Processor
    software: Software
    environment: dict[str, str]
    meeting_mistake: str = ""


@dataclass(frozen=True)
class Examination:
    """All that `boa doctor` has found; `group` is None where none was made."""

    machine: Machine
    group: Group | None
    findings: tuple[Finding, ...]

    @property
    def has_problem(self) -> bool:
        """Whether something keeps boa from training."""
        return any(finding.level == "problem" for finding in self.findings)
