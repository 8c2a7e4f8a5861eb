from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lightning_boa.cli.boa.app import main


@dataclass(frozen=True)
class Answer:
    """What a call of the command `boa` ended with and printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Boa = Callable[..., Answer]


@pytest.fixture
def boa(capsys: pytest.CaptureFixture[str]) -> Boa:
    """Calls the command in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(each) for each in arguments])
        printed = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Answer(end.value.code, printed.out, printed.err)

    return run
