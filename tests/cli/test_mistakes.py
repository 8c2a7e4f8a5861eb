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
from lightning_boa.cli.framework import Trainer
from lightning_boa.cli.launch_variables import refuse_slurm_without_srun
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
    monkeypatch.setattr(Trainer, "fit", None)

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
        ("strategy.verbose=perhaps", "strategy.verbose: expected true or false, got 'perhaps'."),
        ("strategy.record=''", 'strategy.record: expected "auto", None or the path of a file'),
        ("strategy.min_batch_size=1000", "min_batch_size is 1000 on rank 0, more than the 64 rows"),
        ("strategy.max_batch_size=0", "min_batch_size is 1 on rank 0, above its max_batch_size 0"),
        ("strategy.global_batch_size=2", "a global batch of 2 rows cannot give each of 4 ranks"),
        ("strategy.batch_sizes=[1,2]", "batch_sizes: expected one number for each of the 4 ranks"),
        ("model.optimizer=null", "model.optimizer: expected what makes an optimizer"),
        ("model.scaling=linear", "model.scaling: expected what scaling=linear chooses"),
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


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("MASTER_ADDR", "", "MASTER_ADDR: expected an address of this machine, where rank 0 is,"),
        ("MASTER_PORT", "x", "MASTER_PORT: expected a whole number from 1 to 65535, got 'x'."),
        ("SLURM_NTASKS", "4", "SLURM_NTASKS=4 is set, but srun has not started this process"),
    ],
)
def test_variables_that_would_make_ranks_wait_are_refused(
    complaint_of: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv(name, value)
    for strategy in ("boa", "ddp"):
        complaint = complaint_of("cluster=none", "trainer.devices=2", f"strategy={strategy}")
        assert complaint.startswith(f"boa-train: {sentence}")
        assert complaint.count("\n") == 1


def test_a_single_task_of_slurm_trains_on_one_device() -> None:
    refuse_slurm_without_srun({"SLURM_NTASKS": "1"}, 1)
    refuse_slurm_without_srun({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, 4)
    refuse_slurm_without_srun({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, 4)
    with pytest.raises(OptionError, match="SLURM_NTASKS=1 is set"):
        refuse_slurm_without_srun({"SLURM_NTASKS": "1"}, "auto")


@pytest.mark.parametrize(
    "option",
    [
        "output_dir",
        "hydra.run.dir",
        "callbacks.checkpoint.dirpath",
        "trainer.default_root_dir",
        "trainer.logger.save_dir",
    ],
)
def test_a_place_that_cannot_be_written_is_a_mistake(
    complaint_of: Any, tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "folder"
    complaint = complaint_of(f"{option}={place}")
    assert complaint.startswith(f"boa-train: {option}")
    assert f": expected a folder in which files can be written, got {place} (" in complaint
    assert complaint.count("\n") == 1


def test_a_profile_that_cannot_be_written_is_a_mistake(complaint_of: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    complaint = complaint_of(f"strategy.profile={tmp_path}/file/p.json")
    assert complaint.startswith("boa-train: profile: expected a folder in which files can be")


def test_more_backups_than_ranks_are_a_mistake(complaint_of: Any) -> None:
    complaint = complaint_of("strategy=backup_workers", "strategy.backups=4")
    assert complaint.startswith("boa-train: backups: expected fewer than the 4 ranks, got 4")


def test_an_error_in_the_job_is_no_mistake_about_its_folder(
    complaint_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(train, "check_output_places", fail)
    with pytest.raises(OSError, match="the disk is full"):
        complaint_of()


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
            *(
                "trainer.accelerator=cpu",
                "trainer.devices=2",
                "+trainer.use_distributed_sampler=false",
            ),
            "strategy.global_batch_size=64",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("boa-train: global_batch_size: expected none where each rank") == 1
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
