"""The processor's cores, what a container's control group grants of them, and memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lightning_boa.cli.doctor.facts import Processor


def read_processor(root: Path = Path("/")) -> Processor:
    """What this process may use; `root` is where a test keeps its own proc, sys and dev."""
    return Processor(
        cores=_cores(),
        quota=_quota(root),
        memory_bytes=_memory_bytes(root),
        shared_memory_bytes=_size(root / "dev/shm"),
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(root: Path) -> float | None:
    """The least that a control group of this process, or one above it, grants; of version 1 or 2."""
    quotas = []
    for line in _words(root / "proc/self/cgroup", "\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            quotas += _granted(root / "sys/fs/cgroup", path, _quota_of_version_2)
        elif "cpu" in controllers.split(","):
            for mounted in ("cpu", "cpu,cpuacct"):
                quotas += _granted(root / "sys/fs/cgroup" / mounted, path, _quota_of_version_1)
    return min(quotas, default=None)


def _granted(mounted: Path, path: str, quota_of: Callable[[Path], float | None]) -> list[float]:
    group = mounted / path.strip("/")
    groups = [group, *(parent for parent in group.parents if parent.is_relative_to(mounted))]
    return [quota for each in {*groups, mounted} if (quota := quota_of(each)) is not None]


def _quota_of_version_2(group: Path) -> float | None:
    return _ratio(_words(group / "cpu.max"))


def _quota_of_version_1(group: Path) -> float | None:
    return _ratio([*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")])


def _ratio(said: list[str]) -> float | None:
    """Cores' worth of time; None for "max", -1 and what is no number."""
    with suppress(ValueError):
        granted, period = map(int, said)
        if granted > 0 and period > 0:
            return granted / period
    return None


def _memory_bytes(root: Path) -> int | None:
    for line in _words(root / "proc/meminfo", "\n"):
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            with suppress(ValueError, IndexError):
                return int(rest.split()[0]) * 1024
    return None


def _size(folder: Path) -> int | None:
    with suppress(OSError):
        return shutil.disk_usage(folder).total
    return None


def _words(path: Path, separator: str | None = None) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").split(separator)
    return []
