"""Policies side by side: what each has measured and what the simulator says, as plain values and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from rich.table import Table

from lightning_boa.reports.tables import UNKNOWN, new_table, percent

SAME = 0.05


@dataclass(frozen=True)
class PolicyFigures:
    """One policy on one cluster, over a window of steps of the whole global batch.

    Args:
        policy: its name.
        step_seconds: from one update of a global batch to the next.
        simulated_seconds: what the simulator says for the same steps.
        rows_per_second: rows whose gradients entered an update.
        dropped_share: share of the handed out rows whose gradients did not.
        idle_share: share of the window in which each rank did not compute.
        simulated_dropped_share: what the simulator says.
        simulated_idle_share: what the simulator says.
    """

    policy: str
    step_seconds: float
    simulated_seconds: float
    rows_per_second: float
    dropped_share: float
    idle_share: tuple[float, ...]
    simulated_dropped_share: float
    simulated_idle_share: tuple[float, ...]

    @property
    def over_simulated(self) -> float:
        """Measured / simulated seconds of a step."""
        return self.step_seconds / self.simulated_seconds


@dataclass(frozen=True)
class Span:
    """A rank computes from `begin` to `end`, in seconds; `is_used` tells whether the gradient entered an update."""

    begin: float
    end: float
    is_used: bool = True


@dataclass(frozen=True)
class Timeline:
    """What each rank did for some seconds.

    Args:
        policy: its name.
        devices: what each rank is called.
        spans: when each rank computed, in seconds since the beginning.
        step_ends: when a global batch was through, in seconds since the beginning.
    """

    policy: str
    devices: tuple[str, ...]
    spans: tuple[tuple[Span, ...], ...]
    step_ends: tuple[float, ...] = ()


@dataclass(frozen=True)
class LearningCurve:
    """Validation loss of one policy after each epoch.

    Args:
        policy: its name.
        seconds: of training since its first step, validation left out.
        rows: that were handed out until then.
        losses: on the validation rows; not a number where training diverged.
    """

    policy: str
    seconds: tuple[float, ...]
    rows: tuple[int, ...]
    losses: tuple[float, ...]

    def seconds_to(self, loss: float) -> float | None:
        """Seconds until the validation loss is at most `loss`, None where it never is."""
        reached = zip(self.seconds, self.losses, strict=True)
        return next((seconds for seconds, each in reached if each <= loss), None)


def ranked_otherwise(
    figures: Sequence[PolicyFigures], same: float = SAME
) -> list[tuple[PolicyFigures, PolicyFigures]]:
    """Pairs that differ by more than `same`, measured or simulated, and are not ranked alike by the simulator."""
    return [
        (one, other)
        for one, other in combinations(figures, 2)
        if max(
            _apart(one.step_seconds, other.step_seconds),
            _apart(one.simulated_seconds, other.simulated_seconds),
        )
        > same
        and (one.step_seconds - other.step_seconds)
        * (one.simulated_seconds - other.simulated_seconds)
        <= 0
    ]


def policy_table(title: str, figures: Sequence[PolicyFigures]) -> Table:
    """One line per policy."""
    table = new_table(title)
    table.add_column("policy", no_wrap=True)
    for heading in (
        "step\n(s)",
        "simu-\nlated",
        "\nratio",
        "used\nrows/s",
        "\ndropped",
        "\nidle",
        "idle by\nrank",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        table.add_row(
            each.policy,
            f"{each.step_seconds:.3f}",
            f"{each.simulated_seconds:.3f}",
            f"{each.over_simulated:.3f}",
            f"{each.rows_per_second:,.0f}",
            f"{100 * each.dropped_share:.1f} %",
            percent(fmean(each.idle_share)),
            f"{100 * min(each.idle_share):.0f}-{percent(max(each.idle_share))}",
        )
    return table


def learning_table(title: str, curves: Sequence[LearningCurve], loss: float) -> Table:
    """One line per policy: seconds to a validation loss, and the loss in the end."""
    table = new_table(title)
    table.add_column("policy", no_wrap=True)
    for heading in (f"seconds to\nloss {loss:.3f}", "seconds\nin all", "loss in\nthe end"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in curves:
        seconds = each.seconds_to(loss)
        table.add_row(
            each.policy,
            UNKNOWN if seconds is None else f"{seconds:.1f}",
            f"{each.seconds[-1]:.1f}",
            f"{each.losses[-1]:.3f}",
        )
    return table


def _apart(one: float, other: float) -> float:
    return max(one, other) / min(one, other) - 1
