"""One rank of the pre-flight: joins a process group, takes part in a few collectives, and tells how far it is.

`python -m lightning_boa.cli.doctor.visit` is such a rank; it ends with the process that has started it.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from itertools import combinations
from statistics import median

import torch
import torch.distributed as dist

from lightning_boa.cli.doctor.accelerators import read_device
from lightning_boa.cli.doctor.facts import BACKENDS, Group, PairSeconds, RankFacts, Speed
from lightning_boa.cli.doctor.group_findings import sharing_ranks
from lightning_boa.cli.doctor.launches import Launch, launch_of
from lightning_boa.cli.doctor.meeting import Meeting
from lightning_boa.cli.doctor.progress import (
    BARRIER,
    DONE,
    JOINS,
    LARGE,
    PAIRS,
    SMALL,
    SPEED,
    STARTS,
    Status,
)
from lightning_boa.cli.doctor.speed import speed_of
from lightning_boa.errors import UnsupportedError
from lightning_boa.profiling import NetworkProbe, is_of_a_collective

SMALL_BYTES, TRIAL_BYTES, LARGE_BYTES = 4, 2**20, 16_000_000
SMALL_REPEATS = 5
MOST_RANKS_FOR_PAIRS = 4


def visit(meeting: Meeting, launch: Launch, seconds: float) -> None:
    """Takes part and leaves; an error is told to the meeting and not raised."""
    stage = STARTS

    def begin(next_stage: int) -> None:
        nonlocal stage
        stage = next_stage
        meeting.tell(launch.rank, Status(stage))

    try:
        begin(STARTS)
        facts = facts_of(launch)
        device = _device(facts)
        backend = BACKENDS.get(device.type, "gloo")
        meeting.bring(facts)
        begin(JOINS)
        everyone = meeting.wait_for_everyone(launch.ranks)
        if backend == "nccl" and sharing_ranks(everyone):
            raise UnsupportedError("another rank is on the same device, which NCCL refuses")
        dist.init_process_group(
            backend,
            store=meeting.group_store,
            rank=launch.rank,
            world_size=launch.ranks,
            timeout=timedelta(seconds=seconds),
        )
        group = _measured(everyone, backend, device, begin)
        if launch.rank == 0:
            meeting.hand_in(group)
        begin(DONE)
    except Exception as error:
        meeting.tell(launch.rank, Status(stage, _in_one_line(error), is_of_a_collective(error)))
    else:
        dist.destroy_process_group()


def _in_one_line(error: Exception) -> str:
    """NCCL says the reason below the words "Last error:"."""
    told = str(error).rpartition("Last error:")[2].strip().partition("\n")[0]
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def facts_of(launch: Launch) -> RankFacts:
    """What this rank is on."""
    return RankFacts(
        rank=launch.rank,
        host=platform.node(),
        device=read_device(torch, launch.local_rank),
        python=platform.python_version(),
        torch=str(torch.__version__),
        lightning_boa=version("lightning-boa"),
    )


def _device(facts: RankFacts) -> torch.device:
    if facts.device is None or facts.device.kind not in BACKENDS:
        return torch.device("cpu")
    device = torch.device(facts.device.kind, facts.device.index)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _measured(
    everyone: tuple[RankFacts, ...],
    backend: str,
    device: torch.device,
    begin: Callable[[int], None],
) -> Group:
    ranks = list(range(len(everyone)))
    probe = NetworkProbe(device)
    begin(BARRIER)
    dist.barrier()
    begin(SMALL)
    small: float | None = None
    large: float | None = None
    pairs: list[PairSeconds] = []
    if len(ranks) > 1:
        small = median(probe.seconds([ranks] * SMALL_REPEATS, SMALL_BYTES, 0.0))
        begin(LARGE)
        _check_sum(device, len(ranks))
        (trial,) = probe.seconds([ranks], TRIAL_BYTES, 0.0)
        expected = trial * LARGE_BYTES / TRIAL_BYTES
        (large,) = probe.seconds([ranks], LARGE_BYTES, expected)
        if 2 < len(ranks) <= MOST_RANKS_FOR_PAIRS:
            begin(PAIRS)
            chosen = list(combinations(ranks, 2))
            timed = probe.seconds(chosen, LARGE_BYTES, expected)
            pairs = [PairSeconds(*each) for each in zip(chosen, timed, strict=True)]
    begin(SPEED)
    speeds = _speeds(device, everyone)
    return Group(backend, everyone, small, LARGE_BYTES, large, tuple(pairs), speeds)


def _check_sum(device: torch.device, ranks: int) -> None:
    """Cards that wrongly believe to reach each other past the host add up garbage."""
    summed = torch.ones(LARGE_BYTES // 4, device=device)
    dist.all_reduce(summed)
    if not bool((summed == ranks).all()):
        raise UnsupportedError(
            f"an all-reduce of ones expected {ranks} everywhere, got {summed.min():g} to {summed.max():g}"
        )


def _speeds(device: torch.device, everyone: tuple[RankFacts, ...]) -> tuple[Speed, ...]:
    """Of all ranks, where each has a device of its own."""
    if len(everyone) < 2 or any(facts.device is None for facts in everyone):
        return ()
    mine = speed_of(device)
    gathered: list[Speed | None] = [None] * len(everyone)
    dist.all_gather_object(gathered, mine)
    return tuple(speed for speed in gathered if speed is not None)


def end_with_the_parent() -> None:
    """Ends this process as soon as the one that holds the other end of its standard input is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, name="boa-doctor-parent", daemon=True).start()


def main() -> None:
    """A rank that the pre-flight has started; its only argument is the time limit in seconds."""
    end_with_the_parent()
    seconds = float(sys.argv[1])
    launch = launch_of(os.environ)
    assert launch is not None
    meeting = Meeting(launch.host, launch.port, is_host=False, seconds=seconds)
    visit(meeting, launch, seconds)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
