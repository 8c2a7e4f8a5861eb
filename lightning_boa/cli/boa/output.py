"""How the commands speak: tables and sentences for people, or one JSON document."""

from __future__ import annotations

import re
import sys
from typing import Any

import msgspec
from rich.console import Console


class _Plain(Console):
    """Prints no blanks at the ends of lines where nobody sees them."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


def console() -> Console:
    """What people read, on stdout; plain lines without blanks at their ends where it is no terminal."""
    return _Plain(highlight=False)


def say(output: Console, sentence: str) -> None:
    """A sentence, wrapped at words on a terminal and one line elsewhere."""
    output.print(sentence, soft_wrap=not output.is_terminal, markup=False, emoji=False)


def print_json(document: Any) -> None:
    """One JSON document and nothing else."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    sys.stdout.write(text + "\n")
