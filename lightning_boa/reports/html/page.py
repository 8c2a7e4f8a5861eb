"""The page, filled in from a run's figures."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lightning_boa.reports import run_words
from lightning_boa.reports.html.curves import Curves
from lightning_boa.reports.run_figures import RunFigures, speed_of
from lightning_boa.reports.run_panels import (
    PARTS,
    differences_of,
    idle_of,
    panels_of,
)
from lightning_boa.reports.tables import UNKNOWN, factor, milliseconds, percent

FOLDER = Path(__file__).parent
MOST_RANKS_IN_A_TABLE = 2048
MOST_CHANGES = 50


def page_of(figures: RunFigures) -> str:
    """The text of the HTML file."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=lambda seconds: UNKNOWN if seconds is None else run_words.duration(seconds),
        factor=factor,
        milliseconds=milliseconds,
        percent=percent,
        signed=run_words.signed,
        moment=run_words.moment,
        rows=run_words.rows_in_words,
        from_to=lambda both: UNKNOWN if both is None else run_words.from_to(*both),
        which=lambda kind: run_words.which(kind, figures),
        sentence=run_words.sentence,
        speed=lambda speed: UNKNOWN if speed is None else f"{speed:,.0f}",
        place=lambda share: f"{100 * share:.2f}%",
    )
    environment.globals["MOST_CHANGES"] = MOST_CHANGES
    record = figures.record
    large, below = run_words.headline(figures)
    return environment.get_template("page.html").render(
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        run=record,
        figures=figures,
        plan=record.plan,
        large=large,
        below=below,
        saved=run_words.saved(record.saving),
        hindrance=run_words.hindrance(figures),
        beyond=run_words.beyond(figures),
        ending=run_words.ending(record.outcome),
        next_step=run_words.next_step(figures),
        compared=_bars(figures),
        parts=PARTS,
        panels=panels_of(figures),
        idle=idle_of(figures),
        differences=differences_of(figures),
        curves=Curves.of(figures),
        speed_of=speed_of,
        is_folded=len(figures.lanes) < len(record.devices),
        has_table_of_ranks=len(record.devices) <= MOST_RANKS_IN_A_TABLE,
    )


def _bars(figures: RunFigures) -> tuple[tuple[str, float, float], ...]:
    """Name, seconds, and share of the longest, of a step of the equal split and of the plan."""
    seconds = figures.step_seconds
    if seconds is None:
        return ()
    names = ("equal shares", figures.record.plan.name)
    return tuple(
        (name, each, each / max(seconds)) for name, each in zip(names, seconds, strict=True)
    )
