"""The command `boa` and its parts; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from lightning_boa.cli.boa.doctor import doctor
from lightning_boa.cli.boa.plan import plan
from lightning_boa.cli.boa.report import report
from lightning_boa.cli.boa.simulate import simulate
from lightning_boa.cli.checked import with_its_stop
from lightning_boa.cli.output_stream import replace_what_stdout_cannot_show
from lightning_boa.errors import BoaError

USER_MISTAKE = 2
INTERRUPTED = 130
NOBODY_READS = 1

_UsageError = typer.BadParameter.__base__
assert _UsageError is not None

app = typer.Typer(
    name="boa",
    help="Training on mixed GPUs: plan before buying, compare systems, see why a run was as fast as it was.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
for command in (plan, simulate, report, doctor):
    app.command()(command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from lightning_boa import __version__

        print(f"lightning-boa {__version__}")
        raise typer.Exit


@app.callback()
def boa(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Training on mixed GPUs: plan before buying, compare systems, see why a run was as fast as it was."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command's entry point; exits with 0, 1 where a failure was found, or 2 after a user's mistake.

    Args:
        arguments: of the command line, those of the process unless given.
    """
    replace_what_stdout_cannot_show()
    given = list(sys.argv[1:] if arguments is None else arguments)
    raise SystemExit(_run(given or ["--help"]))


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="boa", standalone_mode=False)
        sys.stdout.flush()
    except BoaError as error:
        return _refuse(str(error))
    except _UsageError as error:  # type: ignore[misc]
        return _refuse(error.format_message())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except OSError as error:
        if error.filename is None:
            raise
        return _refuse(f"{error.filename}: {error.strerror}.")
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _refuse(sentence: str) -> int:
    print(f"boa: {with_its_stop(sentence.strip())}", file=sys.stderr)
    return USER_MISTAKE


if __name__ == "__main__":
    main()
