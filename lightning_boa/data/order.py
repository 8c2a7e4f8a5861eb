"""The global order of a data set: which row stands at which position of an epoch.

It depends on the seed and the epoch alone, never on ranks, plans, loader workers or a resume, and
it is kept as an array (or a range) because a list of Python integers costs ten times the memory.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_boa.errors import LoaderError

Indices: TypeAlias = "NDArray[np.int32] | NDArray[np.int64] | range | list[Any]"
"""The rows of one epoch by position: integers as an array or a range, other objects in a list."""

_CHUNK = 1 << 16
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_GO_ON = 'or train with strategy="ddp"'


@runtime_checkable
class GlobalOrder(Protocol):
    """The rows of a data set in the order of an epoch."""

    def __len__(self) -> int:
        """Rows in an epoch, the same in every epoch."""

    def draw(self, seed: int, epoch: int) -> Indices:
        """The rows of `epoch` by position; equal arguments give equal rows on every rank."""


@dataclass(frozen=True)
class SequentialOrder:
    """Rows 0 to `rows` - 1 as they are stored, in every epoch."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def draw(self, seed: int, epoch: int) -> range:
        """The range of all rows."""
        return range(self.rows)


@dataclass(frozen=True)
class ShuffledOrder:
    """All rows in a fresh permutation each epoch.

    The permutation is that of `torch.utils.data.DistributedSampler` with the same seed and epoch,
    before it is padded and dealt out to the ranks.
    """

    rows: int

    def __len__(self) -> int:
        return self.rows

    def draw(self, seed: int, epoch: int) -> NDArray[np.int32] | NDArray[np.int64]:
        """A permutation of all rows, 4 bytes a row (8 bytes from 2**31 rows on)."""
        # randperm consumes the generator alike for both dtypes: the permutations are the same.
        dtype = torch.int32 if self.rows < 2**31 else torch.int64
        generator = torch.Generator().manual_seed(seed + epoch)
        permutation: NDArray[np.int32] | NDArray[np.int64]
        permutation = torch.randperm(self.rows, generator=generator, dtype=dtype).numpy()
        return permutation


@dataclass(frozen=True, eq=False)
class SampledOrder:
    """What a custom sampler yields, drawn in one go under a generator that all ranks agree on.

    While it is drawn, the global generators of torch (CPU), numpy and random, and every generator
    that the sampler or a sampler inside it holds as an attribute, are seeded from (seed, epoch);
    afterwards each of them has its former state again. `set_epoch` is called where the sampler or
    one inside it has it. A sampler that keeps count of its own draws in another way depends on its past, and so does
    its order after a resume.
    """

    sampler: Iterable[Any]

    def __post_init__(self) -> None:
        length = length_of(self.sampler)
        if length is None:
            raise LoaderError(
                f"expected a sampler with __len__, got {name_of(self.sampler)} without one: the "
                "number of steps must be known before training. Give the sampler a __len__, "
                f"{_GO_ON}."
            )

    def __len__(self) -> int:
        length = length_of(self.sampler)
        assert length is not None
        return length

    def draw(self, seed: int, epoch: int) -> Indices:
        """The sampler's rows: an int64 array if all are of type int, else a list of its objects.

        Raises:
            LoaderError: the sampler yields more or fewer rows than its length says.
        """
        set_epoch(self.sampler, epoch)
        rows = len(self)
        with agreed_randomness(seed, epoch, self.sampler):
            drawn = as_indices(islice(self.sampler, rows + 1))
        if len(drawn) != rows:
            raise LoaderError(
                f"expected {rows} rows in epoch {epoch}, as len({name_of(self.sampler)}) says, got "
                f"{'more' if len(drawn) > rows else len(drawn)}. Make the sampler's __len__ the "
                f"number of rows that it yields, {_GO_ON}."
            )
        return drawn


def order_of(sampler: Any) -> GlobalOrder:
    """The global order that a sampler of single rows asks for, without drawing it.

    Shuffled for a `RandomSampler` that permutes all rows (its own generator gives way to the
    common seed), sequential for a `SequentialSampler`; a `DistributedSampler` is replaced by the
    order of its whole data set, shuffled if it shuffles; any other sampler is drawn once an epoch.

    Raises:
        LoaderError: no order exists that could be split exactly.
    """
    if type(sampler) is SequentialSampler:
        return SequentialOrder(len(sampler))
    if type(sampler) is RandomSampler and _permutes(sampler):
        return ShuffledOrder(len(sampler))
    if type(sampler) is DistributedSampler:
        rows = len(cast(Sized, sampler.dataset))
        return ShuffledOrder(rows) if sampler.shuffle else SequentialOrder(rows)
    refuse_own_split(sampler)
    return SampledOrder(sampler)


def refuse_own_split(sampler: object) -> None:
    """Refuse a sampler that gives each rank other rows.

    Raises:
        LoaderError: it has a rank and a number of replicas.
    """
    if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
        raise LoaderError(
            f"expected a sampler that yields the same rows on every rank, got {name_of(sampler)}, "
            "which splits them among the ranks itself (it has num_replicas and rank). Pass the "
            "sampler of the whole data set, or keep your split with "
            "Trainer(use_distributed_sampler=False)."
        )


def digest(indices: Indices) -> int:
    """A number below 2**63 that tells two drawn orders apart, the same on every machine.

    Integers count by value, so a range and an array of the same rows agree; other objects by their
    repr.
    """
    digester = hashlib.blake2b(digest_size=8)
    for start in range(0, len(indices), _CHUNK):
        part = indices[start : start + _CHUNK]
        if isinstance(part, list):
            digester.update("\n".join(map(repr, part)).encode())
        else:
            digester.update(np.asarray(part, dtype="<i8").tobytes())
    return int.from_bytes(digester.digest(), "little") >> 1


def as_list(indices: Indices) -> list[Any]:
    """The rows as Python objects, as a user's data set expects them."""
    rows: list[Any] = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
    return rows


def _permutes(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def length_of(sampler: object) -> int | None:
    """The length of a sampler or loader, None where it has none."""
    try:
        return len(sampler)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def name_of(thing: object) -> str:
    """What an error calls a thing: its type with the module."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")


def as_indices(rows: Iterable[Any]) -> Indices:
    """An int64 array if all rows are of type int, else a list of the objects."""
    rows = iter(rows)
    arrays: list[NDArray[np.int64]] = []
    while chunk := list(islice(rows, _CHUNK)):
        array = _int_array(chunk)
        if array is None:
            return [*chain.from_iterable(a.tolist() for a in arrays), *chunk, *rows]
        arrays.append(array)
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


def _int_array(chunk: list[Any]) -> NDArray[np.int64] | None:
    if not all(type(row) is int for row in chunk):
        return None
    try:
        return np.array(chunk, dtype=np.int64)
    except OverflowError:
        return None


def set_epoch(sampler: object, epoch: int) -> None:
    """Tell a sampler the epoch, and those inside it, which stand in attributes `sampler` and `batch_sampler`."""
    seen: dict[int, object] = {}
    waiting = [sampler]
    while waiting:
        owner = waiting.pop()
        if owner is None or id(owner) in seen:
            continue
        seen[id(owner)] = owner
        if callable(tell := getattr(owner, "set_epoch", None)):
            tell(epoch)
        waiting += [getattr(owner, name, None) for name in ("sampler", "batch_sampler")]


@contextmanager
def agreed_randomness(seed: int, epoch: int, sampler: object) -> Iterator[None]:
    """Inside the block every generator that a sampler may use is seeded from (seed, epoch); then all are put back."""
    words = np.random.SeedSequence([seed % 2**64, epoch]).generate_state(2)
    agreed = int(words[0]) << 32 | int(words[1])
    with ExitStack() as former:
        # torch.manual_seed would also seed the accelerators' generators, which are not put back.
        for generator in (torch.default_generator, random, np.random, *_generators_in(sampler)):
            former.callback(_seeded(generator, agreed))
        yield


def _seeded(generator: Any, seed: int) -> Callable[[], object]:
    """Seeds `generator` and returns what puts its former state back."""
    if isinstance(generator, torch.Generator):
        torch_state = generator.get_state()
        generator.manual_seed(seed)
        return partial(generator.set_state, torch_state)
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits_state = bits.state
        bits.state = type(bits)(seed).state
        return partial(setattr, bits, "state", bits_state)
    if generator is np.random or isinstance(generator, np.random.RandomState):
        numpy_state = generator.get_state(legacy=False)
        generator.set_state(getattr(np.random, numpy_state["bit_generator"])(seed).state)
        return partial(generator.set_state, numpy_state)
    python_state = generator.getstate()
    generator.seed(seed)
    return partial(generator.setstate, python_state)


def _generators_in(sampler: object) -> list[Any]:
    """The generators among the attributes of a sampler and of the samplers inside it, each once."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [sampler]
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for value in getattr(owner, "__dict__", {}).values():
            if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom):
                found[id(value)] = value
            elif isinstance(value, Sampler):
                waiting.append(value)
    return list(found.values())
