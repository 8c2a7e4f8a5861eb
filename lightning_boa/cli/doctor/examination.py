"""Looks at the machine and the group and says what will hold boa back."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from lightning_boa.cli.doctor.accelerators import read_accelerators
from lightning_boa.cli.doctor.facts import (
    Accelerators,
    Cards,
    Examination,
    Group,
    Machine,
    Processor,
    Software,
)
from lightning_boa.cli.doctor.findings import findings_of
from lightning_boa.cli.doctor.launches import is_launched
from lightning_boa.cli.doctor.nvidia_smi import ask_nvidia_smi, read_cards
from lightning_boa.cli.doctor.processor import read_processor
from lightning_boa.cli.doctor.software import read_software
from lightning_boa.cli.launch_variables import LAUNCH_VARIABLES

TELLING = ("CUDA_", "GLOO_", "HIP_", "LIGHTNING_BOA", "NCCL_", "OMP_NUM_THREADS", "ROCR_", "ZE_")


class Looks(Protocol):
    """Where facts come from; a test gives its own."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment's variables."""

    def accelerators(self) -> Accelerators:
        """What torch drives."""

    def cards(self) -> Cards:
        """What nvidia-smi says."""

    def processor(self) -> Processor:
        """Cores, quota and memory."""

    def software(self) -> Software:
        """Versions, and in which Lightning the strategy is known."""

    def meeting_mistake(self) -> str:
        """What keeps ranks that a training starts here from meeting; "" where nothing does."""


class ThisMachine:
    """The machine that the command runs on."""

    environment: Mapping[str, str] = os.environ

    def accelerators(self) -> Accelerators:
        import torch

        return read_accelerators(torch)

    def cards(self) -> Cards:
        return read_cards(ask_nvidia_smi)

    def processor(self) -> Processor:
        return read_processor(Path("/"))

    def software(self) -> Software:
        import torch

        return read_software(torch)

    def meeting_mistake(self) -> str:
        from lightning_boa.strategies.meeting_place import ThisNetwork, meeting_mistake

        return meeting_mistake(self.environment, ThisNetwork())


def look_at_machine(looks: Looks, say: Callable[[str], None] = lambda what: None) -> Machine:
    """All facts of this machine; `say` hears what is looked at."""
    say("devices")
    accelerators = looks.accelerators()
    say("nvidia-smi")
    cards = looks.cards()
    say("versions, both Lightnings and the variables of a launch")
    return Machine(
        host=platform.node(),
        accelerators=accelerators,
        cards=cards,
        processor=looks.processor(),
        software=looks.software(),
        environment={
            name: value
            for name, value in sorted(looks.environment.items())
            if name.startswith(TELLING) or name in LAUNCH_VARIABLES
        },
        meeting_mistake="" if is_launched(looks.environment) else looks.meeting_mistake(),
    )


def examination_of(machine: Machine, group: Group | None, ranks: int) -> Examination:
    """What has been seen and what is to be said of it, for a training with so many ranks on this machine."""
    return Examination(machine, group, findings_of(machine, group, ranks))
