from __future__ import annotations

import math

import pytest

from lightning_boa.cli.options import number, one_of, whole_number
from lightning_boa.errors import OptionError


@pytest.mark.parametrize("value", [0, 1.5, True, "3", None])
def test_a_whole_number_is_expected(value: object) -> None:
    with pytest.raises(
        OptionError, match=r"^data\.batch_size: expected a whole number of at least 1, got"
    ):
        whole_number("data.batch_size", value, least=1)


@pytest.mark.parametrize("value", [0, 1, -0.1, math.nan, math.inf, "0.2", True, None])
def test_a_number_within_limits_is_expected(value: object) -> None:
    with pytest.raises(
        OptionError, match=r"^data\.test_share: expected a number above 0 and below 1, got"
    ):
        number("data.test_share", value, above=0, below=1)


def test_good_values_come_back() -> None:
    assert whole_number("a", 3, least=1) == 3
    assert number("a", 0, least=0) == 0.0
    assert one_of("a", "fork", ("fork", "spawn")) == "fork"


def test_the_valid_names_are_listed() -> None:
    with pytest.raises(OptionError, match="expected one of fork, spawn, got 'thread'"):
        one_of("cluster.start_method", "thread", ("fork", "spawn"))
