"""What a training says of itself at its end, in one or two sentences."""

from __future__ import annotations

from lightning_boa.reports.plan_report import PlanReport
from lightning_boa.reports.run_record import RunRecord, Saving
from lightning_boa.reports.run_words import duration, sentence, times_as_fast
from lightning_boa.reports.run_words import saved as saved_at_all

UNKNOWN = "the training ended before enough steps had been watched to say what was saved"


def summary(record: RunRecord) -> str:
    """What was saved against the equal split and by how much a step was faster, or why little was; never empty."""
    saved = record.saving
    if saved is None and not record.hindrance:
        return _of_the_plan(record.plan) or sentence(UNKNOWN)
    said = [] if saved is None or not saved.is_sure else [_of(saved)]
    if record.hindrance:
        said.append(sentence(record.hindrance))
    return " ".join(said) or sentence(saved_at_all(saved) or UNKNOWN)


def _of_the_plan(plan: PlanReport) -> str:
    if plan.gain is None or plan.boa_step_seconds is None or plan.equal_step_seconds is None:
        return ""
    return (
        f"As the warm-up has measured it, a step takes {duration(plan.boa_step_seconds)} instead of"
        f" {duration(plan.equal_step_seconds)} under the equal split, {plan.gain:.2f} times as fast."
    )


def _of(saved: Saving) -> str:
    assert saved.gain is not None
    instead = (saved.trained_seconds + saved.seconds) / saved.steps
    verb = "saved" if saved.seconds >= 0 else "lost"
    return (
        f"{duration(abs(saved.seconds))} {verb} (± {duration(saved.error)}) in the {saved.steps:,} steps since the"
        f" warm-up: {duration(saved.trained_seconds / saved.steps)} a step instead of {duration(instead)} under the"
        f" equal split, {times_as_fast(saved.gain, saved)}."
    )
