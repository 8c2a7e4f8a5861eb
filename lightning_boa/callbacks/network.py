"""What communication costs is found out once a plan has been confirmed, and said where it matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_boa.emulation import EmulatedClusterBehaviour, bytes_of
from lightning_boa.planning import (
    NetworkFindings,
    Orchestration,
    network_findings,
    probe_groups,
    shared_links,
)
from lightning_boa.profiling import NetworkProbe, StepClock, decide_once

RELAUNCH = "boa-relaunch.ckpt"
PARKING = 'worker_set="auto" leaves such ranks out while it trains, unless training_step communicates over ranks'


class HasNetwork(Protocol):
    """What is needed of a strategy."""

    orchestration: Orchestration | None
    clock: StepClock
    network: NetworkFindings | None

    @property
    def root_device(self) -> torch.device: ...

    @property
    def reduces_apart(self) -> bool: ...

    @property
    def saves_for_relaunch(self) -> bool: ...

    def new_network_probe(self) -> NetworkProbe | None: ...


def look_at_network(trainer: Any, strategy: HasNetwork) -> None:
    """Find out what communication costs if the plan has just been confirmed; all ranks call it, and stand still.

    The measured steps show it for nothing, and whether a rank costs more than it brings. Where communication is a
    considerable part of a step the network is probed: rank 0 decides, so that all ranks take part in the same
    collectives. Steps whose gradients were reduced apart from their backward show nothing of the sort.
    """
    orchestration = strategy.orchestration
    if orchestration is None or orchestration.exchange_after is not None:
        return
    if trainer.world_size == 1 or strategy.reduces_apart:
        return
    window = trainer.accumulate_grad_batches
    device = strategy.root_device
    probe = strategy.new_network_probe()
    found = decide_once(lambda: _found(orchestration, window, judges=probe is not None), device)
    if found is not None and found.is_considerable and probe is not None:
        for callback in trainer.callbacks:
            if isinstance(callback, EmulatedClusterBehaviour):
                probe.emulate(callback.exchange)
        if probe.has_room():
            trained = (each for each in trainer.lightning_module.parameters() if each.requires_grad)
            found = _probed(found, orchestration, probe, bytes_of(trained), window, device)
            strategy.clock.interrupt()
    strategy.network = found
    if found is None:
        return
    _say(found, parks=strategy.saves_for_relaunch)
    if found.relaunch and strategy.saves_for_relaunch:
        path = Path(trainer.default_root_dir) / RELAUNCH
        trainer.save_checkpoint(path)
        rank_zero_info(f"boa: saved {path} for it (ckpt_path); this training goes on.")


def _found(orchestration: Orchestration, window: int, *, judges: bool) -> NetworkFindings | None:
    found = network_findings(orchestration, window)
    if found is None or found.is_considerable or not judges:
        return found
    return found.judged(orchestration)


def _probed(
    found: NetworkFindings,
    orchestration: Orchestration,
    probe: NetworkProbe,
    gradient_bytes: int,
    window: int,
    device: torch.device,
) -> NetworkFindings:
    hosts = probe.hosts()
    groups = probe_groups(shared_links(hosts))
    expected = found.communication_seconds * window
    seconds = probe.seconds(groups, gradient_bytes, expected)
    by_group = {group: each / window for group, each in zip(groups, seconds, strict=True)}
    found = decide_once(lambda: found.probed(orchestration, hosts, by_group), device)
    if found.group_to_confirm is None:
        return found
    (confirming,) = probe.seconds([found.group_to_confirm], gradient_bytes, expected)
    return decide_once(lambda: found.confirmed(orchestration, confirming / window), device)


def _say(found: NetworkFindings, *, parks: bool) -> None:
    said = [found.summary] if found.network_bound else []
    said += [found.advice] if found.advice else []
    said += [PARKING] if found.advice and found.communication is None and not parks else []
    said += [found.relaunch] if found.advice else []
    if said:
        rank_zero_info(f"boa: {'; '.join(said)}.")
