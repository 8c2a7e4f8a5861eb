from __future__ import annotations

import pytest

from lightning_boa.strategies.standings import SILENCE_SECONDS, Standing, explanation

HERE = Standing("after step 120", "waiting")


@pytest.mark.parametrize(
    ("blamed", "said"),
    [
        (
            Standing("after step 117", "ended"),
            "rank 2 ended without a word (killed?), last heard of up to a second earlier, after step 117;"
            " ranks 0, 1 were last heard of after step 120",
        ),
        (
            Standing("after step 120", "failed", "ValueError: a bad row"),
            "rank 2 failed after step 120: ValueError: a bad row; ranks 0, 1 were last heard of after step 120",
        ),
        (
            Standing("after step 117", silent=SILENCE_SECONDS),
            "rank 2 has not been heard of for 10 s, last after step 117; ranks 0, 1 were last heard of after step 120",
        ),
        (
            Standing("after step 119", silent=SILENCE_SECONDS - 1),
            "rank 2 is there but did not come along, after step 119; ranks 0, 1 were last heard of after step 120",
        ),
        (
            Standing("after step 120", "done"),
            "rank 2 has left in order, after step 120; ranks 0, 1 were last heard of after step 120",
        ),
    ],
    ids=["ended", "failed", "silent", "absent", "done"],
)
def test_the_rank_that_keeps_the_others_from_going_on_is_named(blamed: Standing, said: str) -> None:
    assert explanation({0: HERE, 1: HERE, 2: blamed}) == said


def test_an_error_of_its_own_is_the_cause_of_what_others_lack() -> None:
    failed = Standing("after step 3", "failed", "KeyError: 'x'")
    ended = Standing("after step 3", "ended")
    said = explanation({0: HERE, 1: failed, 2: ended})
    assert said == (
        "rank 1 failed after step 3: KeyError: 'x'; rank 0 was last heard of after step 120;"
        " rank 2 was last heard of after step 3"
    )


def test_all_who_are_gone_are_named() -> None:
    ended = Standing("after step 3", "ended")
    said = explanation({0: ended, 1: HERE, 2: ended})
    assert said.startswith("rank 0 ended without a word")
    assert "; rank 2 ended without a word" in said


@pytest.mark.parametrize("standings", [{}, {0: HERE}, {0: HERE, 1: HERE}])
def test_nothing_is_said_where_nothing_is_known(standings: dict[int, Standing]) -> None:
    assert explanation(standings) == ""
