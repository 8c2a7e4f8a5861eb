from __future__ import annotations

import pytest

from lightning_boa.data import Share
from lightning_boa.errors import UnsupportedError
from lightning_boa.strategies.deliveries import Deliveries


def share(step: int, rows: int = 2) -> Share:
    return Share(step, rows, step_rows=2 * rows, fetched=rows)


@pytest.mark.parametrize("most_ahead", [1, 2])
def test_as_many_steps_may_wait_as_a_loader_reads_ahead(most_ahead: int) -> None:
    deliveries = Deliveries(most_ahead=most_ahead)
    deliver = deliveries.from_loader("a")
    for step in range(most_ahead):
        deliver(share(step))
    with pytest.raises(UnsupportedError, match="a second one before the first was used"):
        deliver(share(most_ahead))
    assert deliveries.take() == share(0)
    deliver(share(most_ahead))


def test_shares_are_taken_in_the_order_of_their_arrival() -> None:
    deliveries = Deliveries(most_ahead=2)
    assert deliveries.take() is None
    deliveries.from_loader("a")(share(0))
    deliveries.from_loader("b")(share(0, rows=3))
    assert [deliveries.take(), deliveries.take()] == [share(0), share(0, rows=3)]
    assert deliveries.pop_rows() == 5
    assert deliveries.pop_rows() == 0


def test_loaders_that_make_one_step_deliver_together() -> None:
    deliveries = Deliveries(together=True)
    deliveries.from_loader("a")(share(4))
    deliveries.from_loader("b")(share(4, rows=3))
    assert deliveries.take() == Share(4, 5, 10, 5)
    assert deliveries.take() is None


def test_what_is_forgotten_is_neither_taken_nor_counted() -> None:
    deliveries = Deliveries()
    deliver = deliveries.from_loader("a")
    deliver(share(0))
    deliveries.take()
    deliver(share(1))
    deliveries.forget()
    assert deliveries.take() is None
    assert deliveries.pop_rows() == 0
