"""How fast a device is in a small training step that is nobody's model."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from lightning_boa.cli.doctor.facts import Speed
from lightning_boa.profiling import timeline_of

BLOCKS = 9
WARM_SECONDS = 0.5
MEASURED_SECONDS = 1.5
CHANNELS, PIXELS = 64, 32


def speed_of(device: torch.device, rows: int = 256, seconds: float = MEASURED_SECONDS) -> Speed:
    """Forward and backward of two convolutions (64 channels, 32 x 32 pixels, float32), repeated for some two seconds.

    Args:
        device: what computes.
        rows: of a step.
        seconds: for all blocks together; a third as long is not counted before.
    """
    step = _step(device, rows)
    timeline = timeline_of(device)

    def timed(steps: int) -> float:
        begin = timeline.mark()
        for _ in range(steps):
            step()
        end = timeline.mark()
        timeline.settle(end)
        return timeline.seconds(begin, end) / steps

    warm_until = time.monotonic() + seconds * WARM_SECONDS / MEASURED_SECONDS
    one = timed(1)
    while time.monotonic() < warm_until:
        one = timed(1)
    steps = max(1, int(seconds / BLOCKS / max(one, 1e-6)))
    rates = [rows / timed(steps) for _ in range(BLOCKS)]
    middle = median(rates)
    return Speed(middle, median(abs(rate - middle) for rate in rates) / middle)


def _step(device: torch.device, rows: int) -> Callable[[], None]:
    pictures = torch.randn(rows, CHANNELS, PIXELS, PIXELS, device=device)
    model = nn.Sequential(
        nn.Conv2d(CHANNELS, CHANNELS, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, kernel_size=3, padding=1),
    ).to(device)

    def step() -> None:
        model.zero_grad()
        model(pictures).mean().backward()

    return step
