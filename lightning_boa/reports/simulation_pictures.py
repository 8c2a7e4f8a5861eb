"""A picture of simulated policies: rows per second, and the time of each step.

Needs matplotlib (the extra "plot").
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_boa.reports.comparison_pictures import BAR_HEIGHT, DROPPED_COLOUR, LINE_COLOURS
from lightning_boa.reports.pictures import new_figure
from lightning_boa.reports.simulation import SimulatedPolicy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOM_FOR_LABELS = 1.3
MILLISECONDS = 1000
BOA = "boa"


def simulation_figure(title: str, policies: Sequence[SimulatedPolicy]) -> Figure:
    """On the left the rows per second of each policy, on the right its step times, one line each.

    Raises:
        OptionError: matplotlib is missing.
    """
    figure = new_figure(12, max(3.6, 1.6 + 0.5 * len(policies)))
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=13, fontweight="bold")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    others = cycle(LINE_COLOURS[:-1])
    colours = [LINE_COLOURS[-1] if each.name == BOA else next(others) for each in policies]
    _draw_bars(left, policies, colours)
    for each, colour in zip(policies, colours, strict=True):
        times = [MILLISECONDS * seconds for seconds in each.step_seconds]
        right.plot(times, color=colour, linewidth=1.2, alpha=0.85)
    right.set_ylim(bottom=0)
    right.set_xlim(0, max(1, len(policies[0].step_seconds) - 1))
    right.set_xlabel("step")
    right.set_ylabel("time of a step (ms)")
    right.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    right.set_axisbelow(True)
    right.spines[["top", "right"]].set_visible(False)
    return figure


def save_simulation_picture(
    title: str, policies: Sequence[SimulatedPolicy], path: str | Path
) -> Path:
    """Writes the picture to `path` (PNG, SVG or PDF, by its ending) and returns it."""
    simulation_figure(title, policies).savefig(path, dpi=150)
    return Path(path)


def _draw_bars(axes: Axes, policies: Sequence[SimulatedPolicy], colours: Sequence[str]) -> None:
    places = range(len(policies))
    rates = [each.rows_per_second for each in policies]
    axes.barh(places, rates, height=BAR_HEIGHT, color=colours)
    for place, each in zip(places, policies, strict=True):
        dropped = f", {100 * each.dropped_share:.0f} % dropped" if each.dropped_share else ""
        axes.annotate(
            f"{each.against_equal:.2f} x{dropped}",
            (each.rows_per_second, place),
            (5, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=9,
            color=DROPPED_COLOUR if dropped else "black",
        )
    axes.set_yticks(places, [each.policy.replace(", ", ",\n") for each in policies])
    axes.invert_yaxis()
    axes.set_xlim(0, ROOM_FOR_LABELS * max(rates))
    axes.set_xlabel("rows per second whose gradients are used (x: against the equal split)")
    axes.spines[["top", "right"]].set_visible(False)
