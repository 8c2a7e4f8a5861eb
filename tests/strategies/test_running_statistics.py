"""Running statistics over the rows of all ranks, with ranks as threads and as one DDP module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lightning_boa.strategies.running_statistics import RunningStatistics
from tests.profiling.threaded_ranks import ThreadedRanks

CPU = torch.device("cpu")
ROWS = (2, 0, 5)


class Ranks(ThreadedRanks):
    """Knows how to reduce in the background."""

    class Done:
        def wait(self) -> None: ...

    def all_reduce(self, tensor: Tensor, async_op: bool = False) -> Done:
        super().all_reduce(tensor)
        return self.Done()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(3, monkeypatch)


def norm(kind: Any = nn.BatchNorm1d, **options: Any) -> Any:
    """A layer of four features whose statistics are not those of a new one."""
    layer = kind(4, **options)
    layer.running_mean.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
    layer.running_var.fill_(3.0)
    return layer


def rows_of_rank(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(max(2, ROWS[rank]), 4, generator=generator, dtype=dtype) + rank


def step(three: Ranks, layers: list[Any], inputs: list[Tensor]) -> None:
    """One step in which every rank runs its layer once."""

    def of_rank(rank: int) -> None:
        statistics = RunningStatistics([layers[rank]], CPU)
        layers[rank](inputs[rank])
        statistics.begin(ROWS[rank])
        statistics.finish()

    assert three.run(of_rank) == [None] * 3


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_statistics_are_those_of_all_rows(three: Ranks, momentum: float | None) -> None:
    layers = [norm(momentum=momentum) for _ in range(3)]
    for layer in layers:
        layer.num_batches_tracked.fill_(3)
    inputs = [rows_of_rank(rank) for rank in range(3)]
    before = norm()
    step(three, layers, inputs)

    weight = momentum if momentum is not None else 1 / 4
    own = [(rows.mean(0), rows.var(0)) for rows in inputs]
    for layer in layers:
        for place, value in enumerate((layer.running_mean, layer.running_var)):
            seen = (2 * own[0][place] + 5 * own[2][place]) / 7
            start = (before.running_mean, before.running_var)[place]
            torch.testing.assert_close(value, (1 - weight) * start + weight * seen)
        assert layer.num_batches_tracked.item() == 4
    assert three.collectives == ["all_reduce"]


def test_a_rank_without_rows_may_have_no_number(three: Ranks) -> None:
    layers = [norm() for _ in range(3)]
    inputs = [rows_of_rank(rank) for rank in range(3)]
    inputs[1][0] = float("nan")
    step(three, layers, inputs)

    assert all(layer.running_mean.isfinite().all() for layer in layers)


def test_a_rank_with_rows_is_not_hidden(three: Ranks) -> None:
    layers = [norm() for _ in range(3)]
    inputs = [rows_of_rank(rank) for rank in range(3)]
    inputs[2][0] = float("nan")
    step(three, layers, inputs)

    assert all(layer.running_mean.isnan().all() for layer in layers)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float16, 1e-3)])
def test_every_type_is_averaged_as_exactly_as_it_can_be(
    three: Ranks, dtype: torch.dtype, tolerance: float
) -> None:
    layers = [norm().to(dtype) for _ in range(3)]
    alone = [norm().to(dtype) for _ in range(3)]
    inputs = [rows_of_rank(rank, torch.float32).to(dtype) for rank in range(3)]
    for rank in range(3):
        alone[rank](inputs[rank])
    step(three, layers, inputs)

    expected = (alone[0].running_var.double() * 2 + alone[2].running_var.double() * 5) / 7
    for layer in layers:
        assert layer.running_var.dtype == dtype
        torch.testing.assert_close(
            layer.running_var.double(), expected, rtol=tolerance, atol=tolerance
        )


def test_many_layers_of_many_kinds_travel_together(three: Ranks) -> None:
    models = [
        nn.ModuleList([norm(), norm(nn.InstanceNorm1d, track_running_stats=True), norm()])
        for _ in range(3)
    ]
    rows = [torch.randn(max(2, ROWS[rank]), 4, 6) for rank in range(3)]

    def of_rank(rank: int) -> None:
        statistics = RunningStatistics(list(models[rank]), CPU)
        for layer in models[rank]:
            layer(rows[rank])
        statistics.begin(ROWS[rank])
        statistics.finish()

    assert three.run(of_rank) == [None] * 3
    assert three.collectives == ["all_reduce"]
    together = norm(nn.InstanceNorm1d, track_running_stats=True)
    together(torch.cat([rows[0], rows[2]]))
    for model in models:
        torch.testing.assert_close(model[1].running_mean, together.running_mean)
        torch.testing.assert_close(model[1].running_var, together.running_var)


def test_layers_in_evaluation_are_left_as_they_are_to_the_last_bit(three: Ranks) -> None:
    layers = [norm() for _ in range(3)]
    before = torch.tensor([0.1, 1 / 3, 2 / 7, 5.0])
    for layer in layers:
        layer.running_mean.copy_(before)
        layer.eval()
    step(three, layers, [rows_of_rank(rank) for rank in range(3)])

    assert all(torch.equal(layer.running_mean, before) for layer in layers)
    assert three.collectives == []


def test_a_layer_that_is_in_evaluation_again_has_run(three: Ranks) -> None:
    layers = [norm() for _ in range(3)]
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: layer.eval())
    step(three, layers, [rows_of_rank(rank) for rank in range(3)])

    assert three.collectives == ["all_reduce"]
    assert torch.equal(layers[0].running_mean, layers[2].running_mean)


def test_a_frozen_layer_beside_one_that_runs_stays(three: Ranks) -> None:
    models = [nn.ModuleList([norm().eval(), norm()]) for _ in range(3)]
    before = torch.tensor([0.1, 1 / 3, 2 / 7, 5.0])
    for model in models:
        model[0].running_mean.copy_(before)

    def of_rank(rank: int) -> None:
        statistics = RunningStatistics(list(models[rank]), CPU)
        for layer in models[rank]:
            layer(rows_of_rank(rank))
        statistics.begin(ROWS[rank])
        statistics.finish()

    assert three.run(of_rank) == [None] * 3
    assert all(torch.equal(model[0].running_mean, before) for model in models)
    assert torch.equal(models[0][1].running_mean, models[1][1].running_mean)


def test_a_graph_that_needs_the_layer_is_not_disturbed(three: Ranks) -> None:
    layers = [norm() for _ in range(3)]

    def of_rank(rank: int) -> None:
        statistics = RunningStatistics([layers[rank]], CPU)
        output = layers[rank](rows_of_rank(rank))
        statistics.begin(ROWS[rank])
        statistics.finish()
        output.square().sum().backward()

    assert three.run(of_rank) == [None] * 3


class Mixed(nn.Module):
    """Layers that track statistics, one that does not, one that is used twice, and a buffer of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(4)
        self.again = self.first
        self.second = nn.BatchNorm2d(2)
        self.untracked = nn.BatchNorm1d(4, track_running_stats=False)
        self.register_buffer("steps", torch.zeros(1))


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # DDP would leave its own behind
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddp_broadcasts_the_other_buffers_alone(process_group: None) -> None:
    ddp = DistributedDataParallel(Mixed())
    statistics = RunningStatistics.instead_of_broadcast(ddp)

    assert statistics is not None
    assert len(list(statistics.buffers())) == 6
    assert list(ddp.named_module_buffers) == ["steps"]
    assert not hasattr(ddp.module, "_ddp_params_and_buffers_to_ignore")


def test_ddp_has_nothing_left_to_broadcast(process_group: None) -> None:
    ddp = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(4)))
    assert ddp.will_sync_module_buffers()
    RunningStatistics.instead_of_broadcast(ddp)

    assert not ddp.will_sync_module_buffers()


def test_what_the_user_has_excluded_stays_with_each_rank(process_group: None) -> None:
    module = Mixed()
    excluded = ["second.running_mean", "second.running_var", "second.num_batches_tracked"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, excluded)
    ddp = DistributedDataParallel(module)
    statistics = RunningStatistics.instead_of_broadcast(ddp)

    assert statistics is not None
    assert {id(buffer) for buffer in statistics.buffers()} == {
        id(buffer) for buffer in module.first.buffers()
    }
    assert set(excluded) < ddp.parameters_to_ignore


def test_nothing_to_do_costs_nothing(process_group: None) -> None:
    linear = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
    untracked = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)))
    kept_by_each = DistributedDataParallel(
        nn.Sequential(nn.BatchNorm1d(4)), forward_sync_buffers=False
    )

    assert RunningStatistics.instead_of_broadcast(linear) is None
    assert RunningStatistics.instead_of_broadcast(untracked) is None
    assert RunningStatistics.instead_of_broadcast(kept_by_each) is None
    assert kept_by_each.parameters_to_ignore == set()
