"""Synchronous training through a server that takes all gradients of a step, or the first of them."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lightning_boa.baselines.rules import FirstGradients, Rule
from lightning_boa.baselines.through_server import ThroughServerBehaviour
from lightning_boa.errors import OptionError
from lightning_boa.strategies.options import check_whole


class ParameterServerBehaviour(ThroughServerBehaviour):
    """Synchronous SGD through a server on rank 0: it waits for the gradients of all ranks and answers their mean.

    A baseline to compare with. One step equals that of "ddp": the same batches, the same mean.

    Args:
        **ddp_kwargs: what Lightning's DDPStrategy takes, but for the options of DistributedDataParallel.
    """

    @override
    def make_rule(self, workers: int) -> Rule:
        return FirstGradients(workers)

    @override
    def weight(self, rows: int) -> float:
        return 1 / self.world_size


class BackupWorkersBehaviour(ThroughServerBehaviour):
    """Each step takes the first gradients that arrive, all but ``backups`` of them, and drops the late ones.

    A baseline to compare with (Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD",
    2016). Batches are those of "ddp"; the update is the mean of the gradients that entered. A rank that comes late goes
    on from the newest weights, and does not compute the steps between.

    Args:
        backups: how many gradients a step does not wait for.
        **ddp_kwargs: what Lightning's DDPStrategy takes, but for the options of DistributedDataParallel.

    Raises:
        OptionError: a negative number; before the training, as many as there are ranks.
    """

    def __init__(self, *, backups: int = 1, **ddp_kwargs: Any) -> None:
        check_whole("backups", backups, least=0)
        self.backups = backups
        super().__init__(**ddp_kwargs)

    @property
    @override
    def facts(self) -> dict[str, Any]:
        return {"backups": self.backups}

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        self._check_for(self.world_size)

    def check_before_ranks(self, ranks: int, batch_size: int) -> None:
        """Refuse, before any rank is started, what ranks would refuse.

        Raises:
            OptionError: no gradient would enter.
        """
        self._check_for(ranks)

    def _check_for(self, ranks: int) -> None:
        if self.backups >= ranks:
            raise OptionError(
                f"backups: expected fewer than the {ranks} ranks, got {self.backups}, so that no"
                " gradient would enter."
            )

    @override
    def make_rule(self, workers: int) -> Rule:
        return FirstGradients(workers - self.backups)

    @override
    def weight(self, rows: int) -> float:
        return 1 / (self.world_size - self.backups)
