"""What is told of a change of the plan: why, what was expected, what came of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lightning_boa.planning import BLOCK_STEPS, LinearTime, Rebalancing
from lightning_boa.planning.orchestration import BLOCKS_OF_AN_OUTCOME
from tests.planning.watched_training import WatchedTraining

CHANGE = Rebalancing(
    step=215,
    batch_sizes_before=(94, 18, 49, 95),
    batch_sizes=(54, 24, 61, 117),
    scales=(2.0, 1.0, 1.01, 0.99),
    expected_gain=0.6,
    seconds_before=2.0,
)
TWO = [LinearTime(0.1, 0.01), LinearTime(0.1, 0.02)]


def slow_at_200(victim, factor=2.0, until=10**9, **options):
    return WatchedTraining(
        TWO,
        slower=lambda step, rank: factor if rank == victim and 200 <= step < until else 1.0,
        **options,
    )


def test_the_reason_names_the_rank_that_became_slower():
    assert CHANGE.reason == (
        "rank 0 takes 2.00 times as long as its first measurement says, beside the others; "
        "a step is predicted to be 60% faster"
    )


def test_the_reason_names_the_rank_that_became_faster():
    change = replace(CHANGE, scales=(1.0, 1.05, 0.4, 1.0))
    assert change.reason.startswith("rank 2 is 2.50 times as fast as its first measurement says")


def test_the_reason_of_a_recovery_names_no_rank():
    change = replace(CHANGE, scales=(1.01, 1.0, 1.0, 0.99), expected_gain=0.3)
    assert change.reason == (
        "all ranks are about as fast as their first measurements say; "
        "a step is predicted to be 30% faster"
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_of_two_ranks_the_slower_one_is_named(victim):
    training = slow_at_200(victim, until=400).run(500)
    slowed, recovered = training.changes
    assert slowed.reason.startswith(f"rank {victim} takes 2.00 times as long")
    assert recovered.reason.startswith("all ranks are about as fast")


def test_the_gain_is_that_of_steps_per_second():
    assert CHANGE.gain is None
    assert replace(CHANGE, seconds_after=1.6).gain == pytest.approx(0.25)
    assert replace(CHANGE, seconds_after=2.5).gain == pytest.approx(-0.2)


@pytest.mark.parametrize("after", [None, 1.6])
def test_a_change_comes_back_from_json(after):
    change = replace(CHANGE, seconds_after=after)
    assert Rebalancing.from_dict(json.loads(json.dumps(change.to_dict()))) == change


@pytest.mark.parametrize("read_ahead", [0, 2, 8, 16])
def test_what_came_of_a_change_is_measured_and_agrees_with_what_was_expected(read_ahead):
    training = slow_at_200(0, read_ahead=read_ahead).run(500)
    (change,) = training.changes
    assert change.seconds_before == pytest.approx(training.seconds[205] + training.beside)
    assert change.seconds_after == pytest.approx(training.seconds[-1] + training.beside, rel=0.01)
    assert change.gain == pytest.approx(change.expected_gain, abs=0.02)


def test_the_outcome_is_known_after_a_few_blocks():
    training = slow_at_200(0).run(210)
    while not training.changes:
        training.run(len(training.seconds) + 1)
    while training.changes[-1].gain is None:
        training.run(len(training.seconds) + 1)
    step = training.changes[-1].step
    firsts = [block.first_step for block in training.state.watch.blocks]
    assert len([first for first in firsts if first >= step]) == BLOCKS_OF_AN_OUTCOME
    assert firsts[-1] - step < BLOCKS_OF_AN_OUTCOME * BLOCK_STEPS
    outcome = training.changes
    training.run(500)
    assert training.changes == outcome
