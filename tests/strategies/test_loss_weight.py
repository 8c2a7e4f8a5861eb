from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_boa.data import Share
from lightning_boa.errors import OptionError
from lightning_boa.strategies.loss_weight import LossWeight, is_said, rule_of

CPU = torch.device("cpu")


def share(rows: int) -> Share:
    return Share(step=0, rows=rows, step_rows=8, fetched=max(rows, 2))


def weighted(rule: Any, rows: int, ranks: int = 1) -> Tensor:
    weight = LossWeight(rule, 0, ranks, CPU)
    weight.begin(share(rows), torch.arange(3.0))
    assert not weight.is_under_way
    return weight.of(torch.tensor(2.0, requires_grad=True))


@pytest.mark.parametrize(
    ("rule", "rows", "ranks", "expected"),
    [
        ("samples", 6, 2, 2.0 * 6 * 2 / 8),
        ("samples", 0, 2, 0.0),
        ("sum", 3, 2, 4.0),
        ("none", 3, 2, 2.0),
        (len, 3, 1, 2.0),
        (lambda batch: 0, 3, 1, 0.0),
    ],
)
def test_the_factor_of_a_loss(rule: Any, rows: int, ranks: int, expected: float) -> None:
    assert float(weighted(rule, rows, ranks).detach()) == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["samples", "sum", len, lambda batch: 0])
def test_no_row_costs_memory_for_its_weight(rule: Any) -> None:
    """A loss is one number: what its weight keeps for backward does not grow with the rows."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    weight = LossWeight(rule, 0, 1, CPU)
    weight.begin(share(6), torch.zeros(4096))
    loss = torch.zeros(4096, requires_grad=True).sum()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        weight.of(loss)
    assert sum(kept) <= 16


def test_a_loss_that_is_no_number_has_no_gradient_where_nothing_counts() -> None:
    weight = LossWeight(lambda batch: 0, 0, 1, CPU)
    weight.begin(share(2), None)
    layer = nn.Linear(2, 1)
    with weight.gradients(layer):
        weight.of((layer(torch.zeros(2, 2)) / 0.0).sum()).backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()


class Declares(nn.Module):
    boa_batch_weight: Any = "sum"


def test_the_option_comes_before_the_module() -> None:
    assert rule_of(None, nn.Module()) == "samples"
    assert rule_of(None, Declares()) == "sum"
    assert rule_of("none", Declares()) == "none"
    assert [is_said(None, nn.Module()), is_said(None, Declares()), is_said("sum", nn.Module())] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "rule",
    [
        lambda batch: -1,
        lambda batch: float("nan"),
        lambda batch: True,
        lambda batch: torch.tensor(True),
        lambda batch: "12",
        lambda batch: None,
        lambda batch: batch,
    ],
)
def test_what_is_no_weight_is_refused(rule: Callable[[Any], Any]) -> None:
    weight = LossWeight(rule, 0, 1, CPU)
    with pytest.raises(OptionError, match="batch_weight: expected a finite number of at least 0"):
        weight.begin(share(2), torch.arange(3.0))


@pytest.mark.parametrize(
    ("masses", "warned_of"),
    [([0] * 25, 1), ([0] * 9, 0), ([0] * 9 + [1] + [0] * 20, 0), ([1] + [0] * 20, 0)],
    ids=["always", "not yet", "not at last", "not at first"],
)
def test_a_rank_that_never_has_a_weight_is_warned_about_once(
    masses: list[int], warned_of: int
) -> None:
    given = iter(masses)
    weight = LossWeight(lambda batch: next(given), 3, 1, CPU)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            weight.begin(share(0), None)
        for _ in masses:
            weight.begin(share(2), None)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == warned_of
    assert all("first 10 batches with rows on rank 3" in message for message in messages)


WORLD = 3
MASS_OF_OTHERS = 5.0
LOSSES: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "samples": ("samples", lambda rows: rows[:, 0].mean()),
    "sum": ("sum", lambda rows: rows[:, 0].sum()),
    "function": (
        lambda rows: rows[:, 1].sum(),
        lambda rows: (rows[:, 0] * rows[:, 1]).sum() / rows[:, 1].sum(),
    ),
}


class Arrived:
    def wait(self) -> None: ...


def add_others(total: Tensor, async_op: bool) -> Arrived:
    assert async_op
    total += MASS_OF_OTHERS
    return Arrived()


def begun(rule: Any, rows: int, *batches: Any) -> LossWeight:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dist, "all_reduce", add_others)
        weight = LossWeight(rule, 0, WORLD, CPU)
        weight.begin(Share(step=0, rows=rows, step_rows=40, fetched=rows), *batches)
    assert weight.is_under_way == weight.needs_batches
    if weight.is_under_way:
        weight.arrive()
    return weight


@pytest.mark.parametrize("name", LOSSES)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), counts=st.integers(1, 2**25 - 1))
def test_passes_weigh_together_what_their_step_would(
    name: str, sizes: list[int], counts: int
) -> None:
    """Some rows count for nothing; so may all rows of a pass."""
    rule, loss_of = LOSSES[name]
    values = torch.linspace(-3.0, 4.0, sum(sizes), dtype=torch.float64)
    masses = torch.tensor([(counts >> row) % 2 * (row + 0.5) for row in range(sum(sizes))])
    rows = torch.stack([values, masses.double()], 1)
    passes = torch.split(rows, sizes)

    at_once = begun(rule, len(rows), rows)
    whole = at_once.of(loss_of(rows))
    in_passes = begun(rule, len(rows), *(passes if at_once.needs_batches else ()))
    total = torch.zeros((), dtype=torch.float64)
    for here in passes:
        in_passes.begin_pass(len(here), here)
        total += in_passes.of(loss_of(here))

    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)


def test_a_pass_that_counts_for_nothing_is_cut_off_and_the_others_are_not() -> None:
    passes = [torch.tensor([[2.0, mass]]) for mass in (1.0, 0.0, 3.0)]
    weight = begun(lambda rows: rows[:, 1].sum(), 3, *passes)
    layer = nn.Linear(1, 1)
    gradients = []
    for here in passes:
        weight.begin_pass(1, here)
        layer.zero_grad()
        mass = here[:, 1]
        with weight.gradients(layer):
            weight.of((layer(here[:, :1])[:, 0] * mass / mass).sum()).backward()
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad.item())

    total = 4.0 + MASS_OF_OTHERS
    assert gradients == pytest.approx([2.0 * 1 * WORLD / total, 0.0, 2.0 * 3 * WORLD / total])


def test_the_next_step_has_its_own_rows_again() -> None:
    weight = LossWeight("samples", 0, 2, CPU)
    weight.begin(share(6))
    weight.begin_pass(2, None)
    assert weight.of(torch.tensor(1.0)).item() == pytest.approx(2 * 2 / 8)
    weight.begin_pass(4, None)
    assert weight.of(torch.tensor(1.0)).item() == pytest.approx(4 * 2 / 8)
    weight.begin(share(6), None)
    assert weight.of(torch.tensor(1.0)).item() == pytest.approx(6 * 2 / 8)


@pytest.mark.parametrize("masses", [(3, -1), (float("nan"), 1), (float("inf"), -float("inf"))])
def test_what_is_no_weight_of_a_pass_is_refused(masses: tuple[float, float]) -> None:
    weight = LossWeight(lambda mass: mass, 0, 1, CPU)
    with pytest.raises(OptionError, match="batch_weight: expected a finite number of at least 0"):
        weight.begin(share(2), *masses)


@pytest.mark.parametrize(("last", "warned_of"), [(0.0, 1), (1.0, 0)])
def test_passes_without_weight_are_counted_as_the_step_they_are(
    last: float, warned_of: int
) -> None:
    weight = LossWeight(lambda mass: mass, 3, 1, CPU)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(9):
            weight.begin(share(2), 0.0, 0.0)
        assert not caught
        weight.begin(share(2), 0.0, last)
        weight.begin(share(2), 0.0, 0.0)
    assert len(caught) == warned_of
