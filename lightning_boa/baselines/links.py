"""How a worker reaches the parameter server: by a call on rank 0, by messages from every other rank."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from threading import Thread
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_boa.baselines.rules import Gradient
from lightning_boa.baselines.server import Server

SERVER = 0
NEVER = timedelta(days=365)
SEND_SECONDS = 20.0
LEAVE_SECONDS = 5.0
SLOWEST_LINK = 1e6  # bytes per second


class Link(Protocol):
    """A worker's way to the server; each call waits for its answer. See `Server` for what they do."""

    def push(self, step: int, rows: int, values: Tensor) -> list[Tensor]: ...

    def wait(self, step: int) -> list[Tensor]: ...

    def ask(self, step: int) -> list[Tensor]: ...

    def claim(self, epoch: int, chunks: int) -> int | None: ...

    def close(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def leave(self) -> None: ...


class LocalLink:
    """That of rank 0, which also receives the messages of all others.

    Args:
        server: on this rank.
        group: of all ranks, for tensors on the host; None where there is a single one.
        example: a tensor like every gradient.
    """

    def __init__(self, server: Server, group: Any, example: Tensor, workers: int) -> None:
        self._server = server
        self._desks = [
            Thread(target=_serve, args=(server, worker, group, example), daemon=True)
            for worker in range(1, workers)
        ]
        for desk in self._desks:
            desk.start()

    def push(self, step: int, rows: int, values: Tensor) -> list[Tensor]:
        return self._server.push(Gradient(SERVER, step, rows), values)

    def wait(self, step: int) -> list[Tensor]:
        return self._server.wait(SERVER, step)

    def ask(self, step: int) -> list[Tensor]:
        return self._server.ask(SERVER, step)

    def claim(self, epoch: int, chunks: int) -> int | None:
        return self._server.claim(SERVER, epoch, chunks)

    def close(self) -> None:
        """Wait until all other workers have closed their links."""
        for desk in self._desks:
            desk.join()
        self._server.check()

    def fail(self, error: BaseException) -> None:
        """Let the calls of all workers fail."""
        self._server.fail(error)

    def leave(self) -> None:
        """After a failure, wait a little for the threads: gloo aborts a process that ends while one is receiving."""
        ends = time.monotonic() + LEAVE_SECONDS
        for desk in self._desks:
            desk.join(max(0.0, ends - time.monotonic()))


class RemoteLink:
    """That of any other rank."""

    def __init__(self, group: Any, example: Tensor) -> None:
        self._group = group
        self._example = example

    def push(self, step: int, rows: int, values: Tensor) -> list[Tensor]:
        self._send(_Kind.PUSH, step, rows)
        send(values, SERVER, self._group, _Tag.VALUES)
        return self._updates()

    def wait(self, step: int) -> list[Tensor]:
        self._send(_Kind.WAIT, step)
        return self._updates()

    def ask(self, step: int) -> list[Tensor]:
        self._send(_Kind.ASK, step)
        return self._updates()

    def claim(self, epoch: int, chunks: int) -> int | None:
        self._send(_Kind.CLAIM, epoch, chunks)
        chunk = self._answer()
        return None if chunk == _NO_CHUNK else chunk

    def close(self) -> None:
        self._send(_Kind.CLOSE)

    def fail(self, error: BaseException) -> None:
        """Let the calls of all workers fail, if the server can still be reached."""
        with suppress(RuntimeError):
            self._send(_Kind.FAIL)

    def leave(self) -> None: ...

    def _send(self, kind: _Kind, *numbers: int) -> None:
        message = torch.tensor([kind, *numbers, *[0] * (2 - len(numbers))])
        send(message, SERVER, self._group, _Tag.REQUEST)

    def _answer(self) -> int:
        number = torch.empty(1, dtype=torch.int64)
        dist.recv(number, SERVER, self._group, tag=_Tag.ANSWER)
        if number == _FAILED:
            raise RuntimeError("The parameter server has lost a worker (gloo), rank 0 says which.")
        return int(number)

    def _updates(self) -> list[Tensor]:
        updates = self._example.new_empty((self._answer(), len(self._example)))
        for update in updates:
            dist.recv(update, SERVER, self._group, tag=_Tag.UPDATE)
        return list(updates)


class _Kind(IntEnum):
    PUSH, WAIT, ASK, CLAIM, CLOSE, FAIL = range(6)


class _Tag(IntEnum):
    REQUEST, VALUES, ANSWER, UPDATE = range(1, 5)


_NO_CHUNK, _FAILED = -1, -2


def _serve(server: Server, worker: int, group: Any, example: Tensor) -> None:
    """Answer one worker until it closes its link; where it is gone, all calls of the server fail."""
    try:
        while True:
            request = torch.empty(3, dtype=torch.int64)
            dist.recv(request, worker, group, tag=_Tag.REQUEST)
            kind, first, second = request.tolist()
            if kind == _Kind.CLOSE:
                return
            if kind == _Kind.FAIL:
                server.fail(RuntimeError(f"rank {worker} has failed"))
                return
            if kind == _Kind.CLAIM:
                chunk = server.claim(worker, first, second)
                _answer(worker, group, _NO_CHUNK if chunk is None else chunk)
                continue
            if kind == _Kind.PUSH:
                values = torch.empty_like(example)
                dist.recv(values, worker, group, tag=_Tag.VALUES)
                updates = server.push(Gradient(worker, first, second), values)
            else:
                updates = (server.wait if kind == _Kind.WAIT else server.ask)(worker, first)
            _answer(worker, group, len(updates))
            for update in updates:
                send(update, worker, group, _Tag.UPDATE)
    except Exception as error:
        server.fail(error)
        with suppress(RuntimeError):
            _answer(worker, group, _FAILED)


def _answer(worker: int, group: Any, number: int) -> None:
    send(torch.tensor([number]), worker, group, _Tag.ANSWER)


def send(tensor: Tensor, rank: int, group: Any, tag: int) -> None:
    """Send to a rank that is about to receive; fails soon where it is gone.

    A send of gloo may not notice that the other side has closed meanwhile, and would wait for ever.
    """
    work = dist.isend(tensor, rank, group, tag)
    assert work is not None
    seconds = SEND_SECONDS + tensor.nbytes / SLOWEST_LINK
    work.wait(timedelta(seconds=seconds))
