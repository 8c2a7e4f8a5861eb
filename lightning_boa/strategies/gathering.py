"""The rows of all ranks, where ranks hold different numbers of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightning_boa.errors import AgreementError, UnsupportedError

Communicating = Callable[[], AbstractContextManager[Any]]


class GathersRows(Protocol):
    """A strategy that knows whether this rank has rows in the step that runs."""

    def gather_rows(self, data: Any, sync_grads: bool = False) -> Any: ...


in_step: ContextVar[GathersRows | None] = ContextVar("in_step", default=None)


def gather_rows(data: Any, sync_grads: bool = False) -> Any:
    """The rows of all ranks in the order of the ranks, which is the order of the global batch; on every rank alike.

    Under any strategy, and without one. Where `self.all_gather` needs the same shape on all ranks, ranks may hold
    different numbers of rows here, also none. A rank that only takes part in a step of "boa" contributes none. All
    ranks have to call it; not in predict_step, where "boa" lets ranks without rows leave steps out.

    Which batch_weight of BoaStrategy goes with a loss made of gathered rows:
        "samples" where each rank's loss is a mean over its own rows (each against all gathered ones), with
            `sync_grads=True`;
        "none" where every rank computes the same loss of all rows, with `sync_grads=True`. Every rank needs rows in
            every step then: leave a short last batch out (drop_last=True).

    Args:
        data: a tensor of shape (rows, ...), or a nested dict, list or tuple of such; whatever else is in it stays.
        sync_grads: gradients flow back to the rank that a row comes from, summed over all ranks.

    Returns:
        The same with tensors of shape (rows of all ranks, ...).

    Raises:
        AgreementError: on every rank, where the ranks' tensors differ in more than their rows.
    """
    strategy = in_step.get()
    if strategy is not None:
        return strategy.gather_rows(data, sync_grads)
    return gather(data, sync_grads)[0]


def gather(
    data: Any,
    sync_grads: bool = False,
    *,
    takes_part_only: bool = False,
    communicating: Communicating = nullcontext,
) -> tuple[Any, int]:
    """What `gather_rows` returns, and how many ranks only took part.

    Args:
        data: see `gather_rows`.
        sync_grads: see `gather_rows`.
        takes_part_only: this rank's rows are left out.
        communicating: entered while this rank is inside a collective, in backward too.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return data, 0
    leaves, structure = tree_flatten(data)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[place] for place in places]
    differentiable = [
        sync_grads and torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors
    ]
    with communicating():
        counts, absent = _agree(structure, tensors, differentiable, takes_part_only)
    for place, flows, rows in zip(places, differentiable, counts, strict=True):
        leaves[place] = _gather(leaves[place], rows, flows, takes_part_only, communicating)
    return tree_unflatten(leaves, structure), absent


def refuse_absent(ranks: int, batch_weight: Any) -> None:
    """Refuse a loss that brings its own factor where some ranks had no rows to gather.

    Raises:
        UnsupportedError: the mean over ranks would count those ranks too.
    """
    if batch_weight == "none":
        raise UnsupportedError(
            f'Expected rows on every rank for a loss of gathered rows with batch_weight="none", but {ranks} rank(s)'
            " have none in this step and would be counted in the mean over ranks. Leave the short last batch out"
            " (drop_last=True), or let each rank's loss be a mean over its own rows against all gathered ones, with"
            ' batch_weight="samples".'
        )


def _agree(
    structure: Any, tensors: list[Tensor], differentiable: list[bool], takes_part_only: bool
) -> tuple[list[list[int]], int]:
    """The rows of each rank for each tensor, and the number of ranks that only take part.

    The first of two small gathers has the same size whatever the ranks hold, so that they can disagree without waiting
    for each other for ever.
    """
    if not tensors:
        return [], 0
    device = tensors[0].device
    mine = [(*_kind(each), flows) for each, flows in zip(tensors, differentiable, strict=True)]
    described = f"{structure} of {mine}"
    heads = _gather_numbers([_digest(described), int(takes_part_only)], device)
    if len({head for head, _ in heads}) > 1:
        theirs: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(theirs, described)
        raise AgreementError(
            "Expected tensors that differ in their rows alone to gather, got (trailing shape, type, needs gradient) "
            + "; ".join(f"{each} on rank {rank}" for rank, each in enumerate(theirs))
            + ". Give every rank the same structure, trailing shapes and types."
        )
    if any(not each.ndim for each in tensors):
        raise AgreementError(
            "Expected tensors with rows as their first dimension to gather, got one without dimensions. Gather"
            " numbers with self.all_gather."
        )
    rows = [0 if takes_part_only else len(each) for each in tensors]
    counts = _gather_numbers(rows, device)
    return [list(column) for column in zip(*counts, strict=True)], sum(part for _, part in heads)


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    trailing = tuple(tensor.shape[1:]) if tensor.ndim else "none, no rows"
    return trailing, str(tensor.dtype).removeprefix("torch.")


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")


def _gather_numbers(mine: list[int], device: torch.device) -> list[list[int]]:
    table = torch.tensor(mine, dtype=torch.int64).to(device)
    gathered = [torch.empty_like(table) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, table)
    return [each.tolist() for each in gathered]


def _gather(
    tensor: Tensor,
    rows: list[int],
    differentiable: bool,
    takes_part_only: bool,
    communicating: Communicating,
) -> Tensor:
    own = tensor[: rows[dist.get_rank()]]
    filling = own.new_zeros((max(rows) - len(own), *own.shape[1:]))
    if not any(rows) or 0 in tensor.shape[1:]:
        return own.new_zeros((sum(rows), *own.shape[1:]))
    if differentiable:
        parts = _Gather.apply(  # type: ignore[no-untyped-call]
            torch.cat([own, filling]), takes_part_only, communicating
        )
    else:
        parts = _gather_equal(torch.cat([own.detach(), filling]), communicating)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


def _gather_equal(tensor: Tensor, communicating: Communicating) -> tuple[Tensor, ...]:
    """All ranks' tensors of one shape, as bytes: backends lack some types."""
    sent = tensor.reshape(-1).view(torch.uint8)
    gathered = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    with communicating():
        dist.all_gather(gathered, sent)
    return tuple(each.view(tensor.dtype).reshape(tensor.shape) for each in gathered)


class _Gather(torch.autograd.Function):
    """All ranks' tensors of one shape; a gradient is the sum over the ranks that have rows."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, takes_part_only: bool, communicating: Communicating
    ) -> tuple[Tensor, ...]:
        ctx.takes_part_only = takes_part_only
        ctx.communicating = communicating
        return _gather_equal(tensor, communicating)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = torch.stack(gradients)
        if ctx.takes_part_only:
            total.zero_()
        with ctx.communicating():
            dist.all_reduce(total)
        return total[dist.get_rank()], None, None
