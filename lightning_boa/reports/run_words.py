"""What a run's figures mean, in sentences."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from lightning_boa.reports.run_figures import WORTH_A_HEADLINE, Kind, RunFigures
from lightning_boa.reports.run_record import Saving, loader_share
from lightning_boa.reports.tables import percent

CONSIDERABLE_LOADER = 0.1
CONSIDERABLE_NETWORK = 0.25
CONSIDERABLE_IDLE = 0.1
ROUGH = 0.25
MOST_RANKS_NAMED = 4
_ENDINGS = {
    "running": "still running, or ended without a word",
    "finished": "finished",
    "stopped": "stopped by a signal",
}
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
        return "No gain measured", sentence(_why_none_was_measured(figures))
    if abs(gain - 1) < WORTH_A_HEADLINE:
        why = record.hindrance or record.plan.reason or "the devices are equally fast"
        return "Nothing to gain", sentence(why)
    beside = f"as with equal shares of the same batch{_steps_of(figures)}"
    if figures.verdict == "unsure":
        noise = "the noise of the measurement explains as much"
        return "No sure gain", sentence(f"measured: {gain:.1f} times as fast {beside}; {noise}")
    return sentence(times_as_fast(gain, record.saving)).rstrip("."), sentence(beside)


def times_as_fast(gain: float, saving: Saving | None) -> str:
    """The gain with as many digits as the error of the saving leaves."""
    if saving is not None and saving.error > ROUGH * abs(saving.seconds):
        return f"about {gain:.1f} times as fast"
    return f"{gain:.2f} times as fast"


def hindrance(figures: RunFigures) -> str:
    """The record's sentence on what held the training back; empty where the headline has said it."""
    words = figures.record.hindrance
    if figures.gain is None and words == figures.record.plan.reason:
        return ""
    told = sentence(words)
    return "" if told == headline(figures)[1] else told


def which(kind: Kind, figures: RunFigures) -> str:
    """The ranks of a kind where others have its name too; empty else."""
    if sum(other.name == kind.name for other in figures.kinds) == 1:
        return ""
    ranks = ", ".join(map(str, kind.ranks[:MOST_RANKS_NAMED]))
    more = len(kind.ranks) - MOST_RANKS_NAMED
    return f"rank{'s' if len(kind.ranks) > 1 else ''} {ranks}" + (
        f" and {more:,} more" if more > 0 else ""
    )


def from_to(least: float, most: float) -> str:
    """A whole number, or two where they differ by more than a twentieth."""
    if most <= 1.05 * least:
        return f"{(least + most) / 2:,.0f}"
    return f"{least:,.0f} to {most:,.0f}"


def beyond(figures: RunFigures) -> str:
    """What an axis of step times leaves out; empty where nothing."""
    points = figures.beyond
    if not points:
        return ""
    longest = max(points, key=lambda point: point.longest)
    most = f"{duration(longest.longest)}, at step {longest.step:,}"
    if len(points) == 1:
        return f"one measured time is longer than the chart is high: {most}"
    return f"{len(points):,} measured times are longer than the chart is high; the longest: {most}"


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
    return _ENDINGS.get(outcome, outcome)


def next_step(figures: RunFigures) -> str:
    """One sentence: what would make the run faster still."""
    step = figures.planned_step or figures.equal_step
    if step is None:
        return _next_step_unmeasured(figures)
    loader = max(step.loader_share, loader_share(figures.record.blocks))
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


def _next_step_unmeasured(figures: RunFigures) -> str:
    record = figures.record
    if figures.is_given:
        hindered = record.hindrance
        if hindered and not hindered.startswith(("fixed plan", "the shares were given")):
            return f"No measured step is in the record. {sentence(hindered)}"
        return (
            "No measured step is in the record, since the shares were given: without batch_sizes, strategy boa "
            "measures the devices and plans the shares itself."
        )
    if record.outcome not in _ENDINGS:
        return "The training ended before a step was measured: mend what ended it, and train again."
    return "No measured step is in the record: train for more steps than the warm-up takes."


def _why_none_was_measured(figures: RunFigures) -> str:
    record = figures.record
    why = record.hindrance or record.plan.reason
    if figures.is_only_predicted and why == record.plan.reason:
        return f"too few steps came after the plan to measure what it gained; {why}"
    return why


def _next_step_of_devices(figures: RunFigures) -> str:
    if figures.verdict == "lost":
        return (
            "The plan cost time by this measurement, whose equal shares ran in the warm-up alone. If the machine was "
            "busy with other work, train again on a quiet one, with a longer warm-up (warmup=60); if time is lost "
            "there too, LIGHTNING_BOA=off keeps equal shares."
        )
    if figures.verdict == "unsure" and abs((figures.gain or 1) - 1) >= WORTH_A_HEADLINE:
        return "Noise hides what the plan gains: a quieter machine, or a longer warm-up (warmup=60), would tell."
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


def _steps_of(figures: RunFigures) -> str:
    saving = figures.record.saving
    if saving is None or not saving.steps:
        return ", as measured in the warm-up, without a known error"
    return f", over {saving.steps:,} steps"


def _digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
