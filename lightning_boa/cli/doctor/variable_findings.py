"""What a training would make of the variables of a launch, as far as they are no whole launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightning_boa.cli.doctor.facts import Finding, Level, Machine
from lightning_boa.cli.doctor.launches import is_launched
from lightning_boa.cli.launch_variables import (
    WITHOUT_SRUN,
    heeds_slurm,
    is_srun_missing,
    is_torchrun,
    what_without_srun,
)


def findings_of_variables(machine: Machine) -> Iterator[Finding]:
    """Where ranks would not meet, half a launch, and SLURM's variables without srun."""
    environment = machine.environment
    if machine.meeting_mistake:
        what, _, mend = machine.meeting_mistake.partition(". ")
        yield Finding("problem", f"{what}: a training on this machine would not begin.", mend)
    yield from _of_slurm(environment)
    if is_torchrun(environment) or heeds_slurm(environment):
        return
    if is_launched(environment):
        yield from _of_a_launch(environment)
    else:
        yield from _of_half_a_launch(environment)


def _of_slurm(environment: Mapping[str, str]) -> Iterator[Finding]:
    ntasks = environment.get("SLURM_NTASKS", "1")
    if not ntasks.isdecimal():
        yield Finding(
            "problem",
            f"SLURM_NTASKS: expected a whole number, got {ntasks!r}: a training would end with an error.",
            "unset SLURM_NTASKS",
        )
    elif is_srun_missing(environment):
        level: Level = "warning" if ntasks == "1" else "problem"
        yield Finding(level, f"{what_without_srun(environment)}.", WITHOUT_SRUN)
    elif heeds_slurm(environment) and ntasks != "1" and "SLURM_NTASKS_PER_NODE" not in environment:
        yield Finding(
            "problem",
            f"SLURM_NTASKS={ntasks} is set without SLURM_NTASKS_PER_NODE, which Lightning refuses.",
            "Use --ntasks-per-node in place of --ntasks.",
        )


def _of_a_launch(environment: Mapping[str, str]) -> Iterator[Finding]:
    if "RANK" in environment and "LOCAL_RANK" not in environment:
        yield Finding(
            "warning",
            "RANK and WORLD_SIZE are set without LOCAL_RANK: Lightning heeds neither without torchrun, so each process"
            " would start ranks of its own.",
            "Start it by torchrun.",
        )


def _of_half_a_launch(environment: Mapping[str, str]) -> Iterator[Finding]:
    lone = [name for name in ("RANK", "WORLD_SIZE") if name in environment]
    if lone:
        (name,) = lone
        other = "WORLD_SIZE" if name == "RANK" else "RANK"
        yield Finding(
            "warning",
            f"{name}={environment[name]} is set without {other}: Lightning does not heed it.",
            f"unset {name}, or start the training by torchrun.",
        )
    if "LOCAL_RANK" in environment:
        yield Finding(
            "problem",
            f"LOCAL_RANK={environment['LOCAL_RANK']} is set outside of a launch: Lightning starts no further ranks"
            " then, and a training on several devices would wait for them for ever.",
            "unset LOCAL_RANK, or start the training by torchrun.",
        )
    node = "NODE_RANK" if "NODE_RANK" in environment else "GROUP_RANK"
    if environment.get(node, "0") != "0":
        yield Finding(
            "problem",
            f"{node}={environment[node]} is set: a training takes this for a further machine, and without num_nodes="
            " ends with an error or waits for ever for the first one.",
            f"unset {node}, or give every machine num_nodes=, MASTER_ADDR and MASTER_PORT.",
        )
