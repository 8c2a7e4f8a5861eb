from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightning_boa.cli.run_report import report_of
from lightning_boa.planning import (
    BatchPlan,
    Orchestration,
    OrchestrationSettings,
    Rebalancing,
)


def test_a_plan_that_was_changed_is_told_as_the_warm_up_made_it_and_what_came_after(
    tmp_path: Path,
) -> None:
    settings = OrchestrationSettings(2, 32, (1, 1), (32, 32))
    begun = Orchestration.begin(settings, 0)
    change = Rebalancing(40, (20, 12), (26, 6), (1.0, 2.0), 0.5, 0.2, 0.16)
    changed = replace(
        begun,
        schedule=begun.schedule.then(9, BatchPlan((20, 12))).then(40, BatchPlan((26, 6))),
        phase="planned",
        reason="as measured",
        rebalancings=(change,),
    )
    strategy: Any = SimpleNamespace(
        plan=changed.plan, orchestration=changed, device_names=("one", "two")
    )
    trainer: Any = SimpleNamespace(strategy=strategy, callback_metrics={})
    report = report_of(trainer, tmp_path / "missing.json")

    assert report.plan is not None
    assert [rank.boa_rows for rank in report.plan.ranks] == [20, 12]
    assert report.plan.reason == "as measured"
    (told,) = report.to_dict()["rebalancings"]
    assert (told["step"], told["batch_sizes"]) == (40, [26, 6])
    assert told["gain"] == 0.25
    assert "rank 1 takes 2.00 times as long" in told["reason"]
