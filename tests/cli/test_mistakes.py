"""A user's mistake in boa-train is one sentence and exit code 2, before any rank is started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from lightning_boa.cli import mistakes, train
from lightning_boa.cli.mistakes import lost_worker_in, mistakes_in_one_sentence
from lightning_boa.cli.trainer_options import check_trainer_options
from lightning_boa.errors import OptionError

DEVICES = "trainer.devices: expected auto, a whole number of at least 1, -1 for all, or a list of devices' numbers,"
SEED = "seed: expected a whole number of at least 0 and at most 4294967295,"
STRATEGIES = "strategy: expected one of asynchronous, backup_workers, boa, "


@pytest.fixture
def complaint_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Any:
    """What boa-train says of its arguments, which all are refused before a rank is started."""
    monkeypatch.chdir(tmp_path)

    def of(*overrides: str) -> str:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["boa-train", f"hydra.run.dir={tmp_path}", *overrides])
        with pytest.raises(SystemExit) as end:
            train.main()
        assert end.value.code == 2
        return capsys.readouterr().err

    return of


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "trainer.max_epochs=x",
            "trainer.max_epochs: expected a whole number of at least -1, got 'x'.",
        ),
        ("trainer.devices=x", f"{DEVICES} got 'x'."),
        ("trainer.accelerator=tpu", "trainer: Requirement 'torch_xla"),
        ("trainer.accelerator=nosuch", "trainer: You selected an invalid accelerator name"),
        ("+trainer.precision=nosuch", "trainer: Precision 'nosuch' is invalid."),
        ("optimizer.lr=abc", "optimizer.lr: expected a number above 0, got 'abc'."),
        ("optimizer.lr=nan", "optimizer.lr: expected a number above 0, got nan."),
        ("seed=99999999999999", f"{SEED} got 99999999999999."),
        ("seed=-1", f"{SEED} got -1."),
        ("picture=maybe", "picture: expected true or false, got 'maybe'."),
        ("data.batch_size=x", "data.batch_size: expected a whole number of at least 1, got 'x'."),
        ("+data.nosuch=1", "data.nosuch: is no option of DigitsData. Leave it out."),
        ("model.channels=0", "model.channels: expected a whole number of at least 1, got 0."),
        (
            "strategy=null",
            "strategy: expected one of the names that boa-train --help lists, got null.",
        ),
        ("strategy=nosuch", STRATEGIES),
        ("strategy.warmup=0", "strategy.warmup: 0 leaves nothing to plan from."),
        ("cluster=nosuch", "cluster: expected one of cloud_spot_mix, "),
        (
            "optimiser.lr=1",
            "optimiser.lr: is no option of this configuration; boa-train --cfg job ",
        ),
        (
            "data.batch_size=[1",
            "data.batch_size=[1: expected name=value in Hydra's grammar, got what it cannot read",
        ),
        (
            "data.batch_size=${nosuch}",
            "Interpolation key 'nosuch' not found; full_key: data.batch_size",
        ),
        ("seed=1,2", "Ambiguous value for argument 'seed=1,2'"),
    ],
)
def test_a_mistake_is_one_sentence(complaint_of: Any, override: str, sentence: str) -> None:
    complaint = complaint_of(override)
    assert complaint.startswith(f"boa-train: {sentence}")
    assert complaint.count("\n") == 1


def test_the_way_hydra_shows_errors_is_left_as_it_was(
    complaint_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(mistakes.FULL_ERROR, "0")
    complaint_of("cluster=nosuch")
    assert os.environ[mistakes.FULL_ERROR] == "0"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max_epochs", -5, "a whole number of at least -1"),
        ("max_steps", "x", "a whole number of at least -1"),
        ("num_nodes", 0, "a whole number of at least 1"),
        ("log_every_n_steps", "x", "a whole number of at least 0"),
        ("enable_progress_bar", "maybe", "true or false"),
        ("logger", 1, "false or a group with _target_"),
        *(("devices", value, DEVICES) for value in (0, -3, 1.5, [], True, "x", "0,x", [0, "x"])),
    ],
)
def test_options_of_the_trainer_are_checked(option: str, value: object, expected: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_trainer_options({option: value})
    said = str(refused.value)
    assert said.startswith(f"trainer.{option}: expected ")
    assert expected in said
    assert said.endswith(f"got {value!r}.")


def test_good_options_of_the_trainer_pass() -> None:
    for devices in ("auto", -1, 2, [0, 1], "0,1", "2"):
        check_trainer_options({"devices": devices, "max_epochs": None, "logger": False})


def test_a_lost_worker_is_named() -> None:
    error = RuntimeError("[enforce fail at gloo] closed\nboa: rank 2 ended without a word.")
    assert lost_worker_in(error) == "rank 2 ended without a word."
    killed = ProcessExitedException(
        "process 1 terminated", 1, 7, exit_code=-9, signal_name="SIGKILL"
    )
    assert lost_worker_in(killed) == (
        "rank 1 ended without a word (SIGKILL); the others were stopped."
    )
    assert lost_worker_in(RuntimeError("bug")) is None


@pytest.mark.parametrize(
    ("error", "rank", "parent_is_gone", "said"),
    [
        (OptionError("warmup: no."), "0", 0, 1),
        (OptionError("warmup: no."), "1", 0, 1),
        (OptionError("warmup: no."), "1", 1, 0),
        (RuntimeError("gloo\nboa: rank 1: no."), "0", 0, 1),
        (RuntimeError("gloo\nboa: rank 1: no."), "2", 0, 0),
        (RuntimeError("gloo\nboa: rank 0 is gone, no."), "1", 1, 1),
        (RuntimeError("gloo\nboa: rank 0 is gone, no."), "2", 1, 0),
        (ProcessRaisedException("gloo\nboa: rank 0 is gone, no.", 1, 7), "0", 0, 1),
    ],
)
def test_it_is_said_once_for_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    rank: str,
    parent_is_gone: int,
    said: int,
) -> None:
    parents = iter([1000, 1000 + parent_is_gone] + [1000] * 9)
    monkeypatch.setattr(mistakes.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(mistakes, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as end, mistakes_in_one_sentence():
        raise error
    assert end.value.code == (2 if isinstance(error, OptionError) else 1)
    assert capsys.readouterr().err.count("no.") == said


@pytest.mark.full
def test_ranks_that_find_a_mistake_say_it_once_and_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lightning_boa.cli.train", "cluster=none"),
            *("trainer.accelerator=cpu", "trainer.devices=2", "strategy.batch_sizes=[1,2,3]"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("batch_sizes: expected one number for each of the 2 ranks") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_a_killed_worker_is_the_headline(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "lightning_boa.cli.train", "trainer.devices=2"),
        *("trainer.max_epochs=1000", "trainer.enable_progress_bar=false"),
    ]
    with (tmp_path / "said").open("w") as said:
        parent = subprocess.Popen(command, cwd=tmp_path, stderr=said, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (files := list(tmp_path.glob("outputs/*/*/metrics/**/metrics.csv"))):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert files
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    os.kill(int(children[-1]), 9)
    assert parent.wait(60) == 1
    lines = (tmp_path / "said").read_text().splitlines()
    assert [line for line in lines if line.startswith("boa-train: ")] == [
        "boa-train: rank 1 ended without a word (SIGKILL); the others were stopped."
    ]
    assert "Traceback" not in "".join(lines)
