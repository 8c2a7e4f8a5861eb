"""The passes of a step in order, and what happens where memory is short."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_boa.errors import UnsupportedError
from lightning_boa.strategies.divided_step import DividedStep

Sizes = tuple[int, ...]
Place = tuple[str, int]


class Model(nn.Module):
    """Has a parameter that is frozen and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(3, 2).double()
        self.frozen = nn.Linear(2, 2).double().requires_grad_(False)
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, rows: Tensor) -> Tensor:
        hidden: Tensor = self.frozen(self.layer(rows).tanh())
        return hidden.pow(2).sum(1).mean()


class Ddp:
    """What a divided step needs of DDP."""

    def __init__(self) -> None:
        self.module = Model()
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


class Memory:
    """What a forward keeps for its backward."""


class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, memory: Memory) -> Tensor:
        ctx.memory = memory
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class Runs:
    """Runs passes of a step of `sum(sizes)` rows, and tells what it was asked.

    `fails` are the forwards and backwards, both counted from 1 on, that raise `error()`; a backward does so with all
    its gradients written.
    """

    def __init__(
        self,
        sizes: Sizes,
        *fails: Place,
        guarded: bool = False,
        error: Callable[[], BaseException] = lambda: torch.OutOfMemoryError("no memory"),
    ) -> None:
        self.fails = fails
        self.error = error
        self.said: list[str] = []
        self.counts = {"forward": 0, "backward": 0, "remember": 0}
        self.state = 0
        self.reduced: list[float] = []
        self.memories: list[weakref.ref[Memory]] = []
        self.when_noted: list[dict[str, Tensor | None]] = []
        generator = torch.Generator().manual_seed(4)
        self.rows = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
        self.ddp: Any = Ddp()
        self.step = DividedStep(self.ddp, self, sizes, self.batches(sizes), guarded)

    def batches(self, sizes: Sizes) -> list[Callable[[], Any]]:
        ends = pairwise(accumulate(sizes, initial=0))
        return [lambda start=start, end=end: self.rows[start:end] for start, end in ends]

    def run(self) -> None:
        loss = self.loss_of_pass(self.step.forward())
        self.said.append("-")
        self.step.backward(loss)

    def count(self, kind: str) -> None:
        self.counts[kind] += 1
        if (kind, self.counts[kind]) in self.fails:
            raise self.error()

    def forward_pass(self, rows: int, batch: Callable[[], Any]) -> Any:
        apart = "" if self.ddp.require_backward_grad_sync else " apart"
        self.said.append(f"forward {rows}{apart}")
        here = batch()
        assert len(here) == rows == self.step.running_rows
        memory = Memory()
        self.memories.append(weakref.ref(memory))
        self.state += 1
        self.step.reductions(here.sum(1).mean(), "mean", self.over_ranks)
        output = Keep.apply(self.ddp.module(here), memory)
        self.count("forward")
        return {"loss": output}

    def over_ranks(self, value: Tensor) -> Tensor:
        self.reduced.append(value.item())
        return value

    def loss_of_pass(self, output: Any) -> Tensor:
        loss: Tensor = output["loss"] / 2
        return loss

    def backward_pass(self, loss: Tensor, *, reduces: bool) -> None:
        rows = self.step.running_rows
        self.said.append(f"backward {rows}" + " reduces" * reduces)
        (loss * rows / len(self.rows)).backward()  # type: ignore[no-untyped-call]
        self.count("backward")

    def finish_forwards(self) -> None:
        self.said.append("finish")

    def touch(self) -> None:
        self.said.append("touch")

    def cut_again(self, sizes: Sizes) -> list[Callable[[], Any]]:
        self.said.append(f"cut {' '.join(map(str, sizes))}")
        assert not [memory for memory in self.memories if memory() is not None]
        assert self.step.batches == []
        return self.batches(sizes)

    def remember(self) -> Callable[[], None]:
        self.counts["remember"] += 1
        number, state = self.counts["remember"], self.state
        self.said.append(f"remember {number}")

        def put_back() -> None:
            self.said.append(f"put back {number}")
            self.state = state

        return put_back

    def note_out_of_memory(self, rows: int) -> None:
        self.said.append(f"failed {rows}")
        self.when_noted.append(self.gradients())

    def gradients(self) -> dict[str, Tensor | None]:
        pairs = self.ddp.module.named_parameters()
        return {name: None if each.grad is None else each.grad.clone() for name, each in pairs}

    def whole_gradients(self) -> dict[str, Tensor | None]:
        """Those of all rows at once, in a model without any."""
        model = Model()
        (model(self.rows) / 2).backward()
        return {name: each.grad for name, each in model.named_parameters()}

    def begin_window(self) -> dict[str, Tensor | None]:
        """Leave gradients of an earlier batch."""
        self.ddp.module(self.rows.flip(1) * 3).backward()
        return self.gradients()


def equal(left: dict[str, Tensor | None], right: dict[str, Tensor | None]) -> bool:
    def same(one: Tensor | None, other: Tensor | None) -> bool:
        if one is None or other is None:
            return one is other
        return torch.equal(one, other)

    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


def check_sum(
    found: dict[str, Tensor | None],
    before: dict[str, Tensor | None],
    whole: dict[str, Tensor | None],
) -> None:
    for name, gradient in found.items():
        parts = [each[name] for each in (before, whole) if each[name] is not None]
        if not parts:
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, sum(parts), rtol=1e-12, atol=1e-14)


def test_the_last_pass_reduces() -> None:
    runs = Runs((3, 3, 2))
    runs.run()

    assert runs.said == [
        "forward 3 apart",
        "-",
        "backward 3",
        "forward 3 apart",
        "backward 3",
        "forward 2",
        "finish",
        "backward 2 reduces",
    ]
    assert equal_to_whole(runs)
    assert runs.ddp.require_backward_grad_sync
    assert runs.ddp.require_forward_param_sync


def equal_to_whole(runs: Runs) -> bool:
    check_sum(runs.gradients(), dict.fromkeys(runs.gradients()), runs.whole_gradients())
    assert runs.reduced == [pytest.approx(runs.rows.sum(1).mean().item())]
    return True


def test_a_guarded_step_reduces_after_all_its_passes() -> None:
    runs = Runs((3, 2), guarded=True)
    runs.run()

    assert runs.said == [
        "remember 1",
        "forward 3 apart",
        "-",
        "backward 3",
        "forward 2 apart",
        "backward 2",
        "finish",
        "touch",
    ]
    assert equal_to_whole(runs)
    assert runs.ddp.require_forward_param_sync
    assert runs.state == 2


@pytest.mark.parametrize("guarded", [False, True])
def test_one_pass(guarded: bool) -> None:
    runs = Runs((4,), guarded=guarded)
    runs.run()

    assert runs.said == (
        ["remember 1", "forward 4 apart", "-", "backward 4", "finish", "touch"]
        if guarded
        else ["forward 4", "-", "finish", "backward 4 reduces"]
    )
    assert equal_to_whole(runs)


@pytest.mark.parametrize("guarded", [False, True])
def test_nothing_is_reduced_before_the_end_of_a_window(guarded: bool) -> None:
    """Lightning runs such a batch under no_sync."""
    runs = Runs((3, 2), guarded=guarded)
    with runs.ddp.no_sync():
        runs.run()

    assert [said for said in runs.said if said.startswith("forward")] == [
        "forward 3 apart",
        "forward 2 apart",
    ]
    assert runs.said.count("finish") == 1
    assert "touch" not in runs.said
    assert equal_to_whole(runs)


AGAIN_IN_TWO = ["forward 2 apart", "backward 2"]
CASES: dict[str, tuple[Sizes, tuple[Place, ...], list[str]]] = {
    "the first forward": (
        (4,),
        (("forward", 1),),
        [
            "remember 1",
            "forward 4 apart",
            "failed 4",
            "cut 2 2",
            "put back 1",
            "remember 2",
            "forward 2 apart",
            "-",
            "backward 2",
            *AGAIN_IN_TWO,
        ],
    ),
    "the first forward, twice": (
        (4, 4),
        (("forward", 1), ("forward", 2)),
        [
            "remember 1",
            "forward 4 apart",
            "failed 4",
            "cut 2 2 2 2",
            "put back 1",
            "remember 2",
            "forward 2 apart",
            "failed 2",
            "cut 1 1 1 1 1 1 1 1",
            "put back 2",
            "remember 3",
            "forward 1 apart",
            "-",
            "backward 1",
            *["forward 1 apart", "backward 1"] * 7,
        ],
    ),
    "a later forward": (
        (5, 4),
        (("forward", 2),),
        [
            "remember 1",
            "forward 5 apart",
            "-",
            "backward 5",
            "forward 4 apart",
            "failed 4",
            "cut 2 2 2 2 1",
            "put back 1",
            "remember 2",
            *AGAIN_IN_TWO * 4,
            "forward 1 apart",
            "backward 1",
        ],
    ),
    "the first backward": (
        (4,),
        (("backward", 1),),
        [
            "remember 1",
            "forward 4 apart",
            "-",
            "backward 4",
            "failed 4",
            "cut 2 2",
            "put back 1",
            "remember 2",
            *AGAIN_IN_TWO * 2,
        ],
    ),
    "a later backward": (
        (3, 3),
        (("backward", 2),),
        [
            "remember 1",
            "forward 3 apart",
            "-",
            "backward 3",
            "forward 3 apart",
            "backward 3",
            "failed 3",
            "cut 1 1 1 1 1 1",
            "put back 1",
            "remember 2",
            *["forward 1 apart", "backward 1"] * 6,
        ],
    ),
    "a backward, then the first forward, then a later backward": (
        (8,),
        (("backward", 1), ("forward", 2), ("backward", 3)),
        [
            "remember 1",
            "forward 8 apart",
            "-",
            "backward 8",
            "failed 8",
            "cut 4 4",
            "put back 1",
            "remember 2",
            "forward 4 apart",
            "failed 4",
            "cut 2 2 2 2",
            "put back 2",
            "remember 3",
            "forward 2 apart",
            "backward 2",
            "forward 2 apart",
            "backward 2",
            "failed 2",
            "cut 1 1 1 1 1 1 1 1",
            "put back 3",
            "remember 4",
            *["forward 1 apart", "backward 1"] * 8,
        ],
    ),
}


@pytest.mark.parametrize(("sizes", "fails", "said"), CASES.values(), ids=CASES)
def test_a_step_that_runs_out_of_memory_is_run_again_in_smaller_passes(
    sizes: Sizes, fails: tuple[Place, ...], said: list[str]
) -> None:
    runs = Runs(sizes, *fails, guarded=True)
    runs.run()

    assert runs.said == [*said, "finish", "touch"]
    assert equal_to_whole(runs)
    assert runs.state == len(runs.step.sizes)
    assert not runs.ddp.require_forward_param_sync


@pytest.mark.parametrize(("sizes", "fails", "said"), CASES.values(), ids=CASES)
def test_gradients_of_a_window_are_put_back_bit_for_bit(
    sizes: Sizes, fails: tuple[Place, ...], said: list[str]
) -> None:
    runs = Runs(sizes, *fails, guarded=True)
    before = runs.begin_window()
    assert before["unused"] is None
    runs.run()

    assert len(runs.when_noted) == len(fails)
    assert all(equal(noted, before) for noted in runs.when_noted)
    check_sum(runs.gradients(), before, runs.whole_gradients())


@settings(max_examples=40)
@example(sizes=(8,), fails={("backward", 1), ("backward", 2)}, in_window=True)
@given(
    sizes=st.lists(st.integers(4, 12), min_size=1, max_size=2).map(tuple),
    fails=st.sets(
        st.tuples(st.sampled_from(["forward", "backward"]), st.integers(1, 5)), max_size=3
    ),
    in_window=st.booleans(),
)
def test_whatever_fails_the_gradients_are_those_of_all_rows(
    sizes: Sizes, fails: set[Place], in_window: bool
) -> None:
    runs = Runs(sizes, *fails, guarded=True)
    before = runs.begin_window() if in_window else runs.gradients()
    try:
        runs.run()
    except UnsupportedError:
        assert runs.step.running_rows == 1
        return
    check_sum(runs.gradients(), before, runs.whole_gradients())
    failed = sum(said.startswith("failed") for said in runs.said)
    assert runs.counts["remember"] == failed + 1
    assert [said for said in runs.said if said.startswith("put back")] == [
        f"put back {number}" for number in range(1, failed + 1)
    ]
    assert runs.said[-2:] == ["finish", "touch"]
    assert runs.said.count("finish") == runs.said.count("touch") == 1
    assert runs.reduced == [pytest.approx(runs.rows.sum(1).mean().item())]
    assert sum(runs.step.sizes) == sum(sizes)
    assert runs.state == len(runs.step.sizes)


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_a_single_row_that_does_not_fit_is_refused(kind: str) -> None:
    fails = [(kind, number) for number in range(1, 9)]
    runs = Runs((5,), *fails, guarded=True)
    with pytest.raises(
        UnsupportedError, match=r"this rank's 5 rows, got none for a single row"
    ) as caught:
        runs.run()

    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    failed = [said for said in runs.said if said.startswith(("failed", "cut"))]
    assert failed == ["failed 5", "cut 2 2 1", "failed 2", "cut 1 1 1 1 1"]


@pytest.mark.parametrize("place", [("forward", 1), ("forward", 2), ("backward", 1)])
def test_a_step_with_collectives_of_its_own_is_not_run_again(place: Place) -> None:
    runs = Runs((3, 3), place, guarded=True)
    runs.step.has_communicated = True
    with pytest.raises(UnsupportedError, match="got none for a step with collectives of its own"):
        runs.run()

    assert not [said for said in runs.said if said.startswith(("put back", "cut", "failed"))]


PLACES: list[Place] = [("forward", 1), ("forward", 2), ("backward", 1), ("backward", 2)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("error", "guarded"),
    [
        (torch.OutOfMemoryError("out of memory"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), True),
        (RuntimeError("DataLoader worker is killed: out of memory"), True),
        (MemoryError("the host's"), True),
        (KeyboardInterrupt(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_errors_come_through_as_they_are(
    place: Place, error: BaseException, guarded: bool
) -> None:
    runs = Runs((3, 3), place, guarded=guarded, error=lambda: error)
    with pytest.raises(type(error)) as caught:
        runs.run()

    assert caught.value is error
    assert not [said for said in runs.said if said.startswith(("put back", "cut", "failed"))]
    assert runs.ddp.require_backward_grad_sync


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "HIP out of memory",
    ],
)
def test_memory_may_be_short_in_other_words(message: str) -> None:
    runs = Runs((2,), ("backward", 1), guarded=True, error=lambda: RuntimeError(message))
    runs.run()

    assert runs.step.sizes == (1, 1)


def test_whether_another_pass_follows_is_known_inside_each() -> None:
    runs = Runs((2, 2, 1))
    seen: list[bool] = []
    run = runs.forward_pass

    def forward_pass(rows: int, batch: Callable[[], Any]) -> Any:
        seen.append(runs.step.has_more)
        return run(rows, batch)

    runs.forward_pass = forward_pass  # type: ignore[method-assign]
    runs.run()

    assert seen == [True, True, False]
