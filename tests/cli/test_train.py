from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from rich.console import Console
from torch.multiprocessing import ProcessRaisedException

from lightning_boa.cli.mistakes import mistake_in
from lightning_boa.cli.run_report import RunReport
from lightning_boa.cli.train import show
from lightning_boa.errors import OptionError, PlanError
from lightning_boa.reports import PlanReport, RankReport

from .conftest import BoaTrain

FAST_PAIR = (
    "cluster.devices=[{name: fast, seconds_per_sample: 0.001}, {name: slow, seconds_per_sample: 0.003}]",
    "trainer.devices=2",
    "data.batch_size=32",
)


def test_a_short_run_reports_plan_gain_and_accuracy(
    boa_train: BoaTrain, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = boa_train(*FAST_PAIR, "trainer.max_epochs=3", "strategy.warmup=12", "picture=true")

    plan = report["plan"]
    fast, slow = plan["ranks"]
    assert report["devices"] == ["fast", "slow"]
    assert fast["boa_rows"] + slow["boa_rows"] == 64
    assert plan["gain"] == pytest.approx(plan["equal_step_seconds"] / plan["boa_step_seconds"])
    assert plan["linear_ceiling"] >= 1.0
    assert report["test_figures"]["test_accuracy"] > 0.5
    assert (tmp_path / "plan.png").is_file()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    (metrics,) = (tmp_path / "metrics").rglob("metrics.csv")
    assert len(metrics.read_text(encoding="utf-8").splitlines()) > 3

    printed = capsys.readouterr().out
    for words in ("Plan", "fast", "slow", "Equal split vs BOA", "linear ceiling", "test accuracy"):
        assert words in printed


def test_the_network_is_reported_in_one_line() -> None:
    network = "the network limits: communication takes 2 of 2.4 s of a step; " + 10 * "and so on "
    ranks = tuple(RankReport(rank, "slow link", 4, 4) for rank in range(2))
    printed = io.StringIO()
    report = RunReport("BoaStrategy", ("a", "b"), PlanReport(ranks, network=network))
    show(report, Console(file=printed, width=80))
    assert f"Network: {network}." in printed.getvalue().splitlines()
    printed.truncate(0)
    show(replace(report, plan=PlanReport(ranks)), Console(file=printed, width=80))
    assert "Network" not in printed.getvalue()


def test_ddp_runs_with_the_same_settings(
    boa_train: BoaTrain, capsys: pytest.CaptureFixture[str]
) -> None:
    report = boa_train(*FAST_PAIR, "trainer.max_epochs=1", "strategy=ddp")
    assert report["plan"] is None
    assert report["last_epoch_step_seconds"] > 0.09
    assert "DDPStrategy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.devices=9", "trainer.devices: the emulated cluster has 4 devices, got 9"),
        ("data.batch_size=0", "data.batch_size: expected a whole number of at least 1, got 0"),
        (
            "strategy.granularity=0",
            "strategy.granularity: expected a whole number of at least 1, got 0",
        ),
        (
            "strategy.rebalance=x",
            "strategy.rebalance: expected one of 'auto', 'epoch', 'off', got 'x'",
        ),
        ("strategy.batch_sizes=[1,2]", "batch_sizes"),
        ("strategy=boa_fixed_shares", "strategy.batch_sizes: expected a value, got none"),
        ("~strategy", "strategy: expected one of conf/shared/strategy, got none"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    boa_train: BoaTrain, capfd: pytest.CaptureFixture[str], override: str, sentence: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        boa_train(override)
    assert exit_.value.code == 2
    complaint = capfd.readouterr().err
    assert f"boa-train: {sentence}" in complaint
    assert "Traceback" not in complaint


def test_a_mistake_is_found_under_what_hydra_and_torch_wrap_around_it() -> None:
    wrapped = InstantiationException("Error in call to target")
    wrapped.__cause__ = OptionError("warmup: no")
    assert mistake_in(wrapped) == "warmup: no"
    in_child = ProcessRaisedException(
        "\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        "  File ...\nlightning_boa.errors.PlanError: too few rows;\nask for more\n",
        error_index=1,
        error_pid=4,
    )
    assert mistake_in(in_child) == "too few rows;\nask for more"


def test_other_errors_keep_their_traceback() -> None:
    assert mistake_in(RuntimeError("bug")) is None
    assert mistake_in(PlanError("no")) == "no"
