"""The reductions over ranks inside a step that one rank runs in several passes and others in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]


class PassReductions:
    """Lets the n-th reduction of every pass be one reduction over ranks, made in the last pass.

    Passes before it get their own value back. A step that is run again, because memory was short, is given what it has
    reduced already: other ranks reduce each value once.
    """

    def __init__(self) -> None:
        self._made: list[Tensor] = []
        self._earlier: list[list[tuple[Tensor, int]]] = []
        self._number = 0
        self._rows = 0
        self._is_last = True

    def begin_step(self) -> None:
        """The step begins, for the first time or again."""
        self._earlier = []

    def begin_pass(self, rows: int, *, is_last: bool) -> None:
        """A pass of so many rows begins."""
        self._number, self._rows, self._is_last = 0, rows, is_last

    def __call__(self, value: Tensor, operation: str, over_ranks: Reduce) -> Tensor:
        """What this reduction gives in this pass.

        Args:
            value: of this pass; a mean over its rows where the operation is a mean.
            operation: "mean" or "avg", "sum", "product", "min" or "max".
            over_ranks: reduces the value of all passes; a collective.
        """
        number, self._number = self._number, self._number + 1
        if not self._is_last:
            if number == len(self._earlier):
                self._earlier.append([])
            self._earlier[number].append((value.detach().clone(), self._rows))
            return value
        if number < len(self._made):
            return self._made[number].clone()
        earlier = self._earlier[number] if number < len(self._earlier) else []
        whole = together([*earlier, (value, self._rows)], operation) if earlier else value
        made = over_ranks(whole)
        self._made.append(made.detach().clone())
        return made


def together(passes: Sequence[tuple[Tensor, int]], operation: str) -> Tensor:
    """The value of a step of several passes.

    Args:
        passes: the value of each pass, any shape, and its rows.
        operation: "mean" or "avg" (weighted by the rows), "sum", "product", "min" or "max".
    """
    values = [value for value, _ in passes]
    if operation == "sum":
        return torch.stack(values).sum(0).to(values[0].dtype)
    if operation in ("prod", "product"):
        return torch.stack(values).prod(0).to(values[0].dtype)
    if operation == "min":
        return reduce(torch.minimum, values)
    if operation == "max":
        return reduce(torch.maximum, values)
    total = torch.stack([value.to(torch.float64) * rows for value, rows in passes]).sum(0)
    mean = total / sum(rows for _, rows in passes)
    kind = passes[0][0]
    return mean.to(kind.dtype if kind.is_floating_point() else torch.get_default_dtype())
