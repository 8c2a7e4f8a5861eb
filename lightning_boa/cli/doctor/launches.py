"""Whether torchrun, SLURM or another launcher has started this process as one rank of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lightning_boa.errors import OptionError


@dataclass(frozen=True)
class Launch:
    """This process's place in a launch; the store is at `host`:`port`, and kept by an agent or else by rank 0."""

    rank: int
    ranks: int
    local_rank: int
    host: str
    port: int
    by_agent: bool = False


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """The launch that the environment tells of; None where this is a process of its own.

    Raises:
        OptionError: the environment says some of it, but not all.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Launch(
            rank=_number(environment, "RANK"),
            ranks=_number(environment, "WORLD_SIZE"),
            local_rank=_number(environment, "LOCAL_RANK", "0"),
            host=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=_number(environment, "MASTER_PORT"),
            by_agent=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        return _of_slurm()
    return None


def _of_slurm() -> Launch:
    environments: Any = import_module("lightning_fabric.plugins.environments")
    slurm = environments.SLURMEnvironment()
    return Launch(
        slurm.global_rank(),
        slurm.world_size(),
        slurm.local_rank(),
        slurm.main_address,
        slurm.main_port,
    )


def _number(environment: Mapping[str, str], name: str, default: str = "") -> int:
    value = environment.get(name, default)
    if not value.isdecimal():
        raise OptionError(
            f"{name}: expected a whole number in the environment of a launched rank, got {value!r}; unset RANK and"
            " WORLD_SIZE to examine this machine alone."
        )
    return int(value)
