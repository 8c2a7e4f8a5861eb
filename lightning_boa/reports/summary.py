"""What a training says of itself at its end, in one or two sentences."""

from __future__ import annotations

from lightning_boa.reports.run_record import RunRecord, Saving
from lightning_boa.reports.run_words import duration, sentence


def summary(record: RunRecord) -> str:
    """What was saved against the equal split and by how much a step was faster, or why little was."""
    saved = record.saving
    said = [] if saved is None or not saved.is_sure else [_of(saved)]
    if record.hindrance:
        said.append(sentence(record.hindrance))
    return " ".join(said)


def _of(saved: Saving) -> str:
    assert saved.gain is not None
    instead = (saved.trained_seconds + saved.seconds) / saved.steps
    verb = "saved" if saved.seconds >= 0 else "lost"
    return (
        f"{duration(abs(saved.seconds))} {verb} (± {duration(saved.error)}) in the {saved.steps:,} steps since the"
        f" warm-up: {duration(saved.trained_seconds / saved.steps)} a step instead of {duration(instead)} under the"
        f" equal split, {saved.gain:.2f} times as fast."
    )
