"""What it costs one rank to start a shuffled epoch of a large data set: memory and time.

    python benchmarks/order.py [--rows 100000000] [--ranks 8] [--batch-size 32]

Each candidate runs in a fresh process of its own, from the making of the loader to its first batch:
boa's global order against torch's DistributedSampler. Peak extra memory is the growth of the
process's peak resident set (getrusage, ru_maxrss) over that after all imports. The last line of
stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

# This process must stay small (no torch): on Linux a child inherits the peak of its parent.


def main() -> None:
    arguments = parse_arguments()
    if arguments.candidate:
        print(json.dumps(CANDIDATES[arguments.candidate](arguments)))
        return
    results = {name: measure_in_fresh_process(name, arguments) for name in CANDIDATES}
    show(results, arguments)
    boa, theirs = results["boa"], results["distributed_sampler"]
    summary = {
        "benchmark": "order",
        "rows": arguments.rows,
        "ranks": arguments.ranks,
        "batch_size": arguments.batch_size,
        **results,
        "memory_ratio": boa["peak_extra_bytes"] / max(theirs["peak_extra_bytes"], 1),
        "seconds_ratio": boa["seconds"] / theirs["seconds"],
        "same_first_row": boa["first_row"] == theirs["first_row"],
    }
    print(json.dumps(summary))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=positive, default=100_000_000, help="rows of the data set")
    parser.add_argument("--ranks", type=positive, default=8, help="ranks of the run")
    parser.add_argument("--batch-size", type=positive, default=32, help="rows of a rank in a step")
    parser.add_argument("--candidate", choices=CANDIDATES, help=argparse.SUPPRESS)
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def measure_in_fresh_process(candidate: str, arguments: argparse.Namespace) -> dict[str, Any]:
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in {**vars(arguments), "candidate": candidate}.items()
    ]
    done = subprocess.run(
        [sys.executable, __file__, *options], check=True, text=True, stdout=subprocess.PIPE
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def start_boa(arguments: argparse.Namespace) -> dict[str, Any]:
    from torch.utils.data import DataLoader

    from lightning_boa.data import EvenSteps, ShareBatchSampler, boa_loader, order_of

    def rows_of(_: int, step_rows: int) -> tuple[int, ...]:
        each, rest = divmod(step_rows, arguments.ranks)
        return tuple(each + (rank < rest) for rank in range(arguments.ranks))

    def first_row() -> int:
        loader: DataLoader[int]
        loader = DataLoader(range(arguments.rows), arguments.batch_size, shuffle=True)  # type: ignore[arg-type]
        sampler = ShareBatchSampler(
            EvenSteps(
                order_of(loader.sampler), arguments.batch_size * arguments.ranks, drop_last=False
            ),
            rank=0,
            seed=0,
            rows_of=rows_of,
            first_step=lambda: (0, 0),
        )
        return int(next(iter(boa_loader(loader, sampler)))[0])

    return measured(first_row)


def start_distributed_sampler(arguments: argparse.Namespace) -> dict[str, Any]:
    from torch.utils.data import DataLoader, DistributedSampler

    def first_row() -> int:
        data: Any = range(arguments.rows)
        sampler: DistributedSampler[int] = DistributedSampler(data, arguments.ranks, 0, seed=0)
        return int(next(iter(DataLoader(data, arguments.batch_size, sampler=sampler)))[0])

    return measured(first_row)


def measured(first_row: Any) -> dict[str, Any]:
    before = peak_bytes()
    started = time.perf_counter()
    row = first_row()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_extra_bytes": peak_bytes() - before, "first_row": row}


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


CANDIDATES = {"boa": start_boa, "distributed_sampler": start_distributed_sampler}
LABELS = {"boa": "boa, global order", "distributed_sampler": "torch DistributedSampler"}


def show(results: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> None:
    table = Table(
        title=f"One rank of {arguments.ranks} starts a shuffled epoch of {arguments.rows:,} rows"
    )
    table.add_column("sampler")
    table.add_column("to the first batch, s", justify="right")
    table.add_column("peak extra memory, GB", justify="right")
    table.add_column("bytes a row", justify="right")
    for name, result in results.items():
        table.add_row(
            LABELS[name],
            f"{result['seconds']:.2f}",
            f"{result['peak_extra_bytes'] / 1e9:.3f}",
            f"{result['peak_extra_bytes'] / arguments.rows:.1f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
