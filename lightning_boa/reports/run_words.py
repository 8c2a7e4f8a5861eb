"""What a run's figures mean, in sentences."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_record import Saving
from lightning_boa.reports.tables import percent

WORTH_A_HEADLINE = 0.01
CONSIDERABLE_LOADER = 0.1
CONSIDERABLE_NETWORK = 0.25
CONSIDERABLE_IDLE = 0.1
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """Seconds as people say them: 12.3 ms, 4.56 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    amount = abs(seconds)
    sign = "-" if seconds < 0 else ""
    if amount < 1:
        return f"{sign}{_digits(1000 * amount)} ms"
    if amount < 59.95:
        return f"{sign}{_digits(amount)} s"
    (unit, name), (smaller, small) = next(
        units for units in pairwise(UNITS) if round(amount) >= units[0][0]
    )
    large, rest = divmod(round(amount / smaller), unit // smaller)
    return f"{sign}{large:,} {name}" + (f" {rest} {small}" if rest else "")


def moment(iso: str) -> str:
    """A time as ISO 8601 to the minute; any other text as it is."""
    try:
        return f"{datetime.fromisoformat(iso):%Y-%m-%d %H:%M}"
    except ValueError:
        return iso


def on_an_axis(seconds: float) -> str:
    """Round seconds beside an axis."""
    return duration(seconds).replace(".00 ", " ").replace(".0 ", " ") if seconds else "0"


def signed(share: float) -> str:
    """A difference in per cent, to a tenth."""
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def sentence(words: str) -> str:
    """The words with a capital letter and a full stop."""
    words = words.strip()
    if not words:
        return ""
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?" else ".")


def rows_in_words(rows: tuple[int, ...], most: int = 16) -> str:
    """Rows of each rank; of many only the least and the most."""
    if len(rows) <= most:
        return " / ".join(map(str, rows))
    return f"{len(rows)} ranks, {min(rows):,} to {max(rows):,} rows"


def headline(figures: RunFigures) -> tuple[str, str]:
    """What came of it in a few large words, and the sentence below them."""
    record, gain = figures.record, figures.gain
    if gain is None:
        return "No gain measured", sentence(record.hindrance or record.plan.reason)
    if abs(gain - 1) < WORTH_A_HEADLINE:
        why = record.hindrance or record.plan.reason or "the devices are equally fast"
        return "Nothing to gain", sentence(why)
    return f"{gain:.2f} times as fast", sentence(
        f"as with equal shares of the same batch{_steps_of(figures)}"
    )


def saved(saving: Saving | None) -> str:
    """The time saved, with its error; empty where nothing was measured after the warm-up."""
    if saving is None or not saving.steps:
        return ""
    if saving.seconds == saving.error == 0:
        return f"nothing saved: shares were equal in all {saving.steps:,} steps"
    error = f"± {duration(saving.error)}"
    if not saving.is_sure:
        measured = f"{duration(saving.seconds)} {error} in {saving.steps:,} steps"
        return f"nothing saved that noise does not explain ({measured})"
    verb = "saved" if saving.seconds > 0 else "lost"
    return (
        f"{duration(abs(saving.seconds))} {verb} ({error}) in {saving.steps:,} steps: "
        f"{duration(saving.trained_seconds)} instead of {duration(saving.trained_seconds + saving.seconds)}"
    )


def ending(outcome: str) -> str:
    """How the run ended, or that it has not."""
    known = {
        "running": "still running, or ended without a word",
        "finished": "finished",
        "stopped": "stopped by a signal",
    }
    return known.get(outcome, outcome)


def next_step(figures: RunFigures) -> str:
    """One sentence: what would make the run faster still."""
    step = figures.planned_step or figures.equal_step
    if step is None:
        return "No measured step is in the record: under strategy boa, leave out batch_sizes and train for more steps."
    loader = max(step.loader_share, _loader_share_of_blocks(figures))
    if loader > CONSIDERABLE_LOADER:
        return (
            f"The loader holds the run back: a rank waits for its batch in {percent(loader)} of a step. "
            "Give the DataLoader more num_workers, persistent_workers=True and lighter transforms."
        )
    if step.communication_share > CONSIDERABLE_NETWORK:
        return (
            f"The network holds the run back: communication takes {percent(step.communication_share)} of a step. "
            "A larger accumulate_grad_batches, a compressing ddp_comm_hook or a faster link would help; "
            "another split would not."
        )
    return _next_step_of_devices(figures)


def _next_step_of_devices(figures: RunFigures) -> str:
    idle = figures.idle_now
    if idle is not None and idle > CONSIDERABLE_IDLE:
        if figures.latest_step is None and figures.idle[1] is None:
            return (
                f"With equal shares devices wait in {percent(idle)} of a step. Steps of the plan were not measured: "
                "train for more steps."
            )
        return (
            f"Devices still wait in {percent(idle)} of a step: min_batch_size, max_batch_size, granularity or memory "
            "may bound the shares, or the global batch is too small to be split more finely."
        )
    waits = (
        "The devices are balanced"
        if idle is None
        else f"The devices are balanced: they wait for each other in {percent(idle)} of a step"
    )
    return f"{waits}. What would help now is a faster device or a shorter step, not another split."


def _loader_share_of_blocks(figures: RunFigures) -> float:
    blocks = figures.record.blocks
    period = sum(block.period for block in blocks)
    return sum(block.loader_wait for block in blocks) / period if period else 0.0


def _steps_of(figures: RunFigures) -> str:
    saving = figures.record.saving
    if saving is None or not saving.steps:
        return ", by the steps that the warm-up measured of both"
    return f", over {saving.steps:,} steps"


def _digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
