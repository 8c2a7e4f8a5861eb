from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from lightning_boa.strategies import roll_call
from lightning_boa.strategies.roll_call import Meeting, RollCall, begin, is_of_a_collective

GLOO = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4810"


class Ranks:
    """The roll call of some ranks in one process; rank r says that it is after step 10 r."""

    def __init__(self, ranks: int) -> None:
        self.meeting: Any = None
        self.calls = [self.begin(rank, ranks) for rank in range(ranks)]

    def begin(self, rank: int, ranks: int) -> RollCall:
        call = begin(rank, ranks, lambda: f"after step {10 * rank}", self.broadcast)
        assert call is not None
        return call

    def broadcast(self, meeting: Any) -> Any:
        self.meeting = self.meeting or meeting
        return self.meeting

    def error_of(self, rank: int, remedy: str = "") -> str:
        error = RuntimeError(GLOO)
        self.calls[rank].explain(error, remedy)
        return str(error)

    def kill(self, rank: int) -> None:
        """What the others see of it."""
        call: Any = self.calls[rank]
        if rank == 0:
            call._end.close()
            call._thread.join()
            call._server.close()
        else:
            call._line.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    there = Ranks(3)
    eventually(lambda: set(there.calls[0]._known()) == {0, 1, 2})
    yield there
    for call in there.calls:
        call.close()
    assert not [each for each in threading.enumerate() if each.name == "boa-roll-call"]


def test_all_others_name_a_rank_that_is_gone(ranks: Ranks) -> None:
    ranks.kill(2)
    for rank in (1, 0):
        first, added = ranks.error_of(rank).split("\n")
        assert first == GLOO
        assert added.startswith("boa: rank 2 ended without a word (killed?)")
        assert "after step 20; " in added
        assert f"after step {10 * rank}" in added


def test_all_others_name_rank_0(ranks: Ranks) -> None:
    for rank in (1, 2):
        eventually(lambda rank=rank: ranks.calls[rank]._known()[0].place == "after step 0")
    ranks.kill(0)
    assert "boa: rank 0 ended without a word (killed?)" in ranks.error_of(1)
    assert "earlier, after step 0; rank 2 was last heard of after step 20" in ranks.error_of(2)


@pytest.mark.parametrize("failed", [0, 1])
def test_all_others_repeat_what_a_rank_has_raised(ranks: Ranks, failed: int) -> None:
    error = ValueError("a bad row\nof many")
    ranks.calls[failed].explain(error, "")
    assert error.args == ("a bad row\nof many",)
    for rank in {0, 1, 2} - {failed}:
        said = f"boa: rank {failed} failed after step {10 * failed}: ValueError: a bad row; "
        assert said in ranks.error_of(rank)


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_does_not_come_along_is_named(ranks: Ranks) -> None:
    ranks.error_of(0)
    ranks.error_of(2)
    for rank in (0, 2):
        assert "boa: rank 1 is there but did not come along" in ranks.error_of(rank)


def test_an_error_is_explained_once_with_the_remedy(ranks: Ranks) -> None:
    ranks.kill(2)
    error = RuntimeError(GLOO, 7)
    for _ in range(2):
        ranks.calls[0].explain(error, "Go on.")
    assert error.args[0].count("boa: ") == 1
    assert error.args[0].endswith(". Go on.")
    assert error.args[1] == 7


def test_a_rank_that_asks_to_stop_reaches_rank_0_alone(ranks: Ranks) -> None:
    ranks.calls[2].request_stop()
    eventually(lambda: ranks.calls[0].stop_requested)
    assert not ranks.calls[1].stop_requested


def test_strangers_are_not_heard(ranks: Ranks) -> None:
    for word in (b"GET / HTTP/1.1\n", b'{"token": "guessed", "rank": 1}\n', b"[]\n"):
        with socket.create_connection(("127.0.0.1", ranks.meeting.port)) as stranger:
            stranger.sendall(word)
            assert stranger.recv(1) == b""
    ranks.kill(2)
    assert "boa: rank 2 ended" in ranks.error_of(0)


def test_one_rank_alone_calls_nobody() -> None:
    assert begin(0, 1, str, fail) is None


def test_training_goes_on_where_rank_0_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert begin(1, 2, str, lambda _: Meeting(port, "")) is None
    monkeypatch.setattr(socket, "create_server", fail)
    assert begin(0, 2, str, lambda mine: mine) is None


@pytest.mark.parametrize("error", [RuntimeError(GLOO), dist.DistBackendError("timed out")])
def test_a_collective_that_fails_is_known_by_its_error(error: Exception) -> None:
    assert is_of_a_collective(error)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2"), ValueError("gloomy")])
def test_other_errors_are_the_ranks_own(error: Exception) -> None:
    assert not is_of_a_collective(error)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "PATIENCE_SECONDS", 0.1)


def fail(*arguments: Any, **options: Any) -> Any:
    raise OSError


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError
