"""The strategy's side of steps that run in several passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import pass_sizes
from lightning_boa.profiling import MemoryProfile, StepClock
from lightning_boa.strategies import ghost, trainer_seam
from lightning_boa.strategies.divided_step import DividedStep
from lightning_boa.strategies.loss_weight import LossWeight
from lightning_boa.strategies.pass_reductions import together
from lightning_boa.strategies.touch import remember_forward, touch

Run = Callable[..., Any]


class RunsInPasses(Protocol):
    """What is needed of the strategy."""

    clock: StepClock
    memory: MemoryProfile | None

    @property
    def loss_weight(self) -> LossWeight: ...

    @property
    def ddp(self) -> DistributedDataParallel: ...

    @property
    def is_inside_training_step(self) -> bool: ...

    def finish_forwards(self) -> None: ...


class Passes:
    """Builds the divided steps of one training and runs their passes.

    Args:
        strategy: whose steps they are.
        trainer: of the training.
        read_again: the batches of some rows of a share, cut into passes of these sizes.
        check: refuses a batch that shows other rows than its share.
    """

    def __init__(
        self,
        strategy: RunsInPasses,
        trainer: Any,
        read_again: Callable[[Share, tuple[int, ...]], list[Any]],
        check: Callable[[Any, Share], object],
    ) -> None:
        self._strategy = strategy
        self._trainer = trainer
        self._read_again = read_again
        self._check = check
        self._forward: Run = _unset
        self._backward: Run = _unset
        self._logged: list[tuple[int, dict[str, tuple[Tensor, str]]]] = []
        self._share: Share

    def divided(self, share: Share, batch: Any, *, guarded: bool) -> DividedStep | None:
        """The step that begins with this batch, None where it runs as any other."""
        if not share.rows or not (guarded or share.passes):
            return None
        self._share, self._logged = share, []
        memory = self._strategy.memory
        sizes = share.passes or (share.rows,)
        most = None if memory is None or not guarded else memory.proven_cap
        if most is not None and sizes[0] > most:
            sizes = pass_sizes(share.rows, most)
            batches = self.cut_again(sizes)
        else:
            self._check_later(share.later, share)
            batches = [partial(_same, batch), *map(self._on_its_way, share.later)]
        if self._strategy.loss_weight.needs_batches:
            batches = [partial(_same, each()) for each in batches]
        return DividedStep(self._strategy.ddp, self, sizes, batches, guarded)

    def forward(self, step: DividedStep, run: Run) -> Any:
        """The output of the step's first pass; `run` makes one of a batch."""
        self._forward = run
        self._strategy.clock.count_passes(len(step.sizes))
        if not trainer_seam.skips_backward(self._trainer):
            return step.forward()
        output = step.forward_only()
        self._log_whole_step()
        return output

    def backward(self, step: DividedStep, loss: Tensor, run: Run) -> None:
        """All that follows; `run` is the backward of a pass."""
        self._backward = run
        step.backward(loss)
        self._log_whole_step()
        trainer_seam.log_rows(self._trainer, self._share.rows, training=True)

    def forward_pass(self, rows: int, batch: Callable[[], Any]) -> Any:
        here = batch()
        trainer_seam.log_rows(self._trainer, rows, training=True)
        self._strategy.loss_weight.begin_pass(rows, here)
        with trainer_seam.inside_training_step(self._trainer.lightning_module):
            output = self._forward(here)
        self._logged.append((rows, trainer_seam.values_of_step(self._trainer)))
        return output

    def loss_of_pass(self, output: Any) -> Tensor:
        return trainer_seam.backward_begins_with(self._trainer, output)

    def backward_pass(self, loss: Tensor, *, reduces: bool) -> None:
        self._backward(loss, reduces=reduces)

    def finish_forwards(self) -> None:
        self._strategy.finish_forwards()

    def touch(self) -> None:
        with self._strategy.clock.communicating():
            touch(self._strategy.ddp).backward()  # type: ignore[no-untyped-call]

    def cut_again(self, sizes: tuple[int, ...]) -> list[Callable[[], Any]]:
        share = self._share._replace(passes=sizes, fetched=sizes[0])
        batches = self._read_again(share, sizes)
        self._check(batches[0], share)
        self._check_later(batches[1:], share)
        self._strategy.clock.count_passes(len(sizes))
        return [self._on_its_way(batch) for batch in batches]

    def remember(self) -> Callable[[], None]:
        module, device = self._trainer.lightning_module, self._trainer.strategy.root_device
        put_back = [
            ghost.remember_random_states(device),
            ghost.remember_buffers(module),
            *ghost.remember_metrics(module),
            trainer_seam.remember_logged(self._trainer, keeps_first_means=False),
            remember_forward(module),
        ]

        def restore() -> None:
            for each in put_back:
                each()
            self._logged = []

        return restore

    def note_out_of_memory(self, rows: int) -> None:
        self._strategy.clock.leave_out()
        if self._strategy.memory is not None:
            self._strategy.memory.note_failure(rows)

    def _check_later(self, batches: Sequence[Any], share: Share) -> None:
        for rows, batch in zip(share.passes[1:], batches, strict=True):
            self._check(batch, share._replace(fetched=rows))

    def _on_its_way(self, batch: Any) -> Callable[[], Any]:
        return partial(trainer_seam.to_device, self._trainer, batch)

    def _log_whole_step(self) -> None:
        """Values of this step are those of all its passes."""
        if len(self._logged) < 2:
            return
        whole: dict[str, Tensor] = {}
        for name, (_, operation) in self._logged[-1][1].items():
            values = [(here[name][0], rows) for rows, here in self._logged if name in here]
            whole[name] = together(values, operation)
        trainer_seam.write_values_of_step(self._trainer, whole)


def refuse_in_passes() -> None:
    """A collective of the module's own in a step that some rank runs in several passes.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "Expected no collective (all_gather, barrier, broadcast) inside training_step while a rank runs its rows in"
        " several passes, since the others run one. Leave it out (self.log(…, sync_dist=True) is right there), or bound"
        ' the shares by numbers (max_batch_size) instead of "auto".'
    )


def _same(batch: Any) -> Any:
    return batch


def _unset(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("no pass runs")
