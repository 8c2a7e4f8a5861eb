"""Processes whose share of the processor is limited by Linux control groups, of version 1 or 2."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/mounts")
PERIOD = 10_000  # microseconds; with the usual 100 ms a throttled process stands still for 70 ms at a time
LEAST_QUOTA = 0.1  # the kernel takes no quota below 1 ms
PATIENCE = 5.0


class NoCpuGroupsError(Exception):
    """This machine lets nobody limit a process; the message says why."""


@dataclass(frozen=True)
class Hierarchy:
    """Where control groups with the cpu controller are made, and which files say what."""

    root: Path
    root_settings: Mapping[str, str]
    parent_settings: Mapping[str, str]
    version: int

    def quota_settings(self, quota: float) -> Mapping[str, str]:
        """The files that limit a group to `quota` of one core, and their contents."""
        microseconds = round(quota * PERIOD)
        if self.version == 1:
            return {"cpu.cfs_period_us": str(PERIOD), "cpu.cfs_quota_us": str(microseconds)}
        return {"cpu.max": f"{microseconds} {PERIOD}"}


def cpu_hierarchy(mounts: Path = MOUNTS) -> Hierarchy:
    """The mounted hierarchy that has the cpu controller.

    Raises:
        NoCpuGroupsError: there is none.
    """
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError as error:
        raise NoCpuGroupsError(f"{mounts} cannot be read ({error.strerror})") from error
    for _, place, kind, options, *_ in lines:
        root = Path(place)
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(root, {}, {"cpu.shares": "262144"}, version=1)
        if kind == "cgroup2" and "cpu" in _words(root / "cgroup.controllers"):
            passed_on = {"cgroup.subtree_control": "+cpu"}
            has_it = "cpu" in _words(root / "cgroup.subtree_control")
            weight = {"cpu.weight": "10000"}
            return Hierarchy(root, {} if has_it else passed_on, passed_on | weight, version=2)
    raise NoCpuGroupsError(f"no control groups with the cpu controller are mounted ({mounts})")


@contextmanager
def cpu_groups(quotas: Sequence[float], mounts: Path = MOUNTS) -> Iterator[list[Path]]:
    """Control groups limited to `quotas` of one core each, for `join`; they outrank the rest of the machine.

    In the end their processes are killed and the groups removed.

    Raises:
        NoCpuGroupsError: groups cannot be made here.
    """
    hierarchy = cpu_hierarchy(mounts)
    parent = hierarchy.root / f"lightning_boa_{os.getpid()}"
    groups = [parent / str(number) for number in range(len(quotas))]
    try:
        try:
            _write(hierarchy.root, hierarchy.root_settings)
            parent.mkdir()
            _write(parent, hierarchy.parent_settings)
            for group, quota in zip(groups, quotas, strict=True):
                group.mkdir()
                _write(group, hierarchy.quota_settings(quota))
        except OSError as error:
            raise NoCpuGroupsError(
                f"{error.filename} cannot be written ({error.strerror})"
            ) from error
        yield groups
    finally:
        for group in (*groups, parent):
            if group.exists():
                _remove(group)


def join(group: Path) -> None:
    """Put this process, with its threads and its children from now on, into `group`."""
    _write(group, {"cgroup.procs": str(os.getpid())})


def _write(group: Path, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        path = group / name
        try:
            path.write_text(value)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _remove(group: Path) -> None:
    ends = time.monotonic() + PATIENCE
    while True:
        for process in _words(group / "cgroup.procs"):
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.01)
