"""The file of the option `profile`: read before the first step, written once its plan is confirmed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from lightning_boa.errors import OptionError
from lightning_boa.planning import (
    KnownPlan,
    MadeFor,
    Orchestration,
    OrchestrationSettings,
    Profile,
)
from lightning_boa.profiling import decide_once
from lightning_boa.reports.whole_file import why_not_written, write_whole
from lightning_boa.wrong_lightning import package_of


class SavedProfile:
    """A profile on the disk of rank 0, which alone reads and writes it.

    Args:
        path: the file; it need not exist.
        made_for: what a plan for such settings is made for in this training.
        measures: whether there may be a warm-up; without one the file must exist and fit.
        device: where the process group's backend wants its tensors.
    """

    def __init__(
        self,
        path: str,
        made_for: Callable[[OrchestrationSettings], MadeFor],
        device: torch.device,
        *,
        measures: bool,
    ) -> None:
        self._path = Path(path).resolve()
        self._made_for = made_for
        self._device = device
        self._measures = measures
        self._is_due = False

    def begin(self, settings: OrchestrationSettings, first_step: int) -> Orchestration:
        """The loop with the file's plan if it fits, else with a warm-up; every rank calls it.

        Raises:
            OptionError: on every rank: a place where no file can be written, a file that is no profile, or one that is
                missing or does not fit where there is no warm-up.
        """
        profile, news = decide_once(partial(self._look_up, settings), self._device)
        rank_zero_info(f"boa: {news}.")
        self._is_due = profile is None
        if profile is None:
            return Orchestration.begin(settings, first_step)
        return KnownPlan.of(profile, settings, first_step, measures_anew=self._measures)

    def keep(self, before: Orchestration, after: Orchestration) -> None:
        """Write what a warm-up has found, once its plan has been measured; every rank calls it after each exchange."""
        if after.phase == "warmup":
            self._is_due = True
            return
        is_settled = after.exchange_after is None or after.plan == before.plan
        is_measured = before.phase != "warmup" and after.planned_measurement is not None
        if not (self._is_due and is_settled and is_measured):
            return
        self._is_due = False
        if dist.get_rank() != 0:
            return
        try:
            write_whole(self._path, Profile.of(after, self._made_for(after.settings)).to_json())
        except OSError as error:
            rank_zero_warn(
                f"boa: the profile could not be written, and the training goes on: {error}"
            )
        else:
            rank_zero_info(f"boa: {self._path} holds what was measured, for the next training.")

    def _look_up(self, settings: OrchestrationSettings) -> tuple[Profile | None, str]:
        """The profile if it fits, and one sentence about it."""
        path = self._path
        check_place(path, is_written=self._measures)
        difference = "there is no such file"
        if path.exists():
            profile = Profile.from_json(_read(path), str(path))
            found = profile.made_for.difference(self._made_for(settings))
            if found is None:
                rows = " / ".join(map(str, profile.plan.batch_sizes))
                return profile, f"{rows} rows per rank by {path}, which the first steps check"
            difference = f"when it was made {found}"
        if not self._measures:
            raise OptionError(
                f"profile: expected {path} to fit this training, since warmup=0 leaves no step to measure in;"
                f" {difference}. Leave warmup out to have the devices measured and the file written."
            )
        return (
            None,
            f"{path} cannot be used, since {difference}: the warm-up measures and writes it",
        )


def installed_software(strategy_class: type[Any]) -> dict[str, str]:
    """The version of each package by which the time of a step may differ."""
    packages = ("torch", package_of(strategy_class), "lightning_boa")
    versions = {package: sys.modules[package].__version__ for package in packages if package}
    versions |= {"cuda": torch.version.cuda, "hip": torch.version.hip}
    return {name: str(version) for name, version in versions.items() if version is not None}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise OptionError(
            f"profile: expected a file that can be read, got {path} ({error.strerror}). Change its permissions, or name"
            " another file."
        ) from error


def check_place(path: Path, *, is_written: bool) -> None:
    """Refuse a place where no profile can be; folders that are missing will be made.

    Args:
        path: the file, which need not exist.
        is_written: whether it may come to be written.

    Raises:
        OptionError: something else is there, or no file can be written.
    """
    if path.exists() and not path.is_file():
        raise OptionError(
            f"profile: expected a file, got {path}, which is none. Name a file, such as"
            f" {path / 'profile.json' if path.is_dir() else path.with_name('profile.json')}."
        )
    reason = why_not_written(path.parent) if is_written else None
    if reason is not None:
        raise OptionError(
            f"profile: expected a folder in which files can be written, got {path.parent} ({reason}). Name a file in"
            " another folder."
        )
