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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from lightning_boa.data import Share, ShareBatchSampler
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    Orchestration,
    OrchestrationSettings,
    Schedule,
    apportion,
    equal_split,
    gradient_weight,
)
from lightning_boa.profiling import (
    ClockEntry,
    MemoryProfile,
    StepClock,
    memory_profile_of,
    timeline_of,
)
from lightning_boa.strategies import ghost, process_group, reduction, trainer_seam
from lightning_boa.strategies.batch_rows import RowCheck
from lightning_boa.strategies.deliveries import Deliveries
from lightning_boa.strategies.loaders import LoaderSource, Sharing
from lightning_boa.strategies.options import BatchWeight, BoaOptions, check_known, whole_numbers
from lightning_boa.strategies.restart import Restart

if TYPE_CHECKING:
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object


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
        min_batch_size: fewest rows of a rank, a number or one per rank; 0 permits ranks without rows. With BatchNorm,
            which refuses a single row, 1 means 2 where the global batch permits it.
        max_batch_size: most rows of a rank, a number or one (or None) per rank.
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
        max_batch_size: int | Sequence[int | None] | None = None,
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
        self._seed: int | None = None
        self._restart: Restart | None = None
        self._planned_for: Mapping[str, Any] = {}
        self._fixed_schedule: Schedule | None = None
        self._global_batch_size: int | None = None
        self._source: LoaderSource | None = None
        self._sampler: ShareBatchSampler | None = None
        self._new_facts: dict[str, Any] = {}
        self._drawn_order: int | None = None
        self._deliveries = Deliveries()
        self._row_check = RowCheck()
        self._rows_in_step: int | None = None
        self._weighted_backwards = 0
        self._after_step: list[Callable[[], None]] = []
        self._measuring: Any = None
        self._watching: list[Any] = []

    @property
    def share(self) -> Share | None:
        """This rank's part of the step that runs; its rows are 0 where the rank only takes part."""
        return self._deliveries.present

    @property
    def schedule(self) -> Schedule | None:
        """Which plan holds from which training step on; None before training."""
        if self.orchestration is not None:
            return self.orchestration.schedule
        return self._fixed_schedule

    @property
    def plan(self) -> BatchPlan | None:
        """The latest plan, in the warm-up the split that is tried; None before training."""
        schedule = self.schedule
        return None if schedule is None else schedule.latest

    @property
    def first_free_step(self) -> int:
        """The first training step whose rows this rank's sampler has not handed out."""
        assert self._sampler is not None
        return max(self._sampler.handed_out, trainer_seam.present_step(self._trainer)) + 1

    @property
    def has_ranks_without_rows(self) -> bool:
        """Whether some rank will have no rows in some step under the present plan."""
        plan, source = self.plan, self._source
        assert plan is not None
        assert source is not None
        short = source.last_rows(plan.global_batch_size)
        return 0 in plan.batch_sizes or (short > 0 and 0 in self._split(plan, short))

    def standing_still(self) -> AbstractContextManager[Any]:
        """While this is held no further step is handed out, not even by a loader that reads ahead in a thread."""
        assert self._sampler is not None
        return self._sampler.lock

    def take_new_facts(self) -> Mapping[str, Any]:
        """What all ranks must have in common, where a loader has been set up since the last call."""
        facts, self._new_facts = self._new_facts, {}
        return facts

    def take_drawn_order(self) -> int | None:
        """Digest of the order that a custom sampler has just given, once for each draw; None otherwise."""
        drawn, self._drawn_order = self._drawn_order, None
        return drawn

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint holds, plain values only; None before a training."""
        if self._global_batch_size is None or self._seed is None:
            return None
        orchestration = self.orchestration
        return Restart(
            global_batch_size=self._global_batch_size,
            seed=self._seed,
            orchestration=None if orchestration is None else orchestration.to_dict(),
            made_for=self._planned_for,
        ).to_dict()

    def restore(self, state: Mapping[str, Any], inside_epoch: bool) -> None:
        """Go on where a checkpoint stopped: its global batch, seed and plan hold from here.

        Raises:
            UnsupportedError: the state was written by a newer version, or the training loader is set up already.
        """
        restart = Restart.of(state, inside_epoch)
        if self._global_batch_size not in (None, restart.global_batch_size):
            raise UnsupportedError(
                f"Expected to read the checkpoint's global batch of {restart.global_batch_size} rows before the"
                f" training loader is set up, which has {self._global_batch_size}. Ask for the loader or"
                " trainer.estimated_stepping_batches in configure_optimizers, not in setup."
            )
        self._restart = restart
        self._seed = restart.seed
        self.orchestration = None

    def new_clock(self) -> StepClock:
        """The clock that measures this rank's steps; a test may bring its own time."""
        return StepClock(self.global_rank, timeline_of(self.root_device))

    def new_memory_profile(self) -> MemoryProfile | None:
        """What measures this rank's memory, None where the device's memory is not its own."""
        return memory_profile_of(self.root_device)

    def begin_planning(self) -> None:
        """Measure and plan; go on with the plan of a checkpoint or an earlier fit if devices and model are the same."""
        assert self.lightning_module is not None
        parameters = sum(parameter.numel() for parameter in self.lightning_module.parameters())
        made_for = {"devices": list(self.device_names), "parameters": parameters}
        known: Mapping[str, Any] | None = None
        known_for = self._planned_for
        if self.orchestration is not None:
            known = self.orchestration.to_dict()
        elif self._restart is not None:
            known, known_for = self._restart.orchestration, self._restart.made_for
        self._planned_for = made_for
        if self._fixed_schedule is not None:
            return
        _, first_step = trainer_seam.steps_done(self._trainer)
        if known is None or known_for != made_for:
            self.orchestration = Orchestration.begin(self._settings, first_step)
        else:
            self.orchestration = Orchestration.resume(self._settings, known, first_step)

    def begin_epoch(self) -> None:
        """An epoch of training begins on this rank."""
        self.clock.interrupt()
        self._deliveries.forget()

    def log_rows(self) -> None:
        """Let `self.log` weigh the batch that has arrived by its rows, not by the first tensor found in it."""
        arrived = self._deliveries.arrived
        if arrived is not None:
            trainer_seam.log_rows(self._trainer, arrived.rows)

    def finish_step(self) -> None:
        """A training step is over on this rank."""
        self.clock.end()
        if self.memory is not None and self.share is not None and self.clock.enabled:
            self.memory.end_step(self.share.rows)
        self._put_back()

    @override
    def connect(self, model: Any) -> None:
        super().connect(model)
        trainer = model.trainer
        self._deliveries.forget()
        self._after_step = []
        if _is_fit(trainer):
            self._restart = None
            self._global_batch_size = None
        trainer_seam.divert_loaders(trainer, self._prepare_loader)
        if not any(isinstance(callback, self.callback_class) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, self.callback_class())

    @override
    def setup_environment(self) -> None:
        made_here = not dist.is_initialized()
        super().setup_environment()
        if made_here:
            process_group.leave_at_exit()
        if dist.get_world_size() != self.world_size:
            raise UnsupportedError(
                f"Expected a process group of {self.world_size} ranks, got one of {dist.get_world_size()} from an"
                " earlier run in this process. Start a new process for each number of devices."
            )
        if self._seed is None or _is_fit(self._trainer):
            self._seed = self.broadcast(int(os.environ.get("PL_GLOBAL_SEED", 0)))

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if not _is_fit(trainer):
            return
        self.clock = self.new_clock()
        self.memory = self.new_memory_profile()
        if not self._is_automatic:
            self._watching = [
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._refuse_unweighted_backward
                )
                for parameter in self._watched_parameters()
            ]

    @override
    def teardown(self) -> None:
        self.measure(False)
        for handle in self._watching:
            handle.remove()
        self._watching = []
        super().teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        process_group.do_not_leave()
        super().on_exception(exception)

    def measure(self, enabled: bool) -> None:
        """Measure the steps from here on, or leave them alone."""
        self.clock.enabled = enabled
        if enabled and self._measuring is None:
            assert self.lightning_module is not None
            self._measuring = self.lightning_module.register_forward_pre_hook(
                ClockEntry(self.clock), prepend=True
            )
        elif not enabled and self._measuring is not None:
            self._measuring.remove()
            self._measuring = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._put_back()
        share = self._deliveries.take()
        if share is None:
            raise UnsupportedError(
                "Expected a training batch from a DataLoader that boa has prepared, got one from elsewhere. Pass the"
                ' loader to the trainer as it is, or train with strategy="ddp".'
            )
        self._row_check(batch, share, self.global_rank)
        self.clock.begin(share.step, share.rows, share.step_rows, share.wait)
        if self.memory is not None and self.clock.enabled:
            self.memory.begin_step()

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        if self._is_ghost:
            self._after_step.append(ghost.remember_buffers(self.lightning_module))
        output = self._take_part(super().training_step, *args, **kwargs)
        if not self._is_automatic:
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
        self.clock.switch("optimizer" if self._is_automatic else "compute")
        return result

    @override
    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_automatic:
            self.clock.switch("optimizer")
        output = super().optimizer_step(*args, **kwargs)
        self.clock.switch(None if self._is_automatic else "compute")
        return output

    @override
    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any | None = "mean") -> Any:
        with self.clock.communicating():
            if not isinstance(tensor, Tensor) or group not in (None, dist.group.WORLD):
                return super().reduce(tensor, group, reduce_op)
            operation = str(getattr(reduce_op, "name", reduce_op)).lower()
            if operation in ("mean", "avg"):
                if self._rows_in_step is None:
                    return reduction.mean_over_ranks(tensor)
                return reduction.mean_over_rows(tensor, self._rows_in_step)
            if self._rows_in_step == 0:
                tensor = reduction.neutral(tensor, operation)
            return super().reduce(tensor, group, reduce_op)

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        rows, self._rows_in_step = self._rows_in_step, None
        try:
            return super().reduce_boolean_decision(decision, all)
        finally:
            self._rows_in_step = rows

    @override
    def all_gather(
        self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False
    ) -> Tensor:
        with self.clock.communicating():
            reduction.check_same_shape(tensor, group)
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
    def _is_automatic(self) -> bool:
        assert self.lightning_module is not None
        return self.lightning_module.automatic_optimization

    @property
    def _is_ghost(self) -> bool:
        return self.share is not None and self.share.rows == 0

    @property
    def _settings(self) -> OrchestrationSettings:
        assert self._global_batch_size is not None
        assert self.lightning_module is not None
        return self.options.settings(
            self.world_size,
            self._global_batch_size,
            refuses_single_rows=any(
                isinstance(part, _BatchNorm) for part in self.lightning_module.modules()
            ),
        )

    @property
    def _sharing(self) -> Sharing:
        assert self._seed is not None
        return Sharing(self.global_rank, self._seed, self._deliveries.receive, self._note_order)

    def _note_order(self, digest: int) -> None:
        self._drawn_order = digest

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

    def _training_loader(self, loader: Any) -> DataLoader[Any]:
        self._source = source = LoaderSource.of(loader)
        asked = self.options.global_batch_size
        if self._restart is not None:
            global_batch_size = self._restart.agreed_global_batch_size(asked)
        else:
            global_batch_size = source.batch_size * self.world_size if asked is None else asked
        self._use_global_batch_size(global_batch_size)
        self._new_facts = {
            "options of BoaStrategy": repr(self.options),
            "global batch size": global_batch_size,
            "rows in the training data set": len(source.order),
            "seed": self._seed,
            "world size": self.world_size,
        }
        first_step = partial(trainer_seam.steps_done, self._trainer)
        twin, self._sampler = self._sharing.training(
            source, global_batch_size, self._training_rows, first_step
        )
        return twin

    def _use_global_batch_size(self, rows: int) -> None:
        """Fix the plan that the options give, or begin anew with a plan made for another global batch."""
        self._global_batch_size = rows
        plan = self.options.plan(self.world_size, rows)
        if plan is None:
            settings = self._settings
            if self.world_size == 1:
                plan = equal_split(1, rows)
            elif self.plan is not None and self.plan.global_batch_size != rows:
                _, first_step = trainer_seam.steps_done(self._trainer)
                self.orchestration = Orchestration.begin(settings, first_step)
        self._fixed_schedule = None if plan is None else Schedule.starting_with(plan)

    def _evaluation_loader(self, loader: DataLoader[Any], stage: str) -> DataLoader[Any]:
        source = LoaderSource.of(loader)
        rows = source.batch_size * self.world_size
        split = partial(self._evaluation_rows, source.batch_size)
        if stage == trainer_seam.PREDICT:
            record = partial(trainer_seam.index_recorder, self._trainer)
            return self._sharing.prediction(source, rows, split, self.world_size, record)
        self._new_facts[f"rows and batch size of the {stage} data set"] = (
            len(source.order),
            source.batch_size,
        )
        return self._sharing.evaluation(source, rows, split)

    def _training_rows(self, step: int, step_rows: int) -> Sequence[int]:
        schedule = self.schedule
        if schedule is None:
            assert self._global_batch_size is not None
            return self._split(equal_split(self.world_size, self._global_batch_size), step_rows)
        return self._split(schedule.plan_at(step), step_rows)

    def _split(self, plan: BatchPlan, step_rows: int) -> tuple[int, ...]:
        return plan.rows_of(step_rows, self.options.least_rows)

    def _evaluation_rows(self, batch_size: int, step: int, step_rows: int) -> Sequence[int]:
        plan = self.plan
        shares = (1,) * self.world_size if plan is None else plan.batch_sizes
        most = [max(batch_size, rows) for rows in shares]
        return apportion(shares, step_rows, upper=most)

    def _weigh(self, loss: Tensor) -> Tensor:
        share = self.share
        if share is None or (self._rows_in_step is None and not self._is_automatic):
            raise UnsupportedError(
                "Expected manual_backward inside training_step, got it outside: only there it is known by which rows"
                " the loss must be weighted. Move it into training_step."
            )
        if share.rows == 0:
            return ghost.without_gradient(loss)
        weight = gradient_weight(
            share.rows, share.step_rows, self.world_size, self.options.batch_weight
        )
        return loss if weight == 1.0 else loss * weight

    def _gradients_of_ghosts(self) -> AbstractContextManager[None]:
        assert self.lightning_module is not None
        return ghost.without_gradients(self.lightning_module) if self._is_ghost else nullcontext()

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
        self._deliveries.take()
        output = self._take_part(step, *args, **kwargs)
        if self._deliveries.arrived is not None:
            raise UnsupportedError(
                "Expected a step that is given its batch, got one that fetches it (dataloader_iter): its rows cannot be"
                ' known beforehand. Take batch instead, or use strategy="ddp".'
            )
        return output

    def _take_part(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        share = self.share
        if share is None:
            return step(*args, **kwargs)
        self._rows_in_step = share.rows
        try:
            if share.rows:
                return step(*args, **kwargs)
            return self._leave_no_trace(step, *args, **kwargs)
        finally:
            self._rows_in_step = None

    def _leave_no_trace(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        module = self.lightning_module
        assert module is not None
        put_back = [trainer_seam.remember_logged(self._trainer)]
        if not module.training:
            put_back.append(ghost.remember_buffers(module))
        with ghost.untraced(module, self.root_device):
            output = step(*args, **kwargs)
        for restore in put_back:
            restore()
        return output

    def _put_back(self) -> None:
        for restore in self._after_step:
            restore()
        self._after_step = []


def _is_fit(trainer: Any) -> bool:
    return bool(trainer.state.fn.value == "fit")
