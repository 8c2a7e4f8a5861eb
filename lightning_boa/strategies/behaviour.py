"""What BoaStrategy does, for whichever Lightning: shares of each step, weighted losses, measured steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from lightning_boa.data import (
    SampledOrder,
    Share,
    ShareBatchSampler,
    batch_size_of,
    boa_loader,
    drop_last_of,
    order_of,
    original_loader,
)
from lightning_boa.errors import OptionError, UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    Orchestration,
    OrchestrationSettings,
    Schedule,
    apportion,
    equal_split,
    gradient_weight,
)
from lightning_boa.profiling import MemoryProfile, StepClock, memory_profile_of, timeline_of
from lightning_boa.strategies import ghost, reduction, trainer_seam
from lightning_boa.strategies.batch_rows import leading_sizes
from lightning_boa.strategies.options import BatchWeight, BoaOptions, check_known, whole_numbers

if TYPE_CHECKING:
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object

STATE_VERSION = 1


class BoaBehaviour(_Base):
    """Synchronous data parallelism in which each rank takes the share of the global batch that fits its speed.

    One optimizer step equals the step of a single device on the same global batch; shares are measured in the first
    steps of training and change nothing but the time a step takes.

    Args:
        global_batch_size: rows of a step over all ranks; by default the loader's batch_size times the ranks, as
            under "ddp". A checkpoint's value comes first.
        batch_sizes: rows per rank, a fixed plan; nothing is measured.
        warmup: steps in which the devices are measured; "auto" ends as soon as the figures are good, at the latest
            with the first epoch.
        batch_weight: "samples" if the loss is a mean over rows, "sum" if it is a sum over rows, "none" if the loss
            already brings the factor that makes the mean over ranks right.
        granularity: shares are multiples of this many rows (the remainder goes to one rank).
        min_batch_size: fewest rows of a rank, a number or one per rank; 0 permits ranks without rows.
        max_batch_size: most rows of a rank, a number or one per rank.
        **ddp_kwargs: what Lightning's DDPStrategy takes.

    Raises:
        OptionError: an option of the wrong kind or range.
    """

    callback_class: ClassVar[type[Any]]

    def __init__(
        self,
        *,
        global_batch_size: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        warmup: Literal["auto"] | int = "auto",
        batch_weight: BatchWeight = "samples",
        granularity: int = 1,
        min_batch_size: int | Sequence[int] = 1,
        max_batch_size: int | Sequence[int] | None = None,
        **ddp_kwargs: Any,
    ) -> None:
        self.options = BoaOptions(
            global_batch_size=global_batch_size,
            batch_sizes=whole_numbers(batch_sizes),
            warmup=warmup,
            batch_weight=batch_weight,
            granularity=granularity,
            min_batch_size=whole_numbers(min_batch_size),
            max_batch_size=whole_numbers(max_batch_size),
        )
        check_known(ddp_kwargs, super().__init__)
        super().__init__(**ddp_kwargs)
        self.orchestration: Orchestration | None = None
        self.device_names: tuple[str, ...] = ()
        self.clock = StepClock(rank=0)
        self.memory: MemoryProfile | None = None
        self.seed = 0
        self._fixed_schedule: Schedule | None = None
        self._global_batch_size: int | None = None
        self._restored: Mapping[str, Any] | None = None
        self._restored_inside_epoch = False
        self._train_sampler: ShareBatchSampler | None = None
        self._train_rows = 0
        self._drawn_order: int | None = None
        self.share: Share | None = None
        """This rank's part of the step that runs; its rows are 0 where the rank only takes part."""
        self._rows_in_step: int | None = None
        self._weighted_backwards = 0
        self._checked_sizes: set[int] = set()
        self._after_step: list[Callable[[], None]] = []
        self._handles: list[Any] = []

    @property
    def schedule(self) -> Schedule | None:
        """Which plan holds from which training step on; None before training."""
        if self.orchestration is not None:
            return self.orchestration.schedule
        return self._fixed_schedule

    @property
    def plan(self) -> BatchPlan | None:
        """The latest plan; None before training."""
        schedule = self.schedule
        return None if schedule is None else schedule.latest

    @property
    def settings(self) -> OrchestrationSettings:
        """What the planning loop has to know about this training."""
        assert self._global_batch_size is not None
        return self.options.settings(self.world_size, self._global_batch_size)

    @property
    def first_free_step(self) -> int:
        """The first training step whose rows this rank's sampler has not handed out."""
        assert self._train_sampler is not None
        running = trainer_seam.present_step(self._trainer)
        return max(self._train_sampler.handed_out, running) + 1

    @property
    def facts(self) -> dict[str, Any]:
        """What all ranks must have in common before the first step."""
        return {
            "options of BoaStrategy": repr(self.options),
            "global batch size": self._global_batch_size,
            "rows in the training data set": self._train_rows,
            "seed": self.seed,
            "world size": self.world_size,
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: plain values only."""
        return {
            "version": STATE_VERSION,
            "global_batch_size": self._global_batch_size,
            "seed": self.seed,
            "orchestration": self.orchestration.to_dict() if self.orchestration else None,
        }

    def restore(self, state: Mapping[str, Any], inside_epoch: bool) -> None:
        """Go on where a checkpoint stopped: its global batch, seed and plan hold from here.

        Raises:
            UnsupportedError: the state was written by a newer version.
        """
        if state["version"] > STATE_VERSION:
            raise UnsupportedError(
                f"Expected a checkpoint whose boa state has version {STATE_VERSION} or older, got"
                f" {state['version']}. Update lightning-boa."
            )
        restored = int(state["global_batch_size"])
        if self._global_batch_size not in (None, restored):
            raise UnsupportedError(
                f"Expected to read the checkpoint's global batch of {restored} rows before the training loader is set"
                f" up, which has {self._global_batch_size}. Ask for the loader or trainer.estimated_stepping_batches"
                " in configure_optimizers, not in setup."
            )
        self._restored = state
        self._restored_inside_epoch = inside_epoch
        self.orchestration = None
        self.seed = int(state["seed"])

    def new_clock(self) -> StepClock:
        """The clock that measures this rank's steps; a test may bring its own time."""
        return StepClock(self.global_rank, timeline_of(self.root_device))

    def new_memory_profile(self) -> MemoryProfile | None:
        """What measures this rank's memory, None where the device's memory is not its own."""
        return memory_profile_of(self.root_device)

    def take_drawn_order(self) -> int | None:
        """Digest of the order that a custom sampler has just given, once for each draw; None otherwise."""
        drawn, self._drawn_order = self._drawn_order, None
        return drawn

    def begin_planning(self) -> None:
        """Begin to measure and plan, or go on with the plan of a checkpoint or an earlier fit."""
        if self._fixed_schedule is not None:
            return
        trainer = self._trainer
        _, first_step = trainer_seam.steps_done(trainer)
        known = self.orchestration.to_dict() if self.orchestration is not None else None
        if known is None and self._restored is not None:
            known = self._restored["orchestration"]
        if known is None:
            self.orchestration = Orchestration.begin(self.settings, first_step)
        else:
            self.orchestration = Orchestration.resume(self.settings, known, first_step)

    def begin_epoch(self) -> None:
        """An epoch of training begins on this rank."""
        self.clock.interrupt()
        self.share = None

    def finish_step(self) -> None:
        """A training step is over on this rank."""
        self.clock.end()
        if self.memory is not None and self.share is not None and self.clock.enabled:
            self.memory.end_step(self.share.rows)
        for put_back in self._after_step:
            put_back()
        self._after_step = []
        self.share = None

    @override
    def connect(self, model: Any) -> None:
        super().connect(model)
        self.share = None
        self._after_step = []
        self._global_batch_size = None
        trainer = model.trainer
        trainer_seam.divert_loaders(trainer, self._prepare_loader)
        if not any(isinstance(callback, self.callback_class) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, self.callback_class())

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        if dist.get_world_size() != self.world_size:
            raise UnsupportedError(
                f"Expected a process group of {self.world_size} ranks, got one of {dist.get_world_size()} from an"
                " earlier run in this process. Start a new process for each number of devices."
            )
        if self._restored is None:
            self.seed = self.broadcast(int(os.environ.get("PL_GLOBAL_SEED", 0)))

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn.value != "fit":
            return
        self.clock = self.new_clock()
        self.memory = self.new_memory_profile()
        clock = self.clock
        assert self.lightning_module is not None
        self._handles = [
            self.lightning_module.register_forward_pre_hook(lambda *_: clock.enter_compute()),
            *(
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._refuse_unweighted_backward
                )
                for parameter in self._watched_parameters()
            ),
        ]

    @override
    def teardown(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        super().teardown()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        share = self.share
        if share is None:
            raise UnsupportedError(
                "Expected a training batch from a DataLoader that boa has prepared, got one from elsewhere. Pass the"
                ' loader to the trainer as it is, or train with strategy="ddp".'
            )
        self._check_rows(batch, share)
        self.clock.begin(share.step, share.rows, share.step_rows, share.wait)
        if self.memory is not None and self.clock.enabled:
            self.memory.begin_step()

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_ghost:
            assert self.lightning_module is not None
            self._after_step.append(ghost.remember_buffers(self.lightning_module))
        output = self._take_part(super().training_step, *args, **kwargs)
        if not self._optimizes_itself:
            self.clock.switch(None)
        return output

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluation_step(super().validation_step, *args, **kwargs)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluation_step(super().test_step, *args, **kwargs)

    @override
    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        loss = self._weigh(closure_loss)
        self.clock.switch("compute")
        if loss.requires_grad and self.clock.enabled:
            loss.register_hook(self._on_gradient_of_loss)  # type: ignore[no-untyped-call]
        self._weighted_backwards += 1
        try:
            with self._gradients_of_ghosts():
                result = super().backward(loss, optimizer, *args, **kwargs)
        finally:
            self._weighted_backwards -= 1
        self.clock.switch("optimizer" if self._optimizes_itself else "compute")
        return result

    @override
    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self._optimizes_itself:
            self.clock.switch("optimizer")
        output = super().optimizer_step(*args, **kwargs)
        self.clock.switch(None if self._optimizes_itself else "compute")
        return output

    @override
    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any | None = "mean") -> Any:
        with self.clock.communicating():
            if not isinstance(tensor, Tensor) or group not in (None, dist.group.WORLD):
                return super().reduce(tensor, group, reduce_op)
            operation = reduce_op.lower() if isinstance(reduce_op, str) else "other"
            if operation in ("mean", "avg"):
                if self._rows_in_step is None:
                    return reduction.mean_over_ranks(tensor)
                return reduction.mean_over_rows(tensor, self._rows_in_step)
            if self._rows_in_step == 0:
                tensor = reduction.neutral(tensor, operation)
            return super().reduce(tensor, group, reduce_op)

    @override
    def all_gather(
        self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False
    ) -> Tensor:
        with self.clock.communicating():
            return super().all_gather(tensor, group, sync_grads)

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        with self.clock.communicating():
            super().barrier(*args, **kwargs)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        with self.clock.communicating():
            return super().broadcast(obj, src)

    @property
    def _trainer(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    @property
    def _optimizes_itself(self) -> bool:
        assert self.lightning_module is not None
        return self.lightning_module.automatic_optimization

    @property
    def _is_ghost(self) -> bool:
        return self.share is not None and self.share.rows == 0

    def _note_order(self, digest: int) -> None:
        self._drawn_order = digest

    def _gradients_of_ghosts(self) -> AbstractContextManager[None]:
        assert self.lightning_module is not None
        return ghost.without_gradients(self.lightning_module) if self._is_ghost else nullcontext()

    def _receive(self, share: Share) -> None:
        if self.share is not None:
            raise UnsupportedError(
                "Expected one batch for each step, got a second one before the first was used. Combine loaders in the"
                ' mode "sequential", keep IterableDataset apart from other loaders, or use strategy="ddp".'
            )
        self.share = share

    def _prepare_loader(self, loader: Any, stage: str) -> Any:
        by_boa = trainer_seam.uses_distributed_sampler(self._trainer)
        if stage == trainer_seam.TRAIN:
            if not by_boa:
                raise UnsupportedError(
                    "Expected use_distributed_sampler=True, got False: boa has to give each rank its share of every"
                    ' step. Leave it True and pass the sampler of the whole data set, or train with strategy="ddp".'
                )
            return self._training_loader(loader)
        if not by_boa or not isinstance(loader, DataLoader):
            return None
        if isinstance(loader.dataset, IterableDataset):
            return None
        return self._evaluation_loader(loader, stage)

    def _training_loader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        loader = original_loader(loader)
        order = order_of(loader)
        self._global_batch_size = self._agreed_global_batch_size(batch_size_of(loader))
        self._train_rows = len(order)
        self._fix_plan(self._global_batch_size)
        self._train_sampler = ShareBatchSampler(
            order,
            rank=self.global_rank,
            global_batch_size=self._global_batch_size,
            drop_last=drop_last_of(loader),
            seed=self.seed,
            rows_of=self._training_rows,
            first_step=partial(trainer_seam.steps_done, self._trainer),
            check_order=self._note_order if isinstance(order, SampledOrder) else None,
        )
        return boa_loader(loader, self._train_sampler, deliver=self._receive)

    def _evaluation_loader(self, loader: DataLoader[Any], stage: str) -> DataLoader[Any]:
        loader = original_loader(loader)
        order = order_of(loader)
        batch_size = batch_size_of(loader)
        predicts = stage == trainer_seam.PREDICT
        sampler: Any = ShareBatchSampler(
            order,
            rank=self.global_rank,
            global_batch_size=batch_size * self.world_size,
            drop_last=drop_last_of(loader) and not predicts,
            seed=self.seed,
            rows_of=partial(self._evaluation_rows, batch_size),
            first_step=lambda: (0, 0),
            skip_ghosts=predicts,
        )
        if not predicts:
            return boa_loader(loader, sampler, deliver=self._receive)
        sized = len(order) >= self.world_size
        return boa_loader(loader, trainer_seam.index_recorder(self._trainer, sampler), sized=sized)

    def _agreed_global_batch_size(self, batch_size: int) -> int:
        asked = self.options.global_batch_size
        if self._restored is None:
            return asked if asked is not None else batch_size * self.world_size
        restored = int(self._restored["global_batch_size"])
        if asked is None or asked == restored:
            return restored
        if self._restored_inside_epoch:
            raise OptionError(
                f"global_batch_size: expected the checkpoint's {restored}, got {asked}. In the middle of an epoch the"
                " global batch cannot change; leave the option out, or resume from an epoch's end."
            )
        return asked

    def _fix_plan(self, global_batch_size: int) -> None:
        plan = self.options.plan(self.world_size, global_batch_size)
        if plan is None and self.world_size == 1:
            plan = equal_split(1, global_batch_size)
        self._fixed_schedule = None if plan is None else Schedule.starting_with(plan)
        if plan is None:
            self.options.settings(self.world_size, global_batch_size)

    def _training_rows(self, step: int, step_rows: int) -> tuple[int, ...]:
        schedule = self.schedule
        assert schedule is not None
        return schedule.plan_at(step).rows_of(step_rows)

    def _evaluation_rows(self, batch_size: int, step: int, step_rows: int) -> tuple[int, ...]:
        plan = self.plan
        shares = (1,) * self.world_size if plan is None else plan.batch_sizes
        most = [max(batch_size, rows) for rows in shares]
        return apportion(shares, step_rows, upper=most)

    def _check_rows(self, batch: Any, share: Share) -> None:
        rows = share.fetched
        if rows in self._checked_sizes:
            return
        sizes = leading_sizes(batch)
        if len(sizes) == 1 and (found := sizes.pop()) % rows:
            raise UnsupportedError(
                f"Expected a batch of {rows} rows on rank {self.global_rank} (its share of step {share.step}),"
                f" got tensors whose leading size is {found}. Let collate_fn keep one entry per row of the data set,"
                ' or train with strategy="ddp".'
            )
        self._checked_sizes.add(rows)

    def _weigh(self, loss: Tensor) -> Tensor:
        share = self.share
        if share is None or share.rows == 0:
            return loss
        weight = gradient_weight(
            share.rows, share.step_rows, self.world_size, self.options.batch_weight
        )
        return loss if weight == 1.0 else loss * weight

    def _watched_parameters(self) -> list[Tensor]:
        """The first and the last trainable parameter of each optimizer: a backward reaches one of them."""
        trained = (
            [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            for optimizer in self.optimizers
        )
        watched = [parameter for each in trained for parameter in each[:1] + each[-1:]]
        return list({id(parameter): parameter for parameter in watched}.values())

    def _refuse_unweighted_backward(self, parameter: Tensor) -> None:
        if self._weighted_backwards == 0:
            raise UnsupportedError(
                "Expected self.manual_backward(loss), got loss.backward(): its gradients would neither be weighted by"
                " this rank's rows nor averaged over the ranks. Call self.manual_backward(loss) instead."
            )

    def _on_gradient_of_loss(self, gradient: Tensor) -> None:
        clock = self.clock
        Variable._execution_engine.queue_callback(lambda: clock.switch("communication"))

    def _evaluation_step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return self._take_part(step, *args, **kwargs)
        finally:
            self.share = None

    def _take_part(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        share = self.share
        if share is None:
            return step(*args, **kwargs)
        trainer_seam.log_rows(self._trainer, share.rows)
        self._rows_in_step = share.rows
        try:
            if share.rows:
                return step(*args, **kwargs)
            return self._leave_no_trace(step, *args, **kwargs)
        finally:
            self._rows_in_step = None

    def _leave_no_trace(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        put_back_logged = trainer_seam.remember_logged(self._trainer)
        with ghost.untraced(self.lightning_module, self.root_device):
            output = step(*args, **kwargs)
        put_back_logged()
        return output
