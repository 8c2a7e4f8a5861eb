"""Time models, exact allocation, plans, and the loop that finds them; numpy only."""

from __future__ import annotations

from lightning_boa.planning.allocation import allocate, apportion
from lightning_boa.planning.bounds import row_bounds
from lightning_boa.planning.bucket_overlap import Buckets, OverlappedTime, StepEnd, step_end
from lightning_boa.planning.communication import (
    Communication,
    LinkedAllReduce,
    MeasuredAllReduce,
    RingAllReduce,
)
from lightning_boa.planning.equal_step import EqualStep
from lightning_boa.planning.fitting import TimeFit, fit_time
from lightning_boa.planning.hindrance import hindrance
from lightning_boa.planning.known_plan import KnownPlan
from lightning_boa.planning.network import (
    NetworkFindings,
    network_findings,
    probe_groups,
    shared_links,
)
from lightning_boa.planning.orchestration import Orchestration
from lightning_boa.planning.passes import InPasses, Parkable, pass_sizes
from lightning_boa.planning.plan import (
    LEAST_ROWS,
    BatchPlan,
    equal_split,
    fixed_plan,
    plan_batches,
    predicted_plan,
)
from lightning_boa.planning.profile import MadeFor, Profile
from lightning_boa.planning.rebalancing import Rebalancing
from lightning_boa.planning.records import SplitMeasurement, StepRecord, measure_split
from lightning_boa.planning.schedule import Schedule
from lightning_boa.planning.settings import OrchestrationSettings
from lightning_boa.planning.simple_loops import LbBspPlanning, ProportionalPlanning, ShareRule
from lightning_boa.planning.simple_shares import moved_shares, proportional_shares
from lightning_boa.planning.time_models import (
    LinearTime,
    TableTime,
    TimeModel,
    time_model_from_dict,
)
from lightning_boa.planning.watching import BLOCK_STEPS, Block, block_of
from lightning_boa.planning.weights import BATCH_WEIGHTS, gradient_weight
from lightning_boa.planning.words import rank_names
from lightning_boa.planning.worker_set import WorkerSet, choose_workers

__all__ = [
    "BATCH_WEIGHTS",
    "BLOCK_STEPS",
    "LEAST_ROWS",
    "BatchPlan",
    "Block",
    "Buckets",
    "Communication",
    "EqualStep",
    "InPasses",
    "KnownPlan",
    "LbBspPlanning",
    "LinearTime",
    "LinkedAllReduce",
    "MadeFor",
    "MeasuredAllReduce",
    "NetworkFindings",
    "Orchestration",
    "OrchestrationSettings",
    "OverlappedTime",
    "Parkable",
    "Profile",
    "ProportionalPlanning",
    "Rebalancing",
    "RingAllReduce",
    "Schedule",
    "ShareRule",
    "SplitMeasurement",
    "StepEnd",
    "StepRecord",
    "TableTime",
    "TimeFit",
    "TimeModel",
    "WorkerSet",
    "allocate",
    "apportion",
    "block_of",
    "choose_workers",
    "equal_split",
    "fit_time",
    "fixed_plan",
    "gradient_weight",
    "hindrance",
    "measure_split",
    "moved_shares",
    "network_findings",
    "pass_sizes",
    "plan_batches",
    "predicted_plan",
    "probe_groups",
    "proportional_shares",
    "rank_names",
    "row_bounds",
    "shared_links",
    "step_end",
    "time_model_from_dict",
]
