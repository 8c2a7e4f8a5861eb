"""Whether torchrun, SLURM or another launcher has started this process as one rank of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lightning_boa.cli.launch_variables import heeds_slurm, is_srun_missing
from lightning_boa.errors import OptionError

PORTS = 65_536


@dataclass(frozen=True)
class Launch:
    """This process's place in a launch; the store is at `host`:`port`, and kept by an agent or else by rank 0."""

    rank: int
    ranks: int
    local_rank: int
    host: str
    port: int
    by_agent: bool = False


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether the environment tells of a launch."""
    return _by_torchrun(environment) or _by_srun(environment)


def launch_of(environment: Mapping[str, str]) -> Launch | None:
    """The launch that the environment tells of; None where this is a process of its own.

    Raises:
        OptionError: the environment says some of it, but not all.
    """
    if _by_torchrun(environment):
        ranks = _number(environment, "WORLD_SIZE", least=1)
        return Launch(
            rank=_number(environment, "RANK", below=ranks, limit=f"WORLD_SIZE={ranks}"),
            ranks=ranks,
            local_rank=_number(environment, "LOCAL_RANK", "0"),
            host=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=_number(environment, "MASTER_PORT", least=1, below=PORTS),
            by_agent=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    return _of_slurm() if _by_srun(environment) else None


def _by_torchrun(environment: Mapping[str, str]) -> bool:
    return "RANK" in environment and "WORLD_SIZE" in environment


def _by_srun(environment: Mapping[str, str]) -> bool:
    ntasks = environment.get("SLURM_NTASKS", "1")
    is_step = heeds_slurm(environment) and not is_srun_missing(environment)
    return is_step and ntasks.isdecimal() and int(ntasks) > 1


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


def _number(
    environment: Mapping[str, str],
    name: str,
    default: str = "",
    *,
    least: int = 0,
    below: int | None = None,
    limit: str = "",
) -> int:
    value = environment.get(name, default)
    if value.isdecimal() and int(value) >= least and (below is None or int(value) < below):
        return int(value)
    limits = "" if below is None else f" and below {limit or below}"
    raise OptionError(
        f"{name}: expected a whole number of at least {least}{limits} in the environment of a launched rank, got"
        f" {value!r}; unset RANK and WORLD_SIZE to examine this machine alone."
    )
