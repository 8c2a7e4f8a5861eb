"""Gradients as one vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_boa.baselines.flat_gradients import FlatGradients
from lightning_boa.errors import UnsupportedError


def layers() -> nn.ModuleList:
    torch.manual_seed(1)
    return nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 1, bias=False)])


def test_what_is_read_with_a_weight_is_written_back_in_the_same_shapes() -> None:
    made = layers()
    flat = FlatGradients(made.parameters())
    made[1](made[0](torch.ones(4, 3))).sum().backward()
    before = [parameter.grad.clone() for parameter in made.parameters()]
    values = flat.read(0.5)
    assert values.shape == flat.empty.shape == (3 * 2 + 2 + 2 + 3,)
    assert flat.bytes == 4 * 10
    flat.write(values)
    for parameter, gradient in zip(made.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.grad, 0.5 * gradient)


def test_a_parameter_has_a_gradient_where_some_rank_has_one() -> None:
    ours, theirs = layers(), layers()
    flat = FlatGradients(ours.parameters())
    ours[0](torch.ones(1, 3)).sum().backward()
    theirs[1](torch.ones(1, 2)).sum().backward()
    alone = flat.read(1.0)
    together = alone + FlatGradients(theirs.parameters()).read(1.0)
    flat.write(alone)
    assert ours[1].weight.grad is None
    flat.write(together)
    torch.testing.assert_close(ours[1].weight.grad, theirs[1].weight.grad)


def test_frozen_parameters_are_left_out_and_types_are_kept() -> None:
    made = layers()
    made[0].bias.requires_grad_(False)
    made[1].double()
    flat = FlatGradients(made.parameters())
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    values = flat.read(0.1)
    assert values.dtype == torch.float64
    assert len(values) == 6 + 2 + 2
    flat.write(values)
    assert made[0].weight.grad.dtype == torch.float32
    assert made[1].weight.grad.dtype == torch.float64
    assert made[0].bias.grad is None


def test_sparse_gradients_become_dense() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    flat = FlatGradients(table.parameters())
    table(torch.tensor([1, 1])).sum().backward()
    flat.write(flat.read(0.5))
    assert table.weight.grad.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]


def test_a_layer_that_is_thawed_later_is_refused() -> None:
    made = layers()
    made[1].requires_grad_(False)
    flat = FlatGradients(made.parameters())
    made[1].requires_grad_(True)
    with pytest.raises(UnsupportedError, match="same parameters"):
        flat.read(1.0)


def test_clipping_what_was_written_leaves_the_update_as_it_is() -> None:
    made = layers()
    flat = FlatGradients(made.parameters())
    update = torch.ones_like(flat.empty)
    flat.write(update)
    nn.utils.clip_grad_norm_(made.parameters(), 0.1)
    assert (update == 1).all()
