"""What a user sees of a training: the plan and its saving in the terminal, figures in the loggers, and the record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol

from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_boa.errors import OptionError
from lightning_boa.planning import (
    EqualStep,
    NetworkFindings,
    Orchestration,
    Schedule,
    StepRecord,
    measure_split,
)
from lightning_boa.reports import PlanReport, plan_table
from lightning_boa.reports.run_history import RunHistory, Training, block_record
from lightning_boa.reports.run_record import FILE_NAME, IN_LOG_FOLDER, RunRecord
from lightning_boa.reports.step_metrics import StepFigures
from lightning_boa.reports.summary import summary
from lightning_boa.reports.terminal import as_text
from lightning_boa.reports.whole_file import write_whole

SECONDS_PER_SECOND_OF_WRITING = 100
LONGEST_OUTCOME = 200
MOST_LINES = 64


class IsSeen(Protocol):
    """What is needed of a strategy."""

    device_names: tuple[str, ...]
    orchestration: Orchestration | None
    network: NetworkFindings | None
    record_path: Path | None

    @property
    def schedule(self) -> Schedule | None: ...

    @property
    def fixed_reason(self) -> str: ...

    @property
    def is_unseen(self) -> bool: ...

    @property
    def is_verbose(self) -> bool: ...

    @property
    def record(self) -> str | None: ...

    @property
    def software(self) -> Mapping[str, str]: ...

    def show_figures(
        self, logged: Mapping[str, float], in_bar: Mapping[str, float], *, to_loggers: bool
    ) -> None: ...


class InTraining:
    """One training as its user sees it. Rank 0 alone prints and writes; figures are the same on every rank.

    Nothing happens in steps after which no figures arrive.

    Args:
        trainer: whose training begins.
        strategy: its strategy.
        known_as: the time at which the training that is gone on with has begun; None for a new one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        trainer: Any,
        strategy: IsSeen,
        known_as: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._trainer = trainer
        self._strategy = strategy
        self._clock = clock
        self._equal: EqualStep | None = None
        self._log_from = 0
        self._write_from = 0.0
        self._has_warned = False
        self._has_shown_plan = False
        self._path = strategy.record_path = _place_of_record(trainer, strategy.record)
        self._history: RunHistory | None = None
        if trainer.is_global_zero:
            first_step = trainer.fit_loop.total_batch_idx + 1
            self._history = self._begun(known_as if first_step > 0 else None, first_step)

    @property
    def known_as(self) -> str | None:
        """The time at which the training has begun, on rank 0."""
        return None if self._history is None else self._history.started

    def begin(self) -> None:
        """The first step comes next; a plan that is gone on with is shown now, since nothing will confirm it."""
        state = self._strategy.orchestration
        if state is not None and state.watch is not None:
            self._show_plan()

    def after_exchange(
        self, before: Orchestration, after: Orchestration, records: Sequence[StepRecord], step: int
    ) -> None:
        """All ranks have shared their measured steps."""
        self._equal = None
        if self._history is not None:
            self._history.note_plans(after.schedule)
        if not after.changes_always or step >= self._log_from:
            self._log_records(after, records, step)
        if before.exchange_after is not None and after.exchange_after is None:
            self._show_plan()
            self.write()

    def after_block(self, orchestration: Orchestration, step: int) -> None:
        """All ranks know another block of watched steps."""
        assert orchestration.watch is not None
        if self._equal is None:
            self._equal = EqualStep.of(orchestration)
        block = block_record(orchestration.watch.blocks[-1], orchestration, self._equal)
        if self._history is not None:
            self._history.equal = self._equal
            self._history.add(block)
        self._log(StepFigures.of_block(block), step)

    def end_epoch(self) -> None:
        """An epoch is over; of short ones not each is worth the writing."""
        if self._clock() >= self._write_from:
            self.write()

    def end(self) -> None:
        """The training is over."""
        state = self._strategy.orchestration
        if (
            state is not None
            and state.phase == "planned"
            and state.exchange_after is not None
            and not state.changes_always
        ):
            self._show_plan()
        self._conclude(self.write("finished"))

    def fail(self, error: BaseException) -> None:
        """The training ends early: by a signal, or with an error."""
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "SIGTERMException":
            self._conclude(self.write("stopped"))
        else:
            self.write(outcome_of(error))

    def _conclude(self, record: RunRecord | None) -> None:
        state = self._strategy.orchestration
        if record is not None and (state is None or state.phase == "planned"):
            self._show(summary(record), self._where)

    def write(self, outcome: str = "running") -> RunRecord | None:
        """Bring the file up to date; the record on rank 0. What cannot be written is told once."""
        schedule = self._strategy.schedule
        if self._history is None or schedule is None:
            return None
        begin = self._clock()
        record = None
        try:
            record = self._history.record(self._training(schedule), outcome, self._last_step)
            if self._path is not None:
                write_whole(self._path, record.to_json())
        except (OSError, ValueError, ArithmeticError) as error:
            self._warn(error)
        end = self._clock()
        self._write_from = end + SECONDS_PER_SECOND_OF_WRITING * (end - begin)
        return record

    @property
    def _last_step(self) -> int:
        return max(0, int(self._trainer.fit_loop.total_batch_idx))

    @property
    def _where(self) -> str:
        if self._path is None or self._has_warned:
            return ""
        return f"What was measured is in {_from_here(self._path)}: boa report shows it."

    def _training(self, schedule: Schedule) -> Training:
        strategy = self._strategy
        return Training(
            strategy=type(strategy).__name__,
            devices=strategy.device_names,
            schedule=schedule,
            orchestration=strategy.orchestration,
            fixed_reason=strategy.fixed_reason,
            network=strategy.network,
            software=strategy.software,
        )

    def _begun(self, known_as: str | None, first_step: int) -> RunHistory:
        """The history with the file's record if that is of the training which is gone on with, else a new one."""
        before = None if known_as is None or self._path is None else _read(self._path)
        if (
            before is not None
            and before.started == known_as
            and before.devices == self._strategy.device_names
        ):
            return RunHistory(before.started, before, first_step)
        return RunHistory(datetime.now().astimezone().isoformat(timespec="microseconds"))

    def _log_records(self, state: Orchestration, records: Sequence[StepRecord], step: int) -> None:
        newest = max((record.step for record in records), default=None)
        if newest is None or newest < state.schedule.entries[0][0]:
            return
        measured = measure_split(records, state.schedule.plan_at(newest).batch_sizes)
        if measured is not None:
            self._log(StepFigures.of_measurement(measured), step)

    def _log(self, figures: StepFigures, step: int) -> None:
        every = self._trainer.log_every_n_steps
        is_due = every > 0 and step >= self._log_from
        if is_due:
            self._log_from = step + every
        in_bar = figures.in_bar if self._strategy.is_verbose else {}
        self._strategy.show_figures(figures.logged, in_bar, to_loggers=is_due)

    def _show_plan(self) -> None:
        schedule = self._strategy.schedule
        if self._history is None or self._has_shown_plan or schedule is None:
            return
        self._has_shown_plan = True
        plan = self._training(schedule).plan
        self._show(plan_table(plan.of_extreme_ranks(MOST_LINES)), _left_out(plan))

    def _show(self, *parts: Any) -> None:
        """Print in such a way that a progress bar stays whole."""
        said = [part for part in parts if part]
        if not self._strategy.is_verbose or not said:
            return
        text = as_text(*said)
        bar = self._trainer.progress_bar_callback
        with suppress(OSError, ValueError):  # who closes the output ends no training
            if bar is not None and bar.is_enabled:
                bar.print(text)
            else:
                print(text, flush=True)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f"boa: the record of this training cannot be written, and the training goes on: {error}. Name another"
                " place (record=…), or none (record=None)."
            )


def outcome_of(error: BaseException) -> str:
    """Which rank failed, where ours is the line of the error that says so; else the error."""
    _, is_known, cause = str(error).rpartition("\nboa: ")
    words = cause if is_known else f"{type(error).__name__}: {error}"
    return shorten(words, LONGEST_OUTCOME, placeholder=" …")


def _left_out(plan: PlanReport) -> str:
    ranks = len(plan.ranks)
    if ranks <= MOST_LINES:
        return ""
    return f"Of {ranks:,} ranks the {MOST_LINES // 2} with the fewest rows and the {MOST_LINES // 2} with the most."


def _place_of_record(trainer: Any, record: str | None) -> Path | None:
    """Where the record lies on rank 0; all ranks call it. None where no file can be written beside the logs."""
    if record is None:
        return None
    if record != IN_LOG_FOLDER:
        return Path(record, FILE_NAME) if os.path.isdir(record) else Path(record)
    folder = str(trainer.log_dir or trainer.default_root_dir)
    return None if "://" in folder else Path(folder).absolute() / FILE_NAME


def _from_here(path: Path) -> Path:
    """The path as a command in this process's folder would name it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _read(path: Path) -> RunRecord | None:
    try:
        return RunRecord.from_json(path.read_bytes(), str(path))
    except (OSError, OptionError):
        return None
