"""What the doctor says of the variables of a launch that is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_boa.cli.boa import doctor as command
from lightning_boa.cli.doctor.examination import look_at_machine
from lightning_boa.cli.doctor.launches import launch_of
from lightning_boa.errors import OptionError

from .conftest import Boa
from .machines import MachineOfATest, finding, machine_with, said_of

SRUN = {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
SLURM = "SLURM_NTASKS=4 is set, but srun has not started this process"


@pytest.mark.parametrize(
    ("environment", "level", "words"),
    [
        ({"RANK": "1"}, "warning", "RANK=1 is set without WORLD_SIZE: Lightning does not heed it"),
        ({"WORLD_SIZE": "2"}, "warning", "WORLD_SIZE=2 is set without RANK"),
        ({"LOCAL_RANK": "0"}, "problem", "LOCAL_RANK=0 is set outside of a launch"),
        ({"NODE_RANK": "1"}, "problem", "NODE_RANK=1 is set"),
        ({"GROUP_RANK": "x"}, "problem", "GROUP_RANK=x is set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "warning", "are set without LOCAL_RANK"),
        ({"SLURM_NTASKS": "4"}, "problem", SLURM),
        ({"SLURM_NTASKS": "1"}, "warning", "SLURM_NTASKS=1 is set, but srun"),
        ({"SLURM_NTASKS": "x"}, "problem", "SLURM_NTASKS: expected a whole number, got 'x'"),
        (SRUN, "problem", "without SLURM_NTASKS_PER_NODE, which Lightning refuses"),
    ],
)
def test_half_a_launch_is_told(environment: dict[str, str], level: str, words: str) -> None:
    found = finding(machine_with(environment=environment), words)
    assert (found.level, bool(found.mend)) == (level, True)


@pytest.mark.parametrize(
    "environment",
    [
        {"NODE_RANK": "0", "MASTER_ADDR": "localhost"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"},
        {**SRUN, "SLURM_NTASKS_PER_NODE": "4"},
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"},
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_of_a_whole_launch_and_of_none_nothing_is_said(environment: dict[str, str]) -> None:
    assert said_of(machine_with(environment=environment)) == said_of(machine_with())


def test_ranks_that_would_not_meet_are_a_problem_and_the_variables_are_shown(
    boa: Boa, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"MASTER_ADDR": "10.255.255.1", "SLURM_NTASKS": "4"}
    machine = replace(machine_with(environment=environment), meeting_mistake="No. Unset it.")
    monkeypatch.setattr(command, "ThisMachine", lambda: MachineOfATest(machine))
    answer = boa("doctor", "--no-group", "--json")
    assert answer.code == 1
    assert answer.document["machine"]["environment"] == environment
    assert answer.document["findings"][0] == {
        "level": "problem",
        "what": "No: a training on this machine would not begin.",
        "mend": "Unset it.",
    }


def test_a_launch_meets_where_it_says_itself() -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.255.255.1"}
    machine = replace(machine_with(environment=environment), meeting_mistake="No. Unset it.")
    assert look_at_machine(MachineOfATest(machine)).meeting_mistake == ""


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"RANK": "5", "WORLD_SIZE": "2", "MASTER_PORT": "1"},
            "RANK: expected a whole number of at least 0 and below WORLD_SIZE=2",
        ),
        ({"RANK": "0", "WORLD_SIZE": "0", "MASTER_PORT": "1"}, "WORLD_SIZE: .* at least 1"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, "MASTER_PORT: .* below 65536"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT: .* got ''"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        launch_of(environment)


def test_a_job_whose_name_is_interactive_is_no_launch() -> None:
    assert launch_of({**SRUN, "SLURM_JOB_NAME": "interactive"}) is None
