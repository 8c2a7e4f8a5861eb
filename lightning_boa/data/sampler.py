"""A rank's share of every step of the global order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, NamedTuple

from lightning_boa.data.order import Indices, as_list, digest
from lightning_boa.data.steps import DrawnEpoch, Steps
from lightning_boa.errors import LoaderError

_GHOST_ROWS = 2


class EpochSetter:
    """Passes `set_epoch` on to a `ShareBatchSampler`.

    Lightning looks for it at `batch_sampler.sampler`.
    """

    def __init__(self, batch_sampler: ShareBatchSampler) -> None:
        self._batch_sampler = batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order the next iteration draws."""
        self._batch_sampler.set_epoch(epoch)


class Share(NamedTuple):
    """A rank's part of one step.

    Attributes:
        step: counted since training began.
        rows: of this rank; 0 for a ghost.
        step_rows: of all ranks.
        fetched: rows that the batch holds: `rows`, or those of its first pass, or of the ghost; 0 where nobody knows.
        wait: seconds that the loader made its rank wait for the batch.
        passes: rows of each pass where the rank runs them one after the other; empty where it runs them at once.
        numbers: the rows themselves, as the data set knows them; empty where nobody knows.
        later: the batches of all passes but the first.
    """

    step: int
    rows: int
    step_rows: int
    fetched: int
    wait: float = 0.0
    passes: tuple[int, ...] = ()
    numbers: Sequence[Any] = ()
    later: tuple[Any, ...] = ()


def cut(rows: Sequence[Any], passes: Sequence[int]) -> list[Sequence[Any]]:
    """The rows of each pass, in order; all of them where there is one pass."""
    if len(passes) < 2:
        return [rows]
    ends = list(accumulate(passes, initial=0))
    return [rows[start:end] for start, end in pairwise(ends)]


class Iteration:
    """How far one iteration of a `ShareBatchSampler` is: `lists` handed out of `total`.

    `shares` are those handed out of which not all batches have arrived yet, oldest first.
    """

    def __init__(self, total: int) -> None:
        self.lists = 0
        self.total = total
        self.shares: deque[Share] = deque()


class ShareBatchSampler:
    """Lists of the rows of one rank, one list a step, or one for each pass of a step.

    A rank's rows of a step follow those of the lower ranks. The first `next()` of an iteration asks
    `first_step`, then reads the epoch and draws its steps; `iter()` reads nothing.

    A rank without rows in a step hands out a ghost: the first two rows of the step (its one row
    twice), to be given the weight 0. With `skip_ghosts` it leaves the step out instead; where steps
    are even the split of a full and of the short last step is then asked for once, at construction,
    because the length depends on it.

    Args:
        steps: the rows of each step.
        rank: whose share.
        seed: of the order.
        rows_of: (step since training began, rows of that step) -> rows of each rank.
        first_step: () -> (steps of this epoch that are done, steps since training began that are
            done). It may call `set_epoch`.
        skip_ghosts: leave out the steps in which this rank has no rows.
        check_order: called with the digest of each order drawn, before its first rows are handed
            out, so that ranks can compare what a custom sampler gave them.
        starts_again: whether an epoch that is over begins again beside a longer loader; None where
            there is no other loader.
        passes_of: (step since training began, rows of this rank) -> rows of each pass in which the rank runs them;
            None where it runs them at once.

    Attributes:
        handed_out: step since training began of the rows handed out last, -1 before any. Loader
            workers are ahead of the training loop; this counts what they were given, and changes
            only inside `next()`.
        iteration: the iteration begun last.
        lock: held while a step's split is read and `handed_out` moves on. Who holds it may change the splits of later
            steps even if a loader reads ahead in a thread of its own.
        sampler: takes Lightning's `set_epoch`.

    Raises:
        LoaderError: a negative rank.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        rank: int,
        seed: int,
        rows_of: Callable[[int, int], Sequence[int]],
        first_step: Callable[[], tuple[int, int]],
        skip_ghosts: bool = False,
        check_order: Callable[[int], object] | None = None,
        starts_again: Callable[[], bool | None] | None = None,
        passes_of: Callable[[int, int], tuple[int, ...]] | None = None,
    ) -> None:
        if rank < 0:
            raise LoaderError(f"expected a rank of at least 0, got rank={rank}")
        self.steps = steps
        self.rank = rank
        self.seed = seed
        self.epoch = 0
        self.skip_ghosts = skip_ghosts
        self.sampler = EpochSetter(self)
        self.handed_out = -1
        self.iteration = Iteration(0)
        self.lock = Lock()
        self._rows_of = rows_of
        self._first_step = first_step
        self._check_order = check_order
        self._starts_again = starts_again
        self._passes_of = passes_of
        self._begun: int | None = None
        self._checked: Sequence[int] = ()
        self._settled: dict[int, Sequence[int]] = {}
        if skip_ghosts and steps.short_rows is not None:
            sizes = (steps.global_batch_size, steps.short_rows)
            self._settled = {rows: self._split(0, rows) for rows in sizes if rows}

    @property
    def batch_size(self) -> int:
        """Rows of this rank in a full step, under the split of the step handed out last."""
        step = self.handed_out if self.handed_out >= 0 else self._first_step()[1]
        return self._split(step, self.steps.global_batch_size)[self.rank]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=Lock())

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order the next iteration draws."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Lists in a whole epoch: its steps, less those that `skip_ghosts` leaves out."""
        short_rows = self.steps.short_rows
        if not self.skip_ghosts:
            return len(self.steps)
        if short_rows is None:
            raise TypeError(
                "how many steps have rows for this rank is not known before they are drawn"
            )
        kinds = (
            (len(self.steps) - (short_rows > 0), self.steps.global_batch_size),
            (int(short_rows > 0), short_rows),
        )
        return sum(steps for steps, rows in kinds if steps and self._settled[rows][self.rank])

    def __iter__(self) -> Iterator[list[Any]]:
        position, done = self._first_step()
        drawn = self.steps.draw(self.seed, self.epoch)
        position = self._position(position, drawn.steps)
        indices = drawn.indices
        if self._check_order is not None:
            self._check_order(digest(indices))
        self.iteration = iteration = Iteration(self._lists(drawn, position, done))
        for ahead in range(drawn.steps - position):
            step = done + ahead
            start, end = drawn.bounds(position + ahead)
            with self.lock:
                split = self._split(step, end - start)
                passes = self._passes(step, split[self.rank])
                self.handed_out = step
            rows = self._rows(indices, start, split, end - start)
            if not rows:
                continue
            lists = cut(rows, passes)
            share = Share(step, split[self.rank], end - start, len(lists[0]))
            if self._passes_of is not None:
                share = share._replace(passes=passes, numbers=rows)
            iteration.shares.append(share)
            iteration.total += len(lists) - 1
            for each in lists:
                iteration.lists += 1
                yield list(each)

    def _position(self, position: int, steps: int) -> int:
        """Where to begin: a loader that is cycled through begins an epoch again."""
        again, self._begun = self._begun == self.epoch, self.epoch
        starts_again = None if self._starts_again is None else self._starts_again()
        if starts_again is None:
            assert 0 <= position <= steps, f"{position=} of {steps} steps"
            return position
        if not starts_again:
            return min(position, steps)
        return 0 if again else position % max(steps, 1)

    def _passes(self, step: int, rows: int) -> tuple[int, ...]:
        passes = (rows,) if self._passes_of is None or not rows else self._passes_of(step, rows)
        assert sum(passes) == rows, f"{passes} of {rows} rows, {step=}"
        return passes if len(passes) > 1 else ()

    def _lists(self, drawn: DrawnEpoch, position: int, done: int) -> int:
        steps = range(position, drawn.steps)
        if not self.skip_ghosts:
            return len(steps)
        bounds = map(drawn.bounds, steps)
        return sum(self._split(done, end - start)[self.rank] > 0 for start, end in bounds)

    def _rows(
        self, indices: Indices, start: int, split: Sequence[int], step_rows: int
    ) -> list[Any]:
        """This rank's rows of a step, a ghost's rows, or nothing where ghosts are left out."""
        if split[self.rank]:
            start += sum(split[: self.rank])
            return as_list(indices[start : start + split[self.rank]])
        if self.skip_ghosts:
            return []
        ghost = as_list(indices[start : start + min(_GHOST_ROWS, step_rows)])
        return ghost * (_GHOST_ROWS // len(ghost))

    def _split(self, step: int, step_rows: int) -> Sequence[int]:
        if step_rows in self._settled:
            return self._settled[step_rows]
        split = self._rows_of(step, step_rows)
        assert sum(split) == step_rows, f"{split} of {step_rows} rows, {step=}"
        if split is not self._checked:
            assert min(split) >= 0, f"{split}, {step=}"
            assert self.rank < len(split), f"no rank {self.rank} in {split}"
            self._checked = split
        return split
