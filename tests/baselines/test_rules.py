"""Which gradients enter an update."""

from __future__ import annotations

import pytest

from lightning_boa.baselines.rules import AsTheyArrive, FirstGradients, Gradient


def gradient(worker: int, step: int) -> Gradient:
    return Gradient(worker, step, rows=4)


def test_only_gradients_of_the_present_step_enter_and_so_many_make_an_update() -> None:
    rule = FirstGradients(2)
    assert rule.enters(gradient(0, 5), update=5)
    assert not rule.enters(gradient(0, 4), update=5)
    assert not rule.is_complete([gradient(0, 5)])
    assert rule.is_complete([gradient(0, 5), gradient(2, 5)])
    assert rule.may_compute(1)


def test_each_gradient_is_an_update_however_old_its_weights_are() -> None:
    rule = AsTheyArrive(2, most_ahead=None)
    rule.claimed(1)
    assert rule.enters(gradient(1, 0), update=7)
    assert rule.is_complete([gradient(1, 0)])


@pytest.mark.parametrize("most_ahead", [0, 1, 3])
def test_a_worker_waits_when_it_is_too_far_ahead_of_the_slowest(most_ahead: int) -> None:
    rule = AsTheyArrive(3, most_ahead)
    for worker in range(3):
        rule.claimed(worker)
    rule.enters(gradient(1, 0), update=0)
    rule.claimed(1)
    made = 0
    while rule.may_compute(0):
        rule.enters(gradient(0, made), update=made)
        rule.claimed(0)
        made += 1
        assert made <= most_ahead + 1
    assert made == most_ahead + 1
    assert rule.may_compute(2)
    rule.enters(gradient(2, 0), update=9)
    assert rule.may_compute(0)


def test_a_worker_without_rows_is_waited_for_until_its_last_gradient_has_arrived() -> None:
    rule = AsTheyArrive(2, most_ahead=0)
    rule.claimed(0)
    rule.claimed(1)
    rule.enters(gradient(0, 0), update=0)
    rule.rests(1)
    assert not rule.may_compute(0)
    rule.enters(gradient(1, 0), update=1)
    rule.claimed(0)
    rule.enters(gradient(0, 2), update=2)
    assert rule.may_compute(0)
    rule.claimed(1)
    assert not rule.may_compute(0)
