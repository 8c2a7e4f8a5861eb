"""Tables and sentences as the text that a terminal or a log file shows."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, RenderableType

WIDTH_OF_A_LOG = 100


def as_text(*parts: RenderableType, file: TextIO | None = None) -> str:
    """The parts below each other, without a line's end behind the last.

    Plain text, 100 columns wide, unless what is written to ``file`` (the standard output unless given) is seen in a
    terminal: then in its width, with its colours. Sentences are not broken. What its encoding lacks is a question mark.
    """
    console = Console(file=file, force_jupyter=False)
    if not console.is_terminal:
        console = Console(
            file=file,
            width=WIDTH_OF_A_LOG,
            force_terminal=False,
            force_jupyter=False,
            color_system=None,
        )
    with console.capture() as captured:
        for part in parts:
            console.print(part, highlight=False, soft_wrap=isinstance(part, str))
    text = captured.get().encode(console.encoding, "replace").decode(console.encoding)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
