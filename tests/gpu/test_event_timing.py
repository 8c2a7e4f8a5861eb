"""Events read later tell what a synchronised clock tells, and the step itself waits for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from lightning_boa.profiling import StepClock, timeline_of

pytestmark = [
    pytest.mark.gpu,
    # torch says so where the first product on a thread of autograd finds no context, and makes one.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

STEPS = 6
ROUNDS = 3


class Work:
    """Forward and backward that keep the device busy for milliseconds."""

    def __init__(self, device: torch.device) -> None:
        large = device.type == "cuda"
        width, self.rows = (4096, 2048) if large else (256, 512)
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(8)]
        self.network = nn.Sequential(*layers).to(device)
        self.batch = torch.randn(self.rows, width, device=device)

    def loss(self) -> Tensor:
        self.network.zero_grad(set_to_none=True)
        return self.network(self.batch).square().mean()

    def forward_only(self) -> None:
        with torch.no_grad():
            self.network(self.batch)


@pytest.fixture
def work(device: torch.device) -> Work:
    work = Work(device)
    for _ in range(3):
        work.loss().backward()
    return work


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def run_step(clock: StepClock, step: int, work: Work) -> None:
    """A step as the strategy marks it, with further work where the collectives would be."""

    def after_local_backward(_: Tensor) -> None:
        Variable._execution_engine.queue_callback(lambda: clock.switch("communication"))

    clock.begin(step, work.rows, work.rows, loader_wait=0.0)
    clock.enter_compute()
    loss = work.loss()
    loss.register_hook(after_local_backward)
    loss.backward()
    work.forward_only()
    clock.switch(None)
    clock.end()


def test_events_agree_with_a_synchronized_clock(device: torch.device, work: Work) -> None:
    clock = StepClock(rank=0, timeline=timeline_of(device))
    compute, communication = [], []
    reference, reference_forward = [], []
    for _ in range(ROUNDS):
        reference += [seconds_of(lambda: work.loss().backward(), device) for _ in range(STEPS)]
        reference_forward += [seconds_of(work.forward_only, device) for _ in range(STEPS)]
        clock.interrupt()
        for step in range(STEPS):
            run_step(clock, step, work)
        records = clock.records()
        compute += [record.compute for record in records]
        communication += [record.communication for record in records]

    assert len(compute) == ROUNDS * STEPS
    assert median(compute) == pytest.approx(median(reference), rel=0.1)
    assert median(communication) == pytest.approx(median(reference_forward), rel=0.1)


def test_a_measured_step_does_not_wait_for_the_device(device: torch.device, work: Work) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU has finished what it was told")
    clock = StepClock(rank=0, timeline=timeline_of(device))
    torch.cuda.synchronize(device)
    for step in range(3):
        run_step(clock, step, work)
    assert not torch.cuda.current_stream(device).query(), "the device has nothing left to do"

    assert len(clock.records()) == 3
    assert torch.cuda.current_stream(device).query()
