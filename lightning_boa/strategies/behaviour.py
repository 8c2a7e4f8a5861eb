"""What BoaStrategy does, for whichever Lightning: shares of each step, weighted losses, measured steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_boa.data import (
    BatchSource,
    RowRequests,
    Share,
    ShareBatchSampler,
    Source,
    can_be_planned,
    is_stream,
    length_of,
    makes_single_batches,
    original_loader,
    source_of,
    stream_loader,
)
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import BatchPlan, MadeFor, Orchestration, Schedule, apportion
from lightning_boa.profiling import (
    ClockEntry,
    MemoryProfile,
    StepClock,
    check_same,
    memory_profile_of,
    timeline_of,
)
from lightning_boa.strategies import (
    gathering,
    ghost,
    process_group,
    reduction,
    roll_call,
    trainer_seam,
)
from lightning_boa.strategies.batch_rows import RowCheck, rows_shown
from lightning_boa.strategies.deliveries import Deliveries
from lightning_boa.strategies.evaluation_steps import EvaluationSteps
from lightning_boa.strategies.loaders import Sharing
from lightning_boa.strategies.loss_weight import LossWeight, is_said, rule_of
from lightning_boa.strategies.options import (
    BatchWeight,
    BoaOptions,
    check_known,
    path_text,
    rule_name,
    whole_numbers,
)
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.roll_call import RollCall
from lightning_boa.strategies.running_statistics import RunningStatistics
from lightning_boa.strategies.saved_profile import SavedProfile, installed_software
from lightning_boa.strategies.step_plans import SWITCH, StepPlans, is_switched_off
from lightning_boa.strategies.stream_agreement import StreamAgreement
from lightning_boa.strategies.training_loaders import TrainingLoaders
from lightning_boa.wrong_lightning import refuse_mix

if TYPE_CHECKING:
    from pytorch_lightning.strategies import DDPStrategy as _Base
else:
    _Base = object

ALIKE = (
    "accumulate_grad_batches",
    "max_epochs",
    "max_steps",
    "min_epochs",
    "min_steps",
    "limit_train_batches",
    "limit_val_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "precision",
    "gradient_clip_val",
    "gradient_clip_algorithm",
)
GO_ON = "The last checkpoint goes on where it was saved, with fewer ranks too (ckpt_path)."


class BoaBehaviour(_Base):
    """Synchronous data parallelism in which each rank takes the share of the global batch that fits its speed.

    One optimizer step equals the step of a single device on the same global batch; shares are measured in the first
    steps of training and change nothing but the time a step takes.

    Args:
        global_batch_size: rows of a step over all ranks; by default the loader's batch_size times the ranks, as
            under "ddp". A checkpoint's value comes first.
        batch_sizes: rows per rank, a fixed plan; nothing is measured.
        warmup: steps in which the devices are measured; "auto" ends as soon as the figures are good, at the latest
            with the first epoch. 0 needs batch_sizes or a profile.
        rebalance: whether the plan may change after the warm-up, when a device becomes slower or faster: "auto" at any
            step, "epoch" between two epochs, "off" never.
        batch_weight: "samples" if the loss is a mean over rows, "sum" if it is a sum over rows, "none" if the loss
            already brings the factor that makes the mean over ranks right; or a function of the batch that says how
            many things the loss is a mean over (tokens that count), or the sum of their weights. By default what the
            module declares as `boa_batch_weight`, a method or one of these words, else "samples".
        granularity: shares are multiples of this many rows (the remainder goes to one rank).
        min_batch_size: fewest rows of a rank, a number or one per rank; 0 permits ranks without rows. With BatchNorm,
            which refuses a single row, 1 means 2 where the global batch permits it.
        max_batch_size: most rows of a rank, a number or one (or None) per rank.
        profile: path of a file on rank 0's disk. If it holds a plan for these devices, this model, these rows and this
            software, training begins with that plan, which its first steps check; else the devices are measured and the
            file is written. `warmup=0` makes it an error if the file is missing or does not fit. A checkpoint's plan
            comes first.
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
        rebalance: Literal["auto", "epoch", "off"] = "auto",
        batch_weight: BatchWeight | None = None,
        granularity: int = 1,
        min_batch_size: int | Sequence[int] = 1,
        max_batch_size: int | Sequence[int | None] | None = None,
        profile: str | os.PathLike[str] | None = None,
        **ddp_kwargs: Any,
    ) -> None:
        self.options = BoaOptions(
            global_batch_size=global_batch_size,
            batch_sizes=whole_numbers(batch_sizes),
            warmup=warmup,
            rebalance=rebalance,
            batch_weight=batch_weight,
            granularity=granularity,
            min_batch_size=whole_numbers(min_batch_size),
            max_batch_size=whole_numbers(max_batch_size),
            profile=path_text(profile),
        )
        check_known(ddp_kwargs, super().__init__)
        super().__init__(**ddp_kwargs)
        self._plans = StepPlans(self.options)
        self._profile: SavedProfile | None = None
        self.device_names: tuple[str, ...] = ()
        self.clock = StepClock(rank=0)
        self.memory: MemoryProfile | None = None
        self._measures_memory = False
        self._seed: int | None = None
        self._loaders: TrainingLoaders | None = None
        self._samplers: list[ShareBatchSampler | RowRequests] = []
        self._new_facts: dict[str, Any] = {}
        self._drawn_order: int | None = None
        self._trained = Deliveries(together=True)
        self._evaluated = Deliveries(most_ahead=2)
        self._share: Share | None = None
        self._weight: LossWeight | None = None
        self._statistics: RunningStatistics | None = None
        self._row_check = RowCheck()
        self._evaluation_checks: MutableMapping[Any, RowCheck] = {}
        self._rows_in_step: int | None = None
        self._weighted_backwards = 0
        self._is_automatic = True
        self._after_step: list[Callable[[], None]] = []
        self._after_batch: Callable[[], None] = _do_nothing
        self._evaluation_steps: EvaluationSteps | None = None
        self._evaluation_group: Any = None
        self._measuring: Any = None
        self._watching: list[Any] = []
        self._frozen: list[Tensor] = []
        self._number_of_loaders = 0
        self._roll_call: RollCall | None = None
        self._stop_requested = False

    @property
    def share(self) -> Share | None:
        """This rank's part of the step that runs; its rows are 0 where the rank only takes part."""
        return self._share

    @property
    def orchestration(self) -> Orchestration | None:
        """The loop that measures and plans; None before training and under a fixed plan."""
        return self._plans.orchestration

    @orchestration.setter
    def orchestration(self, orchestration: Orchestration | None) -> None:
        self._plans.orchestration = orchestration

    @property
    def fixed_schedule(self) -> Schedule | None:
        """The schedule of a plan that nothing changes; None where the devices are measured."""
        return self._plans.fixed

    @fixed_schedule.setter
    def fixed_schedule(self, schedule: Schedule | None) -> None:
        self._plans.fixed = schedule

    @property
    def schedule(self) -> Schedule | None:
        """Which plan holds from which training step on; None before training."""
        return self._plans.schedule

    @property
    def plan(self) -> BatchPlan | None:
        """The latest plan, in the warm-up the split that is tried; None before training."""
        return self._plans.latest

    @property
    def fixed_reason(self) -> str:
        """Why nothing is measured, in a few words."""
        return self._plans.fixed_reason

    @property
    def first_free_step(self) -> int:
        """The first training step whose rows this rank's samplers have not handed out."""
        handed_out = max((sampler.handed_out for sampler in self._samplers), default=-1)
        return max(handed_out, trainer_seam.present_step(self._trainer)) + 1

    @property
    def has_ranks_without_rows(self) -> bool:
        """Whether some rank will have no rows in some step under the present plan."""
        plan, loaders = self.plan, self._loaders
        assert plan is not None
        assert loaders is not None
        short_steps = (self._plans.split(plan, rows) for rows in loaders.last_rows())
        return 0 in plan.batch_sizes or any(0 in split for split in short_steps)

    @property
    def has_refused_rows(self) -> bool:
        """Whether some rank has a single row in a step, beside layers (BatchNorm) that may refuse it."""
        plan = self.plan
        assert plan is not None
        return self._refuses_single_rows and 1 in plan.batch_sizes

    @property
    def _refuses_single_rows(self) -> bool:
        return any(isinstance(part, _BatchNorm) for part in self._module.modules())

    @property
    def is_to_stop(self) -> bool:
        """On rank 0: whether some rank has had SIGTERM, so that the training ends before its next step."""
        return self._stop_requested or (
            self._roll_call is not None and self._roll_call.stop_requested
        )

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """While this is held no further step is handed out, not even by a loader that reads ahead in a thread."""
        with ExitStack() as held:
            for sampler in self._samplers:
                held.enter_context(sampler.lock)
            yield

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
        return None if self._seed is None else self._plans.state(self._seed)

    def restore(self, state: Mapping[str, Any], inside_epoch: bool) -> None:
        """Go on where a checkpoint stopped: its global batch, seed and plan hold from here.

        Raises:
            UnsupportedError: the state was written by a newer version, or the training loader is set up already.
        """
        restart = Restart.of(state, inside_epoch)
        self._plans.restore(restart)
        self._seed = restart.seed

    def new_clock(self) -> StepClock:
        """The clock that measures this rank's steps; a test may bring its own time."""
        return StepClock(self.global_rank, timeline_of(self.root_device))

    def new_memory_profile(self) -> MemoryProfile | None:
        """What measures this rank's memory, None where the device's memory is not its own."""
        return memory_profile_of(self.root_device)

    def begin_planning(self) -> None:
        """Measure and plan; go on with the plan of a checkpoint or an earlier fit if devices and model are the same."""
        assert self.lightning_module is not None
        self._settle_loaders()
        parameters = sum(parameter.numel() for parameter in self.lightning_module.parameters())
        _, first_step = trainer_seam.steps_done(self._trainer)
        self._profile = self._saved_profile(parameters)
        self._plans.begin(
            {"devices": list(self.device_names), "parameters": parameters},
            first_step,
            self._profile,
        )

    def keep_profile(self, before: Orchestration, after: Orchestration) -> None:
        """Write the profile if one is asked for and is complete; every rank calls it after each exchange."""
        if self._profile is not None:
            self._profile.keep(before, after)

    def begin_epoch(self) -> None:
        """An epoch of training begins on this rank."""
        self.clock.interrupt()
        self._settle_loaders()

    def end_epoch(self) -> None:
        """An epoch of training is over on this rank; what its loaders gave too much is not used."""
        self._trained.forget()

    def log_rows(self, trainer: Any, training: bool) -> None:
        """A step begins: let `self.log` weigh its batch by its rows, not by the first tensor found in it."""
        arrived = self._trained.next if training else self._arrived_in_evaluation.next
        if arrived is not None:
            trainer_seam.log_rows(trainer, arrived.rows, training=training)
        if self._evaluation_steps is not None:
            number, _ = trainer_seam.evaluation_step(trainer)
            self._evaluation_steps.begin(number)

    def log_epoch_rows(self) -> None:
        """Let `self.log` at the end of an epoch weigh a value of this rank by the rows that it had in the epoch."""
        training = self._trainer.training
        deliveries = self._trained if training else self._evaluated
        trainer_seam.log_rows(self._trainer, deliveries.pop_rows(), training=training)
        if self._evaluation_steps is not None:
            self._evaluation_steps.end_all()

    def finish_step(self) -> None:
        """A training step is over on this rank."""
        self._settle()
        self._begin_batch_end()
        self.clock.end()
        if self.memory is not None and self.share is not None and self._measures_memory:
            self.memory.end_step(self.share.rows)

    @override
    def set_world_ranks(self) -> None:
        refuse_mix(self, self.accelerator)
        super().set_world_ranks()

    @override
    def connect(self, model: Any) -> None:
        super().connect(model)
        trainer = model.trainer
        self._trained.forget()
        self._evaluated.forget()
        self._share = None
        self._after_step = []
        if _is_fit(trainer):
            self._plans.begin_fit()
            self._loaders = None
        self._after_batch = _do_nothing
        self._evaluation_steps = None
        trainer_seam.divert_loaders(trainer, self._prepare_loader)
        trainer_seam.announce_loaders(trainer, self._begin_loaders)
        trainer_seam.divert_batch_end(trainer, self._end_batch)
        if not any(isinstance(callback, self.callback_class) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, self.callback_class())

    @override
    def setup_environment(self) -> None:
        made_here = not dist.is_initialized()
        super().setup_environment()
        if made_here:
            self._evaluation_group = None
            process_group.leave_at_exit()
        if dist.get_world_size() != self.world_size:
            raise UnsupportedError(
                f"Expected a process group of {self.world_size} ranks, got one of {dist.get_world_size()} from an"
                " earlier run in this process. Start a new process for each number of devices."
            )
        if self._seed is None or _is_fit(self._trainer):
            self._seed = self.broadcast(int(os.environ.get("PL_GLOBAL_SEED", 0)))
        self._begin_roll_call()

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        self._evaluation_checks = WeakKeyDictionary()
        if not _is_fit(trainer):
            return
        self.clock = self.new_clock()
        self.memory = self.new_memory_profile()
        assert self.lightning_module is not None
        self._is_automatic = self.lightning_module.automatic_optimization
        rule = rule_of(self.options.batch_weight, self.lightning_module)
        self._weight = LossWeight(rule, self.global_rank, self.world_size, self.root_device)
        if not self._is_automatic:
            self._watching = [
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._refuse_unweighted_backward
                )
                for parameter in self._watched_parameters()
            ]

    @override
    def configure_ddp(self) -> None:
        super().configure_ddp()
        self._frozen = [each for each in self._module.parameters() if not each.requires_grad]
        if self.world_size > 1:
            assert isinstance(self.model, DistributedDataParallel)
            self._statistics = RunningStatistics.instead_of_broadcast(self.model)

    @override
    def teardown(self) -> None:
        self.measure(False)
        self._statistics = None
        for handle in self._watching:
            handle.remove()
        self._watching = []
        self._end_roll_call()
        super().teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        process_group.do_not_leave()
        super().on_exception(exception)
        if self._roll_call is not None:
            self._roll_call.explain(exception, GO_ON if _is_fit(self._trainer) else "")

    def measure(self, enabled: bool, *, memory: bool = True) -> None:
        """Measure the steps from here on, with the memory that they take, or leave them alone."""
        self.clock.enabled = enabled
        self._measures_memory = enabled and memory
        if enabled and self._measuring is None:
            assert self.lightning_module is not None
            self._measuring = self.lightning_module.register_forward_pre_hook(
                ClockEntry(self.clock), prepend=True
            )
        elif not enabled and self._measuring is not None:
            self._measuring.remove()
            self._measuring = None

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self._refuse_loaders_side_by_side()

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._begin_evaluation()

    @override
    def on_test_start(self) -> None:
        super().on_test_start()
        self._begin_evaluation()

    @override
    def on_validation_end(self) -> None:
        super().on_validation_end()
        self._end_evaluation()

    @override
    def on_test_end(self) -> None:
        super().on_test_end()
        self._end_evaluation()

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._settle()
        if self._frozen and any(parameter.requires_grad for parameter in self._frozen):
            self._wrap_again()
        self._share = share = self._trained.take()
        if share is None:
            raise UnsupportedError(
                "Expected a training batch from a loader that boa has prepared, got one from elsewhere. Pass the"
                ' loader to the trainer as it is, or train with strategy="ddp".'
            )
        assert self._loaders is not None
        if self._loaders.is_single and not self._counts_itself:
            self._row_check(batch, share, self.global_rank)
        self.clock.begin(share.step, share.rows, share.step_rows, share.wait)
        if self.memory is not None and self._measures_memory:
            self.memory.begin_step()

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        assert self._weight is not None
        self._settle()
        if self._share is not None:
            self._weight.begin(self._share, args[0])
        if self._is_ghost:
            written = () if self._statistics is None else self._statistics.buffers()
            self._after_step.append(ghost.remember_buffers(self.lightning_module, written))
        output = self._take_part(super().training_step, *args, **kwargs)
        if self._statistics is not None and self.share is not None:
            self._statistics.begin(self.share.rows)
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
        weight = self._weight_inside_step()
        if weight.is_under_way:
            with self.clock.communicating():
                weight.arrive()
        loss = weight.of(closure_loss)
        self.clock.switch("compute")
        if loss.requires_grad and self.clock.enabled:
            loss.register_hook(self._on_gradient_of_loss)  # type: ignore[no-untyped-call]
        self._weighted_backwards += 1
        try:
            with weight.gradients(self._module):
                result = super().backward(loss, optimizer, *args, **kwargs)
        finally:
            self._weighted_backwards -= 1
        self.clock.switch("optimizer" if self._is_automatic else "compute")
        return result

    @override
    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_automatic:
            self.clock.switch("optimizer")
        if isinstance(optimizer, LBFGS):
            closure = partial(self._loss_of_all_rows, closure)
        output = super().optimizer_step(optimizer, closure, *args, **kwargs)
        self.clock.switch(None if self._is_automatic else "compute")
        return output

    @override
    def reduce(self, tensor: Any, group: Any | None = None, reduce_op: Any | None = "mean") -> Any:
        with self._communicating(group):
            if not isinstance(tensor, Tensor) or group not in (None, dist.group.WORLD):
                return super().reduce(tensor, group, reduce_op)
            operation = str(getattr(reduce_op, "name", reduce_op)).lower()
            rows = self._rows_of_batch
            if operation in ("mean", "avg"):
                if rows is None:
                    return reduction.mean_over_ranks(tensor)
                return reduction.mean_over_rows(tensor, rows)
            if rows == 0:
                tensor = reduction.neutral(tensor, operation)
            return super().reduce(tensor, group, reduce_op)

    @override
    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        counted, self._share, self._rows_in_step = (self._share, self._rows_in_step), None, None
        try:
            return super().reduce_boolean_decision(decision, all)
        finally:
            self._share, self._rows_in_step = counted

    @override
    def all_gather(
        self, tensor: Tensor, group: Any | None = None, sync_grads: bool = False
    ) -> Tensor:
        with self._communicating(group):
            reduction.check_same_shape(tensor, group)
            return super().all_gather(tensor, group, sync_grads)

    def gather_rows(self, data: Any, sync_grads: bool = False) -> Any:
        """What `lightning_boa.gather_rows` does; here a rank without rows in the step that runs contributes none.

        Raises:
            AgreementError: on every rank, where the ranks' tensors differ in more than their rows.
            UnsupportedError: a loss that every rank computes alike, in a step in which a rank has no rows.
        """
        rows, absent = gathering.gather(
            data,
            sync_grads,
            takes_part_only=self._rows_in_step == 0,
            communicating=self._communicating,
        )
        if absent and sync_grads and self._module.training:
            gathering.refuse_absent(absent, rule_of(self.options.batch_weight, self._module))
        return rows

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        with self._communicating():
            super().barrier(*args, **kwargs)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        with self._communicating():
            return super().broadcast(obj, src)

    @property
    def _trainer(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    @property
    def _arrived_in_evaluation(self) -> Deliveries:
        """What has arrived of the loader whose step runs: nothing of a stream, though others may be read ahead."""
        loader = trainer_seam.evaluated_loader(self._trainer)
        return Deliveries() if original_loader(loader) is loader else self._evaluated

    @property
    def _counts_itself(self) -> bool:
        """Whether the user says for each batch what it weighs, so that nothing depends on its rows."""
        return callable(rule_of(self.options.batch_weight, self._module))

    @property
    def _is_ghost(self) -> bool:
        return self._share is not None and self._share.rows == 0

    @property
    def _module(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _rows_of_batch(self) -> int | None:
        """Rows of this rank in the batch whose step or end runs; None elsewhere."""
        if self._rows_in_step is None and self._share is not None:
            return self._share.rows if trainer_seam.is_batch_end(self._module) else None
        return self._rows_in_step

    @property
    def _sharing(self) -> Sharing:
        assert self._seed is not None
        return Sharing(self.global_rank, self._seed, self._note_order)

    def _begin_roll_call(self) -> None:
        self._end_roll_call()
        if self.world_size == 1:
            return
        assert self.cluster_environment is not None
        one_host = self.num_nodes == 1
        self._roll_call = roll_call.begin(
            self.global_rank,
            self.world_size,
            partial(_place_in, self._trainer),
            self.broadcast,
            None if one_host else self.cluster_environment.main_address,
        )
        self._stop_requested = False
        trainer_seam.stop_together(self._trainer, lambda: self.is_to_stop, self._request_stop)

    def _end_roll_call(self) -> None:
        if self._roll_call is not None:
            self._roll_call.close()
            self._roll_call = None

    def _request_stop(self) -> bool:
        self._stop_requested = True
        if self._roll_call is not None:
            self._roll_call.request_stop()
        reaches_rank_0 = self.global_rank == 0 or self._roll_call is not None
        return reaches_rank_0 and _is_fit(self._trainer)

    def _note_order(self, digest: int) -> None:
        self._drawn_order = digest

    def _saved_profile(self, parameters: int) -> SavedProfile | None:
        if self.options.profile is None:
            return None
        made_for = partial(
            MadeFor.of,
            devices=self.device_names,
            parameters=parameters,
            sync_batch_norm=any(isinstance(part, SyncBatchNorm) for part in self._module.modules()),
            precision=str(self.precision_plugin.precision),
            batch_weight=rule_name(rule_of(self.options.batch_weight, self._module)),
            software=installed_software(type(self)),
        )
        return SavedProfile(
            self.options.profile,
            made_for,
            self.root_device,
            measures=self.options.warmup != 0,
        )

    def _prepare_loader(self, loader: Any, stage: str) -> Any:
        by_boa = trainer_seam.uses_distributed_sampler(self._trainer)
        if stage == trainer_seam.TRAIN:
            return self._training_loader(loader, by_boa)
        if not by_boa or is_stream(loader) or makes_single_batches(loader):
            return None
        return self._evaluation_loader(loader, stage)

    def _begin_loaders(self, number: int) -> None:
        """So many training loaders are set up next, in place of those before, which may not have been used."""
        if self._loaders is None:
            self._loaders = TrainingLoaders(self._plans, self.world_size)
        self._loaders.begin()
        self._number_of_loaders = number
        self._samplers = []
        self._trained.forget()
        self._row_check = RowCheck()
        self.clock.interrupt()
        self._plans.begin_loaders(number)

    def _training_loader(self, loader: Any, by_boa: bool) -> Any:
        assert self._loaders is not None
        is_own = is_stream(loader) or not by_boa
        by_plan = is_own and self.options.plans_streams and can_be_planned(loader)
        kind = "a stream in shares" if by_plan else "a stream" if is_own else "rows by number"
        check_same(
            {
                "number of training loaders": self._number_of_loaders,
                "kind of training data": kind,
            }
        )
        if is_own:
            return self._streaming_loader(loader, self._loaders, by_plan=by_plan)
        return self._shared_loader(source_of(loader), self._loaders)

    def _shared_loader(self, source: Source, loaders: TrainingLoaders) -> DataLoader[Any]:
        rows = self._plans.rows_of_full_step(
            loaders.next_number,
            source.batch_size,
            self.world_size,
            of_lists=isinstance(source, BatchSource),
        )
        number = loaders.add(rows, source)
        self._collect_facts(loaders)
        self._trained.most_ahead = 2 if source.length is None else 1
        assert self._plans.batches_per_step is not None
        twin, sampler = self._sharing.training(
            source,
            source.steps(rows, self._plans.batches_per_step),
            partial(loaders.rows_of, number),
            partial(trainer_seam.steps_done, self._trainer),
            self._trained.from_loader(number),
            begin=self._forget_what_was_read_ahead,
            starts_again=partial(self._starts_again, loaders),
        )
        sampler.set_epoch(self._trainer.current_epoch)
        self._samplers.append(sampler)
        return twin

    def _streaming_loader(self, loader: Any, loaders: TrainingLoaders, *, by_plan: bool) -> Any:
        batch_size = getattr(loader, "batch_size", None) or 1
        own_rows = None if by_plan else self._from_all_ranks(batch_size)
        number = loaders.next_number
        if own_rows is None:
            rows = self._plans.rows_of_full_step(number, batch_size, self.world_size)
        else:
            rows = self._plans.rows_of_own_batches(number, own_rows, self.global_rank)
        loaders.add_stream(rows, length_of(loader), own_rows)
        self._collect_facts(loaders)
        self._trained.most_ahead = 2
        first_step = partial(trainer_seam.next_step, self._trainer)
        requests = None
        if by_plan:
            mine = partial(self._rows_of_stream, loaders, number, rows)
            requests = RowRequests(mine, first_step)
            self._samplers.append(requests)
        return stream_loader(
            loader,
            agree=StreamAgreement(self.global_rank, self.world_size),
            next_step=first_step,
            deliver=self._trained.from_loader(number),
            begin=self._forget_what_was_read_ahead,
            count_rows=rows_shown,
            needs_rows=not self._counts_itself,
            requests=requests,
        )

    def _from_all_ranks(self, number: int) -> tuple[int, ...]:
        numbers = [number] * self.world_size
        dist.all_gather_object(numbers, number)
        return tuple(numbers)

    def _rows_of_stream(
        self, loaders: TrainingLoaders, number: int, step_rows: int, step: int
    ) -> int:
        return loaders.rows_of(number, step, step_rows)[self.global_rank]

    def _starts_again(self, loaders: TrainingLoaders) -> bool | None:
        return None if loaders.is_single else trainer_seam.cycles(self._trainer)

    def _collect_facts(self, loaders: TrainingLoaders) -> None:
        self._new_facts.update(
            {
                **self.options.facts,
                **loaders.facts,
                "seed": self._seed,
                "world size": self.world_size,
                SWITCH: is_switched_off(),
                **{flag: getattr(self._trainer, flag) for flag in ALIKE},
            }
        )

    def _forget_what_was_read_ahead(self) -> None:
        assert self._loaders is not None
        if self._loaders.is_single:
            self._trained.forget()

    def _settle_loaders(self) -> None:
        loaders = self._loaders
        if loaders is None or not loaders.is_open:
            return
        _, first_step = trainer_seam.steps_done(self._trainer)
        loaders.close(
            first_step,
            refuses_single_rows=self._refuses_single_rows,
            weighs_rows=is_said(self.options.batch_weight, self._module),
        )

    def _evaluation_loader(self, loader: DataLoader[Any], stage: str) -> DataLoader[Any]:
        source = source_of(loader)
        rows = source.batch_size * self.world_size
        split = partial(self._evaluation_rows, source)
        if stage == trainer_seam.PREDICT:
            record = partial(trainer_seam.index_recorder, self._trainer)
            steps = source.all_steps(rows, self.world_size)
            return self._sharing.prediction(source, steps, split, self.world_size, record)
        self._new_facts[f"rows and batch size of the {stage} data set"] = (
            source.length,
            source.batch_size,
        )
        self._new_facts[f"sampling of the {stage} data set"] = source.sampling
        steps = source.steps(rows, self.world_size)
        deliver = self._evaluated.from_loader("evaluation")
        return self._sharing.evaluation(source, steps, split, deliver)

    def _begin_evaluation(self) -> None:
        self._refuse_loaders_side_by_side()
        _, loaders = trainer_seam.evaluation_mode(self._trainer)
        if self.world_size > 1 and any(original_loader(each) is each for each in loaders):
            if self._evaluation_group is None:
                self._evaluation_group = dist.new_group(backend="gloo")
            self._evaluation_steps = EvaluationSteps(
                self.global_rank, self.world_size, self._evaluation_group
            )

    def _end_evaluation(self) -> None:
        if self._evaluation_steps is not None:
            self._evaluation_steps.close()
        self._evaluation_steps = None

    def _communicating(self, group: Any | None = None) -> AbstractContextManager[Any]:
        if self._evaluation_steps is not None and group in (None, dist.group.WORLD):
            self._evaluation_steps.agree()
        return self.clock.communicating()

    def _refuse_loaders_side_by_side(self) -> None:
        mode, loaders = trainer_seam.evaluation_mode(self._trainer)
        shared = [loader for loader in loaders if original_loader(loader) is not loader]
        if mode != "sequential" and shared and len(loaders) > 1:
            raise UnsupportedError(
                f'Expected validation and test loaders in the mode "sequential", got "{mode}": a rank may have rows'
                " of one loader in a step and none of another. Pass the loaders as a list, or use"
                ' strategy="ddp".'
            )

    def _evaluation_rows(self, source: Source, step: int, step_rows: int) -> Sequence[int]:
        plan = self.plan
        shares = (1,) * self.world_size if plan is None else plan.batch_sizes
        if not source.has_usual_size:
            return apportion(shares, step_rows)
        most = [max(source.batch_size, rows) for rows in shares]
        return apportion(shares, step_rows, upper=most if sum(most) >= step_rows else None)

    def _weight_inside_step(self) -> LossWeight:
        inside = self._is_automatic or self._rows_in_step is not None
        if self._share is None or self._weight is None or not inside:
            raise UnsupportedError(
                "Expected manual_backward inside training_step, got it outside: only there it is known by which rows"
                " the loss must be weighted. Move it into training_step."
            )
        return self._weight

    def _wrap_again(self) -> None:
        """A frozen layer is trained from here on: DDP averages only what required gradients when it was made."""
        self.model = self._module
        self.configure_ddp()

    def _loss_of_all_rows(self, closure: Callable[[], Any]) -> Any:
        """What an optimizer decides by that looks at the loss: every rank has to decide alike."""
        loss = closure()
        if not isinstance(loss, Tensor):
            return loss
        with self.clock.communicating():
            return reduction.mean_over_ranks(self._weight_inside_step().of(loss.detach()))

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
        arrived = self._arrived_in_evaluation
        self._share = arrived.take()
        if self._share is not None and not self._counts_itself:
            loader = trainer_seam.evaluated_loader(self._trainer)
            check = self._evaluation_checks.setdefault(loader, RowCheck())
            check(args[0], self._share, self.global_rank)
        output = self._take_part(step, *args, **kwargs)
        self._begin_batch_end()
        if self._share is None and arrived.next is not None:
            raise UnsupportedError(
                "Expected a step that is given its batch, got one that fetches it (dataloader_iter): its rows cannot be"
                ' known beforehand. Take batch instead, or use strategy="ddp".'
            )
        return output

    def _take_part(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._rows_in_step = None if self._share is None else self._share.rows
        entered = gathering.in_step.set(self)
        try:
            if self._is_ghost:
                return self._leave_no_trace(step, *args, **kwargs)
            return step(*args, **kwargs)
        finally:
            self._rows_in_step = None
            gathering.in_step.reset(entered)

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

    def _begin_batch_end(self) -> None:
        """Hooks at the end of the batch come next; what they log counts for nothing where the rank has no rows."""
        if self._is_ghost:
            self._after_batch = trainer_seam.remember_logged(self._trainer)

    def _end_batch(self) -> None:
        """All hooks at the end of the batch have run."""
        self._after_batch()
        self._after_batch = _do_nothing
        if self._evaluation_steps is not None:
            _, is_last = trainer_seam.evaluation_step(self._trainer)
            self._evaluation_steps.end(is_last=is_last)

    def _settle(self) -> None:
        """Nothing of the last forward is under way or out of place after this."""
        if self._after_step:
            for restore in self._after_step:
                restore()
            self._after_step = []
        if self._statistics is not None:
            self._statistics.finish()


def _do_nothing() -> None: ...


def _place_in(trainer: Any) -> str:
    return (
        f"after step {trainer.global_step}" if _is_fit(trainer) else f"in {trainer.state.fn.value}"
    )


def _is_fit(trainer: Any) -> bool:
    return bool(trainer.state.fn.value == "fit")
