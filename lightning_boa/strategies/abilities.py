"""What the steps of a training permit beside a share of rows for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.optim import LBFGS


@dataclass(frozen=True)
class Abilities:
    """What may be planned.

    ``in_passes``: a rank may run its rows in several passes whose gradients are reduced once. ``parks``: a rank may
    have no rows and not run the model at all; ``parks_first``: rank 0 too.
    """

    in_passes: bool = False
    parks: bool = False
    parks_first: bool = False


NO_ABILITIES = Abilities()
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def why_not_divided(ddp: nn.Module, optimizers: Sequence[Any], rule: Any) -> str | None:
    """Why a rank cannot run its rows in another number of forwards than the others run; None where it can.

    Args:
        ddp: the model, wrapped for data parallelism.
        optimizers: all of them.
        rule: how the loss is weighted.
    """
    module: Any = ddp.module
    if not module.automatic_optimization:
        return "manual optimisation decides itself when gradients are reduced"
    if any(isinstance(part, SyncBatchNorm) for part in module.modules()):
        return "SyncBatchNorm speaks to all ranks in every forward"
    if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
        return "LBFGS runs a step several times itself"
    embeddings = (part for part in module.modules() if isinstance(part, _EMBEDDINGS))
    if any(part.sparse for part in embeddings):
        return "embeddings with sparse=True need a forward for each reduction of their gradients"
    for option in ("find_unused_parameters", "static_graph"):
        if getattr(ddp, option, False):
            return f"{option} counts the forwards of a step"
    if rule == "none":
        return 'batch_weight="none" needs the rows of every rank in one forward'
    return None
