"""Whom the ranks of the pre-flight waited for."""

from __future__ import annotations

import pytest

from lightning_boa.cli.doctor.progress import (
    BARRIER,
    DONE,
    JOINS,
    LARGE,
    STARTS,
    Status,
    Trouble,
    trouble_of,
)


@pytest.mark.parametrize(
    ("statuses", "ended", "expected"),
    [
        ([Status(DONE), Status(DONE)], {}, None),
        (
            [Status(JOINS), Status(STARTS), Status(JOINS)],
            {},
            Trouble(
                "rank 1 hangs while starting, while joining the group ranks 0, 2 waited for it; stopped after 30 s",
                STARTS,
            ),
        ),
        (
            [Status(LARGE), Status(LARGE)],
            {},
            Trouble(
                "ranks 0, 1 hang in an all-reduce of 16 MB, all waiting for each other; stopped after 30 s",
                LARGE,
            ),
        ),
        (
            [Status(BARRIER, "gloo: closed", is_victim=True), Status(BARRIER)],
            {1: "was ended by SIGKILL"},
            Trouble("rank 1 was ended by SIGKILL in the first barrier", BARRIER),
        ),
        (
            [Status(LARGE, "gloo: closed", is_victim=True), Status(BARRIER, "ValueError: no")],
            {},
            Trouble("rank 1 failed in the first barrier: ValueError: no", BARRIER),
        ),
        (
            [Status(JOINS, "NCCL error: unhandled", is_victim=True), Status(JOINS)],
            {},
            Trouble("rank 0 failed while joining the group: NCCL error: unhandled", JOINS),
        ),
        (
            [Status(JOINS)],
            {},
            Trouble("rank 0 hangs while joining the group and waits; stopped after 30 s", JOINS),
        ),
    ],
    ids=["nobody", "one hangs", "all hang", "killed", "its own error", "only victims", "alone"],
)
def test_whom_the_others_waited_for(
    statuses: list[Status], ended: dict[int, str], expected: Trouble | None
) -> None:
    assert trouble_of(dict(enumerate(statuses)), ended, seconds=30.0) == expected


def test_what_to_try_depends_on_the_backend() -> None:
    assert "GLOO_SOCKET_IFNAME" in Trouble("", JOINS).mend("gloo")
    assert "NCCL_SOCKET_IFNAME" in Trouble("", JOINS).mend("nccl")
    assert "NCCL_P2P_DISABLE=1" in Trouble("", LARGE).mend("nccl")
    assert Trouble("", LARGE).mend("gloo") == ""
    assert "import torch" in Trouble("", STARTS).mend("gloo")
