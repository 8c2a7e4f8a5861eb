"""What a run leaves behind: the plan, step times and test figures, read off the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_boa.cli.framework import Trainer
from lightning_boa.cli.step_times import METRIC
from lightning_boa.planning import Rebalancing
from lightning_boa.reports import PlanReport, describe_plan
from lightning_boa.reports.run_record import RunRecord
from lightning_boa.reports.summary import summary


@dataclass(frozen=True)
class RunReport:
    strategy: str
    devices: tuple[str, ...]
    plan: PlanReport | None = None
    rebalancings: tuple[Rebalancing, ...] = ()
    last_epoch_step_seconds: float | None = None
    test_figures: tuple[tuple[str, float], ...] = ()
    saved: str = ""

    def with_test_figures(self, metrics: Mapping[str, Any]) -> RunReport:
        tested = (
            (name, float(value)) for name, value in metrics.items() if name.startswith("test")
        )
        return replace(self, test_figures=tuple(tested))

    def lines(self) -> list[str]:
        """What is said below the tables."""
        lines = [self.saved] if self.saved else []
        if self.last_epoch_step_seconds is not None:
            lines.append(
                f"step time in the last epoch, {self.strategy}: "
                f"{1000 * self.last_epoch_step_seconds:.1f} ms (median)"
            )
        lines += [f"{name.replace('_', ' ')}: {value:.4f}" for name, value in self.test_figures]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for report.json; seconds and shares."""
        values = asdict(self)
        values["test_figures"] = dict(self.test_figures)
        values["rebalancings"] = [
            {**change.to_dict(), "gain": change.gain, "reason": change.reason}
            for change in self.rebalancings
        ]
        if self.plan is not None:
            values["plan"]["gain"] = self.plan.gain
            values["plan"]["linear_ceiling"] = self.plan.linear_ceiling
        return values


def report_of(trainer: Trainer, record: Path) -> RunReport:
    """What the trainer knows after `fit`, under any strategy, and what is in the record that the training has left."""
    strategy: Any = trainer.strategy
    seconds = trainer.callback_metrics.get(METRIC)
    orchestration = getattr(strategy, "orchestration", None)
    plan = getattr(strategy, "plan", None) if orchestration is None else orchestration.first_plan
    devices = tuple(getattr(strategy, "device_names", ()))
    network = getattr(strategy, "network", None)
    return RunReport(
        strategy=type(strategy).__name__,
        devices=devices,
        plan=None if plan is None else describe_plan(plan, orchestration, devices, network),
        rebalancings=() if orchestration is None else orchestration.rebalancings,
        last_epoch_step_seconds=None if seconds is None else float(seconds),
        saved=summary(RunRecord.from_json(record.read_bytes())) if record.exists() else "",
    )
