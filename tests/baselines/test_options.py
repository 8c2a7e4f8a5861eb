"""Options of the strategies with a parameter server."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_boa import AsynchronousStrategy, BackupWorkersStrategy, ParameterServerStrategy
from lightning_boa.errors import OptionError


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_numbers_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"backups: expected a whole number of at least 0, got"):
        BackupWorkersStrategy(backups=value)
    with pytest.raises(OptionError, match=r"staleness: expected a whole number of at least 0, got"):
        AsynchronousStrategy(staleness=value)


@pytest.mark.parametrize(
    "options", [{"find_unused_parameters": True}, {"ddp_comm_hook": print}, {"backup": 1}]
)
def test_options_of_ddp_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(options))}: expected options of a strategy"):
        ParameterServerStrategy(**options)


def test_what_ddp_does_by_itself_may_be_said() -> None:
    strategy = BackupWorkersStrategy(find_unused_parameters=False, static_graph=False, dim=0)
    assert strategy.backups == 1


def test_without_options_one_gradient_is_not_waited_for_and_staleness_is_unbounded() -> None:
    assert BackupWorkersStrategy().backups == 1
    assert AsynchronousStrategy().staleness is None
