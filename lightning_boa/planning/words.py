"""Ranks and plans in a few words, for reasons that users read."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_boa.planning.plan import BatchPlan


def rank_names(ranks: Sequence[int]) -> str:
    """ "rank 2", or "ranks 0, 1"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def passes_in_words(plan: BatchPlan) -> str:
    """Which ranks run their rows of a full step in several passes; empty where none does."""
    passes = plan.pass_counts
    several = [rank for rank, number in enumerate(passes) if number > 1]
    if not several:
        return ""
    if len(several) > 1:
        return f"{rank_names(several)} run their rows in several passes"
    (rank,) = several
    return f"rank {rank} runs its {plan.batch_sizes[rank]} rows in {passes[rank]} passes"
