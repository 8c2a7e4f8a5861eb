"""Files that are seen whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> None:
    """Write a file such that whoever reads it sees the old or the new text, never a part.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
