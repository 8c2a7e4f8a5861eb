from __future__ import annotations

from lightning_boa.callbacks.in_training import outcome_of


def test_an_error_of_this_rank_is_its_own_words() -> None:
    assert outcome_of(ValueError("a bad\n row")) == "ValueError: a bad row"


def test_where_another_rank_failed_it_is_that_one() -> None:
    of_gloo = "[/pair.cc:553] Connection closed by peer\nboa: rank 1 failed after step 40: ValueError: no. Go on."
    assert (
        outcome_of(RuntimeError(of_gloo)) == "rank 1 failed after step 40: ValueError: no. Go on."
    )


def test_a_long_error_is_not_cut_within_a_word() -> None:
    words = outcome_of(ValueError("many words " * 100))
    assert len(words) <= 200
    assert words.endswith("words …")
