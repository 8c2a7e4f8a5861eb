"""What is known of each rank when a collective fails, and the sentence that tells who is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_boa.planning import rank_names

SILENCE_SECONDS = 10


@dataclass(frozen=True)
class Standing:
    """Where a rank is.

    `state` is "present" while it runs, "waiting" once a collective has failed on it, "failed" once it has raised an
    error of its own (`detail`), "ended" if its process ended without a word, "done" if it left in order. `silent` are
    the seconds since it was last heard of.
    """

    place: str
    state: Literal["present", "waiting", "failed", "ended", "done"] = "present"
    detail: str = ""
    silent: int = 0

    @property
    def is_cause(self) -> bool:
        """Whether the others' collectives fail because of this rank."""
        return self.state in ("failed", "ended")


def explanation(standings: Mapping[int, Standing]) -> str:
    """Who keeps the others from going on and where everyone is; "" where that is not known."""
    for blame in (_failed, _ended, _silent, _absent):
        blamed = {rank: blame(each) for rank, each in standings.items() if blame(each)}
        if 0 < len(blamed) < len(standings):
            causes = [f"rank {rank} {sentence}" for rank, sentence in blamed.items()]
            others = _places({rank: standings[rank] for rank in standings if rank not in blamed})
            return "; ".join([*causes, *others])
    return ""


def _failed(standing: Standing) -> str:
    return f"failed {standing.place}: {standing.detail}" if standing.state == "failed" else ""


def _ended(standing: Standing) -> str:
    if standing.state != "ended":
        return ""
    return f"ended without a word (killed?), last heard of up to a second earlier, {standing.place}"


def _silent(standing: Standing) -> str:
    if standing.state != "present" or standing.silent < SILENCE_SECONDS:
        return ""
    return f"has not been heard of for {standing.silent} s, last {standing.place}"


def _absent(standing: Standing) -> str:
    if standing.state not in ("present", "done"):
        return ""
    has = "has left in order" if standing.state == "done" else "is there but did not come along"
    return f"{has}, {standing.place}"


def _places(standings: Mapping[int, Standing]) -> Iterator[str]:
    for place in dict.fromkeys(standing.place for standing in standings.values()):
        ranks = [rank for rank, standing in standings.items() if standing.place == place]
        yield f"{rank_names(ranks)} {'was' if len(ranks) == 1 else 'were'} last heard of {place}"
