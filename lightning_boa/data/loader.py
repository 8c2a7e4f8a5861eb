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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import MemberDescriptorType, new_class
from typing import Any, TypeVar, cast

from torch.utils.data import DataLoader

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
    sized: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> _L:
    """A loader like `loader` that fetches the rows of `batch_sampler`.

    It is an instance of `type(loader)`, has all its attributes (data set, workers, collate
    function, pinned memory, worker seeding, the user's own) and runs its `__iter__`, but nothing
    is read, drawn or started before the first `next()`. Its length is that of `batch_sampler`.
    `loader` itself is left as it is.

    The twin has `last_wait`, the seconds its last `next()` took by `clock` (the first of an epoch
    starts the workers and draws the order), and an empty `state_dict()`: the position comes from
    `batch_sampler`.

    Raises:
        LoaderError: `loader` makes no batches; while iterating, an `__iter__` of the user's class
            that does not give one batch for each list of `batch_sampler`.
    """
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        raise LoaderError(
            "expected a torch.utils.data.DataLoader that makes batches, got "
            f"{type(loader).__qualname__}. Pass a DataLoader with a batch_size."
        )
    own = {
        "batch_sampler": batch_sampler,
        "last_wait": 0.0,
        "_boa_clock": clock,
        "_boa_deliver": deliver,
        "_boa_sized": sized,
    }
    return cast(_L, _twin_of(original_loader(loader), own))


def original_loader(loader: _L) -> _L:
    """The user's loader behind a twin; any other loader itself."""
    return cast(_L, loader.__dict__["_boa_original"]) if isinstance(loader, _Twin) else loader


class _Twin(DataLoader[Any]):
    """What a twin does differently; stands before the user's class in the order of resolution."""

    last_wait: float
    _boa_original: DataLoader[Any]
    _boa_clock: Callable[[], float]
    _boa_deliver: Callable[[Share], object] | None
    _boa_sized: bool

    def __init_subclass__(cls, **_: object) -> None:
        """Keeps twins out of registries that a user's `__init_subclass__` may fill."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batch_sampler = cast(ShareBatchSampler, self.batch_sampler)
        earlier = iteration = batch_sampler.iteration
        yielded = 0
        asked = self._boa_clock()
        for batch in super().__iter__():
            self.__dict__["last_wait"] = self._boa_clock() - asked
            if yielded == 0:
                iteration = batch_sampler.iteration
            yielded += 1
            if iteration is earlier or yielded > iteration.lists:
                raise self._odd_batches(yielded, 0 if iteration is earlier else iteration.lists)
            share = iteration.shares.popleft()
            if self._boa_deliver is not None:
                self._boa_deliver(share._replace(wait=self.last_wait))
            yield batch
            asked = self._boa_clock()
        if yielded == 0:
            iteration = batch_sampler.iteration
        lists = len(self) if iteration is earlier else iteration.total
        if yielded != lists:
            raise self._odd_batches(yielded, lists)

    def __len__(self) -> int:
        if not self._boa_sized:
            raise TypeError("a loader that is not sized has no length")
        return len(cast(ShareBatchSampler, self.batch_sampler))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the position of a loader follows from the trainer's progress."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Ignores any state, that of a loader run under another strategy included."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickles what the user's loader would; the twin's class has no name to be found by."""
        own = {
            name: value
            for name, value in self.__dict__.items()
            if name not in _FRESH and self._boa_original.__dict__.get(name, _MISSING) is not value
        }
        return _twin_of, (self._boa_original, own)

    def _odd_batches(self, batches: int, lists: int) -> LoaderError:
        return LoaderError(
            f"expected {type(self).__qualname__}.__iter__ to give one batch for each list of rows "
            f"of its batch_sampler, got {batches} batches for {lists} lists: batches that are "
            "split, merged, left out or kept from elsewhere cannot be shared out exactly. Change "
            "the content of the batches of super().__iter__() only "
            "(Trainer(limit_train_batches=...) ends an epoch early), or train with "
            'strategy="ddp".'
        )


@cache
def _twin_type(user: type[Any]) -> type[_Twin]:
    def body(namespace: dict[str, Any]) -> None:
        namespace.update(
            __module__=user.__module__, __qualname__=user.__qualname__, __doc__=user.__doc__
        )

    return cast("type[_Twin]", new_class(user.__name__, (_Twin, user), exec_body=body))


def _twin_of(original: DataLoader[Any], own: Mapping[str, Any]) -> _Twin:
    user: Any = type(original)
    twin = object.__new__(_twin_type(user))
    for owner in user.__mro__:
        for slot in vars(owner).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):
                    slot.__set__(twin, slot.__get__(original))
    twin.__dict__.update(original.__dict__)
    twin.__dict__.update(own, _iterator=None, _boa_original=original)
    return twin
