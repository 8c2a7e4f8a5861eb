"""The rows that a batch shows by the sizes of its tensors and lists, against the rows that its rank asked for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError

Path: TypeAlias = tuple[Hashable, ...]
Place: TypeAlias = tuple[Path, int | None]

ANY = "*"
LENGTH = None
BATCHES_UNTIL_TRUSTED = 5


def leading_sizes(batch: Any) -> list[int]:
    """The leading sizes of all tensors in a batch; tensors without dimensions have none."""
    return [size[0] for size in _sizes(batch) if size]


def rows_shown(batch: Any) -> int | None:
    """The leading size that all tensors of a batch share; None where they share none."""
    leading = set(leading_sizes(batch))
    return leading.pop() if len(leading) == 1 else None


@dataclass
class _Look:
    """What a batch shows: the sizes at each place, and for each tensor its path, size and the lists of rows around it.

    A place is a dimension of a tensor or the length of a list; elements of a list of like things share their places.
    """

    sizes: dict[Place, set[int]] = field(default_factory=dict)
    tensors: list[tuple[Path, tuple[int, ...], tuple[Path, ...]]] = field(default_factory=list)

    @classmethod
    def at(cls, batch: Any) -> _Look:
        look = cls()
        look._open(batch, (), ())
        return look

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for batches that show the same."""
        lengths = (min(sizes) for (_, index), sizes in self.sizes.items() if index is LENGTH)
        return (*(size for _, size, _ in self.tensors), *lengths)

    def shows(self, asked: int) -> set[Place]:
        """The places whose sizes are all those asked for."""
        return {place for place, sizes in self.sizes.items() if sizes == {asked}}

    def _open(self, part: Any, path: Path, lists: tuple[Path, ...]) -> None:
        if isinstance(part, (Tensor, PackedSequence)):
            size = _size(part)
            self.tensors.append((path, size, lists))
            for index, each in enumerate(size):
                self.sizes.setdefault((path, index), set()).add(each)
        elif isinstance(part, Mapping):
            for key, value in part.items():
                self._open(value, (*path, key), lists)
        elif isinstance(part, (list, tuple)):
            alike = _are_alike(part)
            if alike:
                self.sizes.setdefault((path, LENGTH), set()).add(len(part))
                lists = (*lists, path)
            for index, each in enumerate(part):
                self._open(each, (*path, ANY if alike else index), lists)
        else:
            leaves = _leaves(part)
            for index, each in enumerate(leaves):
                self._open(each, (*path, index), lists)


class RowCheck:
    """Refuses batches of one loader that show another number of rows than was asked for.

    - Where all tensors share one leading size it is that number, or as many times that number as in earlier batches.
      Else each tensor must show the rows elsewhere, where they have shown in all batches: as another dimension (time
      first) or by the length of a list around it (rows that are not stacked).
    - Columns, lists of equal length that hold one entry per row, show the rows by their length.
    - In other batches rows may show at any place. Where they did before, in batches of two sizes or (leading sizes and
      lists) in some batches, they must not be gone from all such places.

    Where nothing of this shows rows, those of the plan count.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._multiple: int | None = None
        self._missed: set[Place] = set()
        self._held: dict[Place, tuple[int, set[int]]] = {}
        self._batches = 0

    def __call__(self, batch: Any, share: Share, rank: int) -> None:
        """Check the batch that belongs to this share.

        Raises:
            UnsupportedError: it shows other rows.
        """
        asked = share.fetched
        if not asked:
            return
        self._batches += 1
        flat = _flat_sizes(batch)
        if flat is not None and (asked, *flat) in self._seen:
            return
        look = _Look.at(batch)
        key = (asked, *(look.key if flat is None else flat))
        if key in self._seen:
            return
        shown = self._other_rows(look, batch, asked)
        if shown is not None:
            raise UnsupportedError(
                f"Expected a batch of {asked} rows on rank {rank} (its share of step {share.step}), got {shown}. Let"
                " collate_fn keep one entry per row of the data set, or say what the loss is a mean over: give the"
                " module a method boa_batch_weight."
            )
        self._remember(look, asked)
        self._seen.add(key)

    def _other_rows(self, look: _Look, batch: Any, asked: int) -> str | None:
        """What shows that the batch has other rows, in words."""
        shows = look.shows(asked) - self._missed
        leading = {size[0] for _, size, _ in look.tensors if size}
        if len(leading) == 1:
            (size,) = leading
            if self._is_usual_multiple(size, asked):
                return None
            if not _each_tensor_shows(look, shows):
                return f"tensors whose leading size is {size}"
        if any(_can_count_rows(place) for place in shows):
            return None
        length = _length_of_columns(batch)
        if length is not None and not self._is_usual_multiple(length, asked):
            return f"lists of {length} entries"
        for place, (since, known) in self._held.items():
            if place in look.sizes and self._is_trusted(place, since, known, asked):
                sizes = "/".join(map(str, sorted(look.sizes[place])))
                return f"{sizes} as {_name_of(place)}, where the rows showed before"
        return None

    def _is_trusted(self, place: Place, since: int, known: set[int], asked: int) -> bool:
        """Whether it cannot be by chance that the rows have shown at this place, in no batch another number.

        A dimension that never changes may equal the rows until another number of rows is asked for.
        """
        if not _can_count_rows(place):
            return False
        if len(known) > 1:
            return True
        usual = place[1] in (0, LENGTH) and asked in known
        return usual and self._batches - since >= BATCHES_UNTIL_TRUSTED

    def _remember(self, look: _Look, asked: int) -> None:
        shows = look.shows(asked)
        self._missed |= look.sizes.keys() - shows
        for place in self._missed & self._held.keys():
            del self._held[place]
        for place in shows - self._missed:
            _, known = self._held.setdefault(place, (self._batches, set()))
            known.add(asked)

    def _is_usual_multiple(self, size: int, asked: int) -> bool:
        """Whether each row has become as many as before."""
        if size % asked:
            return False
        if self._multiple is None:
            self._multiple = size // asked
        return size == asked * self._multiple


def _each_tensor_shows(look: _Look, shows: set[Place]) -> bool:
    return all(
        any((path, index) in shows for index in range(1, len(size)))
        or any((around, LENGTH) in shows for around in lists)
        for path, size, lists in look.tensors
        if size
    )


def _can_count_rows(place: Place) -> bool:
    """Whether no single row could have this size in itself: in a list of rows only leading sizes are of all rows."""
    path, index = place
    return ANY not in path or index == 0


def _length_of_columns(batch: Any) -> int | None:
    """The common length of lists that are all there is in a batch, each with like entries; None where it is another."""
    if not isinstance(batch, (Mapping, list, tuple)):
        return None
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if len(parts) < 2 or not all(
        isinstance(part, (list, tuple)) and _are_alike(part) for part in parts
    ):
        return None
    lengths = {len(part) for part in parts}
    return lengths.pop() if len(lengths) == 1 else None


def _are_alike(parts: Sequence[Any]) -> bool:
    """Whether a list may hold one entry per row: things of the same kind, of which some may be missing."""
    return len({_kind(part) for part in parts if part is not None}) == 1


def _kind(part: Any) -> Hashable:
    if isinstance(part, Tensor):
        return part.dtype, part.ndim
    if isinstance(part, Mapping):
        return "mapping"
    if isinstance(part, (list, tuple)):
        return list, _kind(part[0]) if part else None
    return type(part).__qualname__


def _name_of(place: Place) -> str:
    path, index = place
    keys = "".join("[…]" if key == ANY else f"[{key!r}]" for key in path)
    return f"len(batch{keys})" if index is LENGTH else f"batch{keys}.shape[{index}]"


def _sizes(batch: Any) -> Iterable[tuple[int, ...]]:
    flat = _flat_sizes(batch)
    return [size for _, size, _ in _Look.at(batch).tensors] if flat is None else flat


def _flat_sizes(batch: Any) -> list[tuple[int, ...]] | None:
    """The sizes of a tensor, or of a list or mapping of tensors; None for all other batches."""
    if isinstance(batch, Tensor):
        return [batch.shape]
    if isinstance(batch, PackedSequence) or not isinstance(batch, (Mapping, list, tuple)):
        return None
    parts = batch.values() if isinstance(batch, Mapping) else batch
    sizes: list[tuple[int, ...]] = [part.shape for part in parts if isinstance(part, Tensor)]
    return sizes if len(sizes) == len(batch) else None


def _size(part: Tensor | PackedSequence) -> tuple[int, ...]:
    return (int(part.batch_sizes[0]),) if isinstance(part, PackedSequence) else part.shape


def _leaves(part: Any) -> list[Any]:
    """What is inside a container that torch knows; nothing in other things."""
    leaves = tree_leaves(part, is_leaf=lambda each: isinstance(each, Mapping))
    return [] if len(leaves) == 1 and leaves[0] is part else leaves
