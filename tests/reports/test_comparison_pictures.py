from __future__ import annotations

import math
from pathlib import Path

import pytest

from lightning_boa.reports.comparison import LearningCurve, PolicyFigures, Span, Timeline

pytest.importorskip("matplotlib")

from lightning_boa.reports.comparison_pictures import (
    DROPPED_COLOUR,
    comparison_figure,
    learning_figure,
)

FIGURES = [
    PolicyFigures("equal split", 1.02, 1.0, 125.4, 0.0, (0.8, 0.02), 0.0, (0.8, 0.0)),
    PolicyFigures("1 backup worker", 0.42, 0.4, 266.7, 0.125, (0.1, 0.3), 0.125, (0.1, 0.3)),
]
EQUAL = Timeline(
    "equal split",
    ("fast", "slow"),
    ((Span(0.0, 0.2), Span(1.0, 1.2)), (Span(0.0, 1.0), Span(1.0, 2.0))),
    (1.0, 2.0, 3.0),
)
BACKUP = Timeline(
    "1 backup worker",
    ("fast", "slow"),
    ((Span(0.0, 0.2), Span(0.2, 0.4)), (Span(-0.3, 0.5, is_used=False), Span(9.0, 9.5))),
    (0.2, 0.4),
)


def test_each_policy_has_a_bar_and_what_it_dropped() -> None:
    bars, *_ = comparison_figure("thesis", FIGURES, [EQUAL, BACKUP], 1.5).get_axes()
    (measured,) = bars.containers
    assert [bar.get_width() for bar in measured] == pytest.approx([1.02, 0.42])
    assert [text.get_text() for text in bars.texts] == [
        "1.02 s",
        "0.42 s\n12.5 % of rows dropped",
    ]
    (simulated,) = [lines for lines in bars.collections if lines.get_label() == "simulated"]
    assert [path.vertices[0][0] for path in simulated.get_paths()] == pytest.approx([1.0, 0.4])


def test_a_timeline_shows_who_computes_and_for_nothing() -> None:
    _, equal, backup = comparison_figure("thesis", FIGURES, [EQUAL, BACKUP], 1.5).get_axes()
    assert [axes.get_title("left") for axes in (equal, backup)] == [
        "equal split",
        "1 backup worker",
    ]
    assert [label.get_text() for label in equal.get_yticklabels()] == ["fast", "slow"]
    waits, computes = equal.collections[:2]
    assert _spans(waits) == [(0.0, 1.5)]
    assert _spans(computes) == [(0.0, 0.2), (1.0, 1.2)]
    assert _spans(equal.collections[3]) == [(0.0, 1.0), (1.0, 1.5)]
    dropped = backup.collections[3]
    assert _spans(dropped) == [(0.0, 0.5)]
    assert dropped.get_facecolor()[0] == pytest.approx(_rgba(DROPPED_COLOUR))
    assert [line.get_xdata()[0] for line in equal.lines] == [1.0]


def test_losses_are_drawn_over_seconds_and_rows_also_where_training_diverged() -> None:
    curves = [
        LearningCurve("BOA", (1.0, 2.0), (10, 20), (0.9, 0.4)),
        LearningCurve("asynchronous", (0.9, 1.8), (10, 20), (7.0, math.nan)),
    ]
    over_seconds, over_rows = learning_figure("digits", curves, 0.5).axes
    assert list(over_seconds.lines[0].get_xdata()) == [1.0, 2.0]
    assert list(over_rows.lines[0].get_xdata()) == [10, 20]
    assert list(over_rows.lines[1].get_ydata()[:1]) == [7.0]


def test_the_pictures_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "compare.png"
    comparison_figure("thesis", FIGURES, [EQUAL, BACKUP], 1.5).savefig(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def _spans(collection: object) -> list[tuple[float, float]]:
    boxes = [path.get_extents() for path in collection.get_paths()]  # type: ignore[attr-defined]
    return [(round(float(box.x0), 6), round(float(box.x1), 6)) for box in boxes]


def _rgba(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgba

    return to_rgba(colour)
