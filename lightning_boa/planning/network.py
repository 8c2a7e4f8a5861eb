"""What communication costs a step, and what follows from it for the set of workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_boa.errors import PlanError
from lightning_boa.planning.communication import (
    Communication,
    LinkedAllReduce,
    MeasuredAllReduce,
)
from lightning_boa.planning.orchestration import Orchestration
from lightning_boa.planning.passes import share_models
from lightning_boa.planning.plan import predicted_plan
from lightning_boa.planning.records import step_costs
from lightning_boa.planning.rounds import cautious
from lightning_boa.planning.time_models import TimeModel
from lightning_boa.planning.worker_set import WorkerSet, choose_workers

CONSIDERABLE = 0.05
LEAST_GAIN_OF_A_RELAUNCH = 0.05
MOST_LINKS = 32
MOST_LINKS_SEEN_TWICE = 16
ALIKE = 1.25
OTHER_DEVICES = (
    "on the devices of the other ranks only (Trainer(devices=…), or fewer processes under torchrun)"
)

Group = tuple[int, ...]


@dataclass(frozen=True)
class NetworkFindings:
    """What communication costs a step of the plan, and whether another set of workers would do better.

    Seconds are those of one batch: where gradients are exchanged once in several batches each bears its part.
    ``compute_seconds`` is predicted, ``communication_seconds`` what all ranks have to wait for after the slowest
    backward, and ``measured_seconds`` a whole step, both measured. ``exposed_share`` is the part of the all-reduce that
    does not run beside the backward. ``communication`` is known once the network has been probed, ``worker_set`` then,
    or where computation alone speaks for another one; ``hosts`` names each rank's machine.
    """

    compute_seconds: float
    communication_seconds: float
    measured_seconds: float
    exposed_share: float = 1.0
    communication: Communication | None = None
    worker_set: WorkerSet | None = None
    hosts: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step of the plan, communication included."""
        return self.compute_seconds + self.communication_seconds

    @property
    def is_considerable(self) -> bool:
        """Whether communication is more than a twentieth of a step."""
        return self.communication_seconds > CONSIDERABLE * self.measured_seconds

    @property
    def network_bound(self) -> bool:
        """Whether communication, which no split of the rows makes shorter, is more than half of a step."""
        return self.communication_seconds > self.measured_seconds / 2

    @property
    def is_relaunch_worth_it(self) -> bool:
        """Whether a smaller set of workers is faster by so much that it is worth starting again."""
        return _gains(self.worker_set)

    @property
    def summary(self) -> str:
        """What communication costs, in a few words."""
        seconds = f"{self.communication_seconds:.3g} of {self.measured_seconds:.3g} s of a step"
        if self.network_bound:
            return f"the network limits: communication takes {seconds}, which no split of the rows makes shorter"
        return f"communication takes {seconds}"

    @property
    def advice(self) -> str:
        """Which ranks to leave out and what that gains; empty where nothing is known or gained."""
        if self.worker_set is None or not self.is_relaunch_worth_it:
            return ""
        return self.worker_set.comparison + self._slow_link(self.worker_set)

    @property
    def relaunch(self) -> str:
        """How to go on without the ranks that are to be left out."""
        if self.worker_set is None or not self.is_relaunch_worth_it:
            return ""
        rows = self.worker_set.plan.global_batch_size
        go_on = f"global_batch_size={rows} keeps the global batch, and ckpt_path goes on where this training is"
        if self.communication is None:
            return f"relaunch {OTHER_DEVICES}: {go_on}"
        kept = {self.hosts[rank] for rank in self.worker_set.ranks}
        gone = [host for host in dict.fromkeys(self.hosts) if host not in kept]
        if gone and all(self.hosts[rank] in gone for rank in self.worker_set.left_out):
            how = f"without {', '.join(gone)} (torchrun --nnodes={len(kept)})"
        else:
            how = OTHER_DEVICES
        return f"relaunch {how}: {go_on}"

    def _slow_link(self, workers: WorkerSet) -> str:
        if not isinstance(self.communication, LinkedAllReduce):
            return ""
        speeds = self.communication.speeds
        left_out = max(speeds[rank] for rank in workers.left_out)
        kept = min(speeds[rank] for rank in workers.ranks)
        if len(workers.ranks) == 1 or left_out >= kept:
            return ""
        whose = "its link is" if len(workers.left_out) == 1 else "their links are"
        return f", since {whose} {kept / left_out:.1f} times slower"

    def judged(self, orchestration: Orchestration) -> NetworkFindings:
        """The findings with the set of workers that computation alone speaks for, if it is worth anything.

        For a network that needs no probe: whoever takes part, it costs what it costs all of them.
        """
        sets = self._sets(orchestration)
        best = None if sets is None else sets.best_by_computation()
        if best is None or not _gains(best):
            return self
        is_parked = [not orchestration.plan.batch_sizes[rank] for rank in best.left_out]
        return self if all(is_parked) else replace(self, worker_set=best)

    def probed(
        self,
        orchestration: Orchestration,
        hosts: Sequence[str],
        seconds: Mapping[Group, float],
    ) -> NetworkFindings:
        """The findings with a model of the communication and the set of workers that it speaks for.

        No more than ``seconds`` of all ranks counts as communication. What else a step consists of beside that and the
        computation (loading, optimizer) stays whoever takes part.

        Args:
            orchestration: the state in which the plan has been confirmed.
            hosts: each rank's machine.
            seconds: of an all-reduce of all gradients within each of the `probe_groups`.
        """
        whole = seconds[tuple(range(len(hosts)))]
        exposed = min(whole, self.communication_seconds)
        bounded = replace(self, communication_seconds=exposed, hosts=tuple(hosts))
        sets = bounded._sets(orchestration)
        if exposed <= 0 or sets is None:
            return bounded
        share = exposed / whole
        units = shared_links(hosts)
        exposed_seconds = {group: each * share for group, each in seconds.items()}
        communication = fitted_communication(units, exposed_seconds)
        return replace(
            bounded,
            exposed_share=share,
            communication=communication,
            worker_set=_worth_it(sets, sets.best(communication, units, exposed_seconds)),
        )

    @property
    def group_to_confirm(self) -> Group | None:
        """The set of workers whose own all-reduce is to be timed before anything is advised; None where none is."""
        if self.worker_set is None or not self.worker_set.left_out:
            return None
        return self.worker_set.ranks if len(self.worker_set.ranks) > 1 else None

    def confirmed(self, orchestration: Orchestration, seconds: float) -> NetworkFindings:
        """The findings once the all-reduce of the set of workers, of all gradients, has been timed."""
        sets = self._sets(orchestration)
        assert self.worker_set is not None
        assert sets is not None
        measured = replace(self.worker_set, communication_seconds=seconds * self.exposed_share)
        return replace(self, worker_set=_worth_it(sets, measured))

    def _sets(self, orchestration: Orchestration) -> _Sets | None:
        models = _time_models(orchestration)
        if models is None:
            return None
        rest = max(0.0, self.measured_seconds - self.step_seconds)
        return _Sets(
            orchestration,
            [_WithRest(model, rest) for model in models],
            self.communication_seconds,
        )


def network_findings(orchestration: Orchestration, window: int = 1) -> NetworkFindings | None:
    """What communication costs under the plan of ``orchestration``, from its measured steps; None without any.

    What comes after the slowest rank's backward is the least of all ranks' ``communication``. Gradients are exchanged
    once in ``window`` steps, so that many steps are looked at together.
    """
    plan = orchestration.plan
    costs = step_costs(orchestration.counted_records, plan.batch_sizes)
    planned = orchestration.planned_measurement
    if not costs or planned is None:
        return None
    compute = planned.step_compute if plan.step_seconds is None else plan.step_seconds
    exposed, periods = zip(*costs, strict=True)
    return NetworkFindings(
        compute_seconds=compute,
        communication_seconds=median(_means(exposed, window)),
        measured_seconds=median(_means(periods, window)),
    )


def shared_links(hosts: Sequence[str]) -> tuple[Group, ...]:
    """The ranks behind each link to the others: those of one machine, or each rank where all are on the same one."""
    by_host: defaultdict[str, list[int]] = defaultdict(list)
    for rank, host in enumerate(hosts):
        by_host[host].append(rank)
    if len(by_host) == 1:
        return tuple((rank,) for rank in range(len(hosts)))
    return tuple(tuple(ranks) for ranks in by_host.values())


def probe_groups(units: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of ranks whose all-reduces show the links of ``units``: all, pairs of units, and each of several ranks.

    Each unit is in a pair with the next one and, up to 16 units, with the one after that, in a ring: at most 65 groups.
    Beyond 32 units only everyone.
    """
    everyone = tuple(sorted(rank for unit in units for rank in unit))
    if len(units) > MOST_LINKS:
        return (everyone,)
    inside = [unit for unit in units if len(unit) > 1]
    return tuple(dict.fromkeys([everyone, *_pairs(units), *inside]))


def fitted_communication(
    units: Sequence[Group], seconds: Mapping[Group, float]
) -> LinkedAllReduce | MeasuredAllReduce:
    """A model of the communication from the ``seconds`` of the `probe_groups`.

    A pair is as fast as its slower link, so each unit is as fast as the fastest pair that it is in. Speeds within a
    quarter of each other count as alike.
    """
    everyone = max(seconds, key=len)
    pairs = _pairs(units) if 2 < len(units) <= MOST_LINKS else {}
    if not pairs:
        return MeasuredAllReduce({len(everyone): seconds[everyone]})
    of_pairs = {pair: seconds[pair] * len(pair) / (len(pair) - 1) for pair in pairs}
    of_units = _alike(
        [
            min(of_pairs[pair] for pair, places in pairs.items() if place in places)
            for place in range(len(units))
        ]
    )
    slowest = max(of_units)
    speeds = dict.fromkeys(everyone, 1.0)
    for unit, each in zip(units, of_units, strict=True):
        speeds.update(dict.fromkeys(unit, slowest / each if each > 0 else 1.0))
    slow_pair = max(of_pairs, key=lambda pair: of_pairs[pair])
    return LinkedAllReduce(
        speeds=tuple(speeds[rank] for rank in everyone),
        among=MeasuredAllReduce(
            {len(slow_pair): seconds[slow_pair], len(everyone): seconds[everyone]}
        ),
    )


class _Sets:
    """Searches sets of workers within the bounds of a training; ``now`` are all of them with the rows they have."""

    def __init__(
        self,
        orchestration: Orchestration,
        models: Sequence[TimeModel],
        communication_seconds: float,
    ) -> None:
        settings = orchestration.settings
        caps = None if settings.in_passes else orchestration.row_caps
        self._models = models
        plan = predicted_plan(models, orchestration.plan.batch_sizes)
        assert plan.step_seconds is not None
        self.now = WorkerSet(
            ranks=tuple(range(plan.world_size)),
            plan=plan,
            communication_seconds=communication_seconds,
            world_size=plan.world_size,
            all_seconds=plan.step_seconds + communication_seconds,
        )
        self._rows = settings.global_batch_size
        self._granularity = settings.granularity
        self._lower = settings.lower
        self._upper = tuple(
            max(now, min(most, cap))
            for now, most, cap in zip(
                plan.batch_sizes, settings.upper, caps or settings.upper, strict=True
            )
        )

    def best(
        self,
        communication: Communication,
        units: Sequence[Group],
        seconds: Mapping[Group, float],
    ) -> WorkerSet:
        """The best set of all, or of those within one unit, whose ranks need no link to the others."""
        whole = self._among(self.now.ranks, communication)
        if whole is None:
            return self.now
        found = [whole]
        for unit in units:
            if 1 < len(unit) < len(self.now.ranks) and unit in seconds:
                inside = self._among(unit, MeasuredAllReduce({len(unit): seconds[unit]}))
                found += [] if inside is None else [inside]
        best = min(found, key=lambda each: each.step_seconds)
        return replace(best, all_seconds=self.now.all_seconds)

    def best_by_computation(self) -> WorkerSet | None:
        """The best set where communication costs each of them the same; None where they have no split."""
        found = self._among(self.now.ranks, MeasuredAllReduce({max(2, self.now.world_size): 0.0}))
        if found is None:
            return None
        return replace(
            found,
            communication_seconds=self.now.communication_seconds,
            all_seconds=self.now.all_seconds,
        )

    def _among(self, ranks: Group, communication: Communication) -> WorkerSet | None:
        """The best set of some ranks; None where they have no split within their bounds."""
        try:
            found = choose_workers(
                [self._models[rank] for rank in ranks],
                self._rows,
                communication,
                granularity=self._granularity,
                min_batch_size=[self._lower[rank] for rank in ranks],
                max_batch_size=[self._upper[rank] for rank in ranks],
            )
        except PlanError:
            return None
        kept = tuple(ranks[place] for place in found.ranks)
        return replace(found, ranks=kept, world_size=len(self._models))


@dataclass(frozen=True)
class _WithRest:
    model: TimeModel
    seconds_more: float

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        return self.model.seconds(rows) + self.seconds_more


def _time_models(orchestration: Orchestration) -> tuple[TimeModel, ...] | None:
    """Each rank's model of a share; None where one has not been measured."""
    settings, caps = orchestration.settings, orchestration.row_caps
    fits = [fit for fit in orchestration.fits if fit is not None]
    if len(fits) < settings.world_size:
        return None
    in_passes = settings.in_passes and caps is not None
    return share_models(
        [cautious(fit.model, max(fit.batch_sizes)) for fit in fits],
        [max(1, cap) for cap in caps or ()] if in_passes else None,
        parks=settings.parks,
    )


def _worth_it(sets: _Sets, workers: WorkerSet) -> WorkerSet:
    return workers if _gains(workers) else sets.now


def _gains(workers: WorkerSet | None) -> bool:
    if workers is None or workers.gain is None:
        return False
    return bool(workers.left_out) and workers.gain >= LEAST_GAIN_OF_A_RELAUNCH


def _pairs(units: Sequence[Group]) -> dict[Group, tuple[int, int]]:
    """The ranks of pairs of units that are near each other in a ring, and the places of the two."""
    number = len(units)
    distances = (1, 2) if 3 < number <= MOST_LINKS_SEEN_TWICE else (1,)
    places = [
        (place, (place + distance) % number)
        for distance in distances
        for place in range(number)
        if number > 1
    ]
    return {tuple(sorted(units[one] + units[other])): (one, other) for one, other in places}


def _alike(seconds: Sequence[float]) -> list[float]:
    """The seconds, those that hardly differ replaced by the greatest of them."""
    classes: list[list[float]] = []
    for each in sorted(seconds):
        if classes and each <= ALIKE * classes[-1][0]:
            classes[-1].append(each)
        else:
            classes.append([each])
    greatest = {each: max(alike) for alike in classes for each in alike}
    return [greatest[each] for each in seconds]


def _means(values: Sequence[float], window: int) -> list[float]:
    """The mean of each ``window`` values that follow one another; of all where there are fewer."""
    window = min(window, len(values))
    return [mean(values[begin : begin + window]) for begin in range(len(values) - window + 1)]
