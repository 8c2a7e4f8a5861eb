"""How a collective fails whose other ranks do not come along."""

from __future__ import annotations

import torch.distributed as dist

_COLLECTIVES = ("gloo", "NCCL")


def is_of_a_collective(exception: BaseException) -> bool:
    """Whether this is how a collective fails whose other ranks do not come along."""
    if isinstance(exception, dist.DistError):
        return True
    return isinstance(exception, RuntimeError) and any(
        name in str(exception) for name in _COLLECTIVES
    )
