"""What the strategies with simpler shares take, and what they have in common with boa."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from lightning_boa.errors import OptionError
from lightning_boa.for_pytorch_lightning import BoaStrategy, LbBspStrategy, ProportionalStrategy
from lightning_boa.planning import LbBspPlanning, Orchestration, ProportionalPlanning
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.step_plans import StepPlans

COMMON = {"global_batch_size": None, "batch_weight": None, "min_batch_size": 1}
OWN = {"ProportionalStrategy": {"measured_steps": 5}, "LbBspStrategy": {"rows_moved": 1}}
CLASSES = [ProportionalStrategy, LbBspStrategy]


@pytest.mark.parametrize("module", ["for_pytorch_lightning", "for_lightning"])
@pytest.mark.parametrize("name", OWN)
def test_the_options(module: str, name: str) -> None:
    if module == "for_lightning":
        pytest.importorskip("lightning.pytorch")
    ours = importlib.import_module(f"lightning_boa.{module}")
    strategy_class = getattr(ours, name)
    *options, others = inspect.signature(strategy_class).parameters.values()
    wanted = {**OWN[name], **COMMON}
    assert {option.name: option.default for option in options} == wanted
    assert others.kind is inspect.Parameter.VAR_KEYWORD
    explained = inspect.getdoc(strategy_class) or ""
    for option in wanted:
        assert f"    {option}: " in explained
    assert issubclass(strategy_class, ours.BoaStrategy)


@pytest.mark.parametrize("strategy_class", CLASSES)
@pytest.mark.parametrize(
    "option",
    [
        "batch_sizes",
        "warmup",
        "rebalance",
        "granularity",
        "max_batch_size",
        "worker_set",
        "profile",
    ],
)
def test_what_only_boa_has_is_refused(strategy_class: Any, option: str) -> None:
    name = strategy_class.__name__
    with pytest.raises(OptionError, match=rf"^{option}: is no option of {name}\. .*min_batch_size"):
        strategy_class(**{option: None})


@pytest.mark.parametrize("strategy_class", CLASSES)
@pytest.mark.parametrize("least", [0, [4, 0]])
def test_ranks_without_rows_are_refused(strategy_class: Any, least: Any) -> None:
    with pytest.raises(OptionError, match=r"^min_batch_size: expected at least 1"):
        strategy_class(min_batch_size=least)


@pytest.mark.parametrize(
    ("strategy_class", "option"),
    [(ProportionalStrategy, "measured_steps"), (LbBspStrategy, "rows_moved")],
)
def test_the_rule_gets_its_option(strategy_class: Any, option: str) -> None:
    assert getattr(strategy_class(**{option: 3}).planning, option) == 3
    with pytest.raises(OptionError, match=f"^{option}: "):
        strategy_class(**{option: 0})
    assert BoaStrategy().planning is Orchestration


@pytest.mark.parametrize("strategy_class", CLASSES)
def test_the_network_is_left_alone_and_ddp_gets_its_options(strategy_class: Any) -> None:
    strategy = strategy_class(gradient_as_bucket_view=True, min_batch_size=2)
    assert strategy.new_network_probe() is None
    assert strategy.options.min_batch_size == 2
    assert strategy._ddp_kwargs == {"gradient_as_bucket_view": True}


def test_a_plan_that_another_rule_has_made_is_not_gone_on_with() -> None:
    facts = [strategy_class().planning_facts for strategy_class in (BoaStrategy, *CLASSES)]
    assert facts[0] == {}
    assert facts[1] != facts[2]
    boa = begun(StepPlans(BoaOptions()), facts[0])
    assert boa.orchestration is not None
    saved = boa.orchestration.keep_split("for the test").to_dict()
    for planning, made_for, is_kept in (
        (ProportionalPlanning(), facts[0], True),
        (ProportionalPlanning(), facts[1], False),
        (LbBspPlanning(), facts[2], False),
    ):
        plans = StepPlans(BoaOptions(), planning)
        plans.restore(Restart((8,), 2, 0, saved, {}, batch_sizes_of_loaders=(4,)))
        orchestration = begun(plans, made_for).orchestration
        assert orchestration is not None
        assert (orchestration.reason == "for the test") is is_kept
        assert orchestration.first_step == 3


def begun(plans: StepPlans, made_for: Any) -> StepPlans:
    plans.use(8, 2, 0)
    plans.begin(made_for, 3)
    return plans
