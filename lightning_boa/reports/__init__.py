"""What people see of a run: tables and pictures made of plain values."""

from __future__ import annotations

from lightning_boa.reports.plan_report import PlanReport, RankReport, describe_plan
from lightning_boa.reports.tables import comparison_table, plan_table, rebalancing_table

__all__ = [
    "PlanReport",
    "RankReport",
    "comparison_table",
    "describe_plan",
    "plan_table",
    "rebalancing_table",
]
