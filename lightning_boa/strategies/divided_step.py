"""A training step that its rank runs in several passes, because its rows do not fit into memory at once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_boa.emulation import OUT_OF_MEMORY
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import pass_sizes
from lightning_boa.strategies.pass_reductions import PassReductions

SAID_OTHERWISE = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")


class RunsPasses(Protocol):
    """What a divided step needs of the strategy."""

    def forward_pass(self, rows: int, batch: Callable[[], Any]) -> Any:
        """Run the module's training step on the batch of one pass; its output."""

    def loss_of_pass(self, output: Any) -> Tensor:
        """What the backward of this output begins with, as Lightning would have it."""

    def backward_pass(self, loss: Tensor, *, reduces: bool) -> None:
        """Weigh the loss by the rows of the pass and run its backward, which may reduce the gradients."""

    def finish_forwards(self) -> None:
        """All rows of this rank have been through: what is reduced beside the gradients may begin."""

    def touch(self) -> None:
        """Take part in the reduction of the gradients without a model."""

    def cut_again(self, sizes: tuple[int, ...]) -> list[Callable[[], Any]]:
        """The rows of this step, read again as a batch for each of these sizes."""

    def remember(self) -> Callable[[], None]:
        """Copy what a pass changes beside gradients; the returned function puts it back."""

    def note_out_of_memory(self, rows: int) -> None:
        """A pass of so many rows did not fit."""


@dataclass
class DividedStep:
    """The passes of one step, in order.

    Gradients add up on this rank, and are reduced once: by the last pass, as it runs, or in a guarded step after all of
    them. A pass of a guarded step may run out of memory: then its step is run again in more passes, while the other
    ranks wait in their reduction; nothing has been reduced that would have to be taken back.

    Attributes:
        ddp: the model.
        runs: the strategy.
        sizes: rows of each pass.
        batches: of each pass; each function brings one to the device.
        is_guarded: whether the step may be run again.
        reductions: what the module reduces inside its step.
        has_communicated: whether the module has used other collectives, so that its step cannot be run again.
    """

    ddp: DistributedDataParallel
    runs: RunsPasses
    sizes: tuple[int, ...]
    batches: list[Callable[[], Any]]
    is_guarded: bool
    reductions: PassReductions = field(default_factory=PassReductions)
    has_communicated: bool = False
    _put_back: Callable[[], None] = field(default=lambda: None, repr=False)
    _running: int = 0

    @property
    def running_rows(self) -> int:
        """Rows of the pass that runs."""
        return self.sizes[self._running]

    @property
    def has_more(self) -> bool:
        """Whether another pass follows."""
        return self._running < len(self.sizes) - 1

    def forward(self) -> Any:
        """The first pass, as far as its output."""
        return self._until_it_fits(self._first_forward)

    def forward_only(self) -> Any:
        """All passes, where no backward follows; the output of the first one."""
        output = self.forward()
        for number in range(1, len(self.sizes)):
            self._forward(number)
        self.runs.finish_forwards()
        return output

    def backward(self, loss: Tensor) -> None:
        """The rest of the first pass, whose loss this is, and all others; then the gradients are reduced."""
        gradients = self._gradients() if self.is_guarded else []
        try:
            self._rest(loss)
        except RuntimeError as error:
            rows = self._rows_that_failed(error)
            loss.detach_()
        else:
            self._reduce()
            return
        self._make_room(rows, gradients)
        self._until_it_fits(self._whole, gradients)
        self._reduce()

    def _until_it_fits(self, run: Callable[[], Any], gradients: Sequence[Any] = ()) -> Any:
        while True:
            try:
                return run()
            except RuntimeError as error:
                rows = self._rows_that_failed(error)
            self._make_room(rows, gradients)

    def _first_forward(self) -> Any:
        if self.is_guarded:
            self._put_back = self.runs.remember()
        self.reductions.begin_step()
        return self._forward(0)

    def _whole(self) -> None:
        self._rest(self.runs.loss_of_pass(self._first_forward()))

    def _rest(self, loss: Tensor) -> None:
        self._backward(0, loss)
        del loss
        for number in range(1, len(self.sizes)):
            self._backward(number, self.runs.loss_of_pass(self._forward(number)))

    def _forward(self, number: int) -> Any:
        self._running = number
        rows, is_last = self.sizes[number], number == len(self.sizes) - 1
        self.reductions.begin_pass(rows, is_last=is_last)
        with nullcontext() if self._reduces(number) else self.ddp.no_sync():
            return self.runs.forward_pass(rows, self.batches[number])

    def _backward(self, number: int, loss: Tensor) -> None:
        if self._reduces(number):
            self.runs.finish_forwards()
        self.runs.backward_pass(loss, reduces=self._reduces(number))

    def _reduces(self, number: int) -> bool:
        return number == len(self.sizes) - 1 and not self.is_guarded

    def _reduce(self) -> None:
        if not self.is_guarded:
            return
        self.runs.finish_forwards()
        if self.ddp.require_backward_grad_sync:
            self.runs.touch()

    def _gradients(self) -> list[tuple[Tensor, Tensor | None]]:
        """What earlier batches of an accumulation window have left, on the host, which has more room."""
        return [
            (each, None if each.grad is None else each.grad.detach().to("cpu", copy=True))
            for each in self.ddp.module.parameters()
            if each.requires_grad
        ]

    def _rows_that_failed(self, error: RuntimeError) -> int:
        """How many rows were too many; raises the error where nothing can be done."""
        if not self.is_guarded or not _is_out_of_memory(error):
            raise error
        rows = self.sizes[self._running]
        if self.has_communicated or rows == 1:
            why = "a single row" if rows == 1 else "a step with collectives of its own"
            way_out = (
                "Use a smaller model or smaller rows, or leave this rank out."
                if rows == 1
                else "Take collectives (all_gather, barrier, a metric's compute) out of training_step, or give this"
                " rank fewer rows (max_batch_size)."
            )
            raise UnsupportedError(
                f"Expected memory for the passes of this rank's {sum(self.sizes)} rows, got none for {why}, which"
                f" cannot be run in smaller passes. {way_out}"
            ) from error
        return rows

    def _make_room(self, rows: int, gradients: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """Leave nothing of the attempt, and cut the rows into passes of half as many."""
        self.batches = []
        for parameter, before in gradients:
            parameter.grad = None if before is None else before.to(parameter.device, copy=True)
        self.ddp.require_forward_param_sync = False
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.runs.note_out_of_memory(rows)
        self.sizes = pass_sizes(sum(self.sizes), rows // 2)
        self.batches = self.runs.cut_again(self.sizes)
        self._put_back()


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, OUT_OF_MEMORY) or any(words in str(error) for words in SAID_OTHERWISE)
