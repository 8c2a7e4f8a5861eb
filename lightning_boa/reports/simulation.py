"""Simulated policies side by side, as plain values and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from rich.table import Table

from lightning_boa.reports.tables import factor, milliseconds, new_table, percent

WORTH_SAYING = 0.01
NOTHING = 0.001


@dataclass(frozen=True)
class SimulatedPolicy:
    """A way to train together, simulated.

    Args:
        name: as it was asked for.
        policy: as people read it.
        step_seconds: from one update of a global batch to the next.
        rows_per_second: rows whose gradients entered an update, over the whole time, measuring steps included.
        dropped_share: share of the rows whose gradients did not.
        idle_share: share of each device's time in which it does not compute.
        against_equal: how many times as many rows per second as under the equal split.
        gradient_age: by how many updates the gradients were older than the weights that they changed, on average.
        plans: the first step of each plan, and the rows of each device.
    """

    name: str
    policy: str
    step_seconds: tuple[float, ...]
    rows_per_second: float
    dropped_share: float
    idle_share: tuple[float, ...]
    against_equal: float
    gradient_age: float
    plans: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def median_step_seconds(self) -> float:
        return median(self.step_seconds)

    @property
    def is_exact(self) -> bool:
        """Whether every row enters the update of its step."""
        return self.dropped_share <= NOTHING and self.gradient_age <= NOTHING

    def to_dict(self) -> dict[str, Any]:
        """Plain values; seconds, shares of 0 to 1. Of the plans the last."""
        return {
            "name": self.name,
            "policy": self.policy,
            "median_step_seconds": self.median_step_seconds,
            "seconds": sum(self.step_seconds),
            "rows_per_second": self.rows_per_second,
            "dropped_share": self.dropped_share,
            "idle_share": self.idle_share,
            "against_equal": self.against_equal,
            "gradient_age": self.gradient_age,
            "batch_sizes": self.plans[-1][1],
        }


def simulation_table(title: str, policies: Sequence[SimulatedPolicy]) -> Table:
    """One line per policy."""
    table = new_table(title)
    table.add_column("policy", overflow="fold")
    for heading in (
        "step,\nmedian (ms)",
        "used\nrows/s",
        "\ndropped",
        "age,\nupdates",
        "\nidle",
        "against\nequal",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in policies:
        table.add_row(
            each.policy,
            milliseconds(each.median_step_seconds),
            f"{each.rows_per_second:,.0f}",
            f"{100 * each.dropped_share:.1f} %",
            f"{each.gradient_age:.1f}",
            percent(fmean(each.idle_share)),
            factor(each.against_equal),
        )
    return table


def verdicts(policies: Sequence[SimulatedPolicy]) -> list[str]:
    """Which policy uses most rows per second, of those that use every row in its step and of the others."""
    exact = [each for each in policies if each.is_exact]
    said = []
    most = 1 + WORTH_SAYING
    if exact:
        best = max(exact, key=lambda each: each.against_equal)
        which = "Of those that use every row in its step, " if len(exact) < len(policies) else ""
        if best.against_equal >= most:
            said.append(
                f"{which}{best.policy} is fastest: {best.against_equal:.2f} times as many rows per second as under "
                "the equal split."
            )
            most = best.against_equal
        else:
            said.append(f"{which or 'Here '}none is faster than the equal split.")
    return said + [
        _price(each) for each in policies if not each.is_exact and each.against_equal > most
    ]


def _price(policy: SimulatedPolicy) -> str:
    prices = []
    if policy.dropped_share > NOTHING:
        prices.append(f"drops {100 * policy.dropped_share:.1f} % of the rows")
    if policy.gradient_age > NOTHING:
        prices.append(f"uses gradients that are {policy.gradient_age:.1f} updates old")
    return (
        f"{policy.policy[0].upper()}{policy.policy[1:]} reaches {policy.against_equal:.2f} times as many as the equal "
        f"split, but {' and '.join(prices)}."
    )
