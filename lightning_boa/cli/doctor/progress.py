"""Where each rank of the pre-flight is, and the sentence about whom the others waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lightning_boa.planning import rank_names

IMPORTS, STARTS, JOINS, BARRIER, SMALL, LARGE, PAIRS, SPEED, DONE = range(9)
_WORDS = (
    "while importing torch",
    "while asking for its device",
    "while joining the group",
    "in the first barrier",
    "in an all-reduce of 4 bytes",
    "in an all-reduce of 16 MB",
    "in all-reduces between two ranks",
    "in a training step on its own device",
    "after its work",
)


@dataclass(frozen=True)
class Status:
    """The stage that a rank has begun, and the error it ended with; `is_victim` if that is how a collective fails
    whose other ranks are gone."""

    stage: int = IMPORTS
    error: str = ""
    is_victim: bool = False


@dataclass(frozen=True)
class Trouble:
    """Who kept the group from coming through, in words, the stage in which that was, and whether time was up or
    SIGKILL the reason."""

    what: str
    stage: int
    is_late: bool = False
    is_killed: bool = False

    def mend(self, backend: str) -> str:
        """What to try, "" where the error itself says it."""
        variable, more = (
            ("NCCL", "; NCCL_DEBUG=INFO says more") if backend == "nccl" else ("GLOO", "")
        )
        if self.is_killed:
            return (
                "Nobody but the system or a user sends SIGKILL: out of memory is the usual reason (dmesg says so);"
                " fewer ranks need less."
            )
        if self.stage == IMPORTS:
            by_hand = "by hand: python -c 'import torch'."
            return (
                f"Give a longer --timeout, or try it {by_hand}"
                if self.is_late
                else f"Try it {by_hand}"
            )
        if self.stage == STARTS:
            asked = {"nccl": "cuda", "xccl": "xpu"}.get(backend)
            return (
                f"Try it by hand: python -c 'import torch; torch.{asked}.init()'." if asked else ""
            )
        if self.stage in (JOINS, BARRIER):
            return (
                "A firewall or the wrong network interface is the usual reason: set"
                f" {variable}_SOCKET_IFNAME to one that all machines share{more}."
            )
        if backend == "nccl":
            return (
                "Try NCCL_P2P_DISABLE=1: cards that only seem to reach each other past the host hang or add up garbage"
                f"{more}."
            )
        return ""


def trouble_of(
    statuses: Mapping[int, Status], ended: Mapping[int, str], seconds: float
) -> Trouble | None:
    """Whom the others waited for; None where nobody failed, ended or is late.

    Args:
        statuses: of every rank.
        ended: how the processes ended that are gone before their work was done.
        seconds: that have passed; ranks still at work then are late.
    """
    failed = {rank: each for rank, each in statuses.items() if each.error and not each.is_victim}
    silent = {rank: how for rank, how in ended.items() if not statuses[rank].error}
    if failed:
        causes = {
            rank: f"failed {_WORDS[each.stage]}: {each.error}" for rank, each in failed.items()
        }
    elif silent:
        causes = {rank: f"{how} {_WORDS[statuses[rank].stage]}" for rank, how in silent.items()}
    elif any(each.error for each in statuses.values()):
        causes = {
            rank: f"failed {_WORDS[each.stage]}: {each.error}"
            for rank, each in statuses.items()
            if each.error
        }
    else:
        return _of_late_ranks(statuses, seconds)
    first = min(statuses[rank].stage for rank in causes)
    return Trouble(
        "; ".join(f"rank {rank} {how}" for rank, how in causes.items()),
        first,
        is_killed=not failed and any("SIGKILL" in how for how in silent.values()),
    )


def _of_late_ranks(statuses: Mapping[int, Status], seconds: float) -> Trouble | None:
    behind = min(each.stage for each in statuses.values())
    if behind == DONE:
        return None
    late = [rank for rank, each in statuses.items() if each.stage == behind]
    ahead = {rank: each for rank, each in statuses.items() if each.stage > behind}
    verb = "hangs" if len(late) == 1 else "hang"
    if ahead:
        waited = max(each.stage for each in ahead.values())
        rest = f", {_WORDS[waited]} {rank_names(sorted(ahead))} waited for it"
    else:
        rest = " and waits" if len(late) == 1 else ", all waiting for each other"
    if behind == IMPORTS:
        waited_for = f"{rest.removesuffix(' waited for it')} waited" if ahead else ""
        what = (
            f"{rank_names(late)} had not finished importing torch after {seconds:.0f} s{waited_for}"
        )
    else:
        what = f"{rank_names(late)} {verb} {_WORDS[behind]}{rest}; stopped after {seconds:.0f} s"
    return Trouble(what, behind, is_late=True)
