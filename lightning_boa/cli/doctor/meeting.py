"""What the ranks of the pre-flight tell each other beside the group that is examined: a store that outlives it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

import msgspec

from lightning_boa.cli.doctor.facts import Group, RankFacts
from lightning_boa.cli.doctor.progress import DONE, JOINS, Status, Trouble, trouble_of
from lightning_boa.errors import BoaError

POLL_SECONDS = 0.02
GRACE_SECONDS = 1.0
_PREFIX = "boa-doctor"


class UnreachableError(BoaError, RuntimeError):
    """Ranks that cannot meet."""


class Meeting:
    """A connection to the store in which all ranks write.

    Args:
        host, port: where the store is.
        is_host: whether this process opens it; port 0 takes a free one.
        seconds: within which it has to answer.

    Raises:
        UnreachableError: nobody answers there.
    """

    def __init__(self, host: str, port: int, *, is_host: bool, seconds: float) -> None:
        self._torch: Any = import_module("torch.distributed")
        if not is_host:
            _wait_for_an_answer(host, port, seconds)
        try:
            store = self._torch.TCPStore(
                host,
                port,
                is_master=is_host,
                wait_for_workers=False,
                timeout=timedelta(seconds=seconds),
            )
        except self._torch.DistError as error:
            raise unreachable(host, port, str(error).partition("\n")[0]) from error
        self._store = self._torch.PrefixStore(_PREFIX, store)
        self.port: int = store.port

    @property
    def group_store(self) -> Any:
        """The store by which the process group itself meets."""
        return self._torch.PrefixStore("group", self._store)

    def tell(self, rank: int, status: Status) -> None:
        """Say where this rank is."""
        self._put(f"status/{rank}", status)

    def statuses(self, ranks: int) -> dict[int, Status]:
        """Where every rank is; one that has not said anything imports torch."""
        said = {rank: self._get(f"status/{rank}", Status) for rank in range(ranks)}
        return {rank: each or Status() for rank, each in said.items()}

    def bring(self, facts: RankFacts) -> None:
        """Say what this rank is on."""
        self._put(f"facts/{facts.rank}", facts)

    def everyone(self, ranks: int) -> tuple[RankFacts, ...]:
        """The ranks that have said what they are on."""
        said = (self._get(f"facts/{rank}", RankFacts) for rank in range(ranks))
        return tuple(facts for facts in said if facts is not None)

    def wait_for_everyone(self, ranks: int) -> tuple[RankFacts, ...]:
        """All ranks' facts, as soon as they are there; if one never comes, the time limit ends who waits here."""
        while len(everyone := self.everyone(ranks)) < ranks:
            time.sleep(POLL_SECONDS)
        return everyone

    def hand_in(self, group: Group) -> None:
        """Rank 0 says what was measured."""
        self._put("group", group)

    def measured(self) -> Group | None:
        """What was measured, once it is there."""
        measured: Group | None = self._get("group", Group)
        return measured

    def dismiss(self) -> None:
        """Let the ranks go."""
        self._store.set("dismissed", "yes")

    @property
    def is_dismissed(self) -> bool:
        return bool(self._store.check(["dismissed"]))

    def _put(self, key: str, value: Any) -> None:
        self._store.set(key, msgspec.json.encode(value).decode())

    def _get(self, key: str, kind: type[Any]) -> Any:
        if not self._store.check([key]):
            return None
        return msgspec.json.decode(self._store.get(key), type=kind)


def _wait_for_an_answer(host: str, port: int, seconds: float) -> None:
    """A store that does not answer would make torch print the stack of its C++."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), seconds).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                said = f"no answer within {seconds:g} s ({error.strerror or error})"
                raise unreachable(host, port, said) from error
        time.sleep(POLL_SECONDS)


def unreachable(host: str, port: int, said: str) -> UnreachableError:
    """The error of ranks that cannot meet there, with what was found in place of them."""
    return UnreachableError(
        f"expected to meet the ranks at {host}:{port}, got {said}; see that this is rank 0's address, that the port is"
        " free there, and that no firewall is between."
    )


def supervise(
    meeting: Meeting,
    ranks: int,
    seconds: float,
    ended: Callable[[], Mapping[int, str]] = dict,
    say: Callable[[str], None] = lambda what: None,
) -> Trouble | None:
    """Waits until all ranks are done, one has failed or ended, or the time is up; then who was the reason.

    Args:
        meeting: what the ranks tell.
        ranks: how many there are.
        seconds: the time limit.
        ended: how those processes ended that are gone before their work was done.
        say: hears how many ranks have joined.
    """
    begin = time.monotonic()
    gone: float | None = None
    while True:
        statuses = meeting.statuses(ranks)
        now = time.monotonic()
        if all(status.error == "" and status.stage == DONE for status in statuses.values()):
            return None
        has_failed = any(status.error for status in statuses.values()) or bool(ended())
        if has_failed and gone is None:
            gone = now
        is_over = gone is not None and now > gone + GRACE_SECONDS
        if is_over or now > begin + seconds:
            return trouble_of(statuses, ended(), now - begin)
        joined = sum(status.stage > JOINS for status in statuses.values())
        say(
            f"process group, {joined} of {ranks} ranks have joined, {now - begin:.0f} of {seconds:.0f} s"
        )
        time.sleep(POLL_SECONDS)
