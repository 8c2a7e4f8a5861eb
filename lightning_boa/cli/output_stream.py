"""Words on stdout, whatever its encoding."""

from __future__ import annotations

import io
import sys


def replace_what_stdout_cannot_show() -> None:
    """A character that the encoding of stdout lacks becomes a question mark, and ends no command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
