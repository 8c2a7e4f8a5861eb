from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from lightning_boa.planning import (
    LinearTime,
    LinkedAllReduce,
    MeasuredAllReduce,
    RingAllReduce,
    network_findings,
    plan_batches,
    probe_groups,
    shared_links,
)
from lightning_boa.planning.network import fitted_communication

ROWS = 120
DEVICES = (LinearTime(0.1, 0.05), LinearTime(0.1, 0.05), LinearTime(0.2, 0.1), LinearTime(0.0, 0.2))


@dataclass(frozen=True)
class TrueNetwork:
    """Rings whose links belong to machines, each of which is quicker inside."""

    hosts: tuple[str, ...]
    links: tuple[float, ...]
    latency: float = 0.0
    inside: float = 1000.0

    def seconds(self, ranks):
        ring = RingAllReduce(1.0, bandwidth=1.0, latency=self.latency)
        crosses = len({self.hosts[rank] for rank in ranks}) > 1 or len(set(self.hosts)) == 1
        slowest = min(self.links[rank] for rank in ranks) if crosses else self.inside
        return float(ring.seconds(len(ranks), slowest))

    @property
    def everyone(self):
        return tuple(range(len(self.links)))


def with_costs(state, exchange, rest=0.0):
    """The state as if the exchange had taken so long in each step, and whatever else the rest."""
    records = [
        replace(
            record,
            communication=record.communication - 0.01 + exchange,
            period=record.period - 0.013 + exchange + rest,
        )
        for record in state.records
    ]
    return replace(state, records=tuple(records))


def confirmed_findings(state, network, *, overlapped=0.0, other=0.0, rest=0.0):
    """What is found where so many seconds of the exchange run beside the backward, and others look like it."""
    exposed = network.seconds(network.everyone) - overlapped + other
    state = with_costs(state, exposed, rest)
    groups = probe_groups(shared_links(network.hosts))
    found = network_findings(state).probed(
        state, network.hosts, {group: network.seconds(group) for group in groups}
    )
    if found.group_to_confirm is None:
        return found
    return found.confirmed(state, network.seconds(found.group_to_confirm))


def true_step(ranks, network, exposed_share=1.0):
    plan = plan_batches([DEVICES[rank] for rank in ranks], ROWS)
    exchange = network.seconds(ranks) if len(ranks) > 1 else 0.0
    return plan.step_seconds + exchange * exposed_share


def best_by_brute_force(network, exposed_share=1.0):
    sets = (
        each
        for size in range(1, len(DEVICES) + 1)
        for each in itertools.combinations(range(len(DEVICES)), size)
    )
    return min(true_step(each, network, exposed_share) for each in sets)


@pytest.fixture(scope="module")
def planned(cluster):
    simulated = cluster(DEVICES, ROWS)
    return simulated.train(simulated.settings(warmup="auto"))


def one_host(*links, latency=0.0):
    return TrueNetwork(("host",) * len(links), links, latency)


def test_exposed_communication_is_what_the_last_rank_waits(planned):
    found = network_findings(with_costs(planned, 0.7, rest=0.2))
    assert found.communication_seconds == pytest.approx(0.7)
    assert found.compute_seconds == planned.plan.step_seconds
    assert found.measured_seconds == pytest.approx(found.step_seconds + 0.2, rel=0.01)


@pytest.mark.parametrize("window", [2, 3, 5])
def test_batches_of_a_window_bear_its_exchange_together(planned, window):
    records = tuple(
        replace(
            record,
            communication=1.2 * (record.step % window == 0),
            period=record.compute + 1.2 * (record.step % window == 0),
        )
        for record in planned.records
    )
    found = network_findings(replace(planned, records=records), window)
    assert found.communication_seconds == pytest.approx(1.2 / window)
    assert found.measured_seconds == pytest.approx(found.compute_seconds + 1.2 / window, rel=0.01)


def test_a_rank_without_rows_is_not_waited_for(planned):
    rows = planned.plan.batch_sizes
    parked = tuple(
        replace(record, rows=0, communication=0.0) if record.rank == 3 else record
        for record in with_costs(planned, 0.7).records
    )
    schedule = planned.schedule.then(10**6, replace(planned.plan, batch_sizes=(*rows[:3], 0)))
    without = replace(planned, schedule=schedule, records=parked)
    settings = replace(planned.settings, global_batch_size=sum(rows[:3]))
    records = tuple(replace(each, step_rows=sum(rows[:3])) for each in parked)
    found = network_findings(replace(without, settings=settings, records=records))
    assert found.communication_seconds == pytest.approx(0.7)


def test_nothing_is_known_without_a_measured_step(planned):
    assert network_findings(replace(planned, records=())) is None


@pytest.mark.parametrize(
    ("exchange", "considerable", "limits"),
    [
        (0.05, False, False),
        (0.5, True, False),
        (5.0, True, True),
    ],
)
def test_what_matters_is_its_part_of_a_step(planned, exchange, considerable, limits):
    found = network_findings(with_costs(planned, exchange))
    assert (found.is_considerable, found.network_bound) == (considerable, limits)
    assert ("the network limits" in found.summary) == limits
    assert found.advice == found.relaunch == ""


def test_ranks_of_a_machine_share_its_link():
    assert shared_links("aaa") == ((0,), (1,), (2,))
    assert shared_links("abba") == ((0, 3), (1, 2))


def test_groups_show_each_link_twice_and_each_machine_alone():
    assert probe_groups(((0,), (1,))) == ((0, 1),)
    assert probe_groups(((0,), (1,), (2,))) == ((0, 1, 2), (0, 1), (1, 2), (0, 2))
    assert probe_groups(((0, 1), (2, 3))) == ((0, 1, 2, 3), (0, 1), (2, 3))
    four = probe_groups(((0,), (1,), (2,), (3,)))
    assert set(four) == {(0, 1, 2, 3), *itertools.combinations(range(4), 2)}
    eight = probe_groups(tuple((rank,) for rank in range(8)))
    assert len(eight) == 17
    machines = tuple((2 * place, 2 * place + 1) for place in range(32))
    assert len(probe_groups(machines)) == 65
    assert probe_groups((*machines, (64,))) == (tuple(range(65)),)


@pytest.mark.parametrize("slow", [(), (0,), (2,), (1, 4), (5,)])
def test_the_links_of_a_ring_are_told_from_each_other(slow):
    links = tuple(2.0 if rank in slow else 30.0 for rank in range(6))
    network = one_host(*links)
    units = shared_links(network.hosts)
    seconds = {group: network.seconds(group) for group in probe_groups(units)}
    model = fitted_communication(units, seconds)
    speeds = np.asarray(links) / min(links)
    np.testing.assert_allclose(model.links(6), speeds)
    for size in (2, 3, 6):
        for link in (min(links), 30.0):
            expected = RingAllReduce(1.0, 1.0).seconds(size, link)
            np.testing.assert_allclose(model.seconds(size, link / min(links)), expected)


def test_links_that_hardly_differ_count_as_alike():
    network = one_host(10.0, 11.0, 9.5, 10.5)
    units = shared_links(network.hosts)
    model = fitted_communication(
        units, {group: network.seconds(group) for group in probe_groups(units)}
    )
    assert model == LinkedAllReduce((1.0,) * 4, model.among)


def test_of_two_ranks_and_of_very_many_only_the_size_is_known():
    assert fitted_communication(((0,), (1,)), {(0, 1): 0.5}) == MeasuredAllReduce({2: 0.5})
    many = tuple((rank,) for rank in range(40))
    assert fitted_communication(many, {tuple(range(40)): 2.0}) == MeasuredAllReduce({40: 2.0})


LINKS = [each for each in itertools.product((0.05, 0.5, 20.0), repeat=4) if each.count(20.0) > 1]


@pytest.mark.parametrize("overlapped", [0.0, 0.5])
def test_the_set_is_the_best_of_all(planned, overlapped):
    for links in LINKS:
        network = one_host(*links)
        whole = network.seconds(network.everyone)
        found = confirmed_findings(planned, network, overlapped=overlapped * whole)
        best = best_by_brute_force(network, 1 - overlapped)
        now = true_step(network.everyone, network, 1 - overlapped)
        assert found.worker_set.step_seconds == pytest.approx(
            min(now, true_step(found.worker_set.ranks, network, 1 - overlapped)), rel=0.02
        )
        if found.advice:
            assert found.worker_set.step_seconds <= 1.02 * best
        else:
            assert now <= 1.07 * best


@pytest.mark.parametrize("latency", [0.01, 0.1, 0.4])
def test_latencies_leave_the_set_near_the_best(planned, latency):
    for links in LINKS[::3]:
        network = one_host(*links, latency=latency)
        found = confirmed_findings(planned, network)
        step = true_step(found.worker_set.ranks, network)
        assert found.worker_set.step_seconds == pytest.approx(step, rel=0.02)
        assert step <= 1.15 * best_by_brute_force(network)


def test_a_machine_alone_needs_no_link_to_the_others(planned):
    network = TrueNetwork(("near", "near", "far", "far"), (0.3,) * 4)
    found = confirmed_findings(planned, network)
    assert found.worker_set.ranks == (0, 1)
    assert found.worker_set.step_seconds == pytest.approx(true_step((0, 1), network), rel=0.02)
    assert "relaunch without far (torchrun --nnodes=1)" in found.relaunch
    assert f"global_batch_size={ROWS}" in found.relaunch


def test_a_set_that_turns_out_no_faster_is_not_advised(planned):
    network = one_host(0.5, 20.0, 20.0, 20.0)
    state = with_costs(planned, network.seconds(network.everyone))
    groups = probe_groups(shared_links(network.hosts))
    found = network_findings(state).probed(
        state, network.hosts, {group: network.seconds(group) for group in groups}
    )
    assert found.group_to_confirm == (1, 2, 3)
    assert "(0)" in found.advice
    switch = network.seconds(network.everyone)
    disappointed = found.confirmed(state, switch)
    assert disappointed.worker_set.left_out == ()
    assert disappointed.advice == disappointed.relaunch == ""
    assert disappointed.group_to_confirm is None


def test_what_no_exchange_explains_stays_in_every_set(planned):
    """A slow hook after the backward looks like communication, a slow loader like nothing."""
    network = one_host(0.5, 20.0, 20.0, 20.0)
    plain = confirmed_findings(planned, network)
    other = confirmed_findings(planned, network, other=3.0, rest=2.0)
    assert other.communication_seconds == pytest.approx(network.seconds(network.everyone))
    assert other.worker_set.ranks == plain.worker_set.ranks
    more = other.worker_set.step_seconds - plain.worker_set.step_seconds
    assert more == pytest.approx(5.0, rel=0.02)
    assert other.worker_set.gain < plain.worker_set.gain
    slow_loader = confirmed_findings(planned, network, rest=200.0)
    assert slow_loader.advice == ""


def test_bounds_and_memory_hold_for_the_smaller_set(planned):
    network = one_host(0.05, 20.0, 20.0, 20.0)
    rows = planned.plan.batch_sizes
    roomy = confirmed_findings(planned, network)
    assert roomy.worker_set.left_out == (0,)
    tight = confirmed_findings(replace(planned, row_caps=rows), network)
    assert tight.worker_set.left_out == ()
    bounded = replace(planned, settings=replace(planned.settings, upper=rows))
    assert confirmed_findings(bounded, network).worker_set.left_out == ()
    in_passes = replace(planned, row_caps=rows, settings=replace(planned.settings, in_passes=True))
    assert confirmed_findings(in_passes, network).worker_set.left_out == (0,)


def test_the_slow_link_is_named_only_where_it_is_the_reason(planned):
    slow = confirmed_findings(planned, one_host(20.0, 20.0, 0.5, 20.0))
    assert "without 1 of the 4 ranks (2)" in slow.advice
    assert slow.advice.endswith("since its link is 40.0 times slower")
    everywhere = confirmed_findings(planned, one_host(0.2, 0.2, 0.2, 0.2))
    assert everywhere.worker_set.left_out
    assert "link" not in everywhere.advice
    assert "on the devices of the other ranks only" in everywhere.relaunch


ONE_OLD = (
    LinearTime(0.1, 0.05),
    LinearTime(0.1, 0.05),
    LinearTime(9.0, 0.1),
    LinearTime(0.1, 0.05),
)


def test_a_rank_that_costs_more_than_it_brings_is_found_without_a_probe(cluster):
    simulated = cluster(ONE_OLD, ROWS)
    state = with_costs(simulated.train(simulated.settings(warmup="auto")), 0.05, rest=0.02)
    found = network_findings(state).judged(state)
    others = plan_batches([ONE_OLD[rank] for rank in (0, 1, 3)], ROWS).step_seconds
    assert not found.is_considerable
    assert found.worker_set.left_out == (2,)
    assert found.worker_set.step_seconds == pytest.approx(others + 0.05 + 0.02, rel=0.05)
    assert found.worker_set.all_seconds == pytest.approx(found.measured_seconds, rel=0.05)
    assert f"global_batch_size={ROWS} keeps the global batch" in found.relaunch


def test_nobody_is_to_leave_who_is_worth_it(planned):
    state = with_costs(planned, 0.05)
    found = network_findings(state).judged(state)
    assert found.worker_set is None
    assert found.advice == found.relaunch == ""
