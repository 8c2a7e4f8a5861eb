"""Baselines with a parameter server: which gradients enter an update, and that the weights follow from them alone.

The reference is one process that goes through the updates as the server has noted them: each gradient is computed anew,
on the rows that its worker had, at the weights that it had.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from lightning_boa import (
    AsynchronousStrategy,
    BackupWorkersStrategy,
    EmulatedCluster,
    ParameterServerStrategy,
)
from lightning_boa.baselines.links import Link
from lightning_boa.baselines.rules import Gradient, Rule, Update
from tests.processes.ranks import outcomes_of_ranks, run_ranks
from tests.processes.training import (
    NumberedRows,
    Regression,
    Training,
    loaders,
    quiet,
    relative_error,
    trainer_options,
    with_options,
)

pytestmark = pytest.mark.full

RANKS = 3
BATCH_SIZE = 4
LEARNING_RATE, MOMENTUM, CLIPPED_AT = 0.05, 0.9, 0.4
TRAINING = Training(
    rows=72,
    epochs=1,
    schedules=False,
    validation_rows=12,
    trainer={"gradient_clip_val": CLIPPED_AT},
)
SPEEDS = [0.0002, 0.002, 0.0005]

ARRIVALS = [
    *((0, 0), (1, 0)),
    *((1, 1), (0, 1)),
    *((0, 2), (2, 0), (2, 2)),
    *((1, 2), (1, 3), (2, 3)),
    *((2, 4), (0, 3), (0, 4)),
    *((1, 4), (1, 5), (2, 5)),
    (0, 5),
]
ENTERED = [[0, 1], [1, 0], [0, 2], [1, 2], [2, 0], [1, 2]]
LATE = [(2, 0), (1, 2), (0, 3), (1, 4), (0, 5)]


class Turns:
    """An order in which gradients arrive at the server, whatever the ranks' speeds."""

    def __init__(self, arrivals: Sequence[tuple[int, int]]) -> None:
        self.arrivals = arrivals
        self._next = multiprocessing.get_context("fork").Value("i", 0)

    def wait_for(self, worker: int, step: int) -> None:
        ends = time.monotonic() + 60.0
        while self.arrivals[self._next.value] != (worker, step):
            assert time.monotonic() < ends, f"{(worker, step)} is not on in {self._next.value}"
            time.sleep(0.0005)

    def end(self) -> None:
        self._next.value += 1


@dataclass
class InTurn:
    """A worker's link that keeps its gradient until it is its turn."""

    link: Link
    worker: int
    turns: Turns

    def push(self, step: int, rows: int, values: Tensor) -> list[Tensor]:
        self.turns.wait_for(self.worker, step)
        return self.link.push(step, rows, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)


@dataclass
class EndsTurns:
    """A rule that lets the next gradient come."""

    rule: Rule
    turns: Turns

    def enters(self, gradient: Gradient, update: int) -> bool:
        self.turns.end()
        return self.rule.enters(gradient, update)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)


class BackupWorkersInTurn(BackupWorkersStrategy):
    def __init__(self, turns: Turns, **options: Any) -> None:
        super().__init__(**options)
        self.turns = turns

    def make_rule(self, workers: int) -> Rule:
        return EndsTurns(super().make_rule(workers), self.turns)

    def _open_link(self, example: Tensor) -> None:
        super()._open_link(example)
        self._link = InTurn(self._link, self.global_rank, self.turns)


class Tracing(Regression):
    """Logs what may be logged where ranks are in different steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(batch[2].tolist())
        errors = self.errors(batch)
        self.log("loss", errors.mean(), on_step=False, on_epoch=True, sync_dist=True)
        return errors.mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


class InAutocast(Tracing):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert torch.is_autocast_enabled("cpu")
        return super().training_step(batch, batch_idx)


class Normalised(Tracing):
    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.net.insert(1, torch.nn.BatchNorm1d(8, dtype=torch.float64))


@dataclass(frozen=True)
class Seen:
    """What a rank knows after a training."""

    weights: list[Tensor]
    rows: list[list[int]]
    steps: int
    metrics: dict[str, float]
    updates: tuple[Update, ...] = ()
    dropped: tuple[Gradient, ...] = ()
    buffers: list[Tensor] = field(default_factory=list)
    error: str = ""


def fit(strategy: Any, training: Training = TRAINING, **options: Any) -> Seen:
    quiet()
    pl.seed_everything(training.seed)
    module = options.pop("module", Tracing)()
    made = options.pop("loaders", None) or loaders(training, BATCH_SIZE)
    ckpt_path = options.pop("ckpt_path", None)
    try:
        trainer = pl.Trainer(
            strategy=strategy, devices=RANKS, **{**trainer_options(training), **options}
        )
        trainer.fit(module, *made, ckpt_path=ckpt_path)
    except Exception as error:
        return Seen([], [], 0, {}, error=f"{type(error).__name__}: {error}")
    return Seen(
        weights=[parameter.detach().clone() for parameter in module.parameters()],
        rows=module.seen,
        steps=trainer.global_step,
        metrics={name: float(value) for name, value in trainer.callback_metrics.items()},
        updates=strategy.updates,
        dropped=strategy.dropped,
        buffers=[buffer.clone() for buffer in module.buffers()],
    )


def fit_all(rank: int, turns: Turns, folder: Any) -> dict[str, Seen]:
    saves = pl.callbacks.ModelCheckpoint(folder, filename="end", save_last=False)
    two_epochs = with_options(TRAINING, epochs=2)
    played = {
        "backup workers in turn": fit(BackupWorkersInTurn(turns, backups=1)),
        "parameter server": fit(ParameterServerStrategy(), two_epochs),
        "backup workers": fit(
            BackupWorkersStrategy(backups=1), two_epochs, callbacks=[EmulatedCluster(SPEEDS)]
        ),
        "asynchronous": fit(
            AsynchronousStrategy(),
            two_epochs,
            callbacks=[EmulatedCluster(SPEEDS), saves],
            enable_checkpointing=True,
        ),
        "bounded": fit(
            AsynchronousStrategy(staleness=1), two_epochs, callbacks=[EmulatedCluster(SPEEDS)]
        ),
        "bf16": fit(ParameterServerStrategy(), module=InAutocast, precision="bf16-mixed"),
        "BatchNorm": fit(AsynchronousStrategy(), module=Normalised),
        "cut short": fit(
            AsynchronousStrategy(staleness=0),
            two_epochs,
            limit_train_batches=4,
            val_check_interval=2,
            callbacks=[EmulatedCluster(SPEEDS)],
        ),
    }
    torch.distributed.barrier()
    played["resumed"] = fit(
        AsynchronousStrategy(),
        with_options(TRAINING, epochs=3),
        ckpt_path=next(iter(folder.glob("end*"))),
    )
    return played


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Seen]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    ranks = run_ranks(fit_all, RANKS, Turns(ARRIVALS), folder)
    return {name: [each[name] for each in ranks] for name in ranks[0]}


def reference(ranks: list[Seen], weight: float) -> list[Tensor]:
    """The weights after the noted updates, with each gradient computed anew where and when it was."""
    pl.seed_everything(TRAINING.seed)
    module = Tracing()
    data = NumberedRows(TRAINING.rows)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    computed = {rank: iter(seen.rows) for rank, seen in enumerate(ranks)}
    pushed = [each for update in ranks[0].updates for each in update.gradients]
    rows_of = {
        (each.worker, each.step): next(computed[each.worker])
        for each in sorted([*pushed, *ranks[0].dropped], key=lambda each: each.step)
    }
    assert all(next(rest, None) is None for rest in computed.values())
    weights = [[p.detach().clone() for p in module.parameters()]]
    for update in ranks[0].updates:
        total = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for gradient in update.gradients:
            rows = rows_of[gradient.worker, gradient.step]
            assert gradient.rows == len(rows)
            _load(module, weights[gradient.step])
            module.zero_grad()
            module.errors([data.features[rows], data.targets[rows], None]).mean().backward()
            for sum_, parameter in zip(total, module.parameters(), strict=True):
                sum_ += weight * parameter.grad
        _load(module, weights[-1])
        for sum_, parameter in zip(total, module.parameters(), strict=True):
            parameter.grad = sum_
        clip_grad_norm_(module.parameters(), CLIPPED_AT)
        optimizer.step()
        weights.append([p.detach().clone() for p in module.parameters()])
    return weights[-1]


def _load(module: torch.nn.Module, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), weights, strict=True):
            parameter.copy_(value)


def check(ranks: list[Seen], *, weight: float, steps: int) -> None:
    assert [seen.error for seen in ranks] == [""] * RANKS
    assert [seen.steps for seen in ranks] == [steps] * RANKS
    assert len(ranks[0].updates) == steps
    for seen in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen.weights, ranks[0].weights, strict=True))
        assert seen.metrics == ranks[0].metrics
    assert relative_error(ranks[0].weights, reference(ranks, weight)) < 1e-10


def test_exactly_the_first_gradients_enter(played: dict[str, list[Seen]]) -> None:
    ranks = played["backup workers in turn"]
    check(ranks, weight=1 / 2, steps=6)
    updates = ranks[0].updates
    assert [[each.worker for each in update.gradients] for update in updates] == ENTERED
    assert all(each.step == update.step for update in updates for each in update.gradients)
    assert [(each.worker, each.step) for each in ranks[0].dropped] == LATE
    assert [len(seen.rows) for seen in ranks] == [6, 6, 5]


def test_a_parameter_server_takes_the_gradients_of_all(played: dict[str, list[Seen]]) -> None:
    ranks = played["parameter server"]
    check(ranks, weight=1 / 3, steps=12)
    for update in ranks[0].updates:
        assert sorted(each.worker for each in update.gradients) == [0, 1, 2]
        assert {each.step for each in update.gradients} == {update.step}
    assert ranks[0].dropped == ()
    assert sorted(row for seen in ranks for batch in seen.rows[:6] for row in batch) == list(
        range(TRAINING.rows)
    )


def test_late_workers_go_on_from_the_newest_weights(played: dict[str, list[Seen]]) -> None:
    ranks = played["backup workers"]
    check(ranks, weight=1 / 2, steps=12)
    assert all(len(update.gradients) == 2 for update in ranks[0].updates)


@pytest.mark.parametrize("name", ["asynchronous", "bounded"])
def test_each_gradient_is_an_update_and_each_row_is_used_once(
    played: dict[str, list[Seen]], name: str
) -> None:
    ranks = played[name]
    check(ranks, weight=1 / 3, steps=36)
    used = [row for seen in ranks for batch in seen.rows for row in batch]
    assert sorted(used) == sorted([*range(TRAINING.rows)] * 2)
    assert all(len(update.gradients) == 1 for update in ranks[0].updates)


def test_no_worker_begins_a_gradient_too_far_ahead(played: dict[str, list[Seen]]) -> None:
    updates = [update.gradients[0] for update in played["bounded"][0].updates]
    for number, gradient in enumerate(updates):
        begins, ends = 18 * (number // 18), 18 * (number // 18 + 1)
        earlier = updates[begins : gradient.step]
        made = [sum(each.worker == worker for each in earlier) for worker in range(RANKS)]
        come_again = {each.worker for each in updates[gradient.step : ends]}
        slowest = min(made[worker] for worker in come_again)
        assert made[gradient.worker] - slowest <= 1


def test_a_step_runs_in_the_precision_that_was_asked_for(played: dict[str, list[Seen]]) -> None:
    assert [seen.error for seen in played["bf16"]] == [""] * RANKS
    assert [len(seen.rows) for seen in played["bf16"]] == [6] * RANKS


def test_statistics_of_batch_norm_are_rank_0_s_in_the_end(played: dict[str, list[Seen]]) -> None:
    ranks = played["BatchNorm"]
    assert [seen.error for seen in ranks] == [""] * RANKS
    for seen in ranks[1:]:
        assert seen.buffers[0].abs().sum() > 0
        assert all(torch.equal(a, b) for a, b in zip(seen.buffers, ranks[0].buffers, strict=True))


def test_an_epoch_that_is_cut_short_ends_on_all_ranks(played: dict[str, list[Seen]]) -> None:
    ranks = played["cut short"]
    assert [seen.error for seen in ranks] == [""] * RANKS
    assert [seen.steps for seen in ranks] == [8] * RANKS
    assert all(
        torch.equal(a, b)
        for seen in ranks
        for a, b in zip(seen.weights, ranks[0].weights, strict=True)
    )


def test_a_checkpoint_of_an_epoch_s_end_goes_on(played: dict[str, list[Seen]]) -> None:
    ranks = played["resumed"]
    assert [seen.error for seen in ranks] == [""] * RANKS
    assert [seen.steps for seen in ranks] == [54] * RANKS
    used = [row for seen in ranks for batch in seen.rows for row in batch]
    assert sorted(used) == list(range(TRAINING.rows))


class LogsInStep(Regression):
    """Reduces what it logs in each step."""


class Manual(Regression):
    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.automatic_optimization = False


class Synchronised(Regression):
    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.norm = torch.nn.SyncBatchNorm(2)


class SecondOrder(Tracing):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


def plain_loader() -> DataLoader[Any]:
    return DataLoader(NumberedRows(72), batch_size=4)


@dataclass(frozen=True)
class Refused:
    """What is asked of which strategy, and what the error says."""

    says: str
    strategy: Any = ParameterServerStrategy
    options: dict[str, Any] = field(default_factory=dict)


REFUSED = {
    "reductions in a step": Refused("no communication over ranks", options={"module": LogsInStep}),
    "manual optimisation": Refused(
        "automatic optimisation", options={"module": Manual, "gradient_clip_val": None}
    ),
    "SyncBatchNorm": Refused("no SyncBatchNorm", options={"module": Synchronised}),
    "LBFGS": Refused("gradient once, got LBFGS", options={"module": SecondOrder}),
    "accumulation": Refused(
        "accumulate_grad_batches=1", BackupWorkersStrategy, {"accumulate_grad_batches": 2}
    ),
    "several loaders": Refused(
        "single training loader", options={"loaders": [[plain_loader(), plain_loader()]]}
    ),
    "a stream": Refused("got a stream", options={"loaders": [[[1, 2, 3]]]}),
    "overfitting": Refused("overfit_batches=0", AsynchronousStrategy, {"overfit_batches": 2}),
    "too many backups": Refused(
        "fewer than the 3 ranks", partial(BackupWorkersStrategy, backups=3)
    ),
    "an own batch sampler": Refused(
        "makes its batches itself", AsynchronousStrategy, {"use_distributed_sampler": False}
    ),
}


def refuse_all(rank: int) -> dict[str, str]:
    errors = {
        name: fit(each.strategy(), **dict(each.options)).error for name, each in REFUSED.items()
    }
    errors["other options"] = fit(AsynchronousStrategy(staleness=rank or None)).error
    return errors


def test_what_is_not_supported_is_refused_on_every_rank() -> None:
    for errors in run_ranks(refuse_all, RANKS):
        for name, refused in REFUSED.items():
            assert refused.says in errors[name], name
        assert "staleness" in errors["other options"]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def give_up() -> None:
    raise ValueError("this rank gives up")


class Strikes(Tracing):
    def __init__(self, rank: int, strike: Callable[[], None]) -> None:
        super().__init__(schedules=False)
        self.victim = rank
        self.strike = strike

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if len(self.seen) == 1 and self.trainer.global_rank == self.victim:
            self.strike()
        return super().training_step(batch, batch_idx)


def fit_with_a_victim(rank: int, victim: int, strategy: Any, strike: Callable[[], None]) -> str:
    training = with_options(TRAINING, epochs=2)
    return fit(strategy(), training, module=partial(Strikes, victim, strike)).error


@pytest.mark.parametrize(
    ("victim", "strategy"), [(0, ParameterServerStrategy), (1, AsynchronousStrategy)]
)
def test_a_killed_rank_ends_the_others_and_is_named(victim: int, strategy: Any) -> None:
    outcomes = outcomes_of_ranks(fit_with_a_victim, RANKS, victim, strategy, kill, timeout=60)
    for rank, (kind, error) in enumerate(outcomes):
        if rank != victim:
            assert kind == "result"
            assert f"rank {victim} ended without a word" in error


@pytest.mark.parametrize(
    ("victim", "strategy"), [(0, AsynchronousStrategy), (2, ParameterServerStrategy)]
)
def test_a_rank_that_fails_ends_the_others_while_its_process_lives(
    victim: int, strategy: Any
) -> None:
    errors = run_ranks(fit_with_a_victim, RANKS, victim, strategy, give_up)
    for rank, error in enumerate(errors):
        assert "this rank gives up" in error
        assert (rank == victim) == error.startswith("ValueError")
