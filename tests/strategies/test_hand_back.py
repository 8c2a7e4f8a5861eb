from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_boa.planning import NetworkFindings, Schedule, equal_split
from lightning_boa.strategies import HandsBackResults
from lightning_boa.strategies.hand_back import KEPT


class Launcher:
    """What Lightning's launcher carries of its own; knows nothing of boa."""

    def _wrapping_function(self, rank: int, raises: BaseException) -> None:
        raise raises

    def get_extra_results(self, trainer: Any) -> dict[str, Any]:
        return {"callback_metrics_bytes": trainer.metrics}

    def update_main_process_results(self, trainer: Any, extra: dict[str, Any]) -> None:
        assert set(extra) == {"callback_metrics_bytes"}
        trainer.metrics = extra["callback_metrics_bytes"]


class OurLauncher(HandsBackResults, Launcher):
    pass


def trainer(**strategy: Any) -> Any:
    kept = dict.fromkeys(KEPT) | {"device_names": ()}
    return SimpleNamespace(
        metrics=b"", strategy=SimpleNamespace(**{**kept, "clock": object(), **strategy})
    )


def test_what_rank_0_knows_reaches_the_main_process() -> None:
    schedule = Schedule.starting_with(equal_split(2, 8))
    network = NetworkFindings(1.0, 0.5, 1.5)
    on_rank_0 = trainer(device_names=("fast", "slow"), fixed_schedule=schedule, network=network)
    on_rank_0.metrics = b"loss"
    in_main = trainer()
    own_clock = in_main.strategy.clock

    extra = pickle.loads(pickle.dumps(OurLauncher().get_extra_results(on_rank_0)))
    OurLauncher().update_main_process_results(in_main, extra)

    assert in_main.strategy.device_names == ("fast", "slow")
    assert in_main.strategy.fixed_schedule == schedule
    assert in_main.strategy.network == network
    assert in_main.strategy.orchestration is None
    assert in_main.strategy.clock is own_clock
    assert in_main.metrics == b"loss"


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (SystemExit(), SystemExit(143)),
        (SystemExit(3), SystemExit(3)),
        (ValueError("bad row"), ValueError("bad row")),
    ],
)
def test_the_main_process_learns_that_a_rank_has_ended(
    raised: BaseException, seen: BaseException
) -> None:
    told: list[BaseException] = []
    launcher: Any = OurLauncher()
    launcher._strategy = SimpleNamespace(on_exception=told.append)
    with pytest.raises(type(seen)) as caught:
        launcher._wrapping_function(1, raised)
    assert caught.value.args == seen.args
    assert told == [raised]


def test_what_is_handed_back_exists_on_the_strategy() -> None:
    from lightning_boa.for_pytorch_lightning import BoaStrategy

    strategy = BoaStrategy()
    assert [name for name in KEPT if not hasattr(strategy, name)] == []


def test_a_strategy_travels_to_ranks_that_are_spawned() -> None:
    from lightning_boa.for_pytorch_lightning import BoaStrategy

    travelled = pickle.loads(pickle.dumps(BoaStrategy(batch_sizes=[3, 1])))
    assert travelled.options.batch_sizes == (3, 1)
