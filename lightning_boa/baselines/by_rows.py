"""Systems that share rows by a simpler rule than boa's; whatever else they do is boa's, so that shares alone differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from lightning_boa.errors import OptionError
from lightning_boa.planning import LbBspPlanning, ProportionalPlanning, ShareRule
from lightning_boa.strategies import BoaBehaviour
from lightning_boa.strategies.options import BatchWeight, check_known, whole_numbers

OPTIONS = ("global_batch_size", "batch_weight", "min_batch_size")


class ByRowsBehaviour(BoaBehaviour):
    """`BoaBehaviour` with shares by a rule.

    Args:
        rule: makes the plans.
        option: the option of the rule.
    """

    def __init__(
        self,
        rule: ShareRule,
        option: str,
        *,
        global_batch_size: int | None,
        batch_weight: BatchWeight | None,
        min_batch_size: int | Sequence[int],
        **ddp_kwargs: Any,
    ) -> None:
        check_known(
            ddp_kwargs,
            super(BoaBehaviour, self).__init__,
            name_of_ours=type(self).__name__,
            ours=(option, *OPTIONS),
        )
        least = whole_numbers(min_batch_size)
        if 0 in (least if isinstance(least, tuple) else (least,)):
            raise OptionError(
                f"min_batch_size: expected at least 1, got {min_batch_size!r}, since a rank is measured by its rows."
            )
        self.planning = self._rule = rule
        super().__init__(
            global_batch_size=global_batch_size,
            batch_weight=batch_weight,
            min_batch_size=min_batch_size,
            rebalance="off",
            worker_set="all",
            verbose=False,
            **ddp_kwargs,
        )

    @property
    @override
    def planning_facts(self) -> dict[str, Any]:
        return {"shares": self._rule.name}


class ProportionalBehaviour(ByRowsBehaviour):
    """Shares in proportion to each rank's rows per second, measured once under the equal split.

    After a first step that settles, the median of the next `measured_steps` steps counts; then nothing is measured any
    more. Where steps have fixed costs this is not the fastest split, and it stays when a device becomes slower. Weights
    are exactly those of `BoaStrategy`. What a device's memory holds is not looked at.

    Args:
        measured_steps: steps that are measured.
        global_batch_size: as for `BoaStrategy`.
        batch_weight: as for `BoaStrategy`.
        min_batch_size: fewest rows of a rank, a number or one per rank, at least 1.
        **ddp_kwargs: what Lightning's DDPStrategy takes.

    Raises:
        OptionError: an option of the wrong kind or range.
    """

    def __init__(
        self,
        *,
        measured_steps: int = 5,
        global_batch_size: int | None = None,
        batch_weight: BatchWeight | None = None,
        min_batch_size: int | Sequence[int] = 1,
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            ProportionalPlanning(measured_steps),
            "measured_steps",
            global_batch_size=global_batch_size,
            batch_weight=batch_weight,
            min_batch_size=min_batch_size,
            **ddp_kwargs,
        )


class LbBspBehaviour(ByRowsBehaviour):
    """After every step `rows_moved` rows go from the slowest rank to the fastest one.

    This is the adjustment by straggler and leader that LB-BSP makes for GPUs (Chen, Weng, Wang, Li and Li,
    "Semi-Dynamic Load Balancing", SoCC 2020), and nothing else of that system: it goes by the seconds that each rank
    has computed in the last step, predicts no speeds and has no parameter server. It begins with the equal split; a
    rank keeps `min_batch_size` rows, and nothing moves where all have taken the same time. All ranks exchange their
    seconds after every step, and wait for their devices to have them. Where a loader reads ahead, the next move comes
    once the last one has been measured. Weights are exactly those of `BoaStrategy`. What a device's memory holds is not
    looked at.

    Args:
        rows_moved: rows that go to the fastest rank at once.
        global_batch_size: as for `BoaStrategy`.
        batch_weight: as for `BoaStrategy`.
        min_batch_size: fewest rows of a rank, a number or one per rank, at least 1.
        **ddp_kwargs: what Lightning's DDPStrategy takes.

    Raises:
        OptionError: an option of the wrong kind or range.
    """

    def __init__(
        self,
        *,
        rows_moved: int = 1,
        global_batch_size: int | None = None,
        batch_weight: BatchWeight | None = None,
        min_batch_size: int | Sequence[int] = 1,
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            LbBspPlanning(rows_moved),
            "rows_moved",
            global_batch_size=global_batch_size,
            batch_weight=batch_weight,
            min_batch_size=min_batch_size,
            **ddp_kwargs,
        )
