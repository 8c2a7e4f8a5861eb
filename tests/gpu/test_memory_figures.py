"""Peak bytes are linear enough in the rows: two sizes foretell the peak of a third."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lightning_boa.profiling import MemoryProfile, memory_profile_of
from lightning_boa.profiling.memory import MEMORY_SHARE, CudaMemoryGauge, MemoryGauge

pytestmark = [
    pytest.mark.gpu,
    # torch says so where the first product on a thread of autograd finds no context, and makes one.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

WIDTH = 1024
SMALLER, LARGER, THIRD = 8192, 10240, 16384
REPEATS = 3


def training_step(device: torch.device) -> Callable[[int], None]:
    """A step of Adam on a network whose activations outweigh its parameters."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(8)]
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters())

    def step(rows: int) -> None:
        batch = torch.randn(rows, WIDTH, device=device)
        network(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Limited:
    """A gauge of a device that has `bytes` and no more."""

    def __init__(self, gauge: MemoryGauge) -> None:
        self._gauge = gauge
        self.bytes = 0

    def begin_step(self) -> int:
        return self._gauge.begin_step()

    def peak(self) -> int:
        return self._gauge.peak()

    def available(self) -> int:
        return self.bytes


def rows_foretold(gauge: MemoryGauge, step: Callable[[int], None], scale: float = 1.0) -> int:
    """Rows that are said to fit where exactly THIRD rows fit, from steps of the other two sizes."""
    limited = Limited(gauge)
    profile = MemoryProfile(limited)
    for rows in [int(SMALLER * scale)] * REPEATS + [int(LARGER * scale)] * REPEATS:
        profile.begin_step()
        step(rows)
        profile.end_step(rows)
    limited.begin_step()
    step(int(THIRD * scale))
    limited.bytes = int(limited.peak() / MEMORY_SHARE) + 1
    cap = profile.row_cap()
    assert cap is not None
    return cap


def test_two_sizes_foretell_a_third(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU has no memory of its own")
    foretold = rows_foretold(CudaMemoryGauge(device), training_step(device))

    assert foretold == pytest.approx(THIRD, rel=0.1)


def test_the_foretelling_itself(device: torch.device) -> None:
    """With a device that needs 64 KiB a row, on any machine."""
    step = training_step(torch.device("cpu"))
    last = [0]

    class Linear:
        def begin_step(self) -> int:
            return 2**20

        def peak(self) -> int:
            return 2**20 + 2**16 * last[0]

        def available(self) -> int:
            raise AssertionError("the limit stands for it")

    def remembered(rows: int) -> None:
        last[0] = rows
        step(rows)

    assert rows_foretold(Linear(), remembered, scale=1 / 128) == THIRD // 128


def test_the_devices_own_figures(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU has no memory of its own")
    profile = memory_profile_of(device)
    assert profile is not None
    step = training_step(device)
    for rows in (SMALLER, SMALLER, LARGER, LARGER):
        profile.begin_step()
        step(rows)
        profile.end_step(rows)
    available = profile.gauge.available()

    total = torch.cuda.get_device_properties(device).total_memory
    assert torch.cuda.memory_reserved(device) <= available <= total
    cap = profile.row_cap()
    assert cap is not None
    activations_of_a_row = 8 * WIDTH * 4
    assert LARGER < cap < available / activations_of_a_row
