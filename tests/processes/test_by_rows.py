"""Proportional shares and LB-BSP in real processes; time is virtual, so nothing depends on the machine's speed."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_boa.baselines.by_rows import LbBspBehaviour, ProportionalBehaviour
from lightning_boa.planning import LinearTime, moved_shares, proportional_shares
from tests.processes.ranks import run_ranks
from tests.processes.training import (
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    rows_of_steps,
    train_alone,
    trainer_options,
    with_options,
)
from tests.processes.virtual_time import MeasuresVirtualTime, emulated

pytestmark = pytest.mark.full

RANKS = 3
ROWS = 24
STEPS = 15
TRAINING = Training(rows=ROWS * STEPS + 7, global_batch_size=ROWS, epochs=2)
STOP = 9
DEVICES = (LinearTime(4.0, 1.0), LinearTime(20.0, 1.0), LinearTime(1.0, 3.0))
EQUAL = (8, 8, 8)


class Proportional(ProportionalBehaviour, MeasuresVirtualTime):
    """In virtual time."""


class LbBsp(LbBspBehaviour, MeasuresVirtualTime):
    """In virtual time."""


KINDS = {"proportional": (Proportional, {"measured_steps": 3}), "LB-BSP": (LbBsp, {})}


def train(rank: int, folder: str) -> dict[tuple[str, str], Any]:
    found = {}
    for kind in KINDS:
        place = Path(folder, kind)
        found[kind, "whole"] = fit(kind, place)
        path = str(place / f"{STOP}.ckpt")
        found[kind, "resumed"] = fit(kind, place / "resumed", ckpt_path=path)
    other = str(Path(folder, "proportional", f"{STOP}.ckpt"))
    found["LB-BSP", "anew"] = fit("LB-BSP", Path(folder, "anew"), ckpt_path=other)
    found["LB-BSP", "read ahead"] = fit("LB-BSP", Path(folder, "ahead"), workers=1)
    return found


def fit(kind: str, place: Path, workers: int = 0, **arguments: Any) -> Any:
    quiet()
    pl.seed_everything(TRAINING.seed)
    strategy_class, options = KINDS[kind]
    strategy = strategy_class(global_batch_size=ROWS, **options)
    cluster = emulated(
        strategy,
        [device.seconds_per_sample for device in DEVICES],
        overhead=[device.overhead for device in DEVICES],
    )
    keeper = ModelCheckpoint(
        place,
        filename="{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=STOP,
        save_top_k=-1,
    )
    flags = {
        **trainer_options(TRAINING),
        "enable_checkpointing": True,
        "callbacks": [cluster, keeper],
    }
    trainer = pl.Trainer(strategy=strategy, devices=RANKS, **flags)
    module = Regression()
    training = with_options(TRAINING, workers=workers)
    trainer.fit(module, *loaders(training, batch_size=1), **arguments)
    assert strategy.orchestration is not None
    return outcome(trainer, module), len(strategy.orchestration.schedule.entries)


def seconds(rows: Any) -> list[float]:
    return [float(device.seconds(size)) for device, size in zip(DEVICES, rows, strict=True)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], Any]]:
    return run_ranks(train, RANKS, str(tmp_path_factory.mktemp("checkpoints")))


def shares(found: Any, kind: str, part: str) -> list[tuple[int, ...]]:
    """The rows of each rank in each full step, whose short last steps are left out."""
    steps = zip(*(by_rank[kind, part][0].seen for by_rank in found), strict=True)
    splits = [tuple(map(len, step)) for step in steps]
    return [split for split in splits if sum(split) == ROWS]


def test_shares_are_set_once_in_proportion_to_measured_speeds(found: Any) -> None:
    wanted = proportional_shares(EQUAL, seconds(EQUAL))
    assert wanted == (13, 5, 6)
    splits = shares(found, "proportional", "whole")
    assert splits == [EQUAL] * 4 + [wanted] * (2 * STEPS - 4)
    assert {by_rank["proportional", "whole"][0].plan for by_rank in found} == {wanted}


def test_a_row_moves_from_the_slowest_to_the_fastest_after_every_step(found: Any) -> None:
    splits = shares(found, "LB-BSP", "whole")
    assert len(splits) == 2 * STEPS
    assert splits[0] == EQUAL
    for before, after in pairwise(splits):
        assert after == moved_shares(before, seconds(before), 1)
    assert max(seconds(splits[-1])) < 0.9 * max(seconds(EQUAL))
    assert all(by_rank["LB-BSP", "whole"][1] <= 2 for by_rank in found)


def test_a_loader_that_reads_ahead_delays_the_next_move(found: Any) -> None:
    splits = [split for split, _ in groupby(shares(found, "LB-BSP", "read ahead"))]
    assert splits[0] == EQUAL
    assert 3 < len(splits) <= STEPS
    for before, after in pairwise(splits):
        assert after == moved_shares(before, seconds(before), 1)


PARTS = [(kind, part) for kind in KINDS for part in ("whole", "resumed")]


@pytest.mark.parametrize(("kind", "part"), [*PARTS, ("LB-BSP", "read ahead")])
def test_weights_are_those_of_one_device(found: Any, kind: str, part: str) -> None:
    alone = train_alone(TRAINING)
    together = [by_rank[kind, part][0] for by_rank in found]
    for each in together:
        assert relative_error(each.weights, alone.weights) < 1e-10
        assert each.steps == alone.steps
    done = STOP if part == "resumed" else 0
    assert rows_of_steps(together) == alone.seen[done:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_in_the_middle_of_an_epoch_keeps_the_shares(found: Any, kind: str) -> None:
    assert shares(found, kind, "resumed") == shares(found, kind, "whole")[STOP:]


def test_the_shares_of_another_rule_are_not_gone_on_with(found: Any) -> None:
    anew = shares(found, "LB-BSP", "anew")
    assert anew == shares(found, "LB-BSP", "whole")[: len(anew)]
