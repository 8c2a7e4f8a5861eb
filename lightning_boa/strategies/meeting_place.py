"""Whether the ranks that Lightning starts on one machine can meet where MASTER_ADDR and MASTER_PORT say, asked before
any of them waits there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any, Protocol

import torch.distributed as dist

from lightning_boa.errors import OptionError

LARGEST_PORT = 65_535
PROBE_SECONDS = 2.0
_UNSET = "Unset it for a training on one machine; several need num_nodes= or torchrun."
_FREE_PORT = "Unset it, and Lightning takes a free one."


class Network(Protocol):
    """What this machine's network says; a test gives its own."""

    def knows(self, host: str) -> bool:
        """Whether the name of the host stands for an address."""

    def leads_here(self, host: str) -> bool:
        """Whether who connects to the host comes out on this machine."""

    def refusal(self, port: int) -> str:
        """Why rank 0 cannot listen there; "" where it can."""


class ThisNetwork:
    """The network of the machine that this runs on."""

    def knows(self, host: str) -> bool:
        return bool(_addresses(host))

    def leads_here(self, host: str) -> bool:
        return any(_is_mine(*each) or _comes_back(*each) for each in _addresses(host))

    def refusal(self, port: int) -> str:
        with closing(socket.socket()) as here:
            here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                here.bind(("", port))
            except OSError as error:
                return error.strerror or str(error)
        return ""


def refuse_elsewhere(strategy: Any) -> None:
    """Refuse where rank 0 would wait for ever, or listen in vain: ranks that Lightning starts on this machine alone.

    Raises:
        OptionError: the variable, what was expected of it and what it says.
    """
    launched = getattr(strategy, "cluster_environment", None)
    if launched is None or launched.creates_processes_externally or dist.is_initialized():
        return
    if strategy.num_nodes == 1 and strategy.global_rank == 0:
        mistake = meeting_mistake(os.environ, ThisNetwork())
        if mistake:
            raise OptionError(mistake)


def meeting_mistake(environment: Mapping[str, str], network: Network) -> str:
    """What keeps ranks on this machine from meeting where the environment says; "" where nothing does."""
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    expected = "MASTER_ADDR: expected an address of this machine, where rank 0 is, got"
    if host is not None and not network.knows(host):
        return f"{expected} {host!r}, which stands for no address. {_UNSET}"
    if host is not None and not network.leads_here(host):
        return f"{expected} {host!r}, which is none. {_UNSET}"
    if port is None:
        return ""
    if not port.isdecimal() or not 0 < int(port) <= LARGEST_PORT:
        return f"MASTER_PORT: expected a whole number from 1 to {LARGEST_PORT}, got {port!r}. {_FREE_PORT}"
    refusal = network.refusal(int(port))
    if refusal:
        return f"MASTER_PORT: expected a port on which rank 0 can listen, got {port} ({refusal}). {_FREE_PORT}"
    return ""


def _addresses(host: str) -> list[tuple[int, Any]]:
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM) if host else []
        return [(int(family), address) for family, _, _, _, address in found]
    return []


def _is_mine(family: int, address: Any) -> bool:
    with suppress(OSError), closing(socket.socket(family, socket.SOCK_STREAM)) as here:
        here.bind(address)
        return True
    return False


def _comes_back(family: int, address: Any) -> bool:
    """Whether a router sends a connection to that address back to this machine."""
    with suppress(OSError), closing(socket.socket(family, socket.SOCK_STREAM)) as here:
        here.bind(("", 0))
        here.listen()
        back = (address[0], here.getsockname()[1], *address[2:])
        with closing(socket.socket(family, socket.SOCK_STREAM)) as there:
            there.settimeout(PROBE_SECONDS)
            there.connect(back)
            here.settimeout(PROBE_SECONDS)
            caller, _ = here.accept()
            caller.close()
            return True
    return False
