"""Reductions over ranks inside a step of several passes, against the same step in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_boa.strategies.pass_reductions import PassReductions, together

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rows: rows.mean(0),
    "avg": lambda rows: rows.mean(0),
    "sum": lambda rows: rows.sum(0),
    "prod": lambda rows: rows.prod(0),
    "product": lambda rows: rows.prod(0),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
}
MADE_IN_RANKS = 1000.0


@dataclass
class Step:
    """A step that makes one reduction after the other of the values of its rows."""

    values: Tensor  # (reductions, rows, 2)
    operations: list[str]
    reductions: PassReductions = field(default_factory=PassReductions)
    reduced: list[Tensor] = field(default_factory=list)

    def over_ranks(self, value: Tensor) -> Tensor:
        self.reduced.append(value.clone())
        return value + MADE_IN_RANKS

    def run(self, passes: list[int], stops_before: tuple[int, int] | None = None) -> list[Tensor]:
        """What the last pass is given. The step may stop before a reduction of a pass."""
        self.reductions.begin_step()
        for number, (start, end) in enumerate(pairwise(accumulate(passes, initial=0))):
            self.reductions.begin_pass(end - start, is_last=number == len(passes) - 1)
            given_back = []
            for each, operation in enumerate(self.operations):
                if (number, each) == stops_before:
                    return given_back
                value = OPERATIONS[operation](self.values[each, start:end])
                before = value.clone()
                given_back.append(self.reductions(value, operation, self.over_ranks))
                if number < len(passes) - 1:
                    assert given_back[-1] is value
                    assert torch.equal(value, before)
                value.fill_(99.0)
        return given_back

    @property
    def expected(self) -> list[Tensor]:
        pairs = zip(self.operations, self.values, strict=True)
        return [OPERATIONS[operation](rows) for operation, rows in pairs]

    def check(self, given_back: list[Tensor]) -> None:
        assert len(self.reduced) == len(self.operations)
        for whole, answer, expected in zip(self.reduced, given_back, self.expected, strict=True):
            torch.testing.assert_close(whole, expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(answer, expected + MADE_IN_RANKS, rtol=1e-12, atol=1e-12)


def cuts_of(rows: int) -> st.SearchStrategy[list[int]]:
    ends = st.sets(st.integers(1, max(rows - 1, 1)), max_size=4)
    return ends.map(
        lambda found: [
            high - low for low, high in pairwise([0, *sorted(found - {rows}), rows]) if high > low
        ]
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    operations = draw(st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, max_size=4))
    rows = draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(len(operations), rows, 2, generator=generator, dtype=torch.float64)
    return Step(values, operations)


@given(step=steps(), data=st.data())
def test_a_step_in_passes_reduces_what_it_would_at_once(step: Step, data: st.DataObject) -> None:
    step.check(step.run(data.draw(cuts_of(step.values.shape[1]))))


@given(step=steps(), data=st.data())
def test_a_step_that_is_run_again_reduces_nothing_twice(step: Step, data: st.DataObject) -> None:
    cuts = cuts_of(step.values.shape[1])
    for _ in range(data.draw(st.integers(1, 3))):
        passes = data.draw(cuts)
        number = data.draw(st.integers(0, len(passes) - 1))
        step.run(passes, (number, data.draw(st.integers(0, len(step.operations)))))

    step.check(step.run(data.draw(cuts)))
    step.check(step.run(data.draw(cuts)))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers(operation: str, dtype: torch.dtype) -> None:
    rows = torch.tensor([[3, 1], [2, 5], [4, 1]], dtype=dtype)
    first, last = rows[:2], rows[2:]
    parts = [(OPERATIONS[operation](each.double()).to(dtype), len(each)) for each in (first, last)]
    if operation in ("mean", "avg"):
        parts = [(torch.tensor([3, 1], dtype=dtype), 2), (torch.tensor([4, 1], dtype=dtype), 1)]

    whole = together(parts, operation)

    if operation in ("mean", "avg"):
        assert whole.dtype == torch.get_default_dtype()
        assert whole.tolist() == pytest.approx([10 / 3, 1.0])
    else:
        assert whole.dtype == dtype
        assert whole.tolist() == OPERATIONS[operation](rows.double()).tolist()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_numbers_keep_their_type_and_shape(
    operation: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    parts = [(torch.full(shape, 2.0, dtype=dtype), 3), (torch.full(shape, 4.0, dtype=dtype), 1)]

    whole = together(parts, operation)

    expected = {"mean": 2.5, "avg": 2.5, "sum": 6, "min": 2, "max": 4}.get(operation, 8)
    assert torch.equal(whole, torch.full(shape, expected, dtype=dtype))


def test_half_precision_is_summed_in_double() -> None:
    parts = [(torch.tensor(1.0, dtype=torch.float16), rows) for rows in (60_000, 30_000, 10_000)]

    assert together(parts, "mean").item() == 1.0


@pytest.mark.parametrize(("operation", "expected"), [("min", False), ("max", True)])
def test_truth_values_have_extremes(operation: str, expected: bool) -> None:
    whole = together([(torch.tensor(True), 1), (torch.tensor(False), 4)], operation)

    assert whole.item() is expected


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_no_number_is_not_hidden(operation: str) -> None:
    for values in ((float("nan"), 1.0), (1.0, float("nan"))):
        parts = [(torch.tensor(value), 2) for value in values]
        assert together(parts, operation).isnan()


@pytest.mark.parametrize("passes", [1, 2])
def test_what_a_step_does_to_its_answer_is_not_seen_by_its_repetition(passes: int) -> None:
    def in_place(value: Tensor) -> Tensor:
        value += 10.0
        return value

    def run() -> Any:
        reductions.begin_step()
        for number in range(passes):
            reductions.begin_pass(2, is_last=number == passes - 1)
            answer = reductions(torch.tensor(1.0), "mean", in_place)
        return answer

    reductions = PassReductions()
    first = run()
    assert first.item() == 11.0
    first.zero_()
    second = run()
    assert second.item() == 11.0
    second.zero_()
    assert run().item() == 11.0


def test_nothing_is_kept_of_the_graph_of_a_step_that_failed() -> None:
    reductions = PassReductions()
    weight = torch.ones(3, requires_grad=True)
    for sizes in ((4,), (2, 2)):
        reductions.begin_step()
        for number, rows in enumerate(sizes):
            reductions.begin_pass(rows, is_last=number == len(sizes) - 1)
            answer = reductions((weight * rows).sum(), "sum", lambda value: value)

    assert answer.item() == 12.0
    assert not answer.requires_grad
