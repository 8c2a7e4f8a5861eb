"""A profile in real processes: written by one training, used by the next, measured anew where it does not hold."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from lightning_boa import EmulatedCluster
from lightning_boa.errors import OptionError
from lightning_boa.planning import Orchestration, Profile
from tests.processes.ranks import run_ranks
from tests.processes.test_warmup import InVirtualTime
from tests.processes.training import (
    Outcome,
    Regression,
    Training,
    loaders,
    outcome,
    quiet,
    relative_error,
    rows_of_steps,
    train_alone,
    trainer_options,
)
from tests.processes.virtual_time import VirtualTime

pytestmark = pytest.mark.full

RANKS = 3
ROWS = 60
TRAINING = Training(rows=ROWS * 40 + 7, global_batch_size=ROWS, epochs=1)
NAMES = ("one", "two", "three")
SPEEDS = (1.0, 2.04, 4.9)
OTHER_SPEEDS = (4.9, 1.0, 2.04)


@dataclass(frozen=True)
class Found:
    """What a rank knows after a training with a profile; `error` is why it has not begun."""

    outcome: Outcome | None = None
    orchestration: Orchestration | None = None
    text: str = ""
    error: str = ""
    steps: int = 0


def train(rank: int, profile: Path, **scene: Any) -> Found:
    """One training; `scene` has what differs from the first one."""
    quiet()
    pl.seed_everything(TRAINING.seed)
    virtual = VirtualTime()
    strategy = InVirtualTime(
        global_batch_size=ROWS, profile=profile, warmup=scene.get("warmup", "auto")
    )
    strategy.time, strategy.limited = virtual, False
    cluster = EmulatedCluster(
        scene.get("speeds", SPEEDS),
        names=scene.get("names", NAMES),
        clock=virtual,
        sleep=virtual.sleep,
        work_clock=lambda: 0.0,
    )
    callbacks = [cluster, *scene.get("callbacks", ())]
    options = {**trainer_options(TRAINING), "callbacks": callbacks}
    module = Regression()
    try:
        trainer = pl.Trainer(strategy=strategy, devices=RANKS, **options)
        trainer.fit(module, loaders(TRAINING, 1)[0])
    except OptionError as error:
        return Found(error=str(error), steps=len(module.seen))
    text = profile.read_text() if profile.exists() else ""
    return Found(outcome(trainer, module), strategy.orchestration, text)


class LosesItsFolder(pl.Callback):
    """A file takes the place of the profile's folder during the training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3 and trainer.is_global_zero:
            shutil.rmtree(self.folder)
            self.folder.touch()


def play(rank: int, folder: str) -> dict[str, Found]:
    place = Path(folder)
    first = train(rank, place / "first.json")
    if rank == 0:
        for name in ("devices", "speeds", "broken"):
            (place / f"{name}.json").write_text(first.text)
        (place / "lost").mkdir()
        (place / "broken.json").write_text(first.text.replace('"parameters": ', '"parameters": -'))
    elsewhere = place / ("first.json" if rank == 0 else f"no folder of rank {rank}/first.json")
    return {
        "first": first,
        "second": train(rank, place / "first.json"),
        "without a warm-up": train(rank, place / "first.json", warmup=0),
        "another disk": train(rank, elsewhere),
        "other devices": train(rank, place / "devices.json", names=("one", "new", "three")),
        "other speeds": train(rank, place / "speeds.json", speeds=OTHER_SPEEDS),
        "folder goes away": train(
            rank, place / "lost" / "p.json", callbacks=[LosesItsFolder(place / "lost")]
        ),
        "broken": train(rank, place / "broken.json"),
        "missing without a warm-up": train(rank, place / "missing.json", warmup=0),
        "unfit without a warm-up": train(
            rank, place / "first.json", warmup=0, names=("one", "new", "three")
        ),
        "new folders": train(rank, place / "new" / "folder" / "p.json"),
        "a folder": train(rank, place),
        "not to be written": train(rank, Path("/proc/p.json")),
    }


TRAINED = (
    "first",
    "second",
    "without a warm-up",
    "another disk",
    "other devices",
    "other speeds",
    "folder goes away",
    "new folders",
)
REFUSED = {
    "broken": "expected made_for.parameters to be a whole number of at least 0 in .*Delete the file",
    "missing without a warm-up": "since warmup=0 .* there is no such file. Leave warmup out",
    "unfit without a warm-up": "the device of rank 1 was 'two', and here it is 'new'. Leave",
    "a folder": "expected a file, got .* Name a file, such as .*/profile.json",
    "not to be written": "expected a folder in which files can be written, got /proc",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    return run_ranks(play, RANKS, str(tmp_path_factory.mktemp("profiles")))


@pytest.fixture(scope="module")
def alone() -> Outcome:
    return train_alone(TRAINING)


def entries(found: Found) -> Sequence[tuple[int, Any]]:
    assert found.orchestration is not None
    return [(step, plan.batch_sizes) for step, plan in found.orchestration.schedule.entries]


@pytest.mark.parametrize("scene", TRAINED)
def test_learns_what_one_device_learns(found: Any, alone: Outcome, scene: str) -> None:
    together = [by_rank[scene].outcome for by_rank in found]
    assert rows_of_steps(together) == alone.seen
    for each in together:
        assert relative_error(each.weights, alone.weights) < 1e-10
        assert each.plan == together[0].plan


def test_the_first_training_writes_what_it_has_measured(found: Any) -> None:
    first = found[0]["first"]
    profile = Profile.from_json(first.text)
    assert profile.plan == first.orchestration.plan
    assert profile.plan.batch_sizes == first.outcome.plan
    assert profile.made_for.devices == NAMES
    assert {"torch", "pytorch_lightning", "lightning_boa"} <= set(profile.made_for.software)
    for fit, rows, speed in zip(profile.fits, profile.plan.batch_sizes, SPEEDS, strict=True):
        assert fit.median(rows) == pytest.approx(rows * speed)
    assert len(entries(first)) > 1


@pytest.mark.parametrize("scene", ["second", "without a warm-up", "another disk"])
def test_a_later_training_begins_with_the_plan(found: Any, scene: str) -> None:
    for by_rank in found:
        later = by_rank[scene]
        assert entries(later) == [(0, found[0]["first"].outcome.plan)]
        assert later.orchestration.reason.startswith("the first steps took as long")
        assert later.orchestration.exchange_after is None
    assert found[0][scene].text == found[0]["first"].text


def test_another_device_is_measured_and_written(found: Any) -> None:
    later = found[0]["other devices"]
    assert entries(later) == entries(found[0]["first"])
    assert Profile.from_json(later.text).made_for.devices == ("one", "new", "three")


def test_other_speeds_are_noticed_measured_and_written(found: Any) -> None:
    later, plan = found[0]["other speeds"], found[0]["first"].outcome.plan
    (_, begun), (noticed, equal), *_ = entries(later)
    assert begun == plan
    assert noticed == 10
    assert equal == (ROWS // RANKS,) * RANKS
    assert later.outcome.plan == (plan[2], plan[0], plan[1])
    assert Profile.from_json(later.text).plan.batch_sizes == later.outcome.plan


def test_a_file_that_cannot_be_written_later_stops_nothing(found: Any) -> None:
    assert found[0]["folder goes away"].outcome.plan == found[0]["first"].outcome.plan
    assert found[0]["folder goes away"].text == ""


def test_folders_are_made(found: Any) -> None:
    assert found[0]["new folders"].text


@pytest.mark.parametrize("scene", REFUSED)
def test_is_refused_on_every_rank_before_the_first_step(found: Any, scene: str) -> None:
    for by_rank in found:
        assert by_rank[scene].steps == 0
        assert re.search(f"^profile: .*{REFUSED[scene]}", by_rank[scene].error)


def test_the_file_holds_plain_json(found: Any) -> None:
    assert json.loads(found[0]["first"].text)["version"] == 1
