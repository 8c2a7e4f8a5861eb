"""The variables by which Lightning takes a process for one of several that somebody else has started."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_boa.errors import OptionError

LAUNCH_VARIABLES = (
    "GROUP_RANK",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "RANK",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_LOCALID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NODELIST",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
)
INTERACTIVE = ("bash", "interactive")
WITHOUT_SRUN = "Start it by srun, or unset SLURM_NTASKS, and Lightning starts the ranks itself."


def is_torchrun(environment: Mapping[str, str]) -> bool:
    """Whether Lightning goes by torchrun's variables, before all others."""
    return "TORCHELASTIC_RUN_ID" in environment


def is_interactive(environment: Mapping[str, str]) -> bool:
    """Whether the job has a name by which Lightning does not heed SLURM."""
    return environment.get("SLURM_JOB_NAME") in INTERACTIVE


def heeds_slurm(environment: Mapping[str, str]) -> bool:
    """Whether Lightning takes this process for one of SLURM's tasks."""
    slurm = "SLURM_NTASKS" in environment and not is_interactive(environment)
    return slurm and not is_torchrun(environment)


def is_srun_missing(environment: Mapping[str, str]) -> bool:
    """Whether Lightning would do so although srun has not started it."""
    step = {"SLURM_STEP_ID", "SLURM_STEPID"} & set(environment)
    return heeds_slurm(environment) and not step


def what_without_srun(environment: Mapping[str, str]) -> str:
    """What a training makes of it."""
    return (
        f"SLURM_NTASKS={environment['SLURM_NTASKS']} is set, but srun has not started this process: Lightning starts no"
        " ranks under SLURM, so a training would end with an error, train on one device alone, or wait for ever"
    )


def refuse_slurm_without_srun(environment: Mapping[str, str], devices: object) -> None:
    """Refuse a training of several ranks which Lightning would take for one of SLURM's tasks.

    Raises:
        OptionError: what is set, and how to start it.
    """
    is_alone = environment.get("SLURM_NTASKS") == "1" and str(devices) == "1"
    if is_srun_missing(environment) and not is_alone:
        raise OptionError(f"{what_without_srun(environment)}. {WITHOUT_SRUN}")
