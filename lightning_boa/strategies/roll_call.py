"""Tells who is missing when a collective fails, which the process group cannot: gloo names an address at best.

Each rank keeps a connection to rank 0, over which it says once a second which step it has finished. It ends with the
process, however that ends, so rank 0 knows at once and tells all others, whose threads listen also while a collective
waits. Nothing of it is needed to train: where there is no connection, nothing is known of that rank.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Literal
from weakref import WeakSet

from lightning_boa.profiling import is_of_a_collective
from lightning_boa.strategies.standings import Standing, explanation

BEAT_SECONDS = 1.0
RANKS_PER_BEAT_SECOND = 32
PATIENCE_SECONDS = 3.0
CONNECT_SECONDS = 5.0
ALONE_ON_THIS_HOST = "127.0.0.1"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meeting:
    """Where rank 0 listens; the token tells its ranks from strangers."""

    port: int
    token: str


def begin(
    rank: int,
    ranks: int,
    place: Callable[[], str],
    broadcast: Callable[[Any], Any],
    address: str | None = None,
) -> RollCall | None:
    """Connect this rank; every rank calls it at the same time.

    Args:
        rank: this rank.
        ranks: how many there are.
        place: where this rank is, as "after step 117"; a thread asks it.
        broadcast: gives every rank what rank 0 has.
        address: of rank 0, None if all ranks are on one host.

    Returns:
        None where there is a single rank or no connection.
    """
    if ranks == 1:
        return None
    server = _listen(address, ranks) if rank == 0 else None
    mine = None if server is None else Meeting(server.getsockname()[1], secrets.token_hex(16))
    meeting: Meeting | None = broadcast(mine)
    if meeting is None:
        return None
    if server is not None:
        return _Desk(place, server, meeting.token)
    with suppress(OSError):
        where = (address or ALONE_ON_THIS_HOST, meeting.port)
        connection = socket.create_connection(where, CONNECT_SECONDS)
        seconds = max(BEAT_SECONDS, ranks / RANKS_PER_BEAT_SECOND)
        return _Member(rank, place, connection, meeting.token, seconds)
    return None


def _listen(address: str | None, ranks: int) -> socket.socket | None:
    with suppress(OSError):
        return socket.create_server(
            (ALONE_ON_THIS_HOST if address is None else "", 0), backlog=ranks
        )
    return None


class RollCall(ABC):
    """This rank's place in the roll call, from `begin` to `close`."""

    stop_requested = False

    def __init__(self, rank: int, place: Callable[[], str]) -> None:
        self._rank = rank
        self._place = place
        self._mine = Standing("")
        self._standings: dict[int, Standing] = {}
        self._changed = threading.Condition()
        self._explained: BaseException | None = None
        self._end, self._ending = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="boa-roll-call", daemon=True)

    def explain(self, exception: BaseException, remedy: str) -> None:
        """Tell the others what this rank has raised; if a collective has failed, add to the error who is missing.

        The error's message gets a line more, as Lightning's own strategies do it; `remedy` ends that line.
        """
        if exception is self._explained:
            return
        self._explained = exception
        if not is_of_a_collective(exception):
            self._tell("failed", _in_one_line(exception))
            return
        self._tell("waiting")
        with self._changed:
            self._changed.wait_for(self._knows_a_cause, PATIENCE_SECONDS)
            sentence = explanation(dict(sorted(self._known().items())))
        if sentence:
            first, *others = exception.args or ("",)
            exception.args = (f"{first}\nboa: {sentence}. {remedy}".rstrip(), *others)

    def close(self) -> None:
        """Leave; the others will not wait for this rank."""
        if self._mine.state == "present":
            self._tell("done")
        self._end.close()
        self._thread.join(PATIENCE_SECONDS)
        self._ending.close()
        self._disconnect()

    @abstractmethod
    def request_stop(self) -> None:
        """Let rank 0 know that the training is to stop; a signal handler may call it."""

    def _tell(self, state: Literal["waiting", "failed", "done"], detail: str = "") -> None:
        self._mine = Standing(self._place(), state, detail)
        self._send()

    def _here(self) -> Standing:
        return self._mine if self._mine.state != "present" else Standing(self._place())

    @abstractmethod
    def _known(self) -> Mapping[int, Standing]: ...

    def _knows_a_cause(self) -> bool:
        return any(standing.is_cause for standing in self._standings.values())

    @abstractmethod
    def _send(self) -> None: ...

    @abstractmethod
    def _run(self) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...


class _Desk(RollCall):
    """Rank 0, which hears all others and tells them what went wrong."""

    def __init__(self, place: Callable[[], str], server: socket.socket, token: str) -> None:
        super().__init__(0, place)
        self._server = server
        self._token = token
        self._lines: dict[int, _Line] = {}
        self._heard: dict[int, float] = {}
        self._thread.start()

    def request_stop(self) -> None:
        self.stop_requested = True

    def _send(self) -> None:
        with self._changed:
            message = {rank: asdict(standing) for rank, standing in self._known().items()}
            for line in self._lines.values():
                line.send(message)

    def _known(self) -> Mapping[int, Standing]:
        now = time.monotonic()
        heard = {
            rank: replace(standing, silent=int(now - self._heard[rank]))
            for rank, standing in self._standings.items()
        }
        return {**heard, self._rank: self._here()}

    def _run(self) -> None:
        with DefaultSelector() as selector:
            selector.register(self._ending, EVENT_READ)
            selector.register(self._server, EVENT_READ)
            while True:
                ready = [key for key, _ in selector.select()]
                if any(key.fileobj is self._ending for key in ready):
                    break
                for key in ready:
                    if key.data is None:
                        self._accept(selector)
                    elif not self._hears(key.data):
                        selector.unregister(key.fileobj)
                        self._lose(key.data)
            for key in selector.get_map().values():
                if key.data is not None:
                    key.data.close()

    def _accept(self, selector: DefaultSelector) -> None:
        with suppress(OSError):
            line = _Line(self._server.accept()[0])
            selector.register(line.connection, EVENT_READ, line)

    def _hears(self, line: _Line) -> bool:
        try:
            for message in line.hear():
                self._hear(line, message)
        except (EOFError, ValueError, LookupError, TypeError):
            return False
        return True

    def _hear(self, line: _Line, message: Mapping[str, Any]) -> None:
        if message["token"] != self._token:
            raise ValueError
        rank, standing = int(message["rank"]), Standing(**message["standing"])
        with self._changed:
            self._lines[rank] = line
            self._heard[rank] = time.monotonic()
            self._standings[rank] = standing
            self.stop_requested = self.stop_requested or bool(message["stop"])
            self._spread(standing)
            if standing.state == "present":
                line.send({self._rank: asdict(self._here())})

    def _lose(self, line: _Line) -> None:
        line.close()
        with self._changed:
            for rank in [rank for rank, theirs in self._lines.items() if theirs is line]:
                del self._lines[rank]
                if self._standings[rank].state == "present":
                    self._standings[rank] = replace(self._standings[rank], state="ended")
                    self._spread(self._standings[rank])
                    _log.error("boa: %s.", explanation(self._known()))

    def _spread(self, news: Standing) -> None:
        if news.state != "present":
            self._send()
            self._changed.notify_all()

    def _disconnect(self) -> None:
        self._server.close()


class _Member(RollCall):
    """Any other rank."""

    def __init__(
        self,
        rank: int,
        place: Callable[[], str],
        connection: socket.socket,
        token: str,
        seconds: float,
    ) -> None:
        super().__init__(rank, place)
        self._line = _Line(connection)
        self._token = token
        self._seconds = seconds
        self._asks_to_stop = False
        self._standings[0] = Standing("before the first step")
        self._heard_rank_0 = time.monotonic()
        self._send()
        self._thread.start()

    def request_stop(self) -> None:
        self._asks_to_stop = True
        self._send()

    def _send(self) -> None:
        self._line.send(
            {
                "token": self._token,
                "rank": self._rank,
                "standing": asdict(self._here()),
                "stop": self._asks_to_stop,
            }
        )

    def _run(self) -> None:
        with DefaultSelector() as selector:
            selector.register(self._ending, EVENT_READ)
            selector.register(self._line.connection, EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._seconds)]
                if self._ending in ready:
                    return
                if not ready:
                    self._send()
                    continue
                try:
                    for message in self._line.hear():
                        self._learn(
                            {int(rank): Standing(**theirs) for rank, theirs in message.items()}
                        )
                except EOFError:
                    self._learn_that_rank_0_is_gone()
                    return

    def _learn(self, standings: Mapping[int, Standing]) -> None:
        with self._changed:
            self._heard_rank_0 = time.monotonic()
            self._standings.update(standings)
            self._changed.notify_all()

    def _known(self) -> Mapping[int, Standing]:
        silent = int(time.monotonic() - self._heard_rank_0)
        rank_0 = replace(self._standings[0], silent=silent)
        return {**self._standings, 0: rank_0, self._rank: self._here()}

    def _learn_that_rank_0_is_gone(self) -> None:
        with self._changed:
            if self._standings[0].state == "present":
                self._standings[0] = replace(self._standings[0], state="ended")
            self._changed.notify_all()

    def _disconnect(self) -> None:
        self._line.close()


_connections: WeakSet[socket.socket] = WeakSet()


def _close_in_child() -> None:
    """A loader's worker would keep a connection open that is to end with its rank."""
    for connection in list(_connections):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class _Line:
    """JSON messages over a connection, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        _connections.add(connection)
        self.connection = connection
        self._rest = b""
        self._sending = threading.RLock()

    def send(self, message: Any) -> None:
        with self._sending, suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> list[Any]:
        """The messages that have arrived; EOFError if the other side has closed."""
        try:
            received = self.connection.recv(65536)
        except OSError:
            received = b""
        if not received:
            raise EOFError
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def _in_one_line(exception: BaseException) -> str:
    first = str(exception).strip().partition("\n")[0]
    return f"{type(exception).__name__}: {first}" if first else type(exception).__name__
