"""The rows that a batch shows by the shape of its tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def leading_sizes(batch: Any) -> set[int]:
    """The leading sizes of all tensors in a batch; tensors without dimensions have none."""
    return {len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim}
