"""Runs a function on several ranks: real processes, forked from a parent that has imported Lightning."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TIMEOUT_SECONDS = 240.0


class RankError(AssertionError):
    """A rank raised, died or did not end in time."""


def run_ranks(
    function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = TIMEOUT_SECONDS
) -> list[Any]:
    """Each rank's result of function(rank, *arguments), in order; raises RankError with the ranks' tracebacks."""
    outcomes = outcomes_of_ranks(function, ranks, *arguments, timeout=timeout)
    failures = [
        f"rank {rank}: {outcome}"
        for rank, (kind, outcome) in enumerate(outcomes)
        if kind != "result"
    ]
    if failures:
        raise RankError("\n".join(failures))
    return [outcome for _, outcome in outcomes]


def outcomes_of_ranks(
    function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = TIMEOUT_SECONDS
) -> list[tuple[str, Any]]:
    """("result", value), ("error", traceback) or ("missing", what is known) for each rank, in order."""
    context = multiprocessing.get_context("fork")
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_run_rank, args=(function, rank, ranks, port, folder, arguments))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        _wait(processes, Path(folder), timeout)
        return [_outcome(Path(folder), rank, process) for rank, process in enumerate(processes)]


def _run_rank(
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    port: int,
    folder: str,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        LOCAL_RANK=str(rank),
        RANK=str(rank),
        NODE_RANK="0",
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.chdir(folder)
    try:
        outcome = ("result", function(rank, *arguments))
    except BaseException:
        outcome = ("error", traceback.format_exc())
    written = Path(folder, f"{rank}.writing")
    written.write_bytes(pickle.dumps(outcome))
    written.rename(Path(folder, f"{rank}.pickle"))
    os._exit(0)


def _wait(processes: list[Any], folder: Path, timeout: float) -> None:
    ends = time.monotonic() + timeout
    grace = None
    while any(process.is_alive() for process in processes) and time.monotonic() < ends:
        if grace is None and any(folder.glob("*.pickle")) and _some_failed(folder):
            grace = time.monotonic() + 20.0
        if grace is not None and time.monotonic() > grace:
            break
        time.sleep(0.02)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def _some_failed(folder: Path) -> bool:
    return any(pickle.loads(path.read_bytes())[0] == "error" for path in folder.glob("*.pickle"))


def _outcome(folder: Path, rank: int, process: Any) -> tuple[str, Any]:
    written = folder / f"{rank}.pickle"
    if written.exists():
        kind, value = pickle.loads(written.read_bytes())
        return kind, value
    return (
        "missing",
        f"no result, exit code {process.exitcode} (waiting for others when it was killed?)",
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
