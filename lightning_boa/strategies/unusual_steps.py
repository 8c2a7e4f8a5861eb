"""Steps in which ranks differ in more than their rows: one runs several passes, another one does not run the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_boa.data import Share
from lightning_boa.profiling import StepClock
from lightning_boa.strategies.abilities import Abilities, why_not_divided
from lightning_boa.strategies.divided_step import DividedStep
from lightning_boa.strategies.loss_weight import rule_of
from lightning_boa.strategies.metric_syncs import notice_syncs
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.parking import Parking
from lightning_boa.strategies.pass_reductions import PassReductions
from lightning_boa.strategies.passes import Passes, RunsInPasses, refuse_in_passes
from lightning_boa.strategies.prepared_loaders import PreparedLoaders
from lightning_boa.strategies.running_statistics import RunningStatistics
from lightning_boa.strategies.step_plans import StepPlans
from lightning_boa.strategies.touch import touch

UNDIVIDED = "memory bounds the shares, which cannot run in several passes"
UNPARKED = "all ranks keep rows, since none can do without running the model"


class RunsUnusualSteps(RunsInPasses, Protocol):
    """What is needed of the strategy."""

    options: BoaOptions

    @property
    def global_rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def root_device(self) -> torch.device: ...

    @property
    def optimizers(self) -> list[Any]: ...

    def measure(self, enabled: bool, *, memory: bool = True) -> None: ...


class UnusualSteps:
    """The steps of one training.

    Args:
        strategy: whose steps they are.
        trainer: of the training.
        plans: which plan holds for which step.
        loaders: of the training.
        statistics: of BatchNorm, where they are averaged over ranks.
        abilities: what of it is asked for and possible.

    Attributes:
        abilities: the same.
        divided: the step that runs, where it is one of several passes or may become one.
    """

    def __init__(
        self,
        strategy: RunsUnusualSteps,
        trainer: Any,
        plans: StepPlans,
        loaders: PreparedLoaders,
        statistics: RunningStatistics | None,
        abilities: Abilities,
    ) -> None:
        self.abilities = abilities
        self.divided: DividedStep | None = None
        self._strategy = strategy
        self._trainer = trainer
        self._plans = plans
        self._statistics = statistics
        self._share: Share | None = None
        self._computed: tuple[int, float] | None = None
        self._last_output: Any = None
        rank, device = strategy.global_rank, strategy.root_device
        self._parking = Parking(rank, device) if abilities.parks else None
        self._passes = (
            Passes(strategy, trainer, loaders.read_again, loaders.check)
            if abilities.in_passes
            else None
        )
        self.end = notice_syncs(trainer.lightning_module, self._note_metric)

    @classmethod
    def find(
        cls,
        strategy: RunsUnusualSteps,
        trainer: Any,
        plans: StepPlans,
        loaders: PreparedLoaders,
        statistics: RunningStatistics | None,
    ) -> UnusualSteps | None:
        """Those that are asked for and possible; rank 0 says why they are not."""
        options, module = strategy.options, trainer.lightning_module
        asked = options.is_bound_by_memory, options.parks
        if not any(asked) or strategy.world_size == 1:
            return None
        rule = rule_of(options.batch_weight, module)
        why = why_not_divided(strategy.ddp, strategy.optimizers, rule)
        if why is None and not loaders.is_divisible:
            why = "only the rows of a single DataLoader with a map-style data set can be read as needed"
        if why is not None:
            for is_asked, words in zip(asked, (UNDIVIDED, UNPARKED), strict=True):
                if is_asked:
                    rank_zero_warn(f"boa: {words}: {why}.")
            return None
        averaged = () if statistics is None else statistics.buffers()
        known = {id(buffer) for buffer in averaged}
        own_buffers = any(id(buffer) not in known for buffer in module.buffers())
        in_passes, parks = asked
        abilities = Abilities(in_passes, parks, parks_first=parks and not own_buffers)
        return cls(strategy, trainer, plans, loaders, statistics, abilities)

    @property
    def rows_of_pass(self) -> int | None:
        """Rows of the pass that runs, 0 where this rank rests; None where the step is one pass of its batch."""
        if self.rests:
            return 0
        return None if self.divided is None else self.divided.running_rows

    @property
    def has_more_passes(self) -> bool:
        """Whether another pass of the step that runs follows."""
        return self.divided is not None and self.divided.has_more

    @property
    def rests(self) -> bool:
        """Whether this rank does not run the model in this step."""
        return self._parking is not None and self._parking.rests

    @property
    def reductions(self) -> PassReductions | None:
        """What the module reduces inside the step that runs, where it is a divided one."""
        return None if self.divided is None else self.divided.reductions

    def begin_epoch(self) -> None:
        """An epoch of training begins."""
        self._computed = None
        if self._parking is not None:
            self._parking.begin_epoch()

    def begin_step(self, share: Share, batch: Any, *, guarded: bool) -> None:
        """A step begins; a guarded one may be run again if memory is short."""
        self._share = share
        if self._parking is not None:
            self._parking.begin_step(self._plans.parked_in(share.step, share.step_rows))
            if self._listens:
                self._strategy.measure(True, memory=False)
        if self._passes is not None:
            self.divided = self._passes.divided(share, batch, guarded=guarded)

    def first_pass(self, step: DividedStep, run: Callable[[Any], Any]) -> Any:
        """The output of the first pass of a divided step; `run` makes one of a batch."""
        assert self._passes is not None
        assert self._share is not None
        weight = self._strategy.loss_weight
        batches = [batch() for batch in step.batches] if weight.needs_batches else []
        weight.begin(self._share, *batches)
        return self._passes.forward(step, run)

    def backward(self, step: DividedStep, loss: Tensor, run: Callable[..., Any]) -> None:
        """The rest of a divided step; `run` is the backward of a pass."""
        assert self._passes is not None
        self._passes.backward(step, loss, run)

    def note_computed(self, clock: StepClock) -> None:
        """The step is over on this rank; where parked ranks have run the model, all note how long they took."""
        seconds = clock.last_compute() if self._listens else None
        if seconds is None or self._share is None:
            return
        sizes = (self._share.fetched,) if self.divided is None else self.divided.sizes
        self._computed = sizes[0], seconds / len(sizes)

    def note_output(self, output: Any) -> None:
        """What the module's training step has returned; a step in which this rank rests returns the like of it."""
        if self._parking is not None:
            self._last_output = apply_to_collection(output, Tensor, Tensor.detach)

    def rest(self) -> Any:
        """A step of a parked rank: it takes part in what is reduced, and does not run the model.

        Returns:
            A loss of zero of the usual kind, beside whatever else the last step that ran the model has returned.
        """
        loss = touch(self._strategy.ddp)
        if self._statistics is not None:
            self._statistics.begin_without_forward()
        before = self._last_output
        if isinstance(before, Mapping):
            return {**before, "loss": loss.to(before["loss"].dtype)}
        return loss if before is None else loss.to(before.dtype)

    def end_step(self) -> None:
        """All hooks at the end of a training step have run."""
        self.divided = None
        if self._parking is not None:
            self._parking.end_step(self._trainer)

    def end_epoch(self) -> None:
        """An epoch of training is over, and nothing of it has been reduced."""
        if self._parking is None or not self._parking.was_used:
            return
        self._parking.end_epoch(self._trainer)
        everywhere: list[Any] = [None] * self._strategy.world_size
        dist.all_gather_object(everywhere, self._computed)
        if self._plans.orchestration is not None:
            self._plans.orchestration = self._plans.orchestration.heard(everywhere)

    def note_collective(self, *, is_reduction: bool = False) -> None:
        """The module communicates inside its training step, which ranks may run another number of times, or not at all.

        Raises:
            UnsupportedError: some do in this step. Reductions of the strategy are made once for all passes.
        """
        assert self._share is not None
        if self._parking is not None:
            self._parking.refuse_collectives()
            self._plans.run_all()
        if is_reduction:
            return
        schedule = self._plans.schedule
        has_passes = schedule is not None and schedule.plan_at(self._share.step).has_passes
        if has_passes or (self.divided is not None and len(self.divided.sizes) > 1):
            refuse_in_passes()
        if self.divided is not None:
            self.divided.has_communicated = True

    @property
    def _listens(self) -> bool:
        """Whether this step says how fast parked ranks are."""
        orchestration = self._plans.orchestration
        watched = orchestration is not None and orchestration.watch is not None
        return watched and self._parking is not None and self._parking.runs_all

    def _note_metric(self) -> None:
        if self._strategy.is_inside_training_step:
            self.note_collective()
