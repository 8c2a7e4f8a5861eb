"""How the commands speak: tables and sentences for people, or one JSON document."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console


def console() -> Console:
    """What people read, on stdout."""
    return Console(highlight=False)


def say(output: Console, sentence: str) -> None:
    """A sentence, wrapped at words on a terminal and one line elsewhere."""
    output.print(sentence, soft_wrap=not output.is_terminal, markup=False, emoji=False)


def print_json(document: Any) -> None:
    """One JSON document and nothing else."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    sys.stdout.write(text + "\n")
