"""Draws the pictures of docs/how-it-works.md anew: python docs/make/pictures.py. Needs matplotlib (the extra "plot").

Shares and times in them are those that the planner and the simulator give.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from lightning_boa import BatchPlan, LinearTime, plan_batches
from lightning_boa.simulation import Boa, Cluster, compare

FOLDER = Path(__file__).parents[1] / "pictures"
DEVICES = {
    "4090": LinearTime(0.004, 0.001),
    "3090": LinearTime(0.004, 0.002),
    "1080": LinearTime(0.004, 0.006),
}
GLOBAL_BATCH = 96
COLOURS = ("#2a6f97", "#e07a5f", "#81b29a")
IDLE = "#e9e4d4"
INK = "#22313f"
NARROW = 45


def plan() -> BatchPlan:
    """The plan of the three devices in all pictures."""
    return plan_batches(list(DEVICES.values()), GLOBAL_BATCH)


def timeline() -> Figure:
    """Three steps under the equal split, and as many under BOA, over one time axis."""
    figure = _figure(8, 3.9)
    upper, lower = figure.subplots(2, 1, sharex=True)
    equal = (GLOBAL_BATCH // len(DEVICES),) * len(DEVICES)
    for axes, title, rows in ((upper, "equal split", equal), (lower, "BOA", plan().batch_sizes)):
        seconds = [
            float(model.seconds(size)) for model, size in zip(DEVICES.values(), rows, strict=True)
        ]
        step = 1000 * max(seconds)
        for place, (own, size) in enumerate(zip(seconds, rows, strict=True)):
            for number in range(3):
                begin, width = number * step, 1000 * own
                axes.barh(place, width, left=begin, color=COLOURS[place], edgecolor="white")
                axes.barh(
                    place,
                    step - width,
                    left=begin + width,
                    color=IDLE,
                    hatch="////",
                    edgecolor="white",
                )
                label = f"{size} rows" if width > NARROW else str(size)
                axes.text(begin + width / 2, place, label, color="white", ha="center", va="center")
        for number in range(1, 4):
            axes.axvline(number * step, color=INK, linewidth=1.2, linestyle=":")
        axes.set_yticks(range(len(DEVICES)), DEVICES)
        axes.invert_yaxis()
        axes.set_title(
            f"{title}: a step of {step:.0f} ms, {', '.join(map(str, rows))} rows",
            loc="left",
            fontsize=11,
        )
        axes.spines[["top", "right"]].set_visible(False)
    lower.set_xlabel("time (ms); hatched: waits for the slowest")
    return figure


def warmup() -> Figure:
    """Rows of each device in the first steps of a training, and what a step takes."""
    (training,) = compare(
        Cluster(tuple(DEVICES.values()), noise=0.01),
        [Boa()],
        global_batch_size=GLOBAL_BATCH,
        steps=60,
    )
    steps = range(60)
    rows = [training.plan_at(step) for step in steps]
    figure = _figure(8, 3.9)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    below = [0] * len(rows)
    for place, (name, colour) in enumerate(zip(DEVICES, COLOURS, strict=True)):
        own = [each[place] for each in rows]
        upper.bar(
            steps,
            own,
            1.0,
            bottom=below,
            color=colour,
            edgecolor="white",
            linewidth=0.3,
            label=name,
        )
        below = [low + size for low, size in zip(below, own, strict=True)]
    upper.set_ylabel("rows of a step")
    upper.set_title(f"always {GLOBAL_BATCH} rows, split in another way", loc="left", fontsize=11)
    upper.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=9, frameon=False)
    lower.step(steps, [1000 * seconds for seconds in training.step_seconds], where="mid", color=INK)
    lower.set_ylim(0)
    lower.set_ylabel("step (ms)")
    lower.set_xlabel("step of the training")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def order() -> Figure:
    """The same positions of the global order, shared out equally and by the plan."""
    figure = _figure(8, 2.5)
    axes = figure.subplots()
    for line, (title, rows) in enumerate(
        (("step s, equal split", (8, 8, 8)), ("step s, BOA", _in_small(24)), ("one device", (24,)))
    ):
        place = 0
        for rank, size in enumerate(rows):
            for _ in range(size):
                colour = COLOURS[rank] if len(rows) > 1 else "#8d99ae"
                axes.add_patch(Rectangle((place, -line), 0.9, 0.72, color=colour))
                place += 1
        axes.text(-0.5, -line + 0.36, title, ha="right", va="center", color=INK, fontsize=10)
    axes.text(0, 1.05, "positions sB … (s+1)B of the global order →", color=INK, fontsize=10)
    axes.set_xlim(-7, 24.5)
    axes.set_ylim(-2.2, 1.5)
    axes.axis("off")
    return figure


def step() -> Figure:
    """What happens to a rank's rows in one step, and which part of it the clock measures."""
    figure = _figure(8, 2.9)
    axes = figure.subplots()
    stations = (
        ("loader", "gives b rows\nof the step's B"),
        ("training_step", "loss: mean\nover b rows"),
        ("loss * bW/B", "the weight\nof the rank"),
        ("backward", "local\ngradients"),
        ("all-reduce", "DDP: mean\nover W ranks"),
        ("optimizer", "the step of\none device"),
    )
    for number, (name, what) in enumerate(stations):
        ours = number in (0, 2)
        box = FancyBboxPatch(
            (2 * number, 0),
            1.5,
            0.8,
            boxstyle="round,pad=0.08",
            color=COLOURS[1] if ours else COLOURS[0],
        )
        axes.add_patch(box)
        axes.text(
            2 * number + 0.75, 0.4, name, ha="center", va="center", color="white", fontsize=8.5
        )
        axes.text(2 * number + 0.75, -0.75, what, ha="center", va="center", color=INK, fontsize=8.5)
        if number:
            axes.add_patch(
                FancyArrowPatch(
                    (2 * number - 0.42, 0.4),
                    (2 * number - 0.08, 0.4),
                    arrowstyle="-|>",
                    mutation_scale=10,
                    color=INK,
                )
            )
    axes.annotate("", (2, 1.25), (7.5, 1.25), arrowprops={"arrowstyle": "<->", "color": INK})
    axes.text(
        4.75, 1.4, "what the clock measures of each device", ha="center", color=INK, fontsize=9
    )
    axes.annotate("", (8, 1.25), (9.5, 1.25), arrowprops={"arrowstyle": "<->", "color": INK})
    axes.text(8.75, 1.4, "waits for the slowest", ha="center", color=INK, fontsize=9)
    axes.set_xlim(-0.3, 11.8)
    axes.set_ylim(-1.3, 1.9)
    axes.axis("off")
    return figure


def fit() -> Figure:
    """Measured times of two devices, the fitted lines, and the split at which they end together."""
    figure = _figure(8, 3.4)
    axes = figure.subplots()
    devices = [LinearTime(0.02, 0.001), LinearTime(0.02, 0.003)]
    shares = plan_batches(devices, 128)
    for rank, (model, colour) in enumerate(zip(devices, COLOURS, strict=False)):
        _draw_line(axes, model, colour, f"rank {rank}", (64, shares.batch_sizes[rank]))
    deadline = 1000 * (shares.step_seconds or 0.0)
    axes.axhline(deadline, color=INK, linestyle=":", linewidth=1.2)
    axes.text(2, deadline + 4, f"the step: {deadline:.0f} ms", color=INK, fontsize=9)
    for size in shares.batch_sizes:
        axes.axvline(size, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 128)
    axes.set_ylim(0, 300)
    axes.set_xticks([0, *sorted(shares.batch_sizes), 64, 128])
    axes.set_xlabel("rows of the rank")
    axes.set_ylabel("compute (ms)")
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_line(
    axes: Axes, model: LinearTime, colour: str, name: str, measured: tuple[int, ...]
) -> None:
    axes.plot(
        [0, 128], [1000 * float(model.seconds(rows)) for rows in (0, 128)], color=colour, label=name
    )
    axes.plot(measured, [1000 * float(model.seconds(rows)) for rows in measured], "o", color=colour)


def _in_small(rows: int) -> tuple[int, ...]:
    return plan_batches(list(DEVICES.values()), rows).batch_sizes


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.set_facecolor("#fcfbf7")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "timeline": timeline,
    "warmup": warmup,
    "order": order,
    "step": step,
    "fit": fit,
}


def draw_all(folder: Path) -> list[Path]:
    """Writes every picture as SVG into `folder` and returns their paths."""
    paths = []
    with matplotlib.rc_context({"svg.hashsalt": "lightning-boa", "axes.facecolor": "none"}):
        for name, draw in PICTURES.items():
            paths.append(folder / f"{name}.svg")
            draw().savefig(paths[-1], metadata={"Date": None})
    return paths


if __name__ == "__main__":
    for path in draw_all(FOLDER):
        print(path)
