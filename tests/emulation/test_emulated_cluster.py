from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_boa.emulation import EmulatedClusterBehaviour
from lightning_boa.errors import OptionError
from lightning_boa.planning import LinearTime


@dataclass
class Machine:
    """A computer whose time passes only by sleeping, by work and by being blocked."""

    now: float = 50.0
    worked: float = 7.0
    sleeps: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.sleeps.append(seconds)
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def block(self, seconds: float) -> None:
        self.now += seconds


class Busy(torch.autograd.Function):
    """The identity; its backward calls a function."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, meanwhile: Callable[[], None]) -> Tensor:
        ctx.meanwhile = meanwhile
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.meanwhile()
        return gradient, None


class Chain(nn.Module):
    """Factors that multiply one after the other; calls `in_forward` and `in_backward` meanwhile."""

    def __init__(self, factors: int = 4) -> None:
        super().__init__()
        self.factors = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(factors))
        self.unused = nn.ParameterList()
        self.in_forward: Callable[[], None] = lambda: None
        self.in_backward: Callable[[], None] = lambda: None

    def forward(self, batch: Tensor) -> Tensor:
        self.in_forward()
        product = batch
        for factor in self.factors:
            product = product * factor
        return Busy.apply(product.mean(), lambda: self.in_backward())


class Run:
    """One rank's training under an emulated cluster, as Lightning calls its hooks."""

    def __init__(self, machine: Machine, module: nn.Module, rank: int = 0, **times: Any) -> None:
        self.machine = machine
        self.module = module
        self.cluster = EmulatedClusterBehaviour(
            clock=lambda: machine.now,
            sleep=machine.sleep,
            work_clock=lambda: machine.worked,
            **times,
        )
        ranks = len(times["seconds_per_sample"])
        self.progress = SimpleNamespace(total_batch_idx=-1)
        ddp = SimpleNamespace(module=module, require_forward_param_sync=True)
        self.strategy = SimpleNamespace(model=ddp)
        self.trainer = SimpleNamespace(
            world_size=ranks, global_rank=rank, fit_loop=self.progress, strategy=self.strategy
        )
        self.cluster.setup(self.trainer, module, "fit")
        self.cluster.on_train_start(self.trainer, module)

    def step(self, rows: int = 6, backwards: int = 1) -> float:
        """Seconds that a training step of `rows` rows lasts."""
        begin = self.machine.now
        batch = torch.ones(rows, 1)
        self.progress.total_batch_idx += 1
        self.cluster.on_train_batch_start(self.trainer, self.module, batch, 0)
        for _ in range(backwards):
            self._pass(batch)
        return self.machine.now - begin

    def step_in_passes(self, *passes: int) -> float:
        """Seconds that a training step lasts whose rows run in several passes."""
        begin = self.machine.now
        batches = [torch.ones(rows, 1) for rows in passes]
        self.progress.total_batch_idx += 1
        self.cluster.on_train_batch_start(self.trainer, self.module, batches[0], 0)
        for number, (rows, batch) in enumerate(zip(passes, batches, strict=True), 1):
            self.strategy.rows_of_pass = rows
            self.strategy.has_more_passes = number < len(passes)
            self._pass(batch)
        return self.machine.now - begin

    def _pass(self, batch: Tensor) -> None:
        loss = self.module(batch)
        self.cluster.on_before_backward(self.trainer, self.module, loss)
        loss.backward()
        self.cluster.on_after_backward(self.trainer, self.module)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def last_digits(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-12, abs=0)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_a_step_lasts_its_floor_or_overhead_and_rows(
    machine: Machine, rank: int, rows: int
) -> None:
    seconds, overhead, floor = [0.5, 0.25, 0.125], [0.0, 1.0, 3.0], [4.0, 0.0, 6.0]
    run = Run(
        machine,
        Chain(),
        rank=rank,
        seconds_per_sample=seconds,
        overhead=overhead,
        floor=floor,
    )
    expected = max(floor[rank], overhead[rank] + rows * seconds[rank])

    assert run.cluster.step_seconds(rank, rows) == expected
    assert run.step(rows) == last_digits(expected)
    assert run.step(rows) == last_digits(expected)


def test_each_pass_lasts_as_a_step_of_its_rows(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[0.5], overhead=3.0, floor=4.5)

    assert run.step_in_passes(8, 7, 2) == last_digits(7.0 + 6.5 + 4.5)
    assert run.step_in_passes(4, 4) == last_digits(10.0)


def test_more_rows_than_memory_holds_raise_what_cuda_raises(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[0.5, 0.5], rows_at_once=[6, None], rank=0)
    memory = run.cluster.memory
    assert memory is not None
    run.step(4)
    assert (memory.begin_step(), memory.available()) == (0, 6)
    run.step_in_passes(6, 5)
    assert memory.peak() == 6
    run.strategy.rows_of_pass = None
    with pytest.raises(torch.OutOfMemoryError, match="7 rows, and this device holds 6"):
        run.step(7)
    assert memory.peak() == 6
    memory.begin_step()
    assert memory.peak() == 0
    assert Run(machine, Chain(), seconds_per_sample=[1.0], rows_at_once=None).cluster.memory is None


@pytest.mark.parametrize("rows", [0, 2.5, [1, 2], [0, 1, 2], "many"])
def test_rows_at_once_are_counts(rows: Any) -> None:
    with pytest.raises(OptionError, match="rows_at_once: expected a whole number"):
        EmulatedClusterBehaviour([1.0] * 3, rows_at_once=rows)


def test_a_parked_rank_takes_no_time(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[0.5], overhead=3.0, floor=4.5)
    run.strategy.rows_of_pass = 0

    assert run.step() == 0.0


def test_a_number_holds_for_every_rank(machine: Machine) -> None:
    run = Run(machine, Chain(), rank=1, seconds_per_sample=[1.0, 2.0], overhead=3, floor=20)

    assert run.step(2) == last_digits(20.0)
    assert run.step(10) == last_digits(23.0)


def test_a_throttled_step_lasts_longer_until_another_factor_follows(machine: Machine) -> None:
    throttle = {1: {4: 1.0, 2: 2.5}}
    times = {"seconds_per_sample": [1.0, 0.5], "overhead": 2.0, "floor": 4.0}
    throttled = Run(machine, Chain(), rank=1, throttle=throttle, **times)
    other = Run(machine, Chain(), rank=0, throttle=throttle, **times)

    assert [throttled.step(8) for _ in range(6)] == last_digits([6.0, 6.0, 15.0, 15.0, 6.0, 6.0])
    assert [other.step(8) for _ in range(6)] == last_digits([10.0] * 6)
    assert throttled.cluster.step_seconds(1, 2, step=3) == 10.0
    assert throttled.cluster.step_seconds(1, 2) == 4.0


def test_a_third_passes_as_the_step_begins_and_the_rest_over_the_gradients(
    machine: Machine,
) -> None:
    module = Chain(factors=4)
    run = Run(machine, module, seconds_per_sample=[1.0])
    moments: list[float] = []
    module.in_forward = lambda: moments.append(machine.now)
    for factor in module.factors:
        factor.register_post_accumulate_grad_hook(lambda _: moments.append(machine.now))
    began = machine.now
    run.step(rows=12)

    passed = [moment - began for moment in moments]
    assert passed == last_digits([4.0, 6.0, 8.0, 10.0, 12.0])
    assert machine.sleeps == last_digits([4.0, 2.0, 2.0, 2.0, 2.0])


def test_a_parameter_without_gradient_is_waited_for_once(machine: Machine) -> None:
    """The step lasts its time in full; from the next step on, only gradients that come are counted."""
    module = Chain(factors=2)
    module.unused.extend(nn.Parameter(torch.ones(1)) for _ in range(2))
    run = Run(machine, module, seconds_per_sample=[1.0])

    assert run.step(12) == last_digits(12.0)
    assert machine.sleeps == last_digits([4.0, 2.0, 2.0, 4.0])
    machine.sleeps.clear()
    assert run.step(12) == last_digits(12.0)
    assert machine.sleeps == last_digits([4.0, 4.0, 4.0])


def test_frozen_parameters_do_not_count(machine: Machine) -> None:
    module = Chain(factors=3)
    module.factors[0].requires_grad_(False)
    run = Run(machine, module, seconds_per_sample=[1.0])

    assert run.step(12) == last_digits(12.0)
    assert machine.sleeps == last_digits([4.0, 4.0, 4.0])


def test_work_in_forward_and_backward_counts(machine: Machine) -> None:
    module = Chain()
    module.in_forward = lambda: machine.work(1.5)
    module.in_backward = lambda: machine.work(0.75)
    run = Run(machine, module, seconds_per_sample=[1.0])

    assert run.step(12) == last_digits(12.0)
    assert sum(machine.sleeps) == last_digits(12.0 - 2.25)


def test_work_that_takes_longer_is_not_waited_for(machine: Machine) -> None:
    module = Chain()
    module.in_backward = lambda: machine.work(20.0)
    run = Run(machine, module, seconds_per_sample=[1.0])

    assert run.step(12) == last_digits(4.0 + 20.0)


def test_time_blocked_in_forward_comes_on_top(machine: Machine) -> None:
    module = Chain()

    def gather() -> None:
        machine.work(1.0)
        machine.block(30.0)

    module.in_forward = gather
    run = Run(machine, module, seconds_per_sample=[1.0])

    assert run.step(12) == last_digits(42.0)


def test_a_wait_before_the_module_is_entered_comes_on_top(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[1.0])
    batch = torch.ones(12, 1)
    run.cluster.on_train_batch_start(run.trainer, run.module, batch, 0)
    machine.block(30.0)
    entered = machine.now
    run.module(batch)

    assert machine.now - entered == last_digits(4.0)


def test_the_module_may_be_called_several_times_in_a_step(machine: Machine) -> None:
    module = Chain()
    run = Run(machine, module, seconds_per_sample=[1.0])
    batch = torch.ones(12, 1)
    module.in_forward = lambda: None
    run.cluster.on_train_batch_start(run.trainer, module, batch, 0)
    began = machine.now
    module(batch)
    module(batch)

    assert machine.now - began == last_digits(4.0)


def test_a_step_with_two_backwards_lasts_as_long_as_one(machine: Machine) -> None:
    """Manual optimisation: the device needs overhead + b c for the step, however it is divided."""
    run = Run(machine, Chain(), seconds_per_sample=[1.0])
    run.step(12, backwards=2)

    assert run.step(12, backwards=2) == last_digits(12.0)
    assert run.step(6, backwards=2) == last_digits(6.0)


RING = {"seconds_per_sample": [1.0, 1.0, 1.0], "bandwidth": [8.0, 2.0, 16.0], "latency": 0.25}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_reduction_takes_all_ranks_as_long_as_the_ring_with_its_slowest_link(
    machine: Machine, rank: int
) -> None:
    run = Run(machine, Chain(factors=3), rank=rank, **RING)
    assert run.cluster.exchange_seconds([0, 2], 100) == 2 * 1 * (0.25 + 100 / 2 / 8)
    assert run.cluster.exchange_seconds([1], 100) == 0.0
    exchange = 2 * 2 * (0.25 + 12 / 3 / 2)
    assert run.cluster.exchange_seconds(range(3), 12) == exchange
    assert run.step(6) == last_digits(6.0 + exchange)
    assert machine.sleeps[-1] == exchange


def test_the_exchange_comes_after_the_backward(machine: Machine) -> None:
    run = Run(machine, Chain(factors=2), **RING)
    batch = torch.ones(12, 1)
    run.cluster.on_train_batch_start(run.trainer, run.module, batch, 0)
    began = machine.now
    loss = run.module(batch)
    run.cluster.on_before_backward(run.trainer, run.module, loss)
    loss.backward()
    assert machine.now - began == last_digits(12.0)


def test_nothing_is_exchanged_inside_an_accumulation_window(machine: Machine) -> None:
    run = Run(machine, Chain(factors=3), **RING)
    run.strategy.model = SimpleNamespace(require_forward_param_sync=False)
    assert run.step(6) == last_digits(6.0)


def test_frozen_parameters_are_not_exchanged(machine: Machine) -> None:
    module = Chain(factors=3)
    module.factors[0].requires_grad_(False)
    run = Run(machine, module, **RING)
    assert run.step(6) == last_digits(6.0 + 2 * 2 * (0.25 + 8 / 3 / 2))


def test_without_ddp_only_transfers_to_a_server_pass_time(machine: Machine) -> None:
    run = Run(machine, Chain(factors=3), rank=1, **RING)
    run.strategy.model = run.module
    assert run.step(6) == last_digits(6.0)
    before = machine.now
    run.cluster.transfer(12)
    assert machine.now - before == last_digits(0.25 + 12 / run.cluster.bandwidth[1])


def test_a_rank_that_steps_by_itself_is_throttled_by_its_own_steps(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[1.0], throttle={0: {2: 3.0}})
    run.strategy.emulated_step = 1
    assert run.step(6) == last_digits(6.0)
    run.strategy.emulated_step = 2
    assert run.step(6) == last_digits(18.0)


def test_a_single_device_exchanges_nothing(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[1.0], bandwidth=2.0, latency=1.0)
    assert run.step(6) == last_digits(6.0)


def test_an_exchange_that_is_asked_for_passes_its_time(machine: Machine) -> None:
    run = Run(machine, Chain(), **RING)
    before = machine.now
    run.cluster.exchange((0, 2), 100)
    assert machine.now - before == last_digits(13.0)


def test_evaluation_costs_nothing(machine: Machine) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[1.0])
    run.step(12)
    before = machine.now
    run.module(torch.ones(100, 1))

    assert machine.now == before


def release_by_teardown(run: Run) -> None:
    run.cluster.teardown(run.trainer, run.module, "fit")


def release_by_exception(run: Run) -> None:
    run.cluster.on_exception(run.trainer, run.module, KeyboardInterrupt())


@pytest.mark.parametrize("release", [release_by_teardown, release_by_exception])
@pytest.mark.parametrize("inside_a_step", [False, True])
def test_nothing_is_left_on_the_module(
    machine: Machine, release: Callable[[Run], None], inside_a_step: bool
) -> None:
    run = Run(machine, Chain(), seconds_per_sample=[1.0])
    run.step(12)
    if inside_a_step:
        run.cluster.on_train_batch_start(run.trainer, run.module, torch.ones(12, 1), 0)
    release(run)
    before = machine.now
    run.module(torch.ones(12, 1)).backward()

    assert machine.now == before


def test_a_second_training_is_spread_as_the_first(machine: Machine) -> None:
    module = Chain(factors=4)
    run = Run(machine, module, seconds_per_sample=[1.0])
    run.step(12)
    run.cluster.on_train_start(run.trainer, module)
    moments: list[float] = []
    for factor in module.factors:
        factor.register_post_accumulate_grad_hook(lambda _: moments.append(machine.now))
    began = machine.now

    assert run.step(12) == last_digits(12.0)
    assert [moment - began for moment in moments] == last_digits([6.0, 8.0, 10.0, 12.0])


def test_the_module_can_be_copied_while_it_trains(machine: Machine) -> None:
    """Weight averaging copies the module with its hooks; the copy's backward is nobody's step."""
    run = Run(machine, Chain(), seconds_per_sample=[1.0])
    run.step(12)
    copied = copy.deepcopy(run.module)
    before = machine.now
    copied(torch.ones(12, 1)).backward()

    assert machine.now == before
    assert all(one.grad is not None for one in copied.factors)
    assert run.step(12) == last_digits(12.0)


def test_gradients_are_not_changed(machine: Machine) -> None:
    module = Chain()
    Run(machine, module, seconds_per_sample=[1.0]).step(8)

    assert [factor.grad.item() for factor in module.factors] == [1.0] * 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("seconds_per_sample", {"seconds_per_sample": [1.0, -1.0]}),
        ("seconds_per_sample", {"seconds_per_sample": [1.0, float("nan")]}),
        ("seconds_per_sample", {"seconds_per_sample": [1.0, float("inf")]}),
        ("overhead", {"seconds_per_sample": [1.0, 1.0], "overhead": -0.5}),
        ("overhead", {"seconds_per_sample": [1.0, 1.0], "overhead": [0.0, float("nan")]}),
        ("overhead", {"seconds_per_sample": [1.0, 1.0], "overhead": [0.5]}),
        ("overhead", {"seconds_per_sample": [1.0, 1.0], "overhead": [0.5, 0.5, 0.5]}),
        ("floor", {"seconds_per_sample": [1.0, 1.0], "floor": float("nan")}),
        ("floor", {"seconds_per_sample": [1.0, 1.0], "floor": [0.5]}),
        ("floor", {"seconds_per_sample": [1.0, 1.0], "floor": [0.0, -0.1]}),
        ("names", {"seconds_per_sample": [1.0, 1.0], "names": ["fast"]}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {1: {5: 2.0}}}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {-1: {5: 2.0}}}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {"0": {5: 2.0}}}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {0: (5, 2.0)}}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {0: {-5: 2.0}}}),
        ("seconds_per_sample", {"seconds_per_sample": [LinearTime(0.1, 0.01)]}),
        ("overhead", {"seconds_per_sample": [1.0], "overhead": ["much"]}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {0: {2.5: 2.0}}}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {0: {5: 0.0}}}),
        ("throttle", {"seconds_per_sample": [1.0], "throttle": {0: {5: float("nan")}}}),
        ("names", {"seconds_per_sample": [1.0], "names": ["fast", "slow"]}),
        ("bandwidth", {"seconds_per_sample": [1.0], "bandwidth": 0.0}),
        ("bandwidth", {"seconds_per_sample": [1.0], "bandwidth": [5.0, 5.0]}),
        ("bandwidth", {"seconds_per_sample": [1.0, 1.0], "bandwidth": [5.0, float("nan")]}),
        ("latency", {"seconds_per_sample": [1.0], "latency": -1.0}),
        ("latency", {"seconds_per_sample": [1.0], "latency": float("inf")}),
    ],
)
def test_a_bad_option_is_named(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"^{name}: "):
        EmulatedClusterBehaviour(**options)


def test_a_cluster_without_devices_is_refused_by_its_option() -> None:
    with pytest.raises(OptionError, match=r"^seconds_per_sample: "):
        EmulatedClusterBehaviour(seconds_per_sample=[])


def test_as_many_devices_as_ranks(machine: Machine) -> None:
    cluster = EmulatedClusterBehaviour(seconds_per_sample=[1.0, 1.0])
    with pytest.raises(OptionError, match=r"^seconds_per_sample: .*\(3\), got 2"):
        cluster.setup(SimpleNamespace(world_size=3, global_rank=0), Chain(), "fit")


def test_lists_of_omegaconf_are_lists() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    cluster = EmulatedClusterBehaviour(
        seconds_per_sample=omegaconf.ListConfig([1.0, 2]),
        overhead=omegaconf.ListConfig([0, 0.5]),
        names=omegaconf.ListConfig(["fast", "slow"]),
    )

    assert cluster.step_seconds(1, 3) == 6.5
    assert cluster.names == ("fast", "slow")
