"""`boa report`: what a training has left behind, as a page, a picture, a trace, or figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightning_boa.cli.boa.arguments import OUTPUT, JsonOption, option
from lightning_boa.cli.boa.files import picture_path
from lightning_boa.cli.boa.output import console, print_json, say
from lightning_boa.cli.boa.run_files import checked_target, find_record, read_record, writing

if TYPE_CHECKING:
    from lightning_boa.reports.run_figures import RunFigures

PAGE = "boa-report.html"


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of a training, or its boa-run.json. In a folder and below the newest is taken.",
            show_default=False,
        ),
    ] = Path(),
    html: Annotated[
        str | None,
        option(
            "--html",
            metavar="FILE",
            panel=OUTPUT,
            help=f"Where the page goes; {PAGE} beside the record unless given (with --json none).",
        ),
    ] = None,
    png: Annotated[
        str | None,
        option(
            "--png",
            metavar="FILE",
            panel=OUTPUT,
            help='Draws the same into one picture (.png, .svg, .pdf); needs the extra "plot".',
        ),
    ] = None,
    trace: Annotated[
        str | None,
        option(
            "--trace",
            metavar="FILE",
            panel=OUTPUT,
            help="Writes a trace for ui.perfetto.dev or chrome://tracing.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Why a training was as fast as it was: one page that opens offline, and a summary here.

    \b
    boa report lightning_logs/version_0
    boa report outputs --png report.png
    boa report run/boa-run.json --trace trace.json
    """
    from lightning_boa.reports.run_figures import RunFigures

    found, of = find_record(run)
    targets = {
        "--html": None if html is None else checked_target("--html", html),
        "--png": None if png is None else picture_path("--png", png),
        "--trace": None if trace is None else checked_target("--trace", trace),
    }
    if targets["--html"] is None and not as_json:
        targets["--html"] = found.parent / PAGE
    figures = RunFigures(read_record(found))
    written = {name: path for name, path in targets.items() if path is not None}
    for name, path in written.items():
        with writing(name, path):
            _WRITERS[name](figures, path)
    if as_json:
        files = {name.lstrip("-"): str(path) for name, path in written.items()}
        print_json({"record": str(found), "files": files, **figures.to_dict()})
        return
    if of > 1:
        say(console(), f"The newest of {of} records: {found}")
    _show(figures)
    for path in written.values():
        say(console(), f"Written: {path}")


def _write_page(figures: RunFigures, path: Path) -> None:
    from lightning_boa.reports.html import page_of

    path.write_text(page_of(figures), encoding="utf-8")


def _write_picture(figures: RunFigures, path: Path) -> None:
    from lightning_boa.reports.run_pictures import save_run_picture

    save_run_picture(figures, path)


def _write_trace(figures: RunFigures, path: Path) -> None:
    import msgspec

    from lightning_boa.reports.run_trace import trace_of

    path.write_bytes(msgspec.json.encode(trace_of(figures)))


_WRITERS = {"--html": _write_page, "--png": _write_picture, "--trace": _write_trace}


def _show(figures: RunFigures) -> None:
    from lightning_boa.reports import comparison_table, plan_table, rebalancing_table, run_words

    output, record = console(), figures.record
    large, below = run_words.headline(figures)
    say(output, f"{large}. {below}".rstrip())
    saved = run_words.saved(record.saving)
    if saved:
        say(output, run_words.sentence(saved))
    shown = {lane.rank for lane in figures.lanes}
    plan = record.plan
    output.print(plan_table(replace(plan, ranks=tuple(plan.ranks[rank] for rank in sorted(shown)))))
    if len(shown) < len(plan.ranks):
        say(
            output,
            f"Of {len(plan.ranks):,} ranks those are shown that tell most; the page has all.\n",
        )
    if plan.gain is not None:
        output.print(comparison_table(plan))
    if record.rebalancings:
        output.print(rebalancing_table(record.rebalancings))
    say(output, f"How it ended: {run_words.ending(record.outcome)}, {_steps(record.last_step)}.")
    hindrance = run_words.hindrance(figures)
    if hindrance:
        say(output, f"What held it back: {hindrance}")
    if plan.network:
        say(output, f"Network: {plan.network}.")
    say(output, f"What to do next: {run_words.next_step(figures)}")


def _steps(last_step: int) -> str:
    return f"last step {last_step:,}" if last_step >= 0 else "before its first step"
