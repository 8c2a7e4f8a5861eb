"""What a Hydra job of several processes needs: one output folder, and an environment that the next job of a sweep
finds as this one did."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed
from hydra.core.hydra_config import HydraConfig
from omegaconf import read_write

from lightning_boa.errors import UnsupportedError
from lightning_boa.strategies import process_group

_LAUNCHER_VARIABLES = (
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "OMP_NUM_THREADS",
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "WORLD_SIZE",
)
_MULTIRUN_FLAGS = ("-m", "--multirun")
_FLAGS_WITH_VALUE = ("-cn", "-cp", "-cd", "--config-name", "--config-path", "--config-dir")


@contextmanager
def one_job() -> Iterator[None]:
    """Runs one job so that Lightning's child processes share its output folder and the next job starts afresh.

    Under start_method=popen Lightning calls the command again for every further rank, with `sys.argv` and the run
    folder of Hydra's configuration; in a sweep both are the sweep's, so they are set to this job's for the while.
    """
    argv = list(sys.argv)
    environment = {name: os.environ.get(name) for name in _LAUNCHER_VARIABLES}
    launched_here = "LOCAL_RANK" not in os.environ
    hydra: Any = HydraConfig.get()
    sys.argv = [argv[0], *_flags(argv[1:]), *hydra.overrides.task]
    with read_write(hydra):
        hydra.run.dir = hydra.runtime.output_dir
    try:
        yield
        if launched_here:
            process_group.leave()
    finally:
        sys.argv = argv
        if launched_here:
            _restore(environment)


def refuse_foreign_process_group(world_size: int) -> None:
    """Errors: UnsupportedError where a process group of another size is still open in this process."""
    if not torch.distributed.is_initialized():
        return
    present = torch.distributed.get_world_size()
    if present != world_size:
        raise UnsupportedError(
            f"trainer.devices: this run expects {world_size} ranks, but the process belongs to a group of "
            f"{present} from an earlier run; start the runs as commands of their own."
        )


def _flags(arguments: list[str]) -> list[str]:
    kept = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _FLAGS_WITH_VALUE:
            kept += [argument, next(remaining)]
        elif argument.startswith("-") and argument not in _MULTIRUN_FLAGS:
            kept.append(argument)
    return kept


def _restore(environment: dict[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
