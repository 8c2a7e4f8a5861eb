"""Messages to a parameter server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from lightning_boa.baselines import links


def test_no_send_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[timedelta] = []

    class Sending:
        def wait(self, timeout: timedelta) -> None:
            waited.append(timeout)

    def isend(tensor: torch.Tensor, dst: int, group: Any, tag: int) -> Sending:
        assert (dst, group, tag) == (2, "group", 7)
        return Sending()

    monkeypatch.setattr(links.dist, "isend", isend)
    links.send(torch.zeros(3), 2, "group", 7)
    links.send(torch.zeros(10_000_000), 2, "group", 7)
    assert waited[0] < timedelta(seconds=30)
    assert waited[1] == waited[0] + timedelta(seconds=(4e7 - 12) / 1e6)
