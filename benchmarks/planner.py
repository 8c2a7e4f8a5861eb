"""How long planning takes, and whether it is right: `python benchmarks/planner.py`.

Medians over several runs of `allocate`, beside an equally exact but slow reference (each row to the
worker that would finish earliest with it), against which random cases are checked in the same run,
and of `choose_workers` (checked against brute force in tests/planning/test_worker_set.py); and of the
command `boa plan` on 1,000 devices, without the start of Python.
The last line of stdout is JSON; the exit status is 1 when a limit or a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import io
import itertools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from lightning_boa.cli.boa.app import main as boa
from lightning_boa.planning import (
    LinearTime,
    RingAllReduce,
    TableTime,
    TimeModel,
    allocate,
    choose_workers,
)

LIMITS_MS = {(16, 4_096): 1.0, (10_000, 1_000_000): 50.0}
SET_LIMIT_MS = 1000.0
SET_WORKERS, SET_ROWS = 1_000, 20_000


def greedy(models: Sequence[TimeModel], rows: int, lower: int, upper: int) -> list[int]:
    split = [lower] * len(models)
    queue = [(float(model.seconds(lower + 1)), worker) for worker, model in enumerate(models)]
    heapq.heapify(queue)
    for _ in range(rows - sum(split)):
        _, worker = heapq.heappop(queue)
        split[worker] += 1
        if split[worker] < upper:
            after = float(models[worker].seconds(split[worker] + 1))
            heapq.heappush(queue, (after, worker))
    return split


def brute_force(models: Sequence[TimeModel], rows: int) -> float:
    return min(
        slowest(models, split)
        for split in itertools.product(range(rows + 1), repeat=len(models))
        if sum(split) == rows
    )


def slowest(models: Sequence[TimeModel], split: Sequence[int]) -> float:
    return max(float(model.seconds(size)) for model, size in zip(models, split, strict=True))


def random_line(random: np.random.Generator) -> LinearTime:
    return LinearTime(
        overhead=float(random.choice([0.0, 0.01, random.uniform(0, 0.1)])),
        seconds_per_sample=float(random.choice([0.002, random.uniform(0.001, 0.005)])),
        floor=float(random.choice([0.0, 0.1, random.uniform(0, 0.3)])),
    )


def random_model(random: np.random.Generator) -> TimeModel:
    if random.random() < 0.7:
        return random_line(random)
    sizes = sorted(random.choice(np.arange(1, 60), 4, replace=False).tolist())
    return TableTime(sizes, random.uniform(0.01, 0.3, 4).tolist())


def median_ms(run: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    return median(taken)


def wrong_cases(random: np.random.Generator, cases: int) -> int:
    """How many random cases differ from the greedy reference or from brute force."""
    wrong = 0
    for _ in range(cases):
        models = [random_model(random) for _ in range(int(random.integers(1, 33)))]
        rows = int(random.integers(0, 500))
        split = allocate(models, rows, lower=0, upper=rows)
        expected = slowest(models, greedy(models, rows, 0, rows) if rows else [0] * len(models))
        wrong += int(split.sum()) != rows or slowest(models, split.tolist()) != expected
        few, little = models[:3], int(random.integers(0, 9))
        best = slowest(few, allocate(few, little, lower=0, upper=little).tolist())
        wrong += best != brute_force(few, little)
    return wrong


def worker_sets(random: np.random.Generator, repeats: int) -> dict[str, float]:
    """Milliseconds to choose the workers among 1,000, by how many speeds their links have."""
    models = [random_line(random) for _ in range(SET_WORKERS)]
    networks = {
        name: RingAllReduce(1e8, bandwidth, latency=1e-5)
        for name, bandwidth in {
            "one link speed": 1e9,
            "four link speeds": random.choice([1e8, 1e9, 4e9, 1e10], SET_WORKERS),
            "each its own": random.uniform(1e8, 1e10, SET_WORKERS),
        }.items()
    }
    return {
        name: median_ms(lambda n=network: choose_workers(models, SET_ROWS, n), repeats)
        for name, network in networks.items()
    }


def plan_command(random: np.random.Generator, repeats: int) -> float:
    """Milliseconds of `boa plan` on 1,000 devices that are all different, from the file to the table."""
    models = [random_line(random) for _ in range(SET_WORKERS)]
    entries = [
        {
            "name": f"kind {worker % 5}",
            "seconds_per_sample": model.seconds_per_sample,
            "overhead": model.overhead,
            "floor": model.floor,
        }
        for worker, model in enumerate(models)
    ]

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            boa(["plan", str(file), "-b", str(SET_ROWS)])

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "devices.yaml"
        file.write_text("devices:\n" + "".join(f"  - {json.dumps(entry)}\n" for entry in entries))
        return median_ms(run, repeats)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15, help="runs per size (default 15)")
    parser.add_argument("--cases", type=int, default=200, help="random cases (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)

    table = Table("workers", "rows", "allocate, ms", "limit, ms", "greedy, ms", "greedy / allocate")
    sizes = []
    for (workers, rows), limit in LIMITS_MS.items():
        models = [random_line(random) for _ in range(workers)]
        taken = median_ms(
            lambda m=models, r=rows: allocate(m, r, lower=1, upper=r), options.repeats
        )
        start = time.perf_counter()
        expected = slowest(models, greedy(models, rows, 1, rows))
        reference = (time.perf_counter() - start) * 1e3
        split = allocate(models, rows, lower=1, upper=rows)
        exact = int(split.sum()) == rows and slowest(models, split.tolist()) == expected
        ratio = reference / taken
        table.add_row(
            f"{workers:,}",
            f"{rows:,}",
            f"{taken:.3f}",
            f"{limit:g}",
            f"{reference:.1f}",
            f"{ratio:.0f}",
        )
        sizes.append(
            {
                "workers": workers,
                "rows": rows,
                "allocate_ms": round(taken, 4),
                "limit_ms": limit,
                "greedy_over_allocate": round(ratio, 1),
                "exact": exact,
            }
        )
    wrong = wrong_cases(random, options.cases)
    sets = worker_sets(random, min(options.repeats, 5))
    command = plan_command(random, min(options.repeats, 5))
    passed = (
        wrong == 0
        and all(size["exact"] and size["allocate_ms"] <= size["limit_ms"] for size in sizes)
        and max(*sets.values(), command) <= SET_LIMIT_MS
    )
    console = Console()
    console.print(table)
    for name, taken in sets.items():
        console.print(
            f"choose_workers, {SET_WORKERS:,} workers, {name}: {taken:.0f} ms (limit {SET_LIMIT_MS:g})"
        )
    console.print(f"boa plan, {SET_WORKERS:,} devices: {command:.0f} ms (limit {SET_LIMIT_MS:g})")
    console.print(f"random cases checked: {options.cases}, wrong: {wrong}")
    result = {
        "benchmark": "planner",
        "sizes": sizes,
        "choose_workers_ms": {name: round(taken, 1) for name, taken in sets.items()},
        "plan_command_ms": round(command, 1),
        "random_cases": options.cases,
        "wrong_cases": wrong,
        "repeats": options.repeats,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "passed": passed,
    }
    print(json.dumps(result))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
