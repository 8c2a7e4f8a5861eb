"""What the jobs of a Hydra sweep need that have several ranks: each its own, in one folder."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

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


class OwnRanks(Callback):
    """A callback of Hydra by which each job of a sweep trains with its own ranks, under any strategy.

    Under start_method=popen Lightning calls the command again for every further rank, with `sys.argv` and Hydra's run
    folder. In a sweep both are the sweep's, so each rank would run all jobs, in folders of its own, and a job with
    another number of ranks would train with those of the job before. So they are set to the job's while it runs, and
    at its end the process leaves the job's process group and finds the environment as it was. A job that fails while
    it has such ranks ends the sweep: they may be waiting for this process.
    """

    def __init__(self) -> None:
        self._argv: list[str] = []
        self._environment: dict[str, str | None] = {}

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Let further ranks be called for this job alone, in its folder."""
        self._argv = list(sys.argv)
        self._environment = {name: os.environ.get(name) for name in _LAUNCHER_VARIABLES}
        hydra: Any = HydraConfig.get()
        with read_write(hydra):
            hydra.run.dir = _inside_quotes(hydra.runtime.output_dir)
        if hydra.mode == RunMode.MULTIRUN:
            sys.argv = [
                self._argv[0],
                *_flags(self._argv[1:]),
                *_as_given(hydra.overrides.hydra),
                *_as_given(hydra.overrides.task),
                f"hydra.mode={RunMode.RUN.name}",
                f"hydra.job.num={hydra.job.num}",
                f"hydra.job.id={hydra.job.id}",
            ]

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Leave the ranks of this job.

        Raises:
            SystemExit: the job has failed, and ranks that Lightning has called may be waiting.
        """
        sys.argv = self._argv
        in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        has_failed = job_return.status == JobStatus.FAILED
        if in_sweep and self._environment["LOCAL_RANK"] is not None:
            return  # its ranks belong to who has started this process
        if in_sweep and has_failed and _has_called_ranks():
            try:
                _ = job_return.return_value
            except Exception:
                traceback.print_exc()
            raise SystemExit(1)
        if "torch" in sys.modules and (in_sweep or not has_failed):
            from lightning_boa.strategies import process_group

            process_group.leave()
        if in_sweep:
            self._restore_environment()

    def _restore_environment(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _has_called_ranks() -> bool:
    return "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE") != "1"


def _as_given(overrides: Any) -> list[str]:
    """Overrides with their interpolations, which mean something else here."""
    as_given: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(as_given)


def _inside_quotes(path: str) -> str:
    """A folder as Lightning puts it between double quotes into an override for Hydra."""
    return QuotedString(path, Quote.double).with_quotes()[1:-1]


def _flags(arguments: list[str]) -> list[str]:
    kept = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _FLAGS_WITH_VALUE:
            kept += [argument, next(remaining)]
        elif argument.startswith("-") and argument not in _MULTIRUN_FLAGS:
            kept.append(argument)
    return kept
