from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lightning_boa.cli.boa import doctor as command
from lightning_boa.cli.doctor.examination import examination_of
from lightning_boa.cli.doctor.facts import Card, Cards, Group, Machine, PairSeconds, Speed
from lightning_boa.cli.doctor.launches import Launch
from lightning_boa.cli.doctor.meeting import Meeting, UnreachableError, supervise
from lightning_boa.cli.doctor.preflight import group_of_launch, group_of_own_ranks
from lightning_boa.cli.doctor.progress import JOINS, Status
from lightning_boa.cli.doctor.tables import show
from lightning_boa.cli.doctor.visit import visit

from .conftest import Boa
from .machines import MachineOfATest, devices_of, group_on, machine_with

Have = Callable[[Machine], None]


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    def put(machine: Machine) -> None:
        monkeypatch.setattr(command, "ThisMachine", lambda: MachineOfATest(machine))

    return put


def test_a_machine_without_problems_is_exit_code_0(boa: Boa, have: Have) -> None:
    have(machine_with("RTX 3090", "RTX 4090"))
    answer = boa("doctor", "--no-group")
    assert answer.code == 0
    for words in ("RTX 3090", "GPU-000", "8.9", "note", "ok"):
        assert words in answer.out


def test_json_is_one_document_and_a_problem_is_exit_code_1(boa: Boa, have: Have) -> None:
    have(machine_with(cards=Cards((Card(0, "V100", "GPU-0", ""),))))
    answer = boa("doctor", "--no-group", "--json")
    assert answer.code == 1
    assert answer.err == ""
    assert answer.document["group"] is None
    assert answer.document["machine"]["cards"]["present"][0]["name"] == "V100"
    assert answer.document["findings"][0]["level"] == "problem"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ranks", "0"), "--ranks: expected a whole number of at least 1"),
        (
            ("--ranks", "x"),
            "--ranks: expected a whole number of at least 1 and at most 64, got 'x'.",
        ),
        (
            ("--timeout", "x"),
            "--timeout: expected a number of at least 1 and below 86400, got 'x'.",
        ),
        (("--ranks", "3"), "--ranks: expected at most 2, one per device, got 3"),
        (("--timeout", "nan"), "--timeout: expected a number of at least 1"),
        (("--timeout", "0"), "--timeout: expected a number of at least 1"),
        (("--nosuch",), "--nosuch"),
    ],
)
def test_a_mistake_is_exit_code_2(
    boa: Boa, have: Have, arguments: tuple[str, ...], words: str
) -> None:
    have(machine_with("RTX 3090", "RTX 4090"))
    answer = boa("doctor", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert answer.out == ""


def test_ranks_are_not_asked_for_within_a_launch(boa: Boa, have: Have) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    have(machine_with(environment=environment))
    answer = boa("doctor", "--ranks", "2")
    assert (answer.code, "in a launch of 2 ranks" in answer.err) == (2, True)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    three = devices_of("V100", "RTX 4090", "A100")
    group = replace(
        group_on(*three),
        small_seconds=1e-4,
        large_bytes=16_000_000,
        large_seconds=0.01,
        pairs=tuple(PairSeconds(pair, 0.01) for pair in ((0, 1), (0, 2), (1, 2))),
        speeds=tuple(Speed(rate, 0.01) for rate in (1e3, 3e3, 4e3)),
    )
    machine = machine_with("V100", "RTX 4090", "A100", environment={"NCCL_DEBUG": "x" * 200})
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    show(examination_of(machine, group, 3), console)
    shown = console.export_text()
    console.file.close()
    assert max(map(len, shown.splitlines())) <= width
    for words in ("V100", "4000 ± 1 %", "16 MB 10.0 ms (1.60 GB/s)", "0 - 2", "warning"):
        assert words in shown


def test_a_group_of_one_rank_is_measured_in_this_process() -> None:
    host = Meeting("127.0.0.1", 0, is_host=True, seconds=10)
    rank = Meeting("127.0.0.1", host.port, is_host=False, seconds=10)
    visit(rank, Launch(0, 1, 0, "127.0.0.1", host.port), seconds=10)
    assert supervise(host, 1, seconds=10) is None
    measured = host.measured()
    assert measured is not None
    assert (measured.backend, len(measured.ranks), measured.speeds) == ("gloo", 1, ())


def test_a_rank_that_never_comes_is_named_within_the_limit() -> None:
    host = Meeting("127.0.0.1", 0, is_host=True, seconds=10)
    host.tell(0, Status(JOINS))
    trouble = supervise(host, 2, seconds=0.1)
    assert trouble is not None
    assert trouble.what.startswith("rank 1 had not finished importing torch")


def test_nobody_at_the_address_is_said() -> None:
    free = Meeting("127.0.0.1", 0, is_host=True, seconds=10).port
    with pytest.raises(
        UnreachableError, match=rf"127\.0\.0\.1:{free}, got no answer within 0\.5 s"
    ):
        Meeting("127.0.0.1", free, is_host=False, seconds=0.5)


def test_an_address_of_another_machine_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_boa.strategies.meeting_place.PROBE_SECONDS", 0.05)
    with pytest.raises(UnreachableError, match="got an address that is none of rank 0's machine"):
        group_of_launch(Launch(0, 2, 0, "192.0.2.1", 4242), 60, "gloo")


def test_processes_that_hang_or_die_are_named_and_gone() -> None:
    """Plain programs in place of ranks: none of them says a word."""
    begun = time.monotonic()
    dead = python_ranks(
        "import os, sys; sys.exit('no torch here') if os.environ['RANK'] == '1' else None; "
        + SLEEP,
        20,
    )
    assert (
        dead.trouble == 'rank 1 ended with code 1 (it said "no torch here") while importing torch'
    )
    hanging = python_ranks(SLEEP, 1)
    assert hanging.trouble == "ranks 0, 1 had not finished importing torch after 1 s"
    assert time.monotonic() - begun < 20
    assert children() == []


SLEEP = "import time; time.sleep(60)"
STRIKES = """
import os, signal, sys, time
from lightning_boa.cli.doctor import visit
if os.environ["RANK"] == "1":
    visit._check_sum = lambda device, ranks: {strike}
visit.main()
"""


@pytest.mark.full
def test_real_ranks_measure_and_one_that_is_struck_is_named() -> None:
    whole = group_of_own_ranks(3, 60, "gloo")
    assert whole.trouble == ""
    assert len(whole.ranks) == len(whole.pairs) == 3
    assert whole.small_seconds is not None
    assert whole.large_seconds is not None
    assert 0 < whole.small_seconds < whole.large_seconds
    killed = python_ranks(STRIKES.format(strike="os.kill(os.getpid(), signal.SIGKILL)"), 60)
    assert killed.trouble == "rank 1 was ended by SIGKILL in an all-reduce of 16 MB"
    raised = python_ranks(STRIKES.format(strike="1 / 0"), 60)
    assert raised.trouble == (
        "rank 1 failed in an all-reduce of 16 MB: ZeroDivisionError: division by zero"
    )
    hanging = python_ranks(STRIKES.format(strike="time.sleep(600)"), 20)
    assert "hang in an all-reduce of 16 MB" in hanging.trouble
    assert children() == []


@pytest.mark.full
def test_ranks_end_with_the_command() -> None:
    rank = STRIKES.format(strike="time.sleep(600)")
    script = (
        "import sys; from lightning_boa.cli.doctor.preflight import group_of_own_ranks;"
        f"group_of_own_ranks(2, 60, 'gloo', command=(sys.executable, '-c', {rank!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    until = time.monotonic() + 30
    while len(ranks := children_of(parent.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(ranks) == 2
    time.sleep(5)  # until they have begun to listen for its end
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


@pytest.mark.full
def test_the_command_prints_one_document_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_boa.cli.boa.app", "doctor", "--json", "--timeout", "60"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert len(document["group"]["ranks"]) >= 1
    assert all(each["registered"] for each in document["machine"]["software"]["lightnings"])


@pytest.mark.full
def test_the_ranks_of_a_launch_are_examined_and_rank_0_prints() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *("-m", "lightning_boa.cli.boa.app", "doctor", "--timeout", "60"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks joined and reduced by gloo") == 1
    assert done.stdout.count('both know strategy="boa"') == 1


def python_ranks(code: str, seconds: float) -> Group:
    return group_of_own_ranks(2, seconds, "gloo", command=(sys.executable, "-c", code))


def children() -> list[Any]:
    return children_of(os.getpid())


def children_of(parent: int) -> list[Any]:
    """Living processes that this one has started."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
