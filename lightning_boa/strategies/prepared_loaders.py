"""The loaders of a trainer, prepared to deliver this rank's part of every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from lightning_boa.data import (
    BatchSource,
    RowRequests,
    Share,
    ShareBatchSampler,
    Source,
    can_be_planned,
    cut,
    is_stream,
    length_of,
    makes_single_batches,
    original_loader,
    source_of,
    stream_loader,
)
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import BatchPlan, apportion
from lightning_boa.profiling import check_same
from lightning_boa.strategies import trainer_seam
from lightning_boa.strategies.abilities import NO_ABILITIES
from lightning_boa.strategies.batch_rows import RowCheck, rows_shown
from lightning_boa.strategies.deliveries import Deliveries
from lightning_boa.strategies.loaders import Sharing
from lightning_boa.strategies.loss_weight import is_said, rule_of
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.step_plans import StepPlans
from lightning_boa.strategies.stream_agreement import StreamAgreement
from lightning_boa.strategies.training_loaders import TrainingLoaders

OWN = "each rank's own"


class PreparedLoaders:
    """The loaders of one run of a trainer.

    Args:
        module: what is trained; its trainer's loaders are prepared.
        plans: how the rows of each training step are split.
        options: of the strategy.
        rank: this rank.
        world_size: all of them.
        seed: of the order of rows.

    Attributes:
        trained: what has arrived for training steps.
        evaluated: what has arrived for steps of validation and test.
        abilities: what the module's steps permit.
    """

    def __init__(
        self,
        module: nn.Module,
        plans: StepPlans,
        options: BoaOptions,
        *,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        self.trained = Deliveries(together=True)
        self.evaluated = Deliveries(most_ahead=2)
        self._module = module
        self._trainer: Any = module.trainer
        self._plans = plans
        self._options = options
        self._rank = rank
        self._world_size = world_size
        self._sharing = Sharing(rank, seed, self._note_order)
        self._training = TrainingLoaders(plans, world_size)
        self._number_of_training_loaders = 0
        self._samplers: list[ShareBatchSampler | RowRequests] = []
        self._row_check = RowCheck()
        self._number_of_evaluated_loaders = 0
        self._evaluated_sources: list[Source | None] = []
        self._new_facts: dict[str, Any] = {}
        self._drawn_order: int | None = None
        self._reads_again: Callable[[Sequence[Sequence[Any]]], list[Any]] | None = None
        self.abilities = NO_ABILITIES

    @property
    def first_free_step(self) -> int:
        """The first training step whose rows this rank's samplers have not handed out."""
        handed_out = max((sampler.handed_out for sampler in self._samplers), default=-1)
        return max(handed_out, trainer_seam.present_step(self._trainer)) + 1

    @property
    def has_ranks_without_rows(self) -> bool:
        """Whether some rank will have no rows in some step under the present plan."""
        plan = self._plans.latest
        assert plan is not None
        short_steps = (self._plans.split(plan, rows) for rows in self._training.last_rows())
        return 0 in plan.batch_sizes or any(0 in split for split in short_steps)

    @property
    def has_refused_rows(self) -> bool:
        """Whether some rank has a single row in a step, beside layers (BatchNorm) that may refuse it."""
        plan = self._plans.latest
        assert plan is not None
        return self._refuses_single_rows and 1 in plan.batch_sizes

    @cached_property
    def counts_itself(self) -> bool:
        """Whether the user says for each batch what it weighs, so that nothing depends on its rows."""
        return callable(rule_of(self._options.batch_weight, self._module))

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """While this is held no further step is handed out, not even by a loader that reads ahead in a thread."""
        with ExitStack() as held:
            for sampler in self._samplers:
                held.enter_context(sampler.lock)
            yield

    def take_new_facts(self) -> Mapping[str, Any]:
        """What all ranks must have in common, where a training loader has been set up since the last call."""
        facts, self._new_facts = self._new_facts, {}
        return facts

    def take_drawn_order(self) -> int | None:
        """Digest of the order that a custom sampler has just given, once for each draw; None otherwise."""
        drawn, self._drawn_order = self._drawn_order, None
        return drawn

    def begin(self, number: int) -> None:
        """So many training loaders are set up next, in place of those before, which may not have been used."""
        self._training.begin()
        self._number_of_training_loaders = number
        self._samplers = []
        self.trained.forget()
        self._row_check = RowCheck()
        self._plans.begin_loaders(number)

    def begin_evaluated(self, number: int) -> None:
        """So many loaders of validation or test are set up next.

        Raises:
            AgreementError: on every rank, where ranks have another number of them.
        """
        check_same({"number of validation or test loaders": number})
        self._number_of_evaluated_loaders = number
        self._evaluated_sources = []

    def prepare(self, loader: Any, stage: str) -> Any:
        """What stands in place of a loader of the user's; None where Lightning's own way is right."""
        by_boa = trainer_seam.uses_distributed_sampler(self._trainer)
        if stage == trainer_seam.TRAIN:
            return self._training_loader(loader, by_boa)
        is_own = not by_boa or is_stream(loader) or makes_single_batches(loader)
        source = None if is_own else source_of(loader)
        if stage != trainer_seam.PREDICT:
            self._note_evaluated(source, stage)
        return None if source is None else self._evaluation_loader(source, stage)

    def settle(self) -> None:
        """All training loaders are there: the rows of a step follow from them."""
        if not self._training.is_open:
            return
        _, first_step = trainer_seam.steps_done(self._trainer)
        self._training.close(
            first_step,
            refuses_single_rows=self._refuses_single_rows,
            weighs_rows=is_said(self._options.batch_weight, self._module),
            abilities=self.abilities,
        )

    def take(self, batch: Any) -> Share:
        """This rank's part of the training step that begins with this batch.

        Raises:
            UnsupportedError: the batch comes from elsewhere, or shows other rows than those of the plan.
        """
        share = self.trained.take()
        if share is None:
            raise UnsupportedError(
                "Expected a training batch from a loader that boa has prepared, got one from elsewhere. Pass the"
                ' loader to the trainer as it is, or train with strategy="ddp".'
            )
        self.check(batch, share)
        return share

    def check(self, batch: Any, share: Share) -> None:
        """Refuse a training batch that shows other rows than its share.

        Raises:
            UnsupportedError: it shows other rows.
        """
        if self._training.is_single and not self.counts_itself:
            self._row_check(batch, share, self._rank)

    @property
    def is_divisible(self) -> bool:
        """Whether a rank's rows of a training step can be read as several batches."""
        return self._training.is_divisible

    def read_again(self, share: Share, passes: tuple[int, ...]) -> list[Any]:
        """A batch for each pass of a share whose rows have been read before."""
        assert self._reads_again is not None
        return self._reads_again(cut(share.numbers, passes))

    def arrived(self, *, training: bool) -> Deliveries:
        """What has arrived for the step that runs: nothing of an evaluated stream, though others may be read ahead."""
        if training:
            return self.trained
        loader = trainer_seam.evaluated_loader(self._trainer)
        return Deliveries() if original_loader(loader) is loader else self.evaluated

    @property
    def _refuses_single_rows(self) -> bool:
        return any(isinstance(part, _BatchNorm) for part in self._module.modules())

    def _note_order(self, digest: int) -> None:
        self._drawn_order = digest

    def _training_loader(self, loader: Any, by_boa: bool) -> Any:
        is_own = is_stream(loader) or not by_boa
        by_plan = is_own and self._options.plans_streams and can_be_planned(loader)
        kind = "a stream in shares" if by_plan else "a stream" if is_own else "rows by number"
        check_same(
            {
                "number of training loaders": self._number_of_training_loaders,
                "kind of training data": kind,
            }
        )
        if is_own:
            return self._streaming_loader(loader, by_plan=by_plan)
        return self._shared_loader(source_of(loader))

    def _shared_loader(self, source: Source) -> DataLoader[Any]:
        loaders = self._training
        rows = self._plans.rows_of_full_step(
            loaders.next_number,
            source.batch_size,
            self._world_size,
            of_lists=isinstance(source, BatchSource),
        )
        number = loaders.add(rows, source)
        self._collect_facts()
        self.trained.most_ahead = 2 if source.length is None else 1
        assert self._plans.batches_per_step is not None
        by_memory = self._options.is_bound_by_memory
        twin, sampler = self._sharing.training(
            source,
            source.steps(rows, self._plans.batches_per_step),
            partial(loaders.rows_of, number),
            partial(trainer_seam.steps_done, self._trainer),
            self.trained.from_loader(number),
            begin=self._forget_what_was_read_ahead,
            starts_again=self._starts_again,
            passes_of=partial(loaders.passes_of, self._rank) if by_memory else None,
        )
        self._reads_again = getattr(twin, "read_again", None)
        sampler.set_epoch(self._trainer.current_epoch)
        self._samplers.append(sampler)
        return twin

    def _streaming_loader(self, loader: Any, *, by_plan: bool) -> Any:
        loaders = self._training
        batch_size = getattr(loader, "batch_size", None) or 1
        own_rows = None if by_plan else self._from_all_ranks(batch_size)
        number = loaders.next_number
        if own_rows is None:
            rows = self._plans.rows_of_full_step(number, batch_size, self._world_size)
        else:
            rows = self._plans.rows_of_own_batches(number, own_rows, self._rank)
        loaders.add_stream(rows, length_of(loader), own_rows)
        self._collect_facts()
        self.trained.most_ahead = 2
        first_step = partial(trainer_seam.next_step, self._trainer)
        requests = None
        if by_plan:
            requests = RowRequests(partial(self._rows_of_stream, number, rows), first_step)
            self._samplers.append(requests)
        return stream_loader(
            loader,
            agree=StreamAgreement(self._rank, self._world_size),
            next_step=first_step,
            deliver=self.trained.from_loader(number),
            begin=self._forget_what_was_read_ahead,
            count_rows=rows_shown,
            needs_rows=not self.counts_itself,
            requests=requests,
        )

    def _from_all_ranks(self, number: int) -> tuple[int, ...]:
        numbers = [number] * self._world_size
        dist.all_gather_object(numbers, number)
        return tuple(numbers)

    def _rows_of_stream(self, number: int, step_rows: int, step: int) -> int:
        return self._training.rows_of(number, step, step_rows)[self._rank]

    def _starts_again(self) -> bool | None:
        return None if self._training.is_single else trainer_seam.cycles(self._trainer)

    def _collect_facts(self) -> None:
        self._new_facts.update({**self._training.facts, "seed": self._sharing.seed})

    def _forget_what_was_read_ahead(self) -> None:
        if self._training.is_single:
            self.trained.forget()

    def _note_evaluated(self, source: Source | None, stage: str) -> None:
        """Compare a set of loaders once all are there: Lightning exchanges their lengths next."""
        self._evaluated_sources.append(source)
        if len(self._evaluated_sources) < self._number_of_evaluated_loaders:
            return
        facts: dict[str, Any] = {}
        for number, each in enumerate(self._evaluated_sources, 1):
            name = f"{stage} data set" if number == 1 else f"{stage} data set {number}"
            rows, sampling = (
                (OWN, OWN) if each is None else ((each.length, each.batch_size), each.sampling)
            )
            facts[f"rows and batch size of the {name}"] = rows
            facts[f"sampling of the {name}"] = sampling
        check_same(facts)

    def _evaluation_loader(self, source: Source, stage: str) -> DataLoader[Any]:
        rows = source.batch_size * self._world_size
        split: Callable[[int, int], Sequence[int]] = partial(self._evaluation_rows, source)
        if stage == trainer_seam.PREDICT:
            record = partial(trainer_seam.index_recorder, self._trainer)
            steps = source.all_steps(rows, self._world_size)
            return self._sharing.prediction(source, steps, split, self._world_size, record)
        steps = source.steps(rows, self._world_size)
        return self._sharing.evaluation(
            source, steps, split, self.evaluated.from_loader("evaluation")
        )

    def _evaluation_rows(self, source: Source, step: int, step_rows: int) -> Sequence[int]:
        plan = self._plans.latest
        if plan is None:
            plan = BatchPlan((1,) * self._world_size)
        shares, at_once = plan.batch_sizes, plan.rows_per_pass or (None,) * self._world_size
        if self._plans.parks:
            least = min(rows for rows in shares if rows)
            shares = tuple(max(least, rows) for rows in shares)
        if not source.has_usual_size:
            return apportion(shares, step_rows)
        most = [
            max(source.batch_size, rows) if fitting is None else fitting
            for rows, fitting in zip(shares, at_once, strict=True)
        ]
        return apportion(shares, step_rows, upper=most if sum(most) >= step_rows else None)
