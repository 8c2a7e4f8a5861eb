"""Finds the record of a training, and writes files beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_boa.cli.boa.files import read_text
from lightning_boa.errors import OptionError
from lightning_boa.reports.run_record import FILE_NAME, RunRecord

MOST_NAMED = 5


def find_record(run: Path) -> tuple[Path, int]:
    """The newest record in a folder and below, or the file itself; and among how many it was found.

    Raises:
        OptionError: nothing there, no record, or several of which none is the newest.
    """
    if run.is_file():
        return run, 1
    if not run.exists():
        raise OptionError(
            f"RUN: expected {FILE_NAME} or a folder that holds one, got {str(run)!r}, which does not exist."
        )
    if (run / FILE_NAME).is_file():
        return run / FILE_NAME, 1
    found = sorted(
        Path(folder) / FILE_NAME for folder, _, files in os.walk(run) if FILE_NAME in files
    )
    if not found:
        raise OptionError(
            f"RUN: expected a folder with {FILE_NAME} in it or below, got {str(run)!r}, which has none; a training "
            "under strategy boa writes it into its logger's folder, unless record=None."
        )
    last = max(int(path.stat().st_mtime) for path in found)
    newest = [path for path in found if int(path.stat().st_mtime) == last]
    if len(newest) > 1:
        more = f" and {len(newest) - MOST_NAMED} more" if len(newest) > MOST_NAMED else ""
        raise OptionError(
            f"RUN: expected one newest {FILE_NAME} below {str(run)!r}, got {len(newest)} that are equally new; name "
            f"one: {', '.join(map(str, newest[:MOST_NAMED]))}{more}."
        )
    return newest[0], len(found)


def read_record(path: Path) -> RunRecord:
    """The record in a file.

    Raises:
        OptionError: the file cannot be read, or holds no record.
    """
    text = read_text(path, "the record of a training")
    return RunRecord.from_json(text, str(path))


def checked_target(option: str, text: str) -> Path:
    """A path at which a file can be written.

    Raises:
        OptionError: a folder, or none to hold the file.
    """
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OptionError(f"{option}: expected a file in a folder that exists, got {text!r}.")
    return path


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Turns a file that cannot be written into a user's mistake.

    Raises:
        OptionError: what the operating system said.
    """
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"{option}: expected a place that can be written to, got {str(path)!r} ({error.strerror})."
        ) from error
