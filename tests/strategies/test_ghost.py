"""A rank without rows leaves no trace: random states, metrics, buffers, gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import CatMetric, MeanMetric, Metric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryPrecision, BinaryRecall

from lightning_boa.strategies import ghost

CPU = torch.device("cpu")


class Holder(nn.Module):
    """A user's module with metrics somewhere inside."""

    def __init__(self, *metrics: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(metrics)


def draw() -> list[float]:
    return [torch.rand(1).item(), np.random.rand(), random.random()]


def test_random_states_are_put_back() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    draw()
    expected_state = torch.get_rng_state()
    with ghost.untraced(nn.Module(), CPU):
        inside = draw()
        draw()
        torch.manual_seed(99)
        np.random.seed(99)
        random.seed(99)

    assert torch.equal(torch.get_rng_state(), expected_state)
    assert draw() == inside


def test_everything_is_put_back_when_the_step_fails() -> None:
    metric = SumMetric()
    metric.update(3.0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with suppress(RuntimeError), ghost.untraced(Holder(metric), CPU):
        metric.update(5.0)
        torch.rand(1)
        raise RuntimeError("inside")

    assert metric.compute() == 3.0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("kind", "first", "second", "all_of_it"),
    [
        (SumMetric, [2.0], [4.0], 6.0),
        (MeanMetric, [2.0, 4.0], [9.0], 5.0),
    ],
)
def test_sums_and_means_do_not_see_the_step(
    kind: type[Metric], first: list[float], second: list[float], all_of_it: float
) -> None:
    metric = kind()
    for values in (first, second):
        metric(torch.tensor(values))
        with ghost.untraced(Holder(metric), CPU):
            metric(torch.tensor([1000.0]))
            metric.update(torch.tensor([1000.0, float("inf")]))

    assert metric.compute() == all_of_it
    assert metric.update_count == 2


@pytest.mark.parametrize("kind", [SumMetric, MeanMetric])
def test_a_ghost_may_come_first(kind: type[Metric]) -> None:
    metric = kind()
    with ghost.untraced(Holder(metric), CPU):
        metric(torch.tensor([1000.0]))
    metric(torch.tensor(4.0))

    assert metric.compute() == 4.0


class MeanOfUpdates(Metric):
    """torchmetrics weighs such a state by the number of updates."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, value: Tensor) -> None:
        self.value = value

    def compute(self) -> Tensor:
        return self.value


def test_a_ghost_that_came_first_has_no_weight() -> None:
    metric = MeanOfUpdates()
    with ghost.untraced(Holder(metric), CPU):
        metric(torch.tensor(1000.0))
    metric(torch.tensor(4.0))

    assert metric.compute() == 4.0


def test_lists_of_rows_do_not_see_the_step() -> None:
    metric = CatMetric()
    metric.update(torch.tensor([1.0, 2.0]))
    with ghost.untraced(Holder(metric), CPU):
        metric.update(torch.tensor([50.0]))
        metric.update(torch.tensor([60.0]))
    metric.update(torch.tensor([3.0]))

    assert metric.compute().tolist() == [1.0, 2.0, 3.0]
    assert metric.update_count == 2


def test_a_list_that_was_empty_keeps_a_tensor_of_no_rows() -> None:
    """Its rank takes part when states are gathered, with the right kind and width."""
    metric = CatMetric()
    with ghost.untraced(Holder(metric), CPU):
        metric.update(torch.tensor([50.0, 60.0]))

    (kept,) = metric.metric_state["value"]
    assert kept.shape == (0,)
    assert kept.dtype == torch.float32
    metric.update(torch.tensor([3.0, 4.0]))
    assert metric.compute().tolist() == [3.0, 4.0]


def test_a_metric_that_the_step_leaves_alone_stays_as_it_was() -> None:
    untouched, updated = SumMetric(), SumMetric()
    updated.update(1.0)
    updated.update(2.0)
    with ghost.untraced(Holder(untouched, updated), CPU):
        pass

    assert untouched.update_count == 0
    assert updated.update_count == 2


def test_a_computed_value_is_kept() -> None:
    metric = SumMetric()
    metric.update(3.0)
    computed = metric.compute()
    with ghost.untraced(Holder(metric), CPU):
        metric.update(4.0)
        assert metric.compute() == 7.0

    assert metric.compute() == computed == 3.0


def test_a_reset_inside_the_step_is_undone() -> None:
    total, rows = SumMetric(), CatMetric()
    total.update(3.0)
    rows.update(torch.tensor([1.0, 2.0]))
    with ghost.untraced(Holder(total, rows), CPU):
        total.reset()
        rows.reset()

    assert total.compute() == 3.0
    assert rows.compute().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("ghosts", [(0,), (1,), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("call", ["update", "forward"])
def test_metrics_that_share_their_states_stay_right(ghosts: tuple[int, ...], call: str) -> None:
    def result(of: tuple[int, ...]) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        metrics = MetricCollection([BinaryPrecision(), BinaryRecall()])
        for step in range(4):
            if step in of:
                with ghost.untraced(Holder(metrics), CPU):
                    getattr(metrics, call)(torch.tensor([0.9, 0.1]), torch.tensor([0, 1]))
            scores = torch.rand(8, generator=generator)
            getattr(metrics, call)(scores, (torch.rand(8, generator=generator) > 0.5).long())
        return metrics.compute()

    assert result(ghosts) == result(())


def test_buffers_are_put_back() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    restore = ghost.remember_buffers(module)
    module(torch.randn(2, 3))
    assert module[0].num_batches_tracked == 1
    restore()

    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


class Average(nn.Module):
    """Assigns its buffer anew, as running averages are often written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(2))

    def forward(self, rows: Tensor) -> None:
        self.average = 0.5 * self.average + 0.5 * rows.mean(0)


def test_buffers_that_were_assigned_anew_are_put_back() -> None:
    module = Average()
    restore = ghost.remember_buffers(module)
    module(torch.ones(3, 2))
    restore()

    assert module.average.tolist() == [0.0, 0.0]


def gradients_of(loss_of: Callable[[Tensor], Tensor]) -> list[float]:
    module = nn.Module()
    module.parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    module.frozen = nn.Parameter(torch.tensor([1.0]), requires_grad=False)
    loss = loss_of(module.parameter)
    with ghost.without_gradients(module):
        loss.backward()
    assert module.parameter.grad is not None
    return module.parameter.grad.tolist()


def test_a_finite_loss_loses_its_gradient() -> None:
    assert gradients_of(lambda p: p.square().sum()) == [0.0, 0.0]


def test_gradients_gathered_before_stay_and_later_ones_come_through() -> None:
    module = nn.Linear(2, 1, bias=False)
    rows = torch.tensor([[3.0, 4.0]])
    module(rows).sum().backward()
    with ghost.without_gradients(module):
        module(100 * rows).sum().backward()
    assert module.weight.grad.tolist() == [[3.0, 4.0]]
    module(rows).sum().backward()
    assert module.weight.grad.tolist() == [[6.0, 8.0]]


@pytest.mark.parametrize(
    "loss_of",
    [
        pytest.param(lambda p: p.sum() * float("nan"), id="times nan"),
        pytest.param(lambda p: p.sum() * float("inf"), id="times inf"),
        pytest.param(lambda p: torch.log(p * 0).sum(), id="logarithm of zero"),
        pytest.param(lambda p: torch.sqrt(p - p).sum(), id="root of zero"),
        pytest.param(lambda p: (p / 0).sum(), id="division by zero"),
        pytest.param(lambda p: (p * torch.ones(2)).expand(2, 2).var(0).sqrt().sum(), id="spread"),
    ],
)
def test_a_loss_that_is_no_number_gives_no_gradient(loss_of: Any) -> None:
    """A ghost's two rows may be the same row twice: their spread is zero, its root has no gradient."""
    assert gradients_of(loss_of) == [0.0, 0.0]
