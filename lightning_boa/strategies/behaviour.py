"""What BoaStrategy does, for whichever Lightning: shares of each step, weighted losses, measured steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS
from typing_extensions import override

from lightning_boa.data import Share
from lightning_boa.emulation import EmulatedClusterBehaviour
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    Communication,
    MadeFor,
    NetworkFindings,
    Orchestration,
    Schedule,
    WorkerSet,
)
from lightning_boa.profiling import (
    ClockEntry,
    MemoryProfile,
    NetworkProbe,
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
from lightning_boa.strategies.evaluation import Evaluation, refuse_loaders_side_by_side
from lightning_boa.strategies.loss_weight import LossWeight, rule_of
from lightning_boa.strategies.meeting_place import refuse_elsewhere
from lightning_boa.strategies.options import (
    BatchWeight,
    BoaOptions,
    check_known,
    path_text,
    rule_name,
    whole_numbers,
)
from lightning_boa.strategies.prepared_loaders import PreparedLoaders
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.roll_call import RollCall
from lightning_boa.strategies.running_statistics import RunningStatistics
from lightning_boa.strategies.saved_profile import SavedProfile, check_place, installed_software
from lightning_boa.strategies.step_plans import SWITCH, Planning, StepPlans, is_switched_off
from lightning_boa.strategies.unusual_steps import UnusualSteps
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
    "overfit_batches",
    "limit_train_batches",
    "limit_val_batches",
    "num_sanity_val_steps",
    "val_check_interval",
    "check_val_every_n_epoch",
    "reload_dataloaders_every_n_epochs",
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
        max_batch_size: most rows of a rank, a number or one (or None) per rank. "auto": what a device's memory holds
            does not bound its share; a share that it cannot hold at once runs in several passes, whose gradients are
            reduced once, and the plan counts what that costs. A rank that runs out of memory in the warm-up runs that
            step's rows in more passes. On CUDA; elsewhere it changes nothing.
        worker_set: whether the ranks may do better with fewer of them. "advise": where communication is a considerable
            part of a step it is measured once, after the warm-up, and where leaving ranks out gains, rank 0 says which
            ones and how to relaunch; "all" never asks. "auto": also, a rank whose computation does not pay is parked,
            gets no rows and does not run the model, keeps the weights of the others, and gets rows again when a later
            plan has some for it. Not where `training_step` holds collectives of its own. Where a link is the reason,
            for which no plan helps, a checkpoint for the relaunch is written (boa-relaunch.ckpt).
        profile: path of a file on rank 0's disk. If it holds a plan for these devices, this model, these rows and this
            software, training begins with that plan, which its first steps check; else the devices are measured and the
            file is written, in folders that are made if need be. `warmup=0` makes it an error if the file is missing or
            does not fit. A checkpoint's plan comes first.
        verbose: print the plan as a table once it has been measured and what it has saved at the end, and show a step's
            milliseconds and the idle share in the progress bar. Warnings, and what is logged, do not depend on it.
        record: path of the file that says what was seen of the training, for `boa report`; rank 0 writes it, and again
            while it trains. Folders are made if need be; a place that cannot be written is a warning, since a profile
            may be needed and a record is not. "auto": boa-run.json in the logger's folder, without a logger in the
            trainer's `default_root_dir`. None: no file.
        **ddp_kwargs: what Lightning's DDPStrategy takes.

    Raises:
        OptionError: an option of the wrong kind or range.
    """

    callback_class: ClassVar[type[Any]]
    planning: Planning = Orchestration

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
        max_batch_size: int | Sequence[int | None] | Literal["auto"] | None = None,
        worker_set: Literal["advise", "all", "auto"] = "advise",
        profile: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        record: str | os.PathLike[str] | None = "auto",
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
            worker_set=worker_set,
            profile=path_text(profile),
            verbose=verbose,
            record=path_text(record),
        )
        check_known(ddp_kwargs, super().__init__)
        super().__init__(**ddp_kwargs)
        self._plans = StepPlans(self.options, self.planning)
        self._profile: SavedProfile | None = None
        self.device_names: tuple[str, ...] = ()
        self.clock = StepClock(rank=0)
        self.memory: MemoryProfile | None = None
        self.network: NetworkFindings | None = None
        self.record_path: Path | None = None
        self._measures_memory = False
        self._some_memory_is_measured = False
        self._seed: int | None = None
        self._prepared: PreparedLoaders | None = None
        self._evaluation: Evaluation | None = None
        self._share: Share | None = None
        self._weight: LossWeight | None = None
        self._unusual: UnusualSteps | None = None
        self._statistics: RunningStatistics | None = None
        self._rows_in_step: int | None = None
        self._weighted_backwards = 0
        self._is_automatic = True
        self._after_step: list[Callable[[], None]] = []
        self._after_batch: Callable[[], None] = _do_nothing
        self._measuring: Any = None
        self._watching: list[Any] = []
        self._frozen: list[Tensor] = []
        self._roll_call: RollCall | None = None
        self._stop_requested = False
        self._has_failed = False

    @property
    def share(self) -> Share | None:
        """This rank's part of the step that runs; its rows are 0 where the rank only takes part."""
        return self._share

    @property
    def rows_of_pass(self) -> int | None:
        """Rows of the pass that runs, 0 where this rank is parked; None where the step is one pass of its batch."""
        return None if self._unusual is None else self._unusual.rows_of_pass

    @property
    def has_more_passes(self) -> bool:
        """Whether another pass of the step that runs follows."""
        return self._unusual is not None and self._unusual.has_more_passes

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
    def global_batch_size(self) -> int | None:
        """Rows of a full step over all ranks, a checkpoint's first; None before the training loaders are set up."""
        return sum(self._plans.rows_of_loaders) or None

    @property
    def communication(self) -> Communication | None:
        """What sets of ranks need to exchange gradients; None unless it was worth a measurement."""
        return None if self.network is None else self.network.communication

    @property
    def worker_set(self) -> WorkerSet | None:
        """The ranks with which a step is shortest; None unless communication was worth a measurement."""
        return None if self.network is None else self.network.worker_set

    @property
    def fixed_reason(self) -> str:
        """Why nothing is measured, in a few words."""
        return self._plans.fixed_reason

    @property
    def first_free_step(self) -> int:
        """The first training step whose rows this rank's samplers have not handed out."""
        return self._loaders.first_free_step

    @property
    def has_ranks_without_rows(self) -> bool:
        """Whether some rank will have no rows in some step under the present plan."""
        return self._loaders.has_ranks_without_rows

    @property
    def has_refused_rows(self) -> bool:
        """Whether some rank has a single row in a step, beside layers (BatchNorm) that may refuse it."""
        return self._loaders.has_refused_rows

    @property
    def is_to_stop(self) -> bool:
        """On rank 0: whether some rank has had SIGTERM, so that the training ends before its next step."""
        return self._stop_requested or (
            self._roll_call is not None and self._roll_call.stop_requested
        )

    @property
    def is_unseen(self) -> bool:
        """Whether this training is nothing to report on: equal shares by the environment, one device, or a trial."""
        return (
            is_switched_off() or self.world_size == 1 or trainer_seam.is_only_a_trial(self._trainer)
        )

    @property
    def is_verbose(self) -> bool:
        """Whether the plan and its saving are printed."""
        return self.options.verbose

    @property
    def record(self) -> str | None:
        """Where the record of a training is kept, as the option says."""
        return self.options.record

    @property
    def software(self) -> Mapping[str, str]:
        """The version of each package by which the time of a step may differ."""
        return installed_software(type(self))

    def show_figures(
        self, logged: Mapping[str, float], in_bar: Mapping[str, float], *, to_loggers: bool
    ) -> None:
        """Let callbacks and the progress bar see figures of this training, and the loggers too if they are to."""
        trainer_seam.show_now(self._trainer, logged, in_bar, to_loggers=to_loggers)

    def standing_still(self) -> AbstractContextManager[None]:
        """While this is held no further step is handed out, not even by a loader that reads ahead in a thread."""
        return self._loaders.standing_still()

    def take_new_facts(self) -> Mapping[str, Any]:
        """What all ranks must have in common, where a training loader has been set up since the last call."""
        return self._loaders.take_new_facts()

    def take_drawn_order(self) -> int | None:
        """Digest of the order that a custom sampler has just given, once for each draw; None otherwise."""
        return self._loaders.take_drawn_order()

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
        for callback in self._trainer.callbacks:
            if isinstance(callback, EmulatedClusterBehaviour) and callback.memory is not None:
                return MemoryProfile(callback.memory)
        return memory_profile_of(self.root_device)

    @property
    def reduces_apart(self) -> bool:
        """Whether gradients of measured steps are reduced after the backward, since memory may run short in it."""
        in_passes = self._unusual is not None and self._unusual.abilities.in_passes
        return in_passes and self._some_memory_is_measured

    @property
    def saves_for_relaunch(self) -> bool:
        """Whether a checkpoint is to be written where fewer ranks would do better, which takes a relaunch."""
        return self.options.parks

    def new_network_probe(self) -> NetworkProbe | None:
        """What times all-reduces among ranks, None where the set of ranks is no question."""
        if self.options.worker_set == "all":
            return None
        return NetworkProbe(self.root_device)

    def begin_planning(self) -> None:
        """Measure and plan; go on with the plan of a checkpoint or an earlier fit if devices and model are the same."""
        assert self.lightning_module is not None
        self._end_unusual_steps()
        self._unusual = UnusualSteps.find(
            self, self._trainer, self._plans, self._loaders, self._statistics
        )
        if self._unusual is not None:
            self._loaders.abilities = self._unusual.abilities
        self.network = None
        self._loaders.settle()
        parameters = sum(parameter.numel() for parameter in self.lightning_module.parameters())
        _, first_step = trainer_seam.steps_done(self._trainer)
        self._profile = self._saved_profile(parameters)
        made_for = {"devices": list(self.device_names), "parameters": parameters}
        self._plans.begin({**made_for, **self.planning_facts}, first_step, self._profile)

    @property
    def planning_facts(self) -> dict[str, Any]:
        """What a checkpoint's plan must have been made by to be gone on with, in plain values; boa's own needs none."""
        return {}

    def keep_profile(self, before: Orchestration, after: Orchestration) -> None:
        """Write the profile if one is asked for and is complete; every rank calls it after each exchange."""
        if self._profile is not None:
            self._profile.keep(before, after)

    def begin_epoch(self) -> None:
        """An epoch of training begins on this rank."""
        self.clock.interrupt()
        if self._unusual is not None:
            self._unusual.begin_epoch()
        self._loaders.settle()

    def end_epoch(self) -> None:
        """An epoch of training is over on this rank; what its loaders gave too much is not used."""
        self._loaders.trained.forget()

    def log_rows(self, trainer: Any, training: bool) -> None:
        """A step begins: let `self.log` weigh its batch by its rows, not by the first tensor found in it."""
        arrived = self._loaders.arrived(training=training).next
        if arrived is not None:
            trainer_seam.log_rows(trainer, arrived.rows, training=training)
        if not training:
            self._evaluates.begin_step(trainer)

    def log_epoch_rows(self) -> None:
        """Let `self.log` at the end of an epoch weigh a value of this rank by the rows that it had in the epoch."""
        training = self._trainer.training
        if training and self._unusual is not None:
            self._unusual.end_epoch()
        loaders = self._loaders
        deliveries = loaders.trained if training else loaders.evaluated
        trainer_seam.log_rows(self._trainer, deliveries.pop_rows(), training=training)
        if not training:
            self._evaluates.end_steps()

    def finish_step(self) -> None:
        """A training step is over on this rank."""
        self._settle()
        self._begin_batch_end()
        self.clock.end()
        if self._unusual is not None:
            self._unusual.note_computed(self.clock)
        if self.memory is not None and self.share is not None and self._measures_memory:
            step = None if self._unusual is None else self._unusual.divided
            self.memory.end_step(self.share.rows if step is None else step.sizes[0])

    @override
    def set_world_ranks(self) -> None:
        refuse_mix(self, self.accelerator)
        super().set_world_ranks()
        refuse_elsewhere(self)

    @override
    def connect(self, model: Any) -> None:
        super().connect(model)
        trainer = model.trainer
        self._share = None
        self._has_failed = False
        self._after_step = []
        if _is_fit(trainer):
            self._plans.begin_fit()
        self._after_batch = _do_nothing
        trainer_seam.divert_loaders(trainer, self._prepare_loader)
        trainer_seam.announce_loaders(trainer, self._begin_loaders, self._begin_evaluated_loaders)
        trainer_seam.divert_batch_end(trainer, self._end_batch)
        if not any(isinstance(callback, self.callback_class) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, self.callback_class())

    def check_before_ranks(self, ranks: int, batch_size: int) -> None:
        """Refuse, before any rank is started, what ranks would refuse; for whoever knows the loader by then.

        Args:
            ranks: how many there will be.
            batch_size: of the one training loader.

        Raises:
            OptionError, PlanError: rows that no plan can have, or a profile that cannot be written.
        """
        self.options.check_for(ranks, batch_size)
        if self.options.profile is not None and self.is_global_zero:
            check_place(Path(self.options.profile), is_written=self.options.warmup != 0)

    @override
    def setup_environment(self) -> None:
        made_here = not dist.is_initialized()
        super().setup_environment()
        if made_here:
            self._evaluation = None
            process_group.leave_at_exit()
        if dist.get_world_size() != self.world_size:
            raise UnsupportedError(
                f"Expected a process group of {self.world_size} ranks, got one of {dist.get_world_size()} from an"
                " earlier run in this process. Start a new process for each number of devices; in a sweep of Hydra add"
                " hydra/callbacks=own_ranks."
            )
        if self._seed is None or _is_fit(self._trainer):
            self._seed = self.broadcast(int(os.environ.get("PL_GLOBAL_SEED", 0)))
        self._prepared = PreparedLoaders(
            self._module,
            self._plans,
            self.options,
            rank=self.global_rank,
            world_size=self.world_size,
            seed=self._seed,
        )
        if self._evaluation is None:
            self._evaluation = Evaluation(self.global_rank, self.world_size)
        self._begin_roll_call()
        if _is_fit(self._trainer):
            check_same(self._facts_of_the_run)

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if not _is_fit(trainer):
            return
        self.clock = self.new_clock()
        self.memory = self.new_memory_profile()
        self._some_memory_is_measured = self._is_on_any_rank(self.memory is not None)
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
        self._end_unusual_steps()
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
        self._has_failed = isinstance(exception, Exception)

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
        refuse_loaders_side_by_side(self._trainer)

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._evaluates.begin(self._trainer)

    @override
    def on_test_start(self) -> None:
        super().on_test_start()
        self._evaluates.begin(self._trainer)

    @override
    def on_validation_end(self) -> None:
        super().on_validation_end()
        self._evaluates.end()

    @override
    def on_test_end(self) -> None:
        super().on_test_end()
        self._evaluates.end()

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._settle()
        if self._frozen and any(parameter.requires_grad for parameter in self._frozen):
            self._wrap_again()
        self._share = share = self._loaders.take(batch)
        if self._unusual is not None:
            guarded = self.memory is not None and self._measures_memory
            self._unusual.begin_step(share, batch, guarded=guarded)
        self.clock.begin(share.step, share.rows, share.step_rows, share.wait)
        if self.memory is not None and self._measures_memory:
            self.memory.begin_step()

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        assert self._weight is not None
        self._settle()
        unusual = self._unusual
        if unusual is not None and unusual.divided is not None:
            run = super().training_step
            output = unusual.first_pass(
                unusual.divided, lambda batch: self._take_part(run, batch, *args[1:], **kwargs)
            )
            unusual.note_output(output)
            return output
        if self._share is not None:
            self._weight.begin(self._share, args[0])
        if unusual is not None and unusual.rests:
            return unusual.rest()
        if self._is_ghost:
            written = () if self._statistics is None else self._statistics.buffers()
            self._after_step.append(ghost.remember_buffers(self.lightning_module, written))
        output = self._take_part(super().training_step, *args, **kwargs)
        if unusual is not None:
            unusual.note_output(output)
        self.finish_forwards()
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
        plain = super().backward
        run = partial(self._run_backward, lambda loss: plain(loss, optimizer, *args, **kwargs))
        unusual = self._unusual
        if unusual is None or unusual.divided is None:
            closure_loss = run(closure_loss)
        else:
            unusual.backward(unusual.divided, closure_loss, run)
        self.clock.switch("optimizer" if self._is_automatic else "compute")
        return closure_loss

    def _run_backward(
        self, backward: Callable[[Tensor], Tensor], closure_loss: Tensor, *, reduces: bool = True
    ) -> Tensor:
        weight = self._weight_inside_step()
        if weight.is_under_way:
            with self.clock.communicating():
                weight.arrive()
        loss = weight.of(closure_loss)
        self.clock.switch("compute")
        if loss.requires_grad and self.clock.enabled and reduces:
            loss.register_hook(self._on_gradient_of_loss)  # type: ignore[no-untyped-call]
        self._weighted_backwards += 1
        try:
            with weight.gradients(self._module):
                return backward(loss)
        finally:
            self._weighted_backwards -= 1

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
        plain = partial(super().reduce, group=group, reduce_op=reduce_op)
        if not isinstance(tensor, Tensor) or group not in (None, dist.group.WORLD):
            self._note_collective()
            with self._communicating(group):
                return plain(tensor)
        self._note_collective(is_reduction=True)
        operation = str(getattr(reduce_op, "name", reduce_op)).lower()
        over_ranks = partial(self._reduce_over_ranks, plain, operation)
        in_passes = None if self._unusual is None else self._unusual.reductions
        if in_passes is not None and self.is_inside_training_step:
            return in_passes(tensor, operation, over_ranks)
        return over_ranks(tensor)

    def _reduce_over_ranks(
        self, plain: Callable[[Tensor], Any], operation: str, tensor: Tensor
    ) -> Any:
        with self._communicating():
            rows = self._rows_of_batch
            if operation in ("mean", "avg"):
                if rows is None:
                    return reduction.mean_over_ranks(tensor)
                return reduction.mean_over_rows(tensor, rows)
            return plain(reduction.neutral(tensor, operation) if rows == 0 else tensor)

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
        self._note_collective()
        with self._communicating(group):
            reduction.check_same_shape(tensor, group)
            return super().all_gather(tensor, group, sync_grads)

    def gather_rows(self, data: Any, sync_grads: bool = False) -> Any:
        """What `lightning_boa.gather_rows` does; here a rank without rows in the step that runs contributes none.

        Raises:
            AgreementError: on every rank, where the ranks' tensors differ in more than their rows.
            UnsupportedError: a loss that every rank computes alike, in a step in which a rank has no rows.
        """
        self._note_collective()
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
        if self._has_failed:
            return
        self._note_collective()
        with self._communicating():
            super().barrier(*args, **kwargs)

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self._has_failed:
            return obj
        self._note_collective()
        with self._communicating():
            return super().broadcast(obj, src)

    @property
    def _trainer(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    @property
    def _loaders(self) -> PreparedLoaders:
        assert self._prepared is not None
        return self._prepared

    @property
    def _evaluates(self) -> Evaluation:
        assert self._evaluation is not None
        return self._evaluation

    @property
    def loss_weight(self) -> LossWeight:
        """The weight of the step that runs."""
        assert self._weight is not None
        return self._weight

    @property
    def ddp(self) -> DistributedDataParallel:
        """The model as torch's DDP has wrapped it."""
        assert isinstance(self.model, DistributedDataParallel)
        return self.model

    def finish_forwards(self) -> None:
        """All rows of this rank have been through the model: what is reduced beside the gradients begins."""
        if self._statistics is not None and self.share is not None:
            self._statistics.begin(self.share.rows)

    def _is_on_any_rank(self, here: bool) -> bool:
        if not self.options.is_bound_by_memory:
            return here
        everywhere: list[Any] = [None] * self.world_size
        dist.all_gather_object(everywhere, here)
        return any(everywhere)

    @property
    def is_inside_training_step(self) -> bool:
        """Whether the module's training step runs, on rows or on a ghost's."""
        return self._rows_in_step is not None and bool(self._trainer.training)

    def _note_collective(self, *, is_reduction: bool = False) -> None:
        if self._unusual is not None and self.is_inside_training_step:
            self._unusual.note_collective(is_reduction=is_reduction)

    def _end_unusual_steps(self) -> None:
        if self._unusual is not None:
            self._unusual.end()
            self._unusual = None

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
    def _facts_of_the_run(self) -> dict[str, Any]:
        """What all ranks must have in common before any callback or loader is set up."""
        plain = (bool, int, float, str, type(None))
        ddp = {name: each for name, each in self._ddp_kwargs.items() if isinstance(each, plain)}
        return {
            **self.options.facts,
            **{f"{name} of DistributedDataParallel": each for name, each in sorted(ddp.items())},
            "planning": self.planning,
            "world size": self.world_size,
            SWITCH: is_switched_off(),
            "callbacks that monitor a value": [
                type(each).__name__ for each in self._trainer.callbacks if hasattr(each, "monitor")
            ],
            "use of validation": bool(self._trainer.enable_validation),
            **{flag: getattr(self._trainer, flag) for flag in ALIKE},
        }

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
        return self._loaders.prepare(loader, stage)

    def _begin_loaders(self, number: int) -> None:
        self._loaders.begin(number)
        self.clock.interrupt()

    def _begin_evaluated_loaders(self, number: int) -> None:
        self._loaders.begin_evaluated(number)

    def _communicating(self, group: Any | None = None) -> AbstractContextManager[Any]:
        if self._evaluation is not None and group in (None, dist.group.WORLD):
            self._evaluation.agree()
        return self.clock.communicating()

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
        arrived = self._loaders.arrived(training=False)
        self._share = arrived.take()
        if self._share is not None and not self._loaders.counts_itself:
            loader = trainer_seam.evaluated_loader(self._trainer)
            self._evaluates.check(loader, args[0], self._share)
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
        if self._trainer.training and self._unusual is not None:
            self._unusual.end_step()
        if not self._trainer.training:
            self._evaluates.end_step(self._trainer)

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
