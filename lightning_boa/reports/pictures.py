"""A picture of a plan: how long each rank computes and waits in a step, under the equal split and under BOA.

Needs matplotlib (the extra "plot").
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_boa.errors import OptionError
from lightning_boa.reports.plan_report import PlanReport, slowest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPUTE_COLOUR = "#2a6f97"
IDLE_COLOUR = "#e9c46a"
MILLISECONDS = 1000
NARROW_BAR = 0.12


def plan_figure(report: PlanReport) -> Figure:
    """A figure of two panels over one time axis: a bar per rank, its idle time shaded.

    Raises:
        OptionError: a rank's time is unknown, or matplotlib is missing.
    """
    equal = _known([rank.equal_seconds for rank in report.ranks])
    boa = _known([_measured_or_predicted(report, rank) for rank in range(len(report.ranks))])
    figure = new_figure(8, 1.6 + 0.62 * len(report.ranks))
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw(upper, report, "Equal split", [rank.equal_rows for rank in report.ranks], equal)
    _draw(lower, report, report.name, [rank.boa_rows for rank in report.ranks], boa)
    lower.set_xlabel("time of one training step (ms)")
    handles, labels = upper.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches.

    Raises:
        OptionError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise OptionError(
            'picture: a picture needs matplotlib: pip install "lightning-boa[plot]".'
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save_plan_picture(report: PlanReport, path: str | Path) -> Path:
    """Writes the picture to `path` (PNG, SVG or PDF, by its ending) and returns it."""
    figure = plan_figure(report)
    figure.savefig(path, dpi=150)
    return Path(path)


def _draw(
    axes: Axes, report: PlanReport, title: str, rows: list[int], seconds: list[float]
) -> None:
    step = max(seconds)
    labels = [f"{rank.rank}  {rank.device}" for rank in report.ranks]
    places = range(len(labels))
    compute = [MILLISECONDS * value for value in seconds]
    widest = MILLISECONDS * (slowest(rank.equal_seconds for rank in report.ranks) or step)
    idle = [MILLISECONDS * (step - value) for value in seconds]
    axes.barh(places, compute, color=COMPUTE_COLOUR, label="compute")
    axes.barh(
        places,
        idle,
        left=compute,
        color=IDLE_COLOUR,
        alpha=0.45,
        hatch="///",
        edgecolor="white",
        label="idle: waits for the slowest",
    )
    for place, (count, width) in enumerate(zip(rows, compute, strict=True)):
        inside = width > NARROW_BAR * max(widest, MILLISECONDS * step)
        axes.annotate(
            f"{count} rows",
            (width, place),
            (-4 if inside else 4, 0),
            textcoords="offset points",
            horizontalalignment="right" if inside else "left",
            verticalalignment="center",
            color="white" if inside else "black",
            fontsize=8,
        )
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_title(f"{title}: {MILLISECONDS * step:.1f} ms", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def _measured_or_predicted(report: PlanReport, rank: int) -> float | None:
    if slowest(each.boa_seconds for each in report.ranks) is not None:
        return report.ranks[rank].boa_seconds
    return report.ranks[rank].predicted_seconds


def _known(seconds: list[float | None]) -> list[float]:
    if slowest(seconds) is None:
        raise OptionError(
            "picture: expected every rank's compute time, but the run ended before it was measured; "
            "train for more steps."
        )
    return [value for value in seconds if value is not None]
