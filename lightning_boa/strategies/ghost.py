"""A step of a rank that has no rows: it takes part in every collective and leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric


@contextmanager
def untraced(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Put back random states and the states of torchmetrics once the block is over."""
    put_back = [remember_random_states(device), *remember_metrics(module)]
    try:
        yield
    finally:
        for restore in put_back:
            restore()


def remember_buffers(module: nn.Module, except_for: Iterable[Tensor] = ()) -> Callable[[], None]:
    """Copy the module's buffers, but for some; the returned function puts them back."""
    left_out = {id(buffer) for buffer in except_for}
    saved = [
        (part, name, buffer, buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
        if id(buffer) not in left_out
    ]

    def restore() -> None:
        with torch.no_grad():
            for part, name, buffer, before in saved:
                setattr(part, name, buffer)
                buffer.copy_(before)

    return restore


def without_gradient(loss: Tensor) -> Tensor:
    """A loss whose gradient is zero, also where the loss itself is not a number.

    Cuts off what would reach other ranks through collectives inside the graph.
    """
    never = torch.zeros_like(loss, dtype=torch.bool)
    return torch.where(never, loss, torch.zeros_like(loss))


@contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """In a backward inside the block every parameter's gradient is zero, also where the loss is not a number.

    Cut off at the parameters too and not at the loss alone: zero times infinity inside the chain is not a number.
    """
    handles = [
        parameter.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
        for parameter in module.parameters()
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def remember_random_states(device: torch.device) -> Callable[[], None]:
    """Copy the states of the generators of torch, numpy and random; the returned function puts them back."""
    host, numpy_state, python_state = (
        torch.get_rng_state(),
        np.random.get_state(),
        random.getstate(),
    )
    accelerator = None if device.type == "cpu" else getattr(torch, device.type)
    on_device = None if accelerator is None else accelerator.get_rng_state(device)

    def restore() -> None:
        torch.set_rng_state(host)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if accelerator is not None:
            accelerator.set_rng_state(on_device, device)

    return restore


def remember_metrics(module: nn.Module) -> list[Callable[[], None]]:
    """Copy the states of the module's torchmetrics; the returned functions put them back."""
    return [_remember_metric(part) for part in module.modules() if isinstance(part, Metric)]


def _remember_metric(metric: Metric) -> Callable[[], None]:
    """A list state that was empty keeps a tensor of no rows, so that its rank takes part when states are gathered; and
    a value that ranks have computed together stays, since the others would not gather again.
    """
    saved = {name: _copy(getattr(metric, name)) for name in metric._defaults}
    count, computed = metric._update_count, metric._computed

    def restore() -> None:
        for name, before in saved.items():
            now = getattr(metric, name)
            if isinstance(before, list) and not before and now:
                before = [now[0][:0]] if isinstance(now[0], Tensor) and now[0].ndim else before
            setattr(metric, name, before)
        metric._update_count = count
        here: Any = metric._computed
        of_all_ranks = here is not None and metric.sync_on_compute and dist.is_initialized()
        metric._computed = here if of_all_ranks else computed

    return restore


def _copy(state: Any) -> Any:
    return list(state) if isinstance(state, list) else state.detach().clone()
