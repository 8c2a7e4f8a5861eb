"""Whom the ranks of the pre-flight waited for."""

from __future__ import annotations

import pytest

from lightning_boa.cli.doctor.progress import (
    BARRIER,
    DONE,
    IMPORTS,
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
                "rank 1 hangs while asking for its device, while joining the group ranks 0, 2 waited for it;"
                " stopped after 30 s",
                STARTS,
                is_late=True,
            ),
        ),
        (
            [Status(), Status()],
            {},
            Trouble(
                "ranks 0, 1 had not finished importing torch after 30 s", IMPORTS, is_late=True
            ),
        ),
        (
            [Status(JOINS), Status()],
            {},
            Trouble(
                "rank 1 had not finished importing torch after 30 s, while joining the group rank 0 waited",
                IMPORTS,
                is_late=True,
            ),
        ),
        (
            [Status(), Status()],
            {1: "was ended by SIGKILL"},
            Trouble("rank 1 was ended by SIGKILL while importing torch", IMPORTS, is_killed=True),
        ),
        (
            [Status(LARGE), Status(LARGE)],
            {},
            Trouble(
                "ranks 0, 1 hang in an all-reduce of 16 MB, all waiting for each other; stopped after 30 s",
                LARGE,
                is_late=True,
            ),
        ),
        (
            [Status(BARRIER, "gloo: closed", is_victim=True), Status(BARRIER)],
            {1: "was ended by SIGKILL"},
            Trouble("rank 1 was ended by SIGKILL in the first barrier", BARRIER, is_killed=True),
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
            Trouble(
                "rank 0 hangs while joining the group and waits; stopped after 30 s",
                JOINS,
                is_late=True,
            ),
        ),
    ],
    ids=[
        "nobody",
        "one hangs",
        "all import",
        "one imports",
        "killed at once",
        "all hang",
        "killed",
        "its own error",
        "only victims",
        "alone",
    ],
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
    assert "torch.cuda.init()" in Trouble("", STARTS).mend("nccl")
    assert Trouble("", STARTS).mend("gloo") == ""


def test_what_to_try_depends_on_how_a_rank_was_lost() -> None:
    assert "--timeout" in Trouble("", IMPORTS, is_late=True).mend("gloo")
    assert "python -c 'import torch'" in Trouble("", IMPORTS).mend("nccl")
    assert "out of memory" in Trouble("", IMPORTS, is_killed=True).mend("gloo")
    assert "out of memory" in Trouble("", LARGE, is_killed=True).mend("nccl")
