"""Step times of all policies on one cluster, interleaved in one run, and what has to be true of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed
from compared_clusters import ComparedCluster
from compared_policies import POLICIES, ComparedPolicy
from comparison_checks import Check, checks_of
from local_ranks import Network, quiet_trainer, run_ranks
from recorded_steps import MeasuredWindow, RankRecord, StepRecorder, window_of
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

from lightning_boa.profiling import check_digest, exchange_records
from lightning_boa.reports.comparison import PolicyFigures, policy_table

SKIP = 3
WARMUP_ROOM = 60
AROUND_CHANGES = 20
EXCHANGES = 20
FEATURES, WIDTH = 64, 58  # as many weights as the network of `learning_comparison`
DRAWN = ("ddp", "backup_workers", "asynchronous", "boa")
DRAWN_STEPS = 2.3


def network() -> Network:
    """What is trained: next to nothing to compute, since all ranks share the processor."""
    return Network(FEATURES, WIDTH)


@dataclass(frozen=True)
class Window:
    """The steps that are measured.

    Args:
        first: counted from the first step, or from the first one after the policy has measured.
        steps: so many.
        waits_for_plan: whether the policy measures first.
    """

    first: int
    steps: int
    waits_for_plan: bool

    def of(
        self, cluster: ComparedCluster, policy: ComparedPolicy, records: Sequence[RankRecord]
    ) -> MeasuredWindow:
        """What all ranks have done in these steps of a training."""
        return window_of(
            records,
            policy.name,
            cluster.names,
            first=records[0].settled + self.first,
            steps=self.steps,
            global_batch_size=cluster.global_batch_size,
            updates_per_step=cluster.updates_per_step(policy),
        )


def compare_steps(
    cluster: ComparedCluster,
    policies: Mapping[str, ComparedPolicy],
    options: argparse.Namespace,
    picture: Path | None,
    console: Console,
) -> dict[str, Any]:
    """The figures of each policy, printed as a table, and whether all checks have passed."""
    windows = {key: window(cluster, policy, options.steps) for key, policy in policies.items()}
    repetitions = 1 if cluster.changes else options.repetitions
    found, exchange = run_ranks(run_rank, cluster.ranks, cluster, policies, windows, repetitions)
    measured = {
        key: [windows[key].of(cluster, policies[key], records) for records in runs]
        for key, runs in found.items()
    }
    rests = {
        key: rest_of(cluster, policies[key], measured[key])
        for key in dict.fromkeys(policy.costs_as for policy in policies.values())
        if key in measured
    }
    figures = {
        key: figures_of(
            cluster,
            policies[key],
            runs,
            rests.get(policies[key].costs_as, 0.0) + exchange * policies[key].exchanges,
        )
        for key, runs in measured.items()
    }
    checks = checks_of(cluster, figures, rests.get("ddp", 0.0))
    title = (
        f"{cluster.name}: {cluster.ranks} emulated devices, {cluster.global_batch_size} rows a step"
    )
    console.print(policy_table(title, [*figures.values()]))
    for line in lines_of(cluster, measured, rests, exchange, checks):
        console.print(line, highlight=False, soft_wrap=True)
    if picture is not None:
        draw(title, cluster, figures, measured, picture)
    return {
        "cluster": cluster.name,
        "ranks": cluster.ranks,
        "global_batch_size": cluster.global_batch_size,
        "slowest_seconds": round(cluster.slowest_seconds, 4),
        "optimum_seconds": round(cluster.optimum_seconds, 4),
        "rest_seconds": _rounded(rests),
        "exchange_seconds": round(exchange, 5),
        "policies": {key: _rounded(asdict(each)) for key, each in figures.items()},
        "first_steps": {key: [each.first for each in runs] for key, runs in measured.items()},
        "checks": [asdict(check) for check in checks],
        "passed": all(check.passed for check in checks),
    }


def window(cluster: ComparedCluster, policy: ComparedPolicy, steps: int) -> Window:
    """Where a device changes its speed, the steps around all changes, for all policies the same; else settled ones."""
    if cluster.changes:
        first = max(SKIP, cluster.changes[0] - AROUND_CHANGES)
        return Window(first, cluster.changes[-1] + AROUND_CHANGES - first, waits_for_plan=False)
    settled = 0 if policy.waits_for_plan else cluster.settled_after(policy, steps)
    return Window(max(SKIP, settled), steps, policy.waits_for_plan)


def run_rank(
    rank: int,
    cluster: ComparedCluster,
    policies: Mapping[str, ComparedPolicy],
    windows: Mapping[str, Window],
    repetitions: int,
) -> tuple[dict[str, list[list[RankRecord]]], float]:
    """All ranks' records of each training, on rank 0, and the seconds of an exchange of figures."""
    torch.manual_seed(0)
    longest = max(each.first + each.steps for each in windows.values()) + WARMUP_ROOM
    rows = cluster.global_batch_size * longest
    data = TensorDataset(torch.randn(rows, FEATURES), torch.randn(rows, 1))
    found: dict[str, list[list[RankRecord]]] = {key: [] for key in policies}
    for repetition in range(repetitions):
        for key in [*policies][:: 1 if repetition % 2 == 0 else -1]:
            policy = policies[key]
            loader = DataLoader(data, batch_size=cluster.rows_per_device, shuffle=True)
            records = train(cluster, policy, windows[key], loader)
            found[key].append(records)
            if rank == 0:
                measured = windows[key].of(cluster, policy, records)
                seconds = typical(cluster, policy, measured.step_seconds)
                number = f"{repetition + 1} of {repetitions}"
                print(f"  {number}: {policy.name}, {seconds:.3f} s a step", flush=True)
    return found, exchange_seconds()


def exchange_seconds() -> float:
    """Seconds in which the ranks, who all have nothing else to do, exchange figures and agree on a plan."""
    device = torch.device("cpu")
    times = []
    for _ in range(EXCHANGES):
        torch.distributed.barrier()
        began = time.perf_counter()
        exchange_records([], 0, None, device)
        check_digest(0, "decision", device)
        times.append(time.perf_counter() - began)
    return median(times)


def train(
    cluster: ComparedCluster, policy: ComparedPolicy, window: Window, loader: DataLoader[Any]
) -> list[RankRecord]:
    """All ranks' records of a training to the end of the window."""
    updates = (window.first + window.steps) * cluster.updates_per_step(policy)
    recorder = StepRecorder(updates + 1, waits_for_plan=window.waits_for_plan)
    trainer = quiet_trainer(policy.strategy(), cluster.ranks, [cluster.emulation(), recorder])
    trainer.fit(network(), loader)
    records: list[Any] = [None] * cluster.ranks
    torch.distributed.all_gather_object(records, recorder.record(trainer.strategy))
    return records


def typical(
    cluster: ComparedCluster, policy: ComparedPolicy, step_seconds: Sequence[float]
) -> float:
    """The step time that counts: the mean where steps are unlike each other, else the median."""
    are_unlike = bool(cluster.changes) or policy.is_asynchronous
    return fmean(step_seconds) if are_unlike else median(step_seconds)


def rest_of(
    cluster: ComparedCluster, policy: ComparedPolicy, windows: Sequence[MeasuredWindow]
) -> float:
    """What a step costs beside what is emulated, in seconds: loader, optimizer, the exchange between real processes."""
    measured = median(typical(cluster, policy, each.step_seconds) for each in windows)
    prediction = cluster.prediction(policy, windows[0].first, len(windows[0].step_seconds))
    return max(0.0, measured - typical(cluster, policy, prediction.step_seconds))


def figures_of(
    cluster: ComparedCluster,
    policy: ComparedPolicy,
    windows: Sequence[MeasuredWindow],
    rest: float,
) -> PolicyFigures:
    """What all repetitions together say, and what the simulator says of the last of them."""
    last = windows[-1]
    prediction = cluster.prediction(policy, last.first, len(last.step_seconds), rest)
    used = sum(each.rows_used for each in windows)
    handed_out = sum(len(each.step_seconds) for each in windows) * cluster.global_batch_size
    idle = zip(*(each.idle_share for each in windows), strict=True)
    return PolicyFigures(
        policy=policy.name,
        step_seconds=median(typical(cluster, policy, each.step_seconds) for each in windows),
        simulated_seconds=typical(cluster, policy, prediction.step_seconds),
        rows_per_second=used / sum(each.seconds for each in windows),
        dropped_share=1 - used / handed_out,
        idle_share=tuple(fmean(each) for each in idle),
        simulated_dropped_share=prediction.dropped_share,
        simulated_idle_share=prediction.idle_share,
    )


def lines_of(
    cluster: ComparedCluster,
    measured: Mapping[str, Sequence[MeasuredWindow]],
    rests: Mapping[str, float],
    exchange: float,
    checks: Sequence[Check],
) -> list[str]:
    """What is said below the table."""
    windows = [each for runs in measured.values() for each in runs]
    steps = len(windows[0].step_seconds)
    around = (
        f", around the changes in steps {', '.join(map(str, cluster.changes))}"
        if cluster.changes
        else ""
    )
    firsts = f"{min(each.first for each in windows)} to {max(each.first for each in windows)}"
    costs = {POLICIES[key].name: rest for key, rest in rests.items()}
    costs["an exchange of figures (LB-BSP)"] = exchange
    told = ", ".join(f"{1000 * seconds:.0f} ms {name}" for name, seconds in costs.items())
    return [
        f"{steps} steps, the first of which are steps {firsts} of the trainings{around}.",
        f"Beside what is emulated a step costs, and the simulator is told: {told}.",
        *(f"{'passed' if check.passed else 'FAILED'}: {check.text}" for check in checks),
    ]


def draw(
    title: str,
    cluster: ComparedCluster,
    figures: Mapping[str, PolicyFigures],
    measured: Mapping[str, Sequence[MeasuredWindow]],
    picture: Path,
) -> None:
    """The picture of the last repetition."""
    from lightning_boa.reports.comparison_pictures import comparison_figure

    drawn = [key for key in DRAWN if key in measured] or list(measured)
    windows = [measured[key][-1] for key in drawn]
    seconds = min(DRAWN_STEPS * cluster.slowest_seconds, *(each.seconds for each in windows))
    timelines = [each.timeline for each in windows]
    comparison_figure(title, [*figures.values()], timelines, seconds).savefig(picture, dpi=150)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    return round(value, 5) if isinstance(value, float) else value
