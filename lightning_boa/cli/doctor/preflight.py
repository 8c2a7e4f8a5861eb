"""Starts real ranks for a while, or takes part in a launch that is there, and says what came of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO

from lightning_boa.cli.doctor.facts import Group
from lightning_boa.cli.doctor.launches import Launch
from lightning_boa.cli.doctor.meeting import POLL_SECONDS, Meeting, supervise, unreachable
from lightning_boa.cli.doctor.progress import DONE, Trouble

HOST = "127.0.0.1"
END_SECONDS = 5.0
VISITOR = (sys.executable, "-m", "lightning_boa.cli.doctor.visit")

Say = Callable[[str], None]


def group_of_own_ranks(
    ranks: int,
    seconds: float,
    backend: str,
    say: Say = lambda what: None,
    command: Sequence[str] = VISITOR,
) -> Group:
    """What so many ranks on this machine come to within a time limit; every process has ended when this returns.

    Args:
        ranks: how many to start.
        seconds: the time limit for all.
        backend: named where they do not get to say it themselves.
        say: hears how far they are.
        command: starts a rank; gets the time limit as its last argument.
    """
    meeting = Meeting(HOST, 0, is_host=True, seconds=seconds)
    visitors: list[_Visitor] = []
    try:
        for rank in range(ranks):
            visitors.append(_Visitor(command, rank, ranks, meeting.port, seconds))
        trouble = supervise(meeting, ranks, seconds, lambda: _ended(visitors, meeting), say)
        return _group(meeting, ranks, backend, trouble)
    finally:
        for visitor in visitors:
            visitor.end()


def group_of_launch(
    launch: Launch, seconds: float, backend: str, say: Say = lambda what: None
) -> Group | None:
    """What the ranks of a launch come to, on rank 0; None on the others, once rank 0 has it.

    Collectives run in a thread, so that one which hangs keeps nobody from the time limit.

    Raises:
        UnreachableError: the ranks cannot meet where the launch says.
    """
    from lightning_boa.cli.doctor.visit import visit
    from lightning_boa.strategies.meeting_place import ThisNetwork

    is_host = launch.rank == 0 and not launch.by_agent
    if is_host and not ThisNetwork().leads_here(launch.host):
        raise unreachable(launch.host, launch.port, "an address that is none of rank 0's machine")
    meeting = Meeting(launch.host, launch.port, is_host=is_host, seconds=seconds)

    def take_part() -> None:
        visit(Meeting(launch.host, meeting.port, is_host=False, seconds=seconds), launch, seconds)

    visitor = threading.Thread(target=take_part, name="boa-doctor-visit", daemon=True)
    visitor.start()
    if launch.rank == 0:
        trouble = supervise(meeting, launch.ranks, seconds, say=say)
        group = _group(meeting, launch.ranks, backend, trouble)
        meeting.dismiss()
        visitor.join(END_SECONDS)
        return group
    ends = time.monotonic() + seconds + END_SECONDS
    while time.monotonic() < ends and not _is_dismissed(meeting):
        time.sleep(POLL_SECONDS)
    visitor.join(END_SECONDS)
    return None


def _is_dismissed(meeting: Meeting) -> bool:
    try:
        return meeting.is_dismissed
    except Exception:  # rank 0, which keeps the store, has ended
        return True


def _group(meeting: Meeting, ranks: int, backend: str, trouble: Trouble | None) -> Group:
    measured = meeting.measured() if trouble is None else None
    if measured is not None:
        return measured
    known = Group(backend, meeting.everyone(ranks))
    if trouble is None:
        return known
    return replace(known, trouble=trouble.what, mend=trouble.mend(backend))


def _ended(visitors: Sequence[_Visitor], meeting: Meeting) -> dict[int, str]:
    ended = {rank: visitor.how_it_ended for rank, visitor in enumerate(visitors)}
    if not any(ended.values()):
        return {}
    statuses = meeting.statuses(len(visitors))
    return {rank: how for rank, how in ended.items() if how and statuses[rank].stage != DONE}


class _Visitor:
    """A started rank. Its standard input is a pipe that ends with this process, and so does the rank."""

    def __init__(
        self, command: Sequence[str], rank: int, ranks: int, port: int, seconds: float
    ) -> None:
        self._complaints: IO[bytes] = TemporaryFile()  # noqa: SIM115
        launched = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": HOST,
            "MASTER_PORT": port,
        }
        threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*command, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._complaints,
            env={
                **os.environ,
                **threads,
                **{name: str(value) for name, value in launched.items()},
            },
        )

    @property
    def how_it_ended(self) -> str:
        """ "" while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        how = (
            f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        last = self._last_complaint()
        return f'{how} (it said "{last}")' if last and code > 0 else how

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._complaints.close()

    def _last_complaint(self) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
