"""Ranks that cannot meet are refused before one of them waits."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy

from lightning_boa.errors import OptionError
from lightning_boa.for_pytorch_lightning import BoaStrategy, ParameterServerStrategy
from lightning_boa.strategies.meeting_place import ThisNetwork, meeting_mistake

OF_NOBODY = "192.0.2.1"  # kept for documents: no machine has it


@dataclass(frozen=True)
class NetworkOfATest:
    """Knows here and there; this machine is here, and a program listens on 4242."""

    def knows(self, host: str) -> bool:
        return host in ("here", "there")

    def leads_here(self, host: str) -> bool:
        return host == "here"

    def refusal(self, port: int) -> str:
        return "Address already in use" if port == 4242 else ""


@pytest.mark.parametrize(
    ("address", "port", "expected"),
    [
        (None, None, ""),
        ("here", "29500", ""),
        ("there", None, "MASTER_ADDR: expected an address of this machine.*got 'there', which is "),
        ("nowhere", "x", "MASTER_ADDR: .*got 'nowhere', which stands for no address"),
        ("", None, "MASTER_ADDR: .*got '', which stands for no address"),
        ("here", "abc", "MASTER_PORT: expected a whole number from 1 to 65535, got 'abc'"),
        (None, "0", "MASTER_PORT: .*got '0'"),
        (None, "65536", "MASTER_PORT: .*got '65536'"),
        (None, "4242", r"MASTER_PORT: .* can listen, got 4242 \(Address already in use\)"),
    ],
)
def test_where_ranks_cannot_meet(address: str | None, port: str | None, expected: str) -> None:
    given = {"MASTER_ADDR": address, "MASTER_PORT": port}
    environment = {name: value for name, value in given.items() if value is not None}
    mistake = meeting_mistake(environment, NetworkOfATest())
    if not expected:
        assert mistake == ""
    else:
        with pytest.raises(OptionError, match=expected):
            raise OptionError(mistake)


def test_this_machine_knows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    network = ThisNetwork()
    monkeypatch.setattr("lightning_boa.strategies.meeting_place.PROBE_SECONDS", 0.05)
    assert network.knows("localhost")
    assert not network.knows("")
    assert network.leads_here("127.0.0.1")
    assert not network.leads_here(OF_NOBODY)
    with closing(socket.create_server(("", 0))) as other:
        port = other.getsockname()[1]
        assert "in use" in network.refusal(port)
    assert network.refusal(port) == ""


@pytest.mark.parametrize(
    "new", [BoaStrategy, partial(BoaStrategy, start_method="fork"), ParameterServerStrategy]
)
def test_a_trainer_refuses_before_it_starts_ranks(
    new: Callable[[], DDPStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_boa.strategies.meeting_place.PROBE_SECONDS", 0.05)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("MASTER_ADDR", OF_NOBODY)
    on_two = partial(Trainer, devices=2, accelerator="cpu", logger=False)
    with pytest.raises(OptionError, match="MASTER_ADDR: expected an address of this machine"):
        on_two(strategy=new())
    on_two(strategy=new(), num_nodes=2)
    monkeypatch.setenv("LOCAL_RANK", "0")
    on_two(strategy=new())
