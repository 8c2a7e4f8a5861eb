"""A user's mistake is one sentence on stderr, once for all ranks, and exit code 2; a lost worker the same with 1."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from lightning_boa.cli.checked import with_its_stop
from lightning_boa.cli.framework import MisconfigurationException
from lightning_boa.errors import BoaError

USER_MISTAKE = 2
LOST_WORKER = 1
PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.05
FULL_ERROR = "HYDRA_FULL_ERROR"
JOB = "_job"
_IN_A_CHILD = re.compile(
    r"^(?:lightning_boa\.errors|lightning(?:_fabric|\.fabric)\.utilities\.exceptions)\.\w+: (.+)\Z",
    re.M | re.S,
)
_WORKER = re.compile(r"^boa: (.+)$", re.M)

_log = logging.getLogger(__name__)


@contextmanager
def mistakes_in_one_sentence() -> Iterator[None]:
    """Ends the process where a mistake or a lost worker is the reason; other errors go on."""
    began_under = os.getppid()
    try:
        yield
    except Exception as error:
        mistake, lost = mistake_in(error), lost_worker_in(error)
        sentence = mistake or lost
        if sentence is None:
            raise
        _log.debug("The error in full", exc_info=True)
        is_mine = _rank_0_is_silent(began_under) if mistake else _tells_of_the_lost(error, sentence)
        if is_mine:
            print(f"boa-train: {with_its_stop(sentence)}", file=sys.stderr)
        raise SystemExit(USER_MISTAKE if mistake else LOST_WORKER) from None


@contextmanager
def mistakes_on_the_command_line() -> Iterator[None]:
    """The same for what Hydra finds before the job begins, which it would print itself, with exit code 1."""
    asked_for = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"
    try:
        with mistakes_in_one_sentence():
            yield
    except ValueError as error:
        group = _group_without_a_name(sys.argv[1:])
        if group is None:
            raise
        print(
            f"boa-train: {group}: expected one of the names that boa-train --help lists, got null.",
            file=sys.stderr,
        )
        raise SystemExit(USER_MISTAKE) from error
    except OSError as error:
        if _has_begun(error):
            raise
        print(
            "boa-train: hydra.run.dir (hydra.sweep.dir in a sweep): expected a folder in which files can be written,"
            f" got {error.filename} ({error.strerror}). Name another one.",
            file=sys.stderr,
        )
        raise SystemExit(USER_MISTAKE) from error
    finally:
        if asked_for is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = asked_for


def mistake_in(error: BaseException) -> str | None:
    """The sentence about a user's mistake, also where Hydra or a child process wrapped it; None for other errors."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (BoaError, MisconfigurationException)):
            return str(cause)
        cause = cause.__cause__
    in_child = _IN_A_CHILD.search(str(error).rstrip())
    return in_child.group(1) if in_child else _mistake_in_overrides(error)


def lost_worker_in(error: BaseException) -> str | None:
    """Who was the reason where a collective has failed or a rank has ended; None for other errors."""
    explained = _WORKER.search(str(error))
    if explained:
        return explained.group(1)
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
        return f"rank {error.error_index} ended without a word ({how}); the others were stopped."
    return None


def _mistake_in_overrides(error: BaseException) -> str | None:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}: expected one of {', '.join(error.options)}, got {name!r}."
    if isinstance(error, OverrideParseException):
        reason = _lines(error)[0]
        return (
            f"{error.override}: expected name=value in Hydra's grammar, got what it cannot read ({reason}); quote"
            " values with special characters: 'name=\"value\"'."
        )
    if isinstance(error, InstantiationException):
        return _mistake_in_a_target(str(error))
    if isinstance(error, ConfigCompositionException):
        unknown = re.match(r"Could not override '(.+?)'", str(error))
        if unknown:
            name = unknown.group(1)
            return f"{name}: is no option of this configuration; boa-train --cfg job shows all, +{name}=… adds one."
    if isinstance(error, OmegaConfBaseException) or (
        isinstance(error, HydraException) and not isinstance(error.__cause__, Exception)
    ):
        return "; ".join(_lines(error))
    return None


def _mistake_in_a_target(said: str) -> str | None:
    """What a class that a configuration names does not take, or lacks."""
    strange = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", said)
    key = re.search(r"^full_key: (.+)$", said, re.M)
    if strange is None or key is None:
        return None
    return f"{key.group(1)}.{strange.group(2)}: is no option of {strange.group(1)}. Leave it out."


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]


def _has_begun(error: BaseException) -> bool:
    """Whether it comes from the job, and not from what Hydra does before it."""
    return any(frame.f_code.co_name == JOB for frame, _ in walk_tb(error.__traceback__))


def _group_without_a_name(arguments: list[str]) -> str | None:
    for argument in arguments:
        given = re.fullmatch(r"([\w/@]+)=(null|None|)", argument)
        if given:
            return given.group(1)
    return None


def _tells_of_the_lost(error: BaseException, sentence: str) -> bool:
    """Rank 0 tells of the others, rank 1 of rank 0; a process that has forked or spawned all ranks of any."""
    if isinstance(error, ProcessException):
        return True
    return _rank() == ("1" if sentence.startswith("rank 0 ") else "0")


def _rank_0_is_silent(began_under: int) -> bool:
    """Another rank leaves a mistake to rank 0, which has called it and whose end it sees, or whose launcher ends it.

    Where rank 0 is still there after ten seconds, the mistake is this rank's own.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while _rank() != "0" and time.monotonic() < until:
        if os.getppid() != began_under:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _rank() -> str:
    return os.environ.get("RANK") or os.environ.get("LOCAL_RANK", "0")
