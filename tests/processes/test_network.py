"""A network that dominates the step is found out, named and advised about; a fast one is left alone.

Time is virtual, so nothing depends on the machine's speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch.distributed as dist

from lightning_boa import BoaStrategy, EmulatedCluster
from lightning_boa.planning import LinearTime, NetworkFindings, Orchestration, plan_batches
from lightning_boa.profiling import HostTimeline, NetworkProbe, StepClock
from tests.processes.ranks import run_ranks
from tests.processes.test_rebalancing import listening
from tests.processes.training import (
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    train_alone,
    trainer_options,
    with_options,
)
from tests.processes.virtual_time import VirtualTime

pytestmark = pytest.mark.full

RANKS = 4
ROWS = 80
DEVICES = (
    LinearTime(2.0, 1.0),
    LinearTime(2.0, 1.0),
    LinearTime(4.0, 2.0),
    LinearTime(0.0, 4.0),
)
GRADIENT_BYTES = 520
SLOW_RANK = 1
TRAINING = Training(rows=ROWS * 59 + 7, global_batch_size=ROWS, epochs=1, schedules=False)
IN_WINDOWS = with_options(TRAINING, trainer={"accumulate_grad_batches": 2})


class InVirtualTime(BoaStrategy):
    """Measures by a clock that the test moves, and counts its probes."""

    time: VirtualTime
    probes = 0

    def new_clock(self) -> StepClock:
        return StepClock(self.global_rank, HostTimeline(self.time), clock=self.time)

    def new_network_probe(self) -> NetworkProbe | None:
        if super().new_network_probe() is None:
            return None
        return CountingProbe(self, HostTimeline(self.time))


class CountingProbe(NetworkProbe):
    def __init__(self, strategy: InVirtualTime, timeline: HostTimeline) -> None:
        super().__init__(strategy.root_device, timeline)
        self.strategy = strategy

    def seconds(self, *arguments: Any) -> tuple[float, ...]:
        self.strategy.probes += 1
        return super().seconds(*arguments)


@dataclass(frozen=True)
class Scene:
    """A training over an emulated network; bandwidth in bytes per second."""

    bandwidth: float | tuple[float, ...]
    latency: float = 0.0
    training: Training = TRAINING
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def window(self) -> int:
        return int(self.training.trainer.get("accumulate_grad_batches", 1))

    def exchange_seconds(self, *ranks: int) -> float:
        """Seconds of a ring of these ranks."""
        links = self.bandwidth if isinstance(self.bandwidth, tuple) else (self.bandwidth,) * RANKS
        slowest = min(links[rank] for rank in ranks)
        size = len(ranks)
        return 2 * (size - 1) * (self.latency + GRADIENT_BYTES / size / slowest)


ONE_SLOW = (1000.0, 10.0, 1000.0, 1000.0)
SLOW_LINK = Scene(ONE_SLOW)
SCENES = {
    "slow link": SLOW_LINK,
    "slow link, to be tuned": Scene(ONE_SLOW, options={"worker_set": "auto"}),
    "slow link, not asked": Scene(ONE_SLOW, options={"worker_set": "all"}),
    "slow everywhere": Scene(100.0, latency=10.0),
    "in windows of two batches": Scene((1000.0, 1000.0, 1000.0, 26.0), training=IN_WINDOWS),
    "a tenth of a step": Scene(200.0),
    "fast": Scene(2000.0),
    "none": Scene(math.inf),
}
ADVISED = ("slow link", "slow link, to be tuned")
SILENT = ("a tenth of a step", "fast", "none")


@dataclass(frozen=True)
class Played:
    outcome: Outcome
    orchestration: Orchestration
    network: NetworkFindings | None
    probes: int
    said: list[str]
    relaunched: tuple[int, int] | None


def gone_on_with(path: Path) -> tuple[int, int]:
    """Rows of a step and the number of all steps, where the checkpoint is gone on with."""
    quiet()
    trainer = pl.Trainer(
        strategy=BoaStrategy(worker_set="all"), devices=RANKS, **trainer_options(TRAINING)
    )
    trainer.fit(
        Regression(schedules=False),
        *loaders(TRAINING, 20),
        ckpt_path=str(path),
        weights_only=False,
    )
    return trainer.strategy.plan.global_batch_size, trainer.global_step


def play(scene: Scene) -> Played:
    module = Regression(schedules=False)
    time = VirtualTime()
    cluster = EmulatedCluster(
        [model.seconds_per_sample for model in DEVICES],
        [model.overhead for model in DEVICES],
        bandwidth=scene.bandwidth,
        latency=scene.latency,
        clock=time,
        sleep=time.sleep,
        work_clock=lambda: 0.0,
    )
    with listening() as said:
        pl.seed_everything(scene.training.seed)
        strategy = InVirtualTime(global_batch_size=ROWS, **scene.options)
        strategy.time = time
        trainer = pl.Trainer(
            strategy=strategy,
            devices=RANKS,
            callbacks=[cluster],
            **trainer_options(scene.training),
        )
        trainer.fit(module, *loaders(scene.training, 20))
    assert strategy.orchestration is not None
    path = Path("boa-relaunch.ckpt")
    relaunched = gone_on_with(path) if path.exists() else None
    trainer.strategy.barrier()
    path.unlink(missing_ok=True)
    return Played(
        outcome=outcome(trainer, module),
        orchestration=strategy.orchestration,
        network=strategy.network,
        probes=strategy.probes,
        said=said,
        relaunched=relaunched,
    )


def play_all(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with groups_made() as made:
        for name, scene in SCENES.items():
            found[name] = play(scene)
    found["groups"] = made
    return found


@contextmanager
def groups_made() -> Iterator[list[tuple[int, ...]]]:
    """The process groups that are made meanwhile; at the end all of them are to be gone."""
    made: list[tuple[int, ...]] = []
    new_group = dist.new_group

    def counted(ranks: Any = None, *arguments: Any, **options: Any) -> Any:
        made.append(tuple(ranks or ()))
        return new_group(ranks, *arguments, **options)

    dist.new_group = counted
    try:
        yield made
    finally:
        dist.new_group = new_group


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return run_ranks(play_all, RANKS)


def compute_seconds(ranks: range | tuple[int, ...] = range(RANKS)) -> float:
    seconds = plan_batches([DEVICES[rank] for rank in ranks], ROWS).step_seconds
    assert seconds is not None
    return seconds


def step_compute(rows: tuple[int, ...]) -> float:
    return max(float(model.seconds(each)) for model, each in zip(DEVICES, rows, strict=True))


@pytest.mark.parametrize("name", SCENES)
def test_plan_prediction_and_measurement_agree(found: Any, name: str) -> None:
    scene = SCENES[name]
    exchange = scene.exchange_seconds(*range(RANKS)) / scene.window
    for by_rank in found:
        network = by_rank[name].network
        compute = step_compute(by_rank[name].outcome.plan)
        assert network.communication_seconds == pytest.approx(exchange, rel=1e-9)
        assert network.measured_seconds == pytest.approx(compute + exchange, rel=1e-9)
        assert network.step_seconds == pytest.approx(network.measured_seconds, rel=0.05)
        if scene.window == 1:
            planned = by_rank[name].orchestration.planned_step_seconds
            assert network.measured_seconds == pytest.approx(planned, rel=1e-9)


@pytest.mark.parametrize("name", ADVISED)
def test_a_slow_link_is_named_and_the_set_is_to_change(found: Any, name: str) -> None:
    kept = tuple(rank for rank in range(RANKS) if rank != SLOW_RANK)
    without = compute_seconds(kept) + SCENES[name].exchange_seconds(*kept)
    for by_rank in found:
        network = by_rank[name].network
        assert network.network_bound
        assert network.worker_set.left_out == (SLOW_RANK,)
        assert network.worker_set.step_seconds == pytest.approx(without, rel=0.05)
        assert network == found[0][name].network
    (said,) = (text for text in found[0][name].said if "network" in text)
    assert said.startswith("boa: the network limits: communication takes ")
    assert f"without 1 of the 4 ranks ({SLOW_RANK}) a step takes" in said
    assert "its link is 100.0 times slower" in said
    assert f"global_batch_size={ROWS} keeps the global batch" in said


def test_a_checkpoint_is_written_for_the_relaunch(found: Any) -> None:
    for by_rank in found:
        played = by_rank["slow link, to be tuned"]
        assert played.relaunched == (ROWS, TRAINING.rows // ROWS + 1)
        assert by_rank["slow link"].relaunched is None
    said = found[0]["slow link, to be tuned"].said
    assert any(
        "boa-relaunch.ckpt for it (ckpt_path); this training goes on" in text for text in said
    )


def test_the_devices_are_balanced_all_the_same(found: Any) -> None:
    for name in SCENES:
        assert step_compute(found[0][name].outcome.plan) <= 1.03 * compute_seconds()


def test_who_wants_all_ranks_is_only_told_what_limits(found: Any) -> None:
    for by_rank in found:
        played = by_rank["slow link, not asked"]
        assert played.probes == 0
        assert played.network.network_bound
        assert played.network.worker_set is None
    (said,) = (text for text in found[0]["slow link, not asked"].said if "network" in text)
    assert "no split of the rows" in said
    assert "without" not in said


def test_a_network_that_is_slow_everywhere_is_worth_fewer_ranks(found: Any) -> None:
    scene = SCENES["slow everywhere"]
    network = found[0]["slow everywhere"].network
    sets = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
    steps = {each: compute_seconds(each) + scene.exchange_seconds(*each) for each in sets}
    best = min(steps, key=lambda each: steps[each])
    assert best == (0, 1)
    assert network.worker_set.ranks == best
    assert network.worker_set.step_seconds == pytest.approx(steps[best], rel=0.05)
    assert network.worker_set.all_seconds == pytest.approx(steps[sets[-1]], rel=0.05)
    assert "times slower" not in network.advice


def test_in_windows_each_batch_bears_its_part(found: Any) -> None:
    scene = SCENES["in windows of two batches"]
    network = found[0]["in windows of two batches"].network
    assert network.worker_set.left_out == (3,)
    without = compute_seconds((0, 1, 2)) + scene.exchange_seconds(0, 1, 2) / scene.window
    assert network.worker_set.step_seconds == pytest.approx(without, rel=0.05)
    (said,) = (
        text for text in found[0]["in windows of two batches"].said if "boa: without" in text
    )
    assert "network limits" not in said


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_said_where_there_is_nothing_to_say(found: Any, name: str) -> None:
    is_considerable = name == "a tenth of a step"
    for by_rank in found:
        played = by_rank[name]
        assert played.probes == int(is_considerable)
        assert not any("network" in text or "communication" in text for text in played.said)
        assert (played.network.worker_set is not None) == is_considerable
        if is_considerable:
            assert played.network.worker_set.left_out == ()


def test_few_collectives_are_needed(found: Any) -> None:
    for by_rank in found:
        pairs = [group for group in by_rank["groups"] if len(group) == 2]
        assert len(by_rank["groups"]) <= 7 * sum(by_rank[name].probes > 0 for name in SCENES)
        assert set(pairs) == set(combinations(range(RANKS), 2))
        assert by_rank["groups"] == found[0]["groups"]


@pytest.mark.parametrize("name", SCENES)
def test_learns_what_one_device_learns(found: Any, name: str) -> None:
    alone = train_alone(SCENES[name].training)
    for by_rank in found:
        assert relative_error(by_rank[name].outcome.weights, alone.weights) < 1e-10
