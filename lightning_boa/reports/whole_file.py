"""Files that are seen whole or not at all, and the folders they lie in."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> None:
    """Write a file such that whoever reads it sees the old or the new text, never a part; its folder is made.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def why_not_written(folder: Path) -> str | None:
    """Why no file can be written in a folder, which may have to be made, in a few words; None where one can."""
    place = folder.absolute()
    existing = next(each for each in (place, *place.parents) if os.path.exists(each))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"{existing}: {error.strerror}"
