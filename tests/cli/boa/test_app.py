from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from io import BytesIO, TextIOWrapper

import pytest

from lightning_boa.cli.boa import plan
from lightning_boa.cli.boa.app import main

from .conftest import Boa

LIGHT = """
import sys
from lightning_boa.cli.boa.app import main
try:
    main(["simulate", "thesis_8gpu", "--steps", "9", "--json"])
finally:
    heavy = {"torch", "pytorch_lightning", "lightning", "hydra", "matplotlib"} & set(sys.modules)
    if heavy:
        print("imported", heavy, file=sys.stderr)
"""


def test_without_arguments_it_says_what_there_is(boa: Boa) -> None:
    answer = boa()
    assert (answer.code, answer.err) == (0, "")
    for command in ("plan", "simulate", "report", "doctor"):
        assert command in answer.out


def test_its_version_is_that_of_the_package(boa: Boa) -> None:
    assert boa("--version").out == f"lightning-boa {version('lightning-boa')}\n"


def test_control_c_ends_it_without_a_word(boa: Boa, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "source_of", interrupted)
    answer = boa("plan", "thesis_8gpu")
    assert (answer.code, answer.err.strip()) == (130, "")


def test_a_file_that_cannot_be_written_is_named(boa: Boa, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "plan.png")

    monkeypatch.setattr(plan, "_draw", refused)
    answer = boa("plan", "thesis_8gpu", "--picture", "plan.png")
    assert (answer.code, answer.err) == (2, "boa: plan.png: Permission denied.\n")


def test_other_errors_are_not_hidden(boa: Boa, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(plan, "source_of", wrong)
    with pytest.raises(RuntimeError, match="a bug"):
        boa("plan", "thesis_8gpu")


def test_an_output_that_lacks_a_character_ends_no_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ascii_only = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    with pytest.raises(SystemExit) as end:
        main(["plan", "--device", "Gerät=1ms", "-b", "8"])
    assert end.value.code == 0
    ascii_only.flush()
    assert b"Ger?t" in ascii_only.buffer.getvalue()  # type: ignore[attr-defined]


def test_it_needs_nothing_heavy_and_a_closed_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
