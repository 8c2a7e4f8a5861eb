"""A run in one picture: a step rank by rank, before and after, and the time of a step over the run.

Needs matplotlib (the extra "plot").
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_boa.errors import OptionError
from lightning_boa.reports import run_words
from lightning_boa.reports.pictures import COMPUTE_COLOUR, IDLE_COLOUR, MILLISECONDS, new_figure
from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_panels import PARTS, Panel, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "loader_wait": "#c8553d",
    "compute": COMPUTE_COLOUR,
    "waiting": IDLE_COLOUR,
    "communication": "#7d5ba6",
    "optimizer": "#3a9d8f",
    "rest": "#c5cbd1",
}
EQUAL_COLOUR = "#b98a1e"
MARK_COLOUR = "#c8553d"
LANE_HEIGHT = 0.27
PANEL_HEIGHT = 0.75
CURVE_HEIGHT = 2.4


def run_figure(figures: RunFigures) -> Figure:
    """Panels of a typical step under each split, above the run over time.

    Raises:
        OptionError: nothing was measured, or matplotlib is missing.
    """
    panels, points = panels_of(figures), figures.points
    if not panels or len(points) < 2:
        raise OptionError(
            "--png: expected a run whose steps were measured, got one without; there is nothing to draw."
        )
    heights = [PANEL_HEIGHT + LANE_HEIGHT * len(panel.lanes) for panel in panels]
    figure = new_figure(10, 0.9 + sum(heights) + CURVE_HEIGHT)
    large, below = run_words.headline(figures)
    saved = run_words.sentence(run_words.saved(figures.record.saving))
    figure.suptitle(
        f"{large}\n{saved or below}",
        x=0.01,
        horizontalalignment="left",
        fontsize=12,
        wrap=True,
        parse_math=False,
    )
    halves: Any = figure.subfigures(2, 1, height_ratios=(sum(heights), CURVE_HEIGHT))
    top, bottom = halves
    axes = top.subplots(
        len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    longest = panels[0].seconds / panels[0].end
    for each, panel in zip(axes, panels, strict=True):
        _draw_step(each, panel, longest)
    axes[-1].set_xlabel("time of one step (ms)")
    handles, labels = _legend(axes)
    top.legend(
        handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False, fontsize=8
    )
    _draw_run(bottom.subplots(), figures)
    return figure


def save_run_picture(figures: RunFigures, path: Path) -> None:
    """Writes the picture to ``path`` (PNG, SVG or PDF, by its ending).

    Raises:
        OptionError: nothing was measured, or matplotlib is missing.
    """
    run_figure(figures).savefig(path, dpi=150)


def _draw_step(axes: Axes, panel: Panel, longest: float) -> None:
    for place, row in enumerate(panel.lanes):
        for bar in row.bars:
            hatched: dict[str, Any] = (
                {"hatch": "///", "alpha": 0.45, "edgecolor": "white"}
                if bar.part == "waiting"
                else {}
            )
            axes.barh(
                place,
                MILLISECONDS * longest * bar.width,
                left=MILLISECONDS * longest * bar.begin,
                color=COLOURS[bar.part],
                label=PARTS[bar.part],
                height=0.78,
                **hatched,
            )
    axes.axvline(MILLISECONDS * panel.seconds, color="black", linewidth=0.8, linestyle=(0, (3, 2)))
    axes.set_yticks(
        range(len(panel.lanes)),
        [f"{row.lane.label}, {row.rows:,} rows" for row in panel.lanes],
        fontsize=8,
        parse_math=False,
    )
    axes.invert_yaxis()
    axes.set_title(f"{panel.title}: {run_words.duration(panel.seconds)}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_run(axes: Axes, figures: RunFigures) -> None:
    points = figures.points
    steps = [point.step for point in points]
    axes.plot(
        steps,
        [MILLISECONDS * point.period for point in points],
        color=COMPUTE_COLOUR,
        linewidth=1.4,
        label="time of a step",
    )
    watched = [(each.step, each.period, each.equal_period) for each in points if each.equal_period]
    if watched:
        after, periods, equal = zip(*watched, strict=True)
        as_equal = [MILLISECONDS * seconds for seconds in equal]
        axes.plot(
            after,
            as_equal,
            color=EQUAL_COLOUR,
            linestyle="--",
            linewidth=1.2,
            label="with equal shares",
        )
        axes.fill_between(
            after,
            [MILLISECONDS * seconds for seconds in periods],
            as_equal,
            color=COMPUTE_COLOUR,
            alpha=0.13,
            linewidth=0,
        )
    for number, change in enumerate(figures.record.rebalancings):
        label = "re-balanced" if number == 0 else None
        axes.axvline(change.step, color=MARK_COLOUR, linewidth=1.1, label=label)
    top = MILLISECONDS * figures.axis_end
    if figures.beyond:
        axes.plot(
            [point.step for point in figures.beyond],
            [0.97 * top] * len(figures.beyond),
            color=COMPUTE_COLOUR,
            linestyle="",
            marker="^",
            markersize=5,
            clip_on=False,
        )
    axes.set_ylim(0, top)
    axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    left_out = run_words.beyond(figures)
    axes.set_xlabel("training step" + (f"  ( ▲ {left_out} )" if left_out else ""))
    axes.set_ylabel("ms")
    axes.set_title("The run over time", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.2))


def _legend(axes: Any) -> tuple[list[Any], list[str]]:
    """Each part once, in the order in which they come to pass."""
    known: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    labels = [label for label in PARTS.values() if label in known]
    return [known[label] for label in labels], labels
