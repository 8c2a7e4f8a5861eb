"""boa-train: trains what conf/ describes and reports the plan, the gain and the accuracy."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from lightning_boa.cli.before_ranks import (
    check_known_to_the_strategy,
    check_output_places,
    lightning_waits,
)
from lightning_boa.cli.clusters import Cluster
from lightning_boa.cli.framework import seed_everything
from lightning_boa.cli.launch_variables import refuse_slurm_without_srun
from lightning_boa.cli.mistakes import mistakes_in_one_sentence, mistakes_on_the_command_line
from lightning_boa.cli.options import whole_number, yes_or_no
from lightning_boa.cli.output_stream import replace_what_stdout_cannot_show
from lightning_boa.cli.run_report import RunReport, report_of
from lightning_boa.cli.trainer_options import check_trainer_options, new_trainer
from lightning_boa.errors import OptionError
from lightning_boa.reports import comparison_table, plan_table, rebalancing_table
from lightning_boa.reports.run_record import FILE_NAME, IN_LOG_FOLDER
from lightning_boa.strategies.meeting_place import refuse_elsewhere

BOA = "lightning_boa.BoaStrategy"
LARGEST_SEED = 2**32 - 1


def main() -> None:
    """The command's entry point; exits with 2 and one sentence where the user made a mistake."""
    replace_what_stdout_cannot_show()
    with mistakes_on_the_command_line():
        _job()


@hydra.main(version_base="1.3", config_path="pkg://lightning_boa.conf.train", config_name="train")
def _job(config: DictConfig) -> None:
    with mistakes_in_one_sentence():
        train(config)


def train(config: DictConfig) -> RunReport:
    """Trains and tests as `config` says; the first rank prints the report and writes it to the output folder."""
    _refuse_missing_values(config)
    seed = whole_number("seed", config.seed, least=0, most=LARGEST_SEED)
    picture = yes_or_no("picture", config.picture)
    check_trainer_options(config.trainer)
    refuse_slurm_without_srun(os.environ, config.trainer.get("devices"))
    check_output_places(config)
    seed_everything(seed, workers=True, verbose=False)
    cluster: Cluster = instantiate(config.cluster, _convert_="all")
    cluster.prepare_process()
    data = instantiate(config.data, _convert_="all")
    model = instantiate(config.model, _convert_="all")
    with lightning_waits():
        trainer = new_trainer(
            instantiate(config.trainer, _convert_="all", _partial_=True),
            devices=cluster.devices_for(config.trainer.devices),
            strategy=_strategy(config),
            callbacks=[
                *cluster.callbacks(config.trainer.devices),
                *_named_parts(config.callbacks),
            ],
        )
        check_known_to_the_strategy(trainer, data)
    refuse_elsewhere(trainer.strategy)  # strategy=ddp does not ask itself
    with _quiet_about_what_the_demo_means_to_do():
        trainer.fit(model, datamodule=data)
        report = report_of(trainer, _record_in(config))
        trainer.loggers = []  # a logger opened again for the test would begin its files anew
        trainer.test(model, datamodule=data, verbose=False)
    report = report.with_test_figures(trainer.callback_metrics)
    if trainer.is_global_zero:
        show(report, Console())
        _keep(report, Path(config.output_dir), picture=picture)
    return report


def _refuse_missing_values(config: DictConfig) -> None:
    for name in sorted(OmegaConf.missing_keys(config)):
        raise OptionError(f"{name}: expected a value, got none. Say {name}=…")


def _strategy(config: DictConfig) -> Any:
    if "_target_" not in (config.get("strategy") or {}):
        raise OptionError(
            "strategy: expected one of conf/shared/strategy, got none. Say strategy=boa or strategy=ddp."
        )
    try:
        return instantiate(config.strategy, _convert_="all", **_said_at_the_end(config))
    except InstantiationException as error:
        if isinstance(error.__cause__, OptionError):
            raise OptionError(f"strategy.{error.__cause__}") from error.__cause__
        raise


def _said_at_the_end(config: DictConfig) -> dict[str, object]:
    """Options of the strategy that leave it to this command to show what a training has gained."""
    if config.strategy.get("_target_") != BOA:
        return {}
    yes_or_no("strategy.verbose", config.strategy.get("verbose", True))
    record = config.strategy.get("record", IN_LOG_FOLDER)
    here = str(_record_in(config))
    return {"verbose": False, "record": here if record == IN_LOG_FOLDER else record}


def _record_in(config: DictConfig) -> Path:
    return Path(config.output_dir, FILE_NAME)


def _named_parts(group: DictConfig | None) -> list[Any]:
    parts = [] if group is None else list(group.values())
    return [instantiate(part, _convert_="all") for part in parts if part is not None]


def show(report: RunReport, console: Console) -> None:
    """Prints the report as tables and lines."""
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
        console.print(line, highlight=False, soft_wrap=True)


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


if __name__ == "__main__":
    main()
