"""Machines that are not here, as the doctor would find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightning_boa.cli.doctor.facts import (
    Accelerators,
    Card,
    Cards,
    Device,
    Finding,
    Group,
    LightningPackage,
    Machine,
    Package,
    Processor,
    RankFacts,
    Software,
)
from lightning_boa.cli.doctor.findings import findings_of

SOFTWARE = Software(
    "3.11.7",
    (Package("torch", "2.13.0", ">=2.4", True, "2.13.0"),),
    (LightningPackage("pytorch_lightning", True),),
    "13.0",
    "2.28.9",
)
PROCESSOR = Processor(cores=16, memory_bytes=64 * 2**30, shared_memory_bytes=32 * 2**30)
KINDS = {
    "RTX 3090": ("8.6", 24, True),
    "RTX 4090": ("8.9", 24, True),
    "V100": ("7.0", 16, False),
    "A100": ("8.0", 80, True),
}


def devices_of(*names: str) -> tuple[Device, ...]:
    """In torch's order."""
    return tuple(
        Device(
            index,
            "cuda",
            name,
            f"GPU-{index}{index}{index}",
            KINDS[name][1] * 2**30,
            KINDS[name][0],
            f"00000000:0{index}:00.0",
            KINDS[name][2],
        )
        for index, name in enumerate(names)
    )


def card_for(device: Device, index: int) -> Card:
    return Card(index, device.name, device.uuid, device.pci_bus_id)


def machine_with(
    *names: str,
    cards: Cards | None = None,
    processor: Processor = PROCESSOR,
    software: Software = SOFTWARE,
    environment: Mapping[str, str] | None = None,
    architectures: tuple[str, ...] = ("sm_70", "sm_80", "sm_86", "sm_90"),
) -> Machine:
    devices = devices_of(*names)
    same = Cards(tuple(card_for(device, device.index) for device in devices), "580.1")
    api = "CUDA" if devices else ""
    return Machine(
        "here",
        Accelerators(api, devices, architectures),
        same if cards is None else cards,
        processor,
        software,
        dict(environment or {}),
    )


def group_on(*devices: Device | None, trouble: str = "") -> Group:
    ranks = tuple(
        RankFacts(rank, "here", device, "3.11.7", "2.13.0", "0.1.0")
        for rank, device in enumerate(devices)
    )
    return Group("nccl", ranks, trouble=trouble)


def said_of(machine: Machine, group: Group | None = None, ranks: int = 2) -> dict[str, str]:
    """What was found, and its level."""
    return {each.what: each.level for each in findings_of(machine, group, ranks)}


def finding(machine: Machine, words: str, group: Group | None = None, ranks: int = 2) -> Finding:
    """The one finding that says so."""
    found = [each for each in findings_of(machine, group, ranks) if words in each.what]
    assert len(found) == 1, found or said_of(machine, group, ranks)
    return found[0]


@dataclass
class MachineOfATest:
    """Stands in for ThisMachine."""

    machine: Machine = field(default_factory=machine_with)

    @property
    def environment(self) -> Mapping[str, str]:
        return self.machine.environment

    def accelerators(self) -> Accelerators:
        return self.machine.accelerators

    def cards(self) -> Cards:
        return self.machine.cards

    def processor(self) -> Processor:
        return self.machine.processor

    def software(self) -> Software:
        return self.machine.software

    def meeting_mistake(self) -> str:
        return self.machine.meeting_mistake
