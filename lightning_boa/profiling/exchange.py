"""The few collectives in which ranks share figures and agree; every rank calls each of them at the same step."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lightning_boa.errors import AgreementError, BoaError
from lightning_boa.planning import StepRecord, rank_names
from lightning_boa.profiling.memory import MOST_ROWS

T = TypeVar("T")
CAPACITY = 128
_FIELDS = (
    "step",
    "rows",
    "step_rows",
    "compute",
    "loader_wait",
    "communication",
    "optimizer",
    "period",
    "passes",
)
_WHOLE = ("step", "rows", "step_rows", "passes")


@dataclass(frozen=True)
class Exchange:
    """What every rank knows after an exchange: all ranks' steps, the first free step, the rows that fit by rank (None
    where some rank does not know yet, or nothing limits any)."""

    records: tuple[StepRecord, ...]
    first_free_step: int
    row_caps: tuple[int, ...] | None


def exchange_records(
    records: Sequence[StepRecord], first_free_step: int, row_cap: int | None, device: torch.device
) -> Exchange:
    """Give every rank the figures of all ranks, in one all-gather of a fixed shape (129 x 9 float64, 9 KiB a rank).

    Args:
        records: this rank's steps since the last exchange; the newest 128 are sent.
        first_free_step: the first step that this rank's sampler has not handed out.
        row_cap: the most rows that this rank's memory holds, None if unknown, `MOST_ROWS` if nothing limits them.
        device: where the process group's backend wants its tensors.
    """
    kept = list(records)[-CAPACITY:]
    mine = torch.zeros((CAPACITY + 1, len(_FIELDS)), dtype=torch.float64)
    mine[0, :3] = torch.tensor([len(kept), first_free_step, -1 if row_cap is None else row_cap])
    if kept:
        mine[1 : len(kept) + 1] = torch.tensor(
            [[float(getattr(record, name)) for name in _FIELDS] for record in kept],
            dtype=torch.float64,
        )
    mine = mine.to(device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    tables = [table.cpu() for table in gathered]
    caps = [int(table[0, 2]) for table in tables]
    return Exchange(
        records=tuple(
            _record(rank, row)
            for rank, table in enumerate(tables)
            for row in table[1 : int(table[0, 0]) + 1].tolist()
        ),
        first_free_step=max(int(table[0, 1]) for table in tables),
        row_caps=tuple(caps) if 0 <= min(caps) < MOST_ROWS else None,
    )


def _record(rank: int, row: list[float]) -> StepRecord:
    figures: dict[str, Any] = {
        name: int(value) if name in _WHOLE else value
        for name, value in zip(_FIELDS, row, strict=True)
    }
    return StepRecord(rank=rank, **figures)


def decide_once(decide: Callable[[], T], device: torch.device) -> T:
    """Rank 0 decides and every rank gets its decision; if it fails, every rank raises what rank 0 raised."""
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = decide()
        except Exception as error:
            outcome[1] = _picklable(error)
    dist.broadcast_object_list(outcome, src=0, device=device)
    if outcome[1] is not None:
        raise outcome[1]
    decision: T = outcome[0]
    return decision


def _picklable(error: Exception) -> Exception:
    try:
        pickle.dumps(error)
    except Exception:
        return BoaError(f"rank 0 failed: {error!r}")
    return error


def check_digest(digest: int, what: str, device: torch.device) -> None:
    """Compare a digest of 63 bits across ranks.

    Raises:
        AgreementError: on every rank, naming the ranks that differ from rank 0.
    """
    mine = torch.tensor([digest], dtype=torch.int64, device=device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    digests = [int(other) for other in gathered]
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        raise AgreementError(
            f"Expected the same {what} on all ranks, but {rank_names(different)} differ from rank 0. All ranks must run"
            " the same script with the same options, data and versions."
        )


def check_same(facts: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Compare named plain values across ranks and return every rank's facts.

    Raises:
        AgreementError: on every rank, with the first fact that differs, its values and their ranks.
    """
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dict(facts))
    for name in dict.fromkeys(name for theirs in gathered for name in theirs):
        ranks_by_value: dict[str, list[int]] = {}
        for rank, theirs in enumerate(gathered):
            ranks_by_value.setdefault(repr(theirs.get(name)), []).append(rank)
        if len(ranks_by_value) > 1:
            values = "; ".join(
                f"{value} on {rank_names(ranks)}" for value, ranks in ranks_by_value.items()
            )
            raise AgreementError(
                f"Expected the same {name} on all ranks, got {values}. All ranks must run the same script with the same"
                " options and data."
            )
    return tuple(gathered)
