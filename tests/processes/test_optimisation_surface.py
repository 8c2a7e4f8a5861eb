"""I1 for what people do to an optimizer step: on unequal shares, ranks without rows included, as on one device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from pytorch_lightning.plugins import MixedPrecision
from pytorch_lightning.tuner import Tuner
from pytorch_lightning.utilities import grad_norm
from pytorch_optimizer import LARS, Lamb
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_boa import BoaStrategy
from tests.processes.ranks import run_ranks
from tests.processes.scenes import SHARES, Played, Scene, plain, play_all, play_alone
from tests.processes.training import (
    FEATURES,
    NumberedRows,
    Regression,
    Training,
    quiet,
    relative_error,
    trainer_options,
    with_options,
)

pytestmark = pytest.mark.full

PLAIN = Scene().training
SINGLE = with_options(PLAIN, single=True)


def single() -> Regression:
    return Regression(single=True, schedules=False)


def with_trainer(**options: Any) -> Training:
    return with_options(PLAIN, trainer=options)


class Adversaries(Regression):
    """A generator and a critic with a gradient penalty, each toggled for its own step, with schedules of their own."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(FEATURES + 1, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        features, targets, _ = batch
        generator, critic = self.optimizers()
        real = torch.cat([features, targets], 1)
        self._descend(critic, lambda: self._separation(real, features))
        self._descend(generator, lambda: -self.critic(self._generated(features)).mean())
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self) -> Any:
        optimizers = [
            torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9)
            for part in (self.net, self.critic)
        ]
        return optimizers, [torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for each in optimizers]

    def _generated(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.net(features)], 1)

    def _separation(self, real: Tensor, features: Tensor) -> Tensor:
        generated = self._generated(features).detach()
        between = ((real + generated) / 2).requires_grad_()
        judged = self.critic(between)
        (slope,) = torch.autograd.grad(judged.sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return self.critic(generated).mean() - self.critic(real).mean() + penalty

    def _descend(self, optimizer: Any, loss: Any) -> None:
        self.toggle_optimizer(optimizer)
        self.manual_backward(loss())
        self.clip_gradients(optimizer, 0.5, "norm")
        optimizer.step()
        optimizer.zero_grad()
        self.untoggle_optimizer(optimizer)


class SynchronizesRarely(Regression):
    """Accumulates over two batches by hand, and lets DDP synchronise in the second one only."""

    def __init__(self, by_strategy: bool) -> None:
        super().__init__(schedules=False)
        self.automatic_optimization = False
        self.by_strategy = by_strategy

    def training_step(self, batch: Any, batch_idx: int) -> None:
        steps = batch_idx % 2 == 1
        with nullcontext() if steps else self._without_synchronisation():
            self.manual_backward(self.errors(batch).mean() / 2)
        if steps:
            self.optimizers().step()
            self.optimizers().zero_grad()

    def _without_synchronisation(self) -> AbstractContextManager[Any]:
        strategy = self.trainer.strategy
        if self.trainer.world_size == 1:
            return nullcontext()
        return strategy.block_backward_sync() if self.by_strategy else strategy.model.no_sync()


class QuasiNewton(Regression):
    """Its optimizer evaluates the step several times and decides by the loss."""

    def __init__(self, line_search: str | None, tolerance: float = 1e-9) -> None:
        super().__init__(schedules=False)
        self.options = {"line_search_fn": line_search, "tolerance_change": tolerance}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.errors(batch).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=5, **self.options)


class QuasiNewtonByHand(QuasiNewton):
    def __init__(self) -> None:
        super().__init__("strong_wolfe")
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.errors(batch).mean()
            self.manual_backward(loss)
            return loss

        optimizer.step(closure=closure)


class Scheduled(Regression):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.001)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class OnPlateau(Regression):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.4, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val"},
        }


class Branching(Regression):
    """A branch that takes part in the steps whose number is a multiple of `every`; never if that is 0."""

    def __init__(self, every: int) -> None:
        super().__init__(schedules=False)
        self.every = every
        self.branch = nn.Linear(FEATURES, 1).double()
        self.takes_part = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.takes_part = self.every > 0 and batch_idx % self.every == 0
        return super().training_step(batch, batch_idx)

    def errors(self, batch: Any) -> Tensor:
        if not self.takes_part:
            return super().errors(batch)
        features, targets, _ = batch
        return (self.net(features) + self.branch(features) - targets).square()


class Experts(Regression):
    """Rows with a large first feature are seen by an expert, which no row of a rank, or of a step, may need."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.expert = nn.Linear(FEATURES, 1).double()

    def errors(self, batch: Any) -> Tensor:
        features, targets, _ = batch
        found = self.net(features)
        chosen = features[:, 0] > 1.0
        if chosen.any():
            found = found.index_put(
                chosen.nonzero(as_tuple=True), self.expert(features[chosen]), accumulate=True
            )
        return (found - targets).square()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


class Recomputes(Regression):
    def __init__(self, reentrant: bool) -> None:
        super().__init__(schedules=False)
        self.reentrant = reentrant

    def errors(self, batch: Any) -> Tensor:
        features, targets, _ = batch
        features = features.clone().requires_grad_()
        found = checkpoint(self.net, features, use_reentrant=self.reentrant)
        return (found - targets).square()


class Frozen(Regression):
    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.net[0].requires_grad_(False)


class Tied(Regression):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        first, second = (nn.Linear(FEATURES, FEATURES).double() for _ in range(2))
        second.weight = first.weight
        self.net = nn.Sequential(first, nn.Tanh(), second, nn.Linear(FEATURES, 1).double())


class TwoGroups(Regression):
    def configure_optimizers(self) -> Any:
        groups = [
            {"params": self.net[0].parameters(), "lr": 0.1, "weight_decay": 0.3},
            {"params": self.net[2].parameters(), "nesterov": True},
        ]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


class LayerWise(Regression):
    """Each layer's step depends on the norms of its weights and of its gradient."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(schedules=False)
        self.optimizer = optimizer

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


class StartsFrozen(Regression):
    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.SGD(trained, lr=0.05, momentum=0.9)


class SparseGradients(Regression):
    """An embedding of which each step touches a few rows."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.embedding = nn.Embedding(9, FEATURES, sparse=True).double()

    def errors(self, batch: Any) -> Tensor:
        features, targets, rows = batch
        return (self.net(features + self.embedding(rows % 9)) - targets).square()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class ShardedOptimizer(Regression):
    def configure_optimizers(self) -> Any:
        if self.trainer.world_size == 1:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            self.parameters(), optimizer_class=torch.optim.SGD, lr=0.05, momentum=0.9
        )


class ModelsCallbacks(Regression):
    def configure_callbacks(self) -> Any:
        return [GradientAccumulationScheduler({0: 2})]


class Unfreezes(BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.05)


class OwnHooks(Regression):
    """Writes out by hand what Lightning would do, and steps in every second batch only."""

    def backward(self, loss: Tensor) -> None:  # type: ignore[override]
        loss.backward()

    def optimizer_step(self, epoch: Any, batch_idx: int, optimizer: Any, closure: Any) -> None:  # type: ignore[override]
        if batch_idx % 2:
            optimizer.step(closure=closure)
        else:
            closure()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if batch_idx % 2 == 0:
            optimizer.zero_grad(set_to_none=False)

    def configure_gradient_clipping(self, optimizer: Any, **values: Any) -> None:  # type: ignore[override]
        self.clip_gradients(optimizer, 0.05, "norm")


class LeavesEpochsEarly(Regression):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 3 else None


class Observed(Regression):
    """Keeps what the hooks around backward see, and logs the norms of its gradients."""

    def __init__(self) -> None:
        super().__init__(schedules=False)
        self.kept: dict[str, list[float]] = {"before": [], "after": [], "returned": []}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "rows": batch[2], "said": "so"}

    def on_before_backward(self, loss: Tensor) -> None:
        self.kept["before"].append(float(loss))

    def on_after_backward(self) -> None:
        self.kept["after"].append(self._norm())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = grad_norm(self, 2)
        self.log_dict(norms)
        self.log("norm", norms["grad_2.0_norm_total"], on_step=False, on_epoch=True, sync_dist=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert outputs["rows"].tolist() == batch[2].tolist()
        assert outputs["said"] == "so"
        self.kept["returned"].append(float(outputs["loss"]))

    def _norm(self) -> float:
        gradients = [parameter.grad for parameter in self.parameters()]
        return float(torch.cat([each.reshape(-1) for each in gradients if each is not None]).norm())


class Returns(Regression):
    """Its step returns what `make` makes of the errors."""

    def __init__(self, make: Any) -> None:
        super().__init__(schedules=False)
        self.make = make

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.make(self.errors(batch))


class LossOnly(Regression):
    """Nothing in its step that a compiler could stumble over."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.errors(batch).mean()


class CommunicatesByHook(BoaStrategy):
    """Lightning registers communication hooks on CUDA only; this one does so anywhere."""

    def _register_ddp_hooks(self) -> None:
        self.model.register_comm_hook(self._ddp_comm_state, self._ddp_comm_hook)


def scaler(**options: Any) -> dict[str, Any]:
    made = torch.amp.GradScaler("cpu", **options)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", made)]}


def callbacks(*makers: Any) -> Any:
    return lambda: {"callbacks": [make() for make in makers]}


def compiled(backend: str) -> Any:
    return partial(torch.compile, backend=backend)


SCENES = {
    "a window that grows": Scene(
        training=with_options(PLAIN, epochs=3),
        options=callbacks(partial(GradientAccumulationScheduler, {0: 1, 1: 3})),
    ),
    "value clipped": Scene(
        training=with_trainer(gradient_clip_val=0.01, gradient_clip_algorithm="value")
    ),
    "cosine over the estimated steps": Scene(Scheduled, with_trainer(accumulate_grad_batches=2)),
    "reduced on a plateau": Scene(
        partial(OnPlateau, schedules=False), with_options(PLAIN, epochs=4, validation_rows=11)
    ),
    "64-true": Scene(single, with_options(SINGLE, trainer={"precision": "64-true"})),
    "bf16-mixed": Scene(
        single, with_options(SINGLE, trainer={"precision": "bf16-mixed"}), tolerance=1e-2
    ),
    "16-mixed with a scaler": Scene(
        single, SINGLE, partial(scaler, init_scale=1024.0, growth_interval=3), tolerance=2e-3
    ),
    "adversaries with a gradient penalty": Scene(
        Adversaries, strategy={"find_unused_parameters": True}
    ),
    "no_sync by hand": Scene(partial(SynchronizesRarely, by_strategy=False)),
    "block_backward_sync by hand": Scene(partial(SynchronizesRarely, by_strategy=True)),
    "LBFGS": Scene(partial(QuasiNewton, None), tolerance=1e-8),
    "LBFGS that stops by its loss": Scene(partial(QuasiNewton, None, 0.02), tolerance=1e-8),
    "LBFGS with a line search": Scene(partial(QuasiNewton, "strong_wolfe"), tolerance=1e-8),
    "LBFGS by hand": Scene(QuasiNewtonByHand, tolerance=1e-8),
    "stochastic weight averaging": Scene(
        training=with_options(PLAIN, epochs=4),
        options=callbacks(
            partial(StochasticWeightAveraging, 0.02, swa_epoch_start=1, annealing_epochs=2)
        ),
    ),
    "averaged weights": Scene(options=callbacks(WeightAveraging)),
    "moving average of weights": Scene(
        options=callbacks(partial(WeightAveraging, multi_avg_fn=get_ema_multi_avg_fn(0.8)))
    ),
    "pruned": Scene(options=callbacks(partial(ModelPruning, "l1_unstructured", amount=0.3))),
    "a branch that is never used": Scene(
        partial(Branching, 0), strategy={"find_unused_parameters": True}
    ),
    "a branch used in some steps": Scene(
        partial(Branching, 2), strategy={"find_unused_parameters": True}
    ),
    "a branch used in some steps of a window": Scene(
        partial(Branching, 2),
        with_trainer(accumulate_grad_batches=2),
        strategy={"find_unused_parameters": True},
    ),
    "a branch for some rows": Scene(Experts, strategy={"find_unused_parameters": True}),
    "static graph": Scene(strategy={"static_graph": True}),
    "gradients as bucket views": Scene(
        training=with_trainer(accumulate_grad_batches=2),
        strategy={"gradient_as_bucket_view": True},
    ),
    "a communication hook where Lightning registers none": Scene(
        strategy={"ddp_comm_hook": default_hooks.fp16_compress_hook}
    ),
    "a communication hook": Scene(
        strategy={"ddp_comm_hook": default_hooks.allreduce_hook},
        strategy_class=CommunicatesByHook,
    ),
    "a communication hook that compresses": Scene(
        strategy={"ddp_comm_hook": default_hooks.fp16_compress_hook},
        strategy_class=CommunicatesByHook,
        tolerance=2e-3,
    ),
    "compiled": Scene(partial(LossOnly, schedules=False), prepare=compiled("eager")),
    "reentrant checkpoints": Scene(partial(Recomputes, reentrant=True)),
    "checkpoints": Scene(partial(Recomputes, reentrant=False)),
    "frozen layer": Scene(Frozen),
    "a layer that is frozen at first": Scene(
        partial(StartsFrozen, schedules=False),
        with_options(PLAIN, epochs=3),
        callbacks(Unfreezes),
    ),
    "tied weights": Scene(Tied),
    "groups of parameters": Scene(partial(TwoGroups, schedules=False)),
    "LARS": Scene(
        partial(LayerWise, partial(LARS, lr=0.5, trust_coefficient=0.1, weight_decay=0.01))
    ),
    "LAMB": Scene(partial(LayerWise, partial(Lamb, lr=0.05, weight_decay=0.01))),
    "sparse gradients": Scene(SparseGradients),
    "a sharded optimizer": Scene(partial(ShardedOptimizer, schedules=False)),
    "many buckets": Scene(strategy={"bucket_cap_mb": 0.0001}),
    "callbacks of the module": Scene(partial(ModelsCallbacks, schedules=False)),
    "a loss of one element": Scene(partial(Returns, lambda errors: errors.mean().reshape(1))),
    "own hooks": Scene(partial(OwnHooks, schedules=False)),
    "epochs left early": Scene(partial(LeavesEpochsEarly, schedules=False)),
    "hooks around backward": Scene(Observed),
    "anomalies detected": Scene(training=with_trainer(detect_anomaly=True)),
}
ON_TWO_RANKS = {
    "compiled ahead of time": Scene(
        partial(LossOnly, schedules=False), prepare=compiled("aot_eager")
    ),
}
WRONG = {
    name: replace(SCENES[name], strategy={"batch_weight": "none"})
    for name in ("bf16-mixed", "16-mixed with a scaler")
}
OVERFLOWING = Scene(single, SINGLE, partial(scaler, init_scale=2.0**22, growth_interval=3))
FAILING = {
    "a vector": Scene(partial(Returns, lambda errors: errors)),
    "no gradient": Scene(partial(Returns, lambda errors: errors.mean().detach())),
    "no tensor": Scene(partial(Returns, lambda errors: "loss")),
    "no loss": Scene(partial(Returns, lambda errors: {"errors": errors})),
}
WINDOWS = callbacks(partial(GradientAccumulationScheduler, {1: 2}))
REFUSED = {
    "a step that is skipped": (
        Scene(partial(Returns, lambda errors: None)),
        "RuntimeError: Skipping the `training_step` by returning None in distributed training is not supported.",
    ),
    "a batch size finder": (
        Scene(options=callbacks(BatchSizeFinder)),
        "MisconfigurationException: The Batch size finder is not supported with distributed strategies.",
    ),
    "windows of a static graph": (
        Scene(training=with_trainer(accumulate_grad_batches=2), strategy={"static_graph": True}),
        "UnsupportedError: Expected no accumulation of gradients beside static_graph=True,",
    ),
    "later windows of a static graph": (
        Scene(options=WINDOWS, strategy={"static_graph": True}),
        "UnsupportedError: Expected no accumulation of gradients beside static_graph=True,",
    ),
}
PLAYED = {
    2: {
        **SCENES,
        **ON_TWO_RANKS,
        **{f"wrong: {name}": scene for name, scene in WRONG.items()},
        **FAILING,
        **{name: scene for name, (scene, _) in REFUSED.items()},
        "overflowing": OVERFLOWING,
    },
    3: {**SCENES, "overflowing": OVERFLOWING},
}
EXACT = {2: {**SCENES, **ON_TWO_RANKS}, 3: SCENES}


def play(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = dict(play_all(rank, ranks, PLAYED[ranks]))
    found["batch size of the tuner"] = scale_batch_size(ranks)
    return found


def scale_batch_size(ranks: int) -> str:
    quiet()
    trainer = pl.Trainer(strategy=BoaStrategy(), devices=ranks, **trainer_options(PLAIN))
    try:
        Tuner(trainer).scale_batch_size(plain(), DataLoader(NumberedRows(8), batch_size=4))
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.fixture(scope="module")
def played() -> dict[int, list[dict[str, Any]]]:
    return {ranks: run_ranks(play, ranks, ranks) for ranks in SHARES}


@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, scenes in EXACT.items() for name in scenes]
)
def test_equals_a_single_device(played: Any, ranks: int, name: str) -> None:
    assert_equal_a_single_device(EXACT[ranks][name], [by_rank[name] for by_rank in played[ranks]])


@pytest.mark.full
@pytest.mark.parametrize("ranks", SHARES)
def test_equals_a_single_device_while_the_devices_are_measured(ranks: int) -> None:
    measured = {
        name: replace(scene, strategy={"batch_sizes": None, **scene.strategy})
        for name, scene in SCENES.items()
    }
    together = run_ranks(play_all, ranks, ranks, measured)
    for name, scene in measured.items():
        assert_equal_a_single_device(scene, [by_rank[name] for by_rank in together])


def assert_equal_a_single_device(scene: Scene, together: list[Played]) -> None:
    alone = play_alone(scene, len(together))
    assert alone.error == ""
    for found in together:
        assert found.error == ""
        assert relative_error(found.weights, alone.weights) < scene.tolerance
        assert (found.steps, found.last_lr) == (alone.steps, alone.last_lr)
        assert found.metrics == pytest.approx(alone.metrics, rel=max(1e-9, 10 * scene.tolerance))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_weight_is_far_beyond_the_tolerance_of_low_precision(
    played: Any, name: str
) -> None:
    alone = play_alone(SCENES[name], 2)
    for by_rank in played[2]:
        error = relative_error(by_rank[f"wrong: {name}"].weights, alone.weights)
        assert error > 3 * SCENES[name].tolerance


@pytest.mark.parametrize("ranks", SHARES)
def test_ranks_leave_out_the_same_steps_where_half_precision_overflows(
    played: Any, ranks: int
) -> None:
    first, *others = (by_rank["overflowing"] for by_rank in played[ranks])
    before = list(single().parameters())
    assert first.error == ""
    assert 0.001 < relative_error(first.weights, before) < 10
    never_left_out = played[ranks][0]["16-mixed with a scaler"].weights
    assert relative_error(first.weights, never_left_out) > 0.001
    for other in others:
        assert relative_error(other.weights, first.weights) == 0.0


@pytest.mark.parametrize("ranks", SHARES)
def test_hooks_around_backward(played: Any, ranks: int) -> None:
    """The loss before backward is the weighted one, gradients after it are those of all ranks, outputs are plain."""
    alone = play_alone(SCENES["hooks around backward"], ranks).kept
    found = [by_rank["hooks around backward"].kept for by_rank in played[ranks]]
    for each in found:
        assert each["after"] == pytest.approx(alone["after"], rel=1e-9)
    weighted = [sum(losses) / ranks for losses in zip(*(e["before"] for e in found), strict=True)]
    assert weighted == pytest.approx(alone["before"], rel=1e-9)
    factor = SHARES[ranks][0] * ranks / sum(SHARES[ranks])
    assert found[0]["before"][0] == pytest.approx(factor * found[0]["returned"][0], rel=1e-9)


@pytest.mark.parametrize("name", FAILING)
def test_a_step_that_returns_no_loss_fails_as_on_a_single_device(played: Any, name: str) -> None:
    alone = play_alone(FAILING[name], 2)
    assert alone.error
    for by_rank in played[2]:
        assert by_rank[name].error == alone.error


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(played: Any, name: str) -> None:
    for by_rank in played[2]:
        assert by_rank[name].error.startswith(REFUSED[name][1])


def test_the_tuner_refuses_to_look_for_a_batch_size(played: Any) -> None:
    for by_rank in played[2]:
        expected = "Tuning the batch size is currently not supported with distributed strategies."
        assert by_rank["batch size of the tuner"] == expected
