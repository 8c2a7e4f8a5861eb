"""One global order of a data set, and each rank's share of every step of it.

Plain `torch.utils.data`: nothing here knows Lightning, a process group or a plan.
"""

from __future__ import annotations

from lightning_boa.data.loader import boa_loader, original_loader
from lightning_boa.data.order import (
    GlobalOrder,
    Indices,
    SampledOrder,
    SequentialOrder,
    ShuffledOrder,
    batch_size_of,
    digest,
    drop_last_of,
    order_of,
)
from lightning_boa.data.sampler import EpochSetter, Share, ShareBatchSampler

__all__ = [
    "EpochSetter",
    "GlobalOrder",
    "Indices",
    "SampledOrder",
    "SequentialOrder",
    "Share",
    "ShareBatchSampler",
    "ShuffledOrder",
    "batch_size_of",
    "boa_loader",
    "digest",
    "drop_last_of",
    "order_of",
    "original_loader",
]
