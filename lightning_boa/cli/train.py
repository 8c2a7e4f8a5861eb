"""boa-train: trains what conf/ describes and reports the plan, the gain and the accuracy."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console

from lightning_boa.cli.clusters import Cluster
from lightning_boa.cli.framework import MisconfigurationException, Trainer, seed_everything
from lightning_boa.cli.jobs import one_job, refuse_foreign_process_group
from lightning_boa.cli.options import whole_number
from lightning_boa.cli.run_report import RunReport, report_of
from lightning_boa.errors import BoaError, OptionError
from lightning_boa.reports import comparison_table, plan_table, rebalancing_table

USER_MISTAKE = 2

_log = logging.getLogger(__name__)


@hydra.main(version_base="1.3", config_path="pkg://lightning_boa.conf", config_name="train")
def main(config: DictConfig) -> None:
    """The command's entry point; exits with 2 and one sentence where the user made a mistake."""
    with _mistakes_in_one_sentence(), one_job():
        train(config)


def train(config: DictConfig) -> RunReport:
    """Trains and tests as `config` says; the first rank prints the report and writes it to the output folder."""
    seed_everything(whole_number("seed", config.seed, least=0), workers=True, verbose=False)
    cluster: Cluster = instantiate(config.cluster, _convert_="all")
    cluster.prepare_process()
    data = instantiate(config.data, _convert_="all")
    model = instantiate(config.model, _convert_="all")
    trainer: Trainer = instantiate(config.trainer, _convert_="all", _partial_=True)(
        devices=cluster.devices_for(config.trainer.devices),
        strategy=_strategy(config),
        callbacks=[
            *cluster.callbacks(config.trainer.devices),
            *_named_parts(config.callbacks),
        ],
    )
    refuse_foreign_process_group(trainer.world_size)
    with _quiet_about_what_the_demo_means_to_do():
        trainer.fit(model, datamodule=data)
        report = report_of(trainer)
        trainer.loggers = []  # a logger opened again for the test would begin its files anew
        trainer.test(model, datamodule=data, verbose=False)
    report = report.with_test_figures(trainer.callback_metrics)
    if trainer.is_global_zero:
        _show(report)
        _keep(report, Path(config.output_dir), picture=bool(config.picture))
    return report


def _strategy(config: DictConfig) -> Any:
    if config.get("strategy") is None:
        raise OptionError(
            "strategy: expected one of conf/strategy, got none. Say strategy=boa or strategy=ddp."
        )
    return instantiate(config.strategy, _convert_="all")


def _named_parts(group: DictConfig | None) -> list[Any]:
    parts = [] if group is None else list(group.values())
    return [instantiate(part, _convert_="all") for part in parts if part is not None]


def _show(report: RunReport) -> None:
    console = Console()
    if report.plan is not None:
        console.print(plan_table(report.plan))
        if report.plan.gain is not None:
            console.print(comparison_table(report.plan))
        console.print(f"Why this plan: {report.plan.reason}.", highlight=False, soft_wrap=True)
        if report.plan.network:
            console.print(f"Network: {report.plan.network}.", highlight=False, soft_wrap=True)
    if report.rebalancings:
        console.print(rebalancing_table(report.rebalancings))
    for line in report.lines():
        console.print(line, highlight=False)


def _keep(report: RunReport, folder: Path, *, picture: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(
        json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8"
    )
    if picture and report.plan is not None:
        from lightning_boa.reports.pictures import save_plan_picture

        save_plan_picture(report.plan, folder / "plan.png")


@contextmanager
def _quiet_about_what_the_demo_means_to_do() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in (
            ".*does not have many workers.*",  # the rows lie in memory; workers would only be slower
            ".*during `trainer.test\\(\\)`.*DistributedSampler.*",  # strategy=ddp; boa repeats no row
            ".*Experiment logs directory.*",  # trainer.test opens the logger again and logs nothing
            ".*LeafSpec.*is deprecated.*",  # between Lightning and torch 2.13
        ):
            warnings.filterwarnings("ignore", message)
        yield


@contextmanager
def _mistakes_in_one_sentence() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        sentence = mistake_in(error)
        if sentence is None:
            raise
        _log.debug("The mistake in full", exc_info=True)
        print(f"boa-train: {sentence}", file=sys.stderr)
        raise SystemExit(USER_MISTAKE) from None


def mistake_in(error: BaseException) -> str | None:
    """The sentence about a user's mistake, also where Hydra or a child process wrapped it; None for other errors."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (BoaError, MisconfigurationException)):
            return str(cause)
        cause = cause.__cause__
    in_child = re.search(r"^lightning_boa\.errors\.\w+: (.+)\Z", str(error).rstrip(), re.M | re.S)
    return in_child.group(1) if in_child else None


if __name__ == "__main__":
    main()
