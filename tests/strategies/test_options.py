"""Every option checks itself and is named at the beginning of the message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from lightning_boa.errors import OptionError, PlanError
from lightning_boa.for_pytorch_lightning import BoaStrategy
from lightning_boa.strategies.options import BoaOptions

REFUSED: list[tuple[str, Any]] = [
    ("global_batch_size", 0),
    ("global_batch_size", -8),
    ("global_batch_size", 8.0),
    ("global_batch_size", "8"),
    ("global_batch_size", True),
    ("global_batch_size", [8]),
    ("granularity", 0),
    ("granularity", None),
    ("granularity", 1.5),
    ("granularity", False),
    ("warmup", -1),
    ("warmup", 0),
    ("warmup", 2.0),
    ("warmup", "off"),
    ("warmup", None),
    ("warmup", True),
    ("batch_weight", "mean"),
    ("batch_weight", 1.0),
    ("batch_weight", ["sum"]),
    ("batch_sizes", [4, -1]),
    ("batch_sizes", [4, 2.5]),
    ("batch_sizes", [4, None]),
    ("batch_sizes", [4, True]),
    ("batch_sizes", "44"),
    ("min_batch_size", -1),
    ("min_batch_size", True),
    ("min_batch_size", [1, -1]),
    ("min_batch_size", "1"),
    ("max_batch_size", -1),
    ("max_batch_size", [8, 0.5]),
    ("max_batch_size", "8"),
    ("worker_set", "some"),
    ("worker_set", None),
    ("worker_set", ["all"]),
    ("profile", 3),
    ("profile", ""),
    ("profile", b"p.json"),
    ("profile", ["p.json"]),
    ("verbose", "perhaps"),
    ("verbose", 1),
    ("verbose", None),
    ("record", 3),
    ("record", ""),
    ("record", False),
]
REFUSED_BY_PYTHON: list[tuple[str, Any]] = [
    ("batch_sizes", 5),
    ("min_batch_size", 2.5),
    ("max_batch_size", 2.5),
    ("max_batch_size", np.int64(4)),
]
TAKEN_FOR_ZERO: list[tuple[str, Any]] = [
    ("min_batch_size", None),
    ("min_batch_size", []),
    ("min_batch_size", False),
]


def refused(name: str, value: Any) -> str:
    with pytest.raises(OptionError, match=f"^{name}: ") as caught:
        BoaStrategy(**{name: value})
    return str(caught.value)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_bad_value_is_refused_under_its_name(name: str, value: Any) -> None:
    refused(name, value)


@pytest.mark.parametrize(("name", "value"), REFUSED_BY_PYTHON)
def test_a_value_of_another_kind_is_refused_under_its_name(name: str, value: Any) -> None:
    if isinstance(value, np.integer):
        assert BoaStrategy(**{name: value}).options.max_batch_size == int(value)
    else:
        refused(name, value)


@pytest.mark.parametrize(("name", "value"), TAKEN_FOR_ZERO)
def test_nothing_does_not_permit_ranks_without_rows(name: str, value: Any) -> None:
    refused(name, value)


def test_the_message_says_what_came_and_what_is_valid() -> None:
    assert "'samples', 'sum', 'none', or a function batch -> float, got 'mean'" in refused(
        "batch_weight", "mean"
    )
    assert 'expected "auto" or a whole number of at least 1, got 2.0' in refused("warmup", 2.0)
    assert "of at least 1, got 0" in refused("granularity", 0)
    assert "batch_sizes=[" in refused("warmup", 0)


def test_a_profile_beside_a_fixed_plan_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^profile: .*batch_sizes"):
        BoaStrategy(batch_sizes=[4, 4], profile="p.json")


def test_a_profile_may_be_any_path_and_lie_elsewhere_on_each_rank() -> None:
    options = BoaStrategy(profile=Path("here", "p.json")).options
    assert options.profile == os.path.join("here", "p.json")
    assert options.facts == BoaStrategy(profile="there.json").options.facts
    assert options.facts != BoaStrategy().options.facts


def test_without_a_warm_up_the_loop_has_one_in_reserve() -> None:
    assert BoaOptions(warmup=0, profile="p.json").settings(2, 8).warmup == "auto"


def test_a_limit_beside_a_fixed_plan_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^max_batch_size: .*batch_sizes"):
        BoaStrategy(batch_sizes=[4, 4], max_batch_size=8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"global_batch_size": 1},
        {"warmup": 0, "batch_sizes": [3, 5]},
        {"warmup": 12},
        {"warmup": 0, "profile": "p.json"},
        {"batch_sizes": [8, 0]},
        {"min_batch_size": 0},
        {"min_batch_size": [0, 1], "max_batch_size": [8, 9]},
        {"max_batch_size": 7},
        {"batch_weight": "sum"},
        {"batch_weight": "none"},
        {"batch_weight": len},
        {"batch_weight": None},
        {"granularity": 8},
        {"worker_set": "all"},
        {"worker_set": "auto"},
        {"worker_set": "all", "batch_sizes": [3, 5]},
    ],
)
def test_good_values_are_kept(options: dict[str, Any]) -> None:
    kept = BoaStrategy(**options).options
    for name, value in options.items():
        assert getattr(kept, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("name", ["batch_sizes", "min_batch_size", "max_batch_size"])
def test_lists_of_omegaconf_become_plain_tuples(name: str) -> None:
    config = OmegaConf.create({"rows": [3, 5]})
    kept = getattr(BoaStrategy(**{name: config.rows}).options, name)

    assert kept == (3, 5)
    assert type(kept) is tuple
    assert {type(rows) for rows in kept} == {int}


def test_equal_options_look_equal_to_other_ranks() -> None:
    """Ranks compare them by repr; how a list was written makes no difference."""
    config = OmegaConf.create({"rows": [3, 5]})

    assert repr(BoaStrategy(batch_sizes=config.rows).options) == repr(
        BoaStrategy(batch_sizes=(3, 5)).options
    )


def test_a_fixed_plan_is_made_for_the_ranks() -> None:
    options = BoaOptions(batch_sizes=(3, 5))
    plan = options.plan(2, 8)

    assert plan is not None
    assert plan.batch_sizes == (3, 5)
    assert BoaOptions().plan(2, 8) is None


@pytest.mark.parametrize("rows", [(3, 4), (8,), (3, 4, 1), ()])
def test_a_fixed_plan_that_does_not_fit_is_refused(rows: tuple[int, ...]) -> None:
    with pytest.raises((PlanError, OptionError)):
        BoaOptions(batch_sizes=rows).plan(2, 8)


def test_settings_hold_a_bound_for_each_rank() -> None:
    options = BoaOptions(min_batch_size=(1, 2), max_batch_size=6, granularity=2, warmup=9)
    settings = options.settings(2, 8)

    assert (settings.lower, settings.upper) == ((1, 2), (6, 6))
    assert (settings.granularity, settings.warmup) == (2, 9)
    assert (settings.world_size, settings.global_batch_size) == (2, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 3},
        {"min_batch_size": 5},
        {"max_batch_size": ()},
        {"min_batch_size": (1, 1, 1)},
    ],
)
def test_bounds_that_hold_no_plan_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((PlanError, OptionError)):
        BoaOptions(**options).settings(2, 8)


def test_layers_that_refuse_a_single_row_raise_the_least_share() -> None:
    options = BoaStrategy(max_batch_size=[9, 1, 9]).options
    assert options.settings(3, 12).lower == (1, 1, 1)
    assert options.settings(3, 12, refuses_single_rows=True).lower == (2, 1, 2)
    assert BoaStrategy().options.settings(3, 5, refuses_single_rows=True).lower == (1, 1, 1)
    permits_none = BoaStrategy(min_batch_size=0).options
    assert permits_none.settings(3, 12, refuses_single_rows=True).lower == (2, 0, 0)


def test_a_rank_may_have_no_limit() -> None:
    assert BoaStrategy(max_batch_size=[None, 5]).options.settings(2, 12).upper == (12, 5)


@pytest.mark.parametrize("name", ["process_group", "model_averaging_period"])
def test_what_breaks_the_weights_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: "):
        BoaStrategy(**{name: 3})


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^rebalanced: .*gradient_as_bucket_view"):
        BoaStrategy(rebalanced="auto")
    with pytest.raises(OptionError, match=r"^batch_sizes: .*rank 0"):
        BoaStrategy(batch_sizes=[0, 4]).options.plan(2, 4)
