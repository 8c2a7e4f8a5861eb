"""Files that a user names: read, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lightning_boa.errors import OptionError

PICTURES = (".png", ".svg", ".pdf")


def read_text(path: Path, expected: str) -> str:
    """The text of a file.

    Args:
        expected: what the file should be, for messages.

    Raises:
        OptionError: no file, a folder, one that may not be read, or no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        came = "there is no such file"
    except IsADirectoryError:
        came = "it is a folder"
    except PermissionError:
        came = "it may not be read"
    except UnicodeDecodeError:
        came = "it is no text"
    except (OSError, ValueError) as error:
        came = str(error)
    raise OptionError(f"{path}: expected {expected}, but {came}.")


def read_values(path: Path, expected: str) -> tuple[str, Any]:
    """The text of a JSON or YAML file, and the plain values in it.

    Raises:
        OptionError: no file, or neither JSON nor YAML.
    """
    text = read_text(path, expected)
    kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
    try:
        values = msgspec.json.decode(text) if kind == "JSON" else msgspec.yaml.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        told = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise OptionError(
            f"{path}: expected {expected} in {kind}, got a text that is none: {told}"
        ) from error
    return text, values


def picture_path(option: str, text: str) -> Path:
    """A path at which a picture can be written.

    Raises:
        OptionError: another ending than those of pictures, or no such folder.
    """
    path = Path(text)
    if path.suffix.lower() not in PICTURES or not path.absolute().parent.is_dir() or path.is_dir():
        raise OptionError(
            f"{option}: expected a file that ends in {', '.join(PICTURES)}, in a folder that exists, got {text!r}."
        )
    return path
