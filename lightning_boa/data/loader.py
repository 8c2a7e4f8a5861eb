"""The twin of a user's loader: the same class and attributes, another batch sampler.

Calling the constructor of a `DataLoader` subclass anew loses arguments or raises, so the twin is
made without it. Of what is private in torch's loader this file uses, because no public name exists
(all of them the same from torch 2.4 on):

- attributes live in `__dict__`: `DataLoader.__setattr__` refuses another `batch_sampler` once
  constructed;
- `_iterator` holds the iterator of persistent workers, which twin and original must not share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MemberDescriptorType, new_class
from typing import Any, TypeVar, cast

from torch.utils.data import DataLoader

from lightning_boa.data.order import length_of
from lightning_boa.data.sampler import Share, ShareBatchSampler
from lightning_boa.errors import LoaderError

_L = TypeVar("_L", bound="DataLoader[Any]")
_FRESH = frozenset({"_iterator", "_boa_original"})
_MISSING = object()


def boa_loader(
    loader: _L,
    batch_sampler: ShareBatchSampler,
    *,
    deliver: Callable[[Share], object] | None = None,
    begin: Callable[[], object] | None = None,
    sized: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> _L:
    """A loader like `loader` that fetches the rows of `batch_sampler`.

    It is an instance of `type(loader)`, has all its attributes (data set, workers, collate
    function, pinned memory, worker seeding, the user's own) and runs its `__iter__`, but nothing
    is read, drawn or started before the first `next()`. Its length is that of `batch_sampler`.
    `loader` itself is left as it is. `deliver` is given the share of each batch, `begin` is called
    when an iteration begins.

    The twin has `last_wait`, the seconds its last `next()` took by `clock` (the first of an epoch
    starts the workers and draws the order), and an empty `state_dict()`: the position comes from
    `batch_sampler`.

    Raises:
        LoaderError: `loader` makes no batches; while iterating, an `__iter__` of the user's class
            that does not give one batch for each list of `batch_sampler`.
    """
    if not isinstance(loader, DataLoader):
        raise LoaderError(
            f"expected a torch.utils.data.DataLoader, got {type(loader).__qualname__}. Pass a"
            " DataLoader."
        )
    user = original_loader(loader)
    own = {
        "sampler" if user.batch_sampler is None else "batch_sampler": batch_sampler,
        "last_wait": 0.0,
        "_boa_sampler": batch_sampler,
        "_boa_clock": clock,
        "_boa_deliver": deliver,
        "_boa_begin": begin,
        "_boa_sized": sized,
    }
    return cast(_L, twin_of(user, own, _SharingTwin))


def original_loader(loader: _L) -> _L:
    """The user's loader behind a twin; any other loader itself."""
    return cast(_L, loader.__dict__["_boa_original"]) if isinstance(loader, Twin) else loader


def loader_of(loader: DataLoader[Any], lists: Iterable[Sequence[Any]]) -> DataLoader[Any]:
    """A loader like the user's that makes a batch of each of these lists of rows."""
    user = original_loader(loader)
    name = "sampler" if user.batch_sampler is None else "batch_sampler"
    twin: DataLoader[Any] = twin_of(user, {name: lists}, Twin)
    return twin


def twin_of(user: DataLoader[Any], own: Mapping[str, Any], kind: type[Twin]) -> Any:
    """An instance of `kind` and of the class of `user`, with its attributes and those in `own`."""
    made_of: tuple[Any, Any] = (kind, type(user))
    twin: Any = object.__new__(_twin_type(*made_of))
    for owner in type(user).__mro__:
        for slot in vars(owner).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):
                    slot.__set__(twin, slot.__get__(user))
    twin.__dict__.update(user.__dict__)
    twin.__dict__.update(own, _iterator=None, _boa_original=user)
    return twin


class Twin(DataLoader[Any]):
    """A loader made after another one; stands before the user's class in the order of resolution."""

    _boa_original: DataLoader[Any]

    def __init_subclass__(cls, **_: object) -> None:
        """Keeps twins out of registries that a user's `__init_subclass__` may fill."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickles what the user's loader would; the twin's class has no name to be found by."""
        own = {
            name: value
            for name, value in self.__dict__.items()
            if name not in _FRESH and self._boa_original.__dict__.get(name, _MISSING) is not value
        }
        kind = next(base for base in type(self).__mro__ if base in _KINDS)
        return twin_of, (self._boa_original, own, kind)


class _SharingTwin(Twin):
    """Delivers this rank's share of every step."""

    last_wait: float
    _boa_sampler: ShareBatchSampler
    _boa_clock: Callable[[], float]
    _boa_deliver: Callable[[Share], object] | None
    _boa_begin: Callable[[], object] | None
    _boa_sized: bool

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batch_sampler = self._boa_sampler
        if self._boa_begin is not None:
            self._boa_begin()
        earlier = iteration = batch_sampler.iteration
        yielded = 0
        passes: list[Any] = []
        asked = self._boa_clock()
        for batch in super().__iter__():
            self.__dict__["last_wait"] = self._boa_clock() - asked
            if yielded == 0:
                iteration = batch_sampler.iteration
            yielded += 1
            if iteration is earlier or yielded > iteration.lists:
                raise self._odd_batches(yielded, 0 if iteration is earlier else iteration.lists)
            passes.append(batch)
            if len(passes) < len(iteration.shares[0].passes):
                continue
            share = iteration.shares.popleft()
            batch, *later = passes
            passes = []
            if self._boa_deliver is not None:
                self._boa_deliver(share._replace(wait=self.last_wait, later=tuple(later)))
            yield batch
            asked = self._boa_clock()
        if yielded == 0:
            iteration = batch_sampler.iteration
        lists = iteration.total
        if iteration is earlier:
            lists = length_of(self) or 0
        if yielded != lists:
            raise self._odd_batches(yielded, lists)

    def read_again(self, lists: Sequence[Sequence[Any]]) -> list[Any]:
        """A batch of each list of rows, read as the user's loader would, beside the iteration that runs."""
        return list(loader_of(self._boa_original, [list(rows) for rows in lists]))

    def __len__(self) -> int:
        if not self._boa_sized:
            raise TypeError("a loader that is not sized has no length")
        return len(self._boa_sampler)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the position of a loader follows from the trainer's progress."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Ignores any state, that of a loader run under another strategy included."""

    def _odd_batches(self, batches: int, lists: int) -> LoaderError:
        return LoaderError(
            f"expected {type(self).__qualname__}.__iter__ to give one batch for each list of rows "
            f"of its batch_sampler, got {batches} batches for {lists} lists: batches that are "
            "split, merged, left out or kept from elsewhere cannot be shared out exactly. Change "
            "the content of the batches of super().__iter__() only "
            "(Trainer(limit_train_batches=...) ends an epoch early), or train with "
            'strategy="ddp".'
        )


_KINDS: set[type[Twin]] = set()


@cache
def _twin_type(kind: type[Twin], user: type[Any]) -> type[Twin]:
    def body(namespace: dict[str, Any]) -> None:
        namespace.update(
            __module__=user.__module__, __qualname__=user.__qualname__, __doc__=user.__doc__
        )

    _KINDS.add(kind)
    return cast("type[Twin]", new_class(user.__name__, (kind, user), exec_body=body))
