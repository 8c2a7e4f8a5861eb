"""Pictures of policies side by side: step times, who waits for whom, and what is learned in which time.

Need matplotlib (the extra "plot").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_boa.reports.comparison import LearningCurve, PolicyFigures, Timeline
from lightning_boa.reports.pictures import COMPUTE_COLOUR, IDLE_COLOUR, new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

DROPPED_COLOUR = "#c8553d"
WAITING_ALPHA = 0.45
STEP_END: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": (0, (3, 2))}
MARKERS = "osv^D<>P"
LINE_COLOURS = (
    "#000000",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#999999",
    "#009e73",
)
BAR_HEIGHT = 0.62
ROOM_FOR_LABELS = 1.42


def comparison_figure(
    title: str, figures: Sequence[PolicyFigures], timelines: Sequence[Timeline], seconds: float
) -> Figure:
    """On the left each policy's step time, on the right what each rank does for `seconds` under some of them.

    Raises:
        OptionError: matplotlib is missing.
    """
    rows = sum(len(timeline.devices) + 1.6 for timeline in timelines)
    figure = new_figure(13, max(1.6 + 0.52 * len(figures), 1.2 + 0.185 * rows))
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=13, fontweight="bold")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.25), wspace=0.02)
    left, right = halves
    _draw_bars(left.subplots(), figures)
    panels = right.subplots(
        len(timelines), 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.02}
    )[:, 0]
    for axes, timeline in zip(panels, timelines, strict=True):
        _draw_timeline(axes, timeline, seconds)
    panels[-1].set_xlabel("time (s)")
    _legend_of_timelines(right, timelines)
    return figure


def learning_figure(title: str, curves: Sequence[LearningCurve], loss: float) -> Figure:
    """Validation loss over seconds of training (left) and over rows (right); a line marks `loss`.

    Raises:
        OptionError: matplotlib is missing.
    """
    figure = new_figure(12, 5.4)
    from matplotlib.ticker import LogLocator, NullFormatter

    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=13, fontweight="bold")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, curve in enumerate(curves):
        style: dict[str, Any] = {
            "color": LINE_COLOURS[number % len(LINE_COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4.5,
            "linewidth": 1.6,
            "alpha": 0.9,
        }
        left.plot(curve.seconds, curve.losses, label=curve.policy, **style)
        right.plot(curve.rows, curve.losses, **style)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(left=0)
        axes.axhline(loss, color="#666666", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.grid(which="major", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_xlabel("seconds of training")
    left.set_ylabel("validation loss")
    right.set_xlabel("rows")
    right.annotate(
        f"loss {loss:.3f}",
        (0, loss),
        (5, 4),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=9,
        color="#444444",
    )
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_bars(axes: Axes, figures: Sequence[PolicyFigures]) -> None:
    places = range(len(figures))
    seconds = [each.step_seconds for each in figures]
    axes.barh(places, seconds, height=BAR_HEIGHT, color=COMPUTE_COLOUR, label="measured")
    axes.vlines(
        [each.simulated_seconds for each in figures],
        [place - 0.42 for place in places],
        [place + 0.42 for place in places],
        color="black",
        linewidth=1.6,
        label="simulated",
    )
    widest = max(max(seconds), max(each.simulated_seconds for each in figures))
    for place, each in zip(places, figures, strict=True):
        dropped = (
            f"\n{100 * each.dropped_share:.1f} % of rows dropped" if each.dropped_share else ""
        )
        axes.annotate(
            f"{each.step_seconds:.2f} s{dropped}",
            (max(each.step_seconds, each.simulated_seconds), place),
            (6, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=9,
            color=DROPPED_COLOUR if dropped else "black",
        )
    axes.set_yticks(places, [each.policy.replace(", ", ",\n") for each in figures])
    axes.invert_yaxis()
    axes.set_xlim(0, ROOM_FOR_LABELS * widest)
    axes.set_xlabel("time of one step of the global batch (s)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def _draw_timeline(axes: Axes, timeline: Timeline, seconds: float) -> None:
    for place, spans in enumerate(timeline.spans):
        shown = [span for span in spans if span.end > 0 and span.begin < seconds]
        axes.broken_barh(
            [(0, seconds)],
            (place - 0.4, 0.8),
            facecolors=IDLE_COLOUR,
            alpha=WAITING_ALPHA,
            edgecolor="none",
        )
        axes.broken_barh(
            [(max(0, span.begin), min(seconds, span.end) - max(0, span.begin)) for span in shown],
            (place - 0.4, 0.8),
            facecolors=[COMPUTE_COLOUR if span.is_used else DROPPED_COLOUR for span in shown],
            edgecolor="white",
            linewidth=0.6,
        )
    for end in timeline.step_ends:
        if 0 < end < seconds:
            axes.axvline(end, **STEP_END)
    axes.set_yticks(range(len(timeline.devices)), timeline.devices, fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(timeline.devices) - 0.5, -0.5)
    axes.set_xlim(0, seconds)
    axes.set_title(timeline.policy, loc="left", fontsize=10, pad=3)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend_of_timelines(figure: SubFigure, timelines: Sequence[Timeline]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    spans = [span for timeline in timelines for ranks in timeline.spans for span in ranks]
    handles: list[Artist] = [Patch(color=COMPUTE_COLOUR, label="computes")]
    if not all(span.is_used for span in spans):
        handles.append(Patch(color=DROPPED_COLOUR, label="computes, dropped"))
    handles.append(Patch(color=IDLE_COLOUR, alpha=WAITING_ALPHA, label="waits or sends"))
    handles.append(Line2D([], [], label="a global batch is done", **STEP_END))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
