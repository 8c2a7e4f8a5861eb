"""A forward and backward through DDP that runs no model: every parameter gets a gradient of zero added.

So a rank whose gradients are there already, or that has none to give, takes part in the same reductions as the others,
bucket by bucket, whatever hooks and compression DDP has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def touch(ddp: DistributedDataParallel) -> Tensor:
    """A forward of `ddp` whose output, a zero, hangs on every parameter that is trained, and on nothing else.

    It is given an input all the same: a DDP that has a device moves what it is given there, and fails on nothing.
    """
    parameters = [each for each in ddp.module.parameters() if each.requires_grad]
    with _in_place_of_forward(ddp.module, partial(_zero_of, list(reversed(parameters)))):
        output: Tensor = ddp(torch.zeros((), device=parameters[0].device))
    return output


def remember_forward(module: Any) -> Callable[[], None]:
    """The returned function takes away what has been put in place of the module's forward since.

    Lightning puts its training step there, and takes it away once it has begun: not where the memory for its inputs is
    short.
    """
    own = module.__dict__.get("forward")

    def restore() -> None:
        if own is not None:
            module.forward = own
        elif "forward" in module.__dict__:
            del module.forward

    return restore


class _Zero(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.places = [(each.shape, each.dtype, each.device) for each in parameters]
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            torch.zeros((), dtype=dtype, device=device).expand(shape)
            for shape, dtype, device in ctx.places
        )


def _zero_of(parameters: list[Tensor], something_to_move: Tensor) -> Tensor:
    zero: Tensor = _Zero.apply(*parameters)  # type: ignore[no-untyped-call]
    return zero


@contextmanager
def _in_place_of_forward(module: Any, function: Any) -> Iterator[None]:
    restore = remember_forward(module)
    module.forward = function
    try:
        yield
    finally:
        restore()
