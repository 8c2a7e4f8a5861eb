"""One global order of a data set, and each rank's share of every step of it.

Plain `torch.utils.data`: nothing here knows Lightning, a process group or a plan.
"""

from __future__ import annotations

from lightning_boa.data.loader import boa_loader, loader_of, original_loader
from lightning_boa.data.order import (
    GlobalOrder,
    Indices,
    SampledOrder,
    SequentialOrder,
    ShuffledOrder,
    as_list,
    digest,
    length_of,
    order_of,
)
from lightning_boa.data.sampler import EpochSetter, Share, ShareBatchSampler, cut
from lightning_boa.data.source import (
    BatchSource,
    RowSource,
    Source,
    is_stream,
    makes_single_batches,
    source_of,
)
from lightning_boa.data.steps import BatchListSteps, EvenSteps, Steps
from lightning_boa.data.stream import RowRequests, Together, can_be_planned, stream_loader

__all__ = [
    "BatchListSteps",
    "BatchSource",
    "EpochSetter",
    "EvenSteps",
    "GlobalOrder",
    "Indices",
    "RowRequests",
    "RowSource",
    "SampledOrder",
    "SequentialOrder",
    "Share",
    "ShareBatchSampler",
    "ShuffledOrder",
    "Source",
    "Steps",
    "Together",
    "as_list",
    "boa_loader",
    "can_be_planned",
    "cut",
    "digest",
    "is_stream",
    "length_of",
    "loader_of",
    "makes_single_batches",
    "order_of",
    "original_loader",
    "source_of",
    "stream_loader",
]
