"""A second, plain simulation of a parameter server, against which the first one is held: closures on an agenda."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


class Replay:
    """The clock: what happens next is the earliest entry of a list."""

    def __init__(self) -> None:
        self.now = 0.0
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.entries = 0

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        self.entries += 1
        self.agenda.append((self.now + seconds, self.entries, then))

    def run_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            entry = min(self.agenda, key=lambda each: each[:2])
            self.agenda.remove(entry)
            self.now = entry[0]
            entry[2]()


class Line:
    """A link that carries one message at a time; the others queue."""

    def __init__(self, replay: Replay, seconds: float) -> None:
        self.replay, self.seconds = replay, seconds
        self.queue: list[Callable[[], None]] = []
        self.is_busy = False

    def carry(self, then: Callable[[], None]) -> None:
        self.queue.append(then)
        if not self.is_busy:
            self.next()

    def next(self) -> None:
        self.is_busy = bool(self.queue)
        if self.queue:
            then = self.queue.pop(0)

            def arrived() -> None:
                then()
                self.next()

            self.replay.after(self.seconds, arrived)


class Played:
    """What happened: when updates were made, by whose gradients, and how old these were."""

    def __init__(
        self, seconds: Callable[[int, int], float], transfer: Sequence[float], server: float
    ) -> None:
        self.replay = Replay()
        self.seconds, self.transfer = seconds, transfer
        self.inbound, self.outbound = Line(self.replay, server), Line(self.replay, server)
        self.times: list[float] = []
        self.entered: list[list[int]] = []
        self.staleness: Counter[int] = Counter()
        self.begun: list[tuple[int, int, float]] = []
        self.computing: dict[int, Callable[[], bool]] = {}

    def compute(self, worker: int, step: int, then: Callable[[], None]) -> None:
        """Compute and send the gradient; ``then`` follows when the server has it."""
        state = {"ends": False, "stopped": False}
        self.begun.append((worker, step, self.replay.now))

        def stop() -> bool:
            stopped = not state["ends"] and not state["stopped"]
            state["stopped"] = True
            return stopped

        def computed() -> None:
            if not state["stopped"]:
                state["ends"] = True
                self.replay.after(self.transfer[worker], lambda: self.inbound.carry(then))

        self.computing[worker] = stop
        self.replay.after(self.seconds(worker, step), computed)

    def give_weights(self, worker: int, then: Callable[[], None]) -> None:
        self.outbound.carry(lambda: self.replay.after(self.transfer[worker], then))


def play_first_gradients(
    seconds: Callable[[int, int], float],
    transfer: Sequence[float],
    server: float,
    *,
    needed: int,
    steps: int,
    notice: float | None = None,
) -> Played:
    """Each step takes the first ``needed`` gradients that were computed with its weights."""
    played = Played(seconds, transfer, server)
    workers = range(len(transfer))
    came: list[int] = []

    def begin(worker: int) -> Callable[[], None]:
        step = len(played.times)

        def has_weights() -> None:
            played.compute(worker, step, lambda: received(worker, step))

        return has_weights

    def received(worker: int, step: int) -> None:
        if step != len(played.times):
            played.give_weights(worker, begin(worker))
            return
        came.append(worker)
        if len(came) < needed:
            return
        in_time = sorted(came)
        came.clear()
        played.entered.append(in_time)
        played.times.append(played.replay.now)
        for each in workers:
            if each in in_time:
                played.give_weights(each, begin(each))
            elif notice is not None:
                played.replay.after(notice, noticed(each, played.computing[each]))

    def noticed(worker: int, stop: Callable[[], bool]) -> Callable[[], None]:
        def notices() -> None:
            if played.computing[worker] is stop and stop():
                played.give_weights(worker, begin(worker))

        return notices

    for worker in workers:
        begin(worker)()
    played.replay.run_until(lambda: len(played.times) == steps)
    return played


def play_asynchronous(
    seconds: Callable[[int, int], float],
    transfer: Sequence[float],
    server: float,
    *,
    updates: int,
    most_ahead: float,
) -> Played:
    """Each gradient changes the weights as it arrives; who is too far ahead of the slowest waits."""
    played = Played(seconds, transfer, server)
    own = [0] * len(transfer)
    waiting: list[int] = []

    def begin(worker: int) -> Callable[[], None]:
        version = len(played.times)
        return lambda: played.compute(worker, own[worker], lambda: received(worker, version))

    def received(worker: int, version: int) -> None:
        played.staleness[len(played.times) - version] += 1
        played.times.append(played.replay.now)
        played.entered.append([worker])
        own[worker] += 1
        waiting.append(worker)
        for each in [each for each in waiting if own[each] <= min(own) + most_ahead]:
            waiting.remove(each)
            played.give_weights(each, begin(each))

    for worker in range(len(transfer)):
        begin(worker)()
    played.replay.run_until(lambda: len(played.times) == updates)
    return played
