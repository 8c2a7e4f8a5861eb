"""The server without any process: threads are its workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from lightning_boa.baselines.rules import AsTheyArrive, FirstGradients, Gradient, Update
from lightning_boa.baselines.server import Server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def push(
    pool: ThreadPoolExecutor, server: Server, worker: int, step: int, value: float
) -> Future[list[torch.Tensor]]:
    return pool.submit(server.push, Gradient(worker, step, 4), torch.tensor([value]))


def values(answer: Future[list[torch.Tensor]]) -> list[float]:
    return [float(update) for update in answer.result(timeout=10)]


def has_received(server: Server, gradients: int) -> bool:
    return sum(server.used.values()) + len(server.dropped) == gradients


def await_gradients(server: Server, gradients: int) -> None:
    while not has_received(server, gradients):
        time.sleep(0.001)


def test_an_update_is_the_sum_of_the_first_gradients_and_the_late_one_is_dropped(
    pool: ThreadPoolExecutor,
) -> None:
    server = Server(FirstGradients(2), workers=3)
    first = push(pool, server, 2, 0, 1.0)
    await_gradients(server, 1)
    assert not first.done()
    assert values(push(pool, server, 0, 0, 2.0)) == [3.0]
    assert values(first) == [3.0]
    second = push(pool, server, 0, 1, 10.0)
    await_gradients(server, 3)
    assert values(push(pool, server, 2, 1, 20.0)) == [30.0]
    assert values(second) == [30.0]
    assert values(push(pool, server, 1, 0, 99.0)) == [3.0, 30.0]
    assert list(server.updates) == [
        Update(0, (Gradient(2, 0, 4), Gradient(0, 0, 4))),
        Update(1, (Gradient(0, 1, 4), Gradient(2, 1, 4))),
    ]
    assert list(server.dropped) == [Gradient(1, 0, 4)]
    assert server.used == {2: 2, 0: 2}


def test_updates_are_kept_until_every_worker_has_them(pool: ThreadPoolExecutor) -> None:
    server = Server(AsTheyArrive(2, None), workers=2)
    for step in range(5):
        assert values(push(pool, server, 0, step, float(step))) == [float(step)]
    assert server.kept == 5
    assert [float(each) for each in server.wait(1, 0)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert values(push(pool, server, 0, 5, 5.0)) == [5.0]
    assert [float(each) for each in server.wait(1, 5)] == [5.0]
    assert server.kept == 0


def test_who_is_too_far_ahead_waits_for_updates_or_for_leave(pool: ThreadPoolExecutor) -> None:
    server = Server(AsTheyArrive(2, most_ahead=0), workers=2)
    assert server.claim(0, epoch=0, chunks=4) == 0
    assert server.claim(1, epoch=0, chunks=4) == 1
    assert server.ask(0, 0) == []
    values(push(pool, server, 0, 0, 1.0))
    waits = pool.submit(server.ask, 0, 1)
    assert not waits.done()
    values(push(pool, server, 1, 0, 2.0))
    assert values(waits) == [2.0]


def test_who_waits_for_leave_gets_it_when_the_slowest_has_no_more_rows(
    pool: ThreadPoolExecutor,
) -> None:
    server = Server(AsTheyArrive(3, most_ahead=0), workers=3)
    for worker in range(2):
        server.claim(worker, epoch=0, chunks=3)
        values(push(pool, server, worker, worker, 1.0))
    server.wait(0, 1)
    waits = pool.submit(server.ask, 0, 2)
    assert not waits.done()
    assert server.claim(2, epoch=0, chunks=2) is None
    assert waits.result(timeout=10) == []


def test_every_chunk_is_claimed_once_and_each_worker_has_one() -> None:
    server = Server(AsTheyArrive(3, None), workers=3)
    assert [server.claim(0, 0, chunks=6) for _ in range(3)] == [0, 3, 4]
    assert [server.claim(2, 0, chunks=6) for _ in range(2)] == [2, 5]
    assert server.claim(0, 0, chunks=6) is None
    assert server.claim(1, 0, chunks=6) == 1
    assert server.claim(1, 1, chunks=6) == 1


def test_where_a_worker_is_lost_all_calls_end_with_its_error(pool: ThreadPoolExecutor) -> None:
    server = Server(FirstGradients(2), workers=2)
    waits = push(pool, server, 0, 0, 1.0)
    server.fail(RuntimeError("Connection closed by peer"))
    with pytest.raises(RuntimeError, match=r"lost a worker \(gloo\): Connection closed by peer"):
        waits.result(timeout=10)
    with pytest.raises(RuntimeError, match="lost a worker"):
        server.wait(1, 0)
    with pytest.raises(RuntimeError, match="lost a worker"):
        server.check()


def test_who_waits_too_long_fails_and_so_do_all_others(pool: ThreadPoolExecutor) -> None:
    server = Server(FirstGradients(2), workers=2, patience=0.02)
    with pytest.raises(RuntimeError, match=r"no gradient came for 0\.02 s"):
        push(pool, server, 0, 0, 1.0).result(timeout=10)
    with pytest.raises(RuntimeError, match="no gradient came"):
        server.wait(1, 0)
