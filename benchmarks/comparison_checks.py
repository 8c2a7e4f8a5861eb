"""What has to be true of the figures of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compared_clusters import ComparedCluster

from lightning_boa.reports.comparison import SAME, PolicyFigures, ranked_otherwise

PREDICTED = 0.03
OVER_OPTIMUM = 1.03
SLOWER_THAN_BOA = {
    "thesis_8gpu": {"backup_workers": 1.23},
    "thesis_8gpu_fixed_costs": {"proportional": 1.03},
}


@dataclass(frozen=True)
class Check:
    """Something that has to be true."""

    text: str
    passed: bool


def checks_of(
    cluster: ComparedCluster, figures: Mapping[str, PolicyFigures], rest: float
) -> list[Check]:
    """What has to be true of these figures, as far as its policies are among them."""
    furthest = max(figures.values(), key=lambda each: abs(each.over_simulated - 1))
    otherwise = ranked_otherwise([*figures.values()])
    checks = [
        Check(
            f"measured steps are within {PREDICTED:.0%} of the simulated ones: at most"
            f" {abs(furthest.over_simulated - 1):.1%} ({furthest.policy})",
            abs(furthest.over_simulated - 1) <= PREDICTED,
        ),
        Check(
            f"policies that differ by more than {SAME:.0%} are ranked as simulated"
            + "".join(f"; not {one.policy} and {other.policy}" for one, other in otherwise),
            not otherwise,
        ),
    ]
    boa = figures.get("boa")
    if boa is None:
        return checks
    if not cluster.changes:
        allowed = cluster.optimum_seconds
        checks.append(
            Check(
                f"BOA's step is {boa.step_seconds / (allowed + rest):.3f} times what the devices and the rest allow,"
                f" {boa.step_seconds / allowed:.3f} times what the devices allow (wanted {OVER_OPTIMUM})",
                boa.step_seconds <= OVER_OPTIMUM * (allowed + rest),
            )
        )
    for key, wanted in SLOWER_THAN_BOA.get(cluster.name, {}).items():
        other = figures.get(key)
        if other is not None:
            dropped = (
                f", and drops {other.dropped_share:.1%} of the rows" if other.dropped_share else ""
            )
            checks.append(
                Check(
                    f"{other.policy} needs {other.step_seconds / boa.step_seconds:.2f} times BOA's step{dropped}"
                    f" (wanted {wanted})",
                    other.step_seconds >= wanted * boa.step_seconds,
                )
            )
    return checks
