"""The command `boa` and its parts; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import sys

import typer

from lightning_boa.cli.boa.doctor import doctor
from lightning_boa.cli.boa.plan import plan
from lightning_boa.cli.boa.report import report
from lightning_boa.cli.boa.simulate import simulate
from lightning_boa.errors import BoaError

USER_MISTAKE = 2

app = typer.Typer(
    name="boa",
    help="Training on mixed GPUs: plan before buying, compare systems, see why a run was as fast as it was.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (plan, simulate, report, doctor):
    app.command()(command)


def main() -> None:
    """The command's entry point."""
    try:
        app()
    except BoaError as error:
        print(f"boa: {error}", file=sys.stderr)
        raise SystemExit(USER_MISTAKE) from None
