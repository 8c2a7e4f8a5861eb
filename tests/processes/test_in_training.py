"""What a user sees while two ranks train, and the record that is left; all scenes in one launch."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.tuner import Tuner

from lightning_boa.callbacks import in_training
from lightning_boa.for_pytorch_lightning import LbBspStrategy
from lightning_boa.profiling import HostTimeline, StepClock
from lightning_boa.reports.run_record import FILE_NAME, RunRecord
from tests.processes.ranks import run_ranks
from tests.processes.test_surface import RANKS, WithRate, loader, trainer_with
from tests.processes.training import Regression
from tests.processes.virtual_time import MeasuresVirtualTime, VirtualTime, emulated

pytestmark = pytest.mark.full

STEPS = 60
ROWS = {f"boa/rank{rank}/rows" for rank in range(RANKS)}
OF_RANKS = ROWS | {f"boa/rank{rank}/idle_share" for rank in range(RANKS)}
LOGGED = {"boa/step_seconds", "boa/idle_share", "boa/loader_share", *OF_RANKS}


class Counted(MeasuresVirtualTime):
    """Keeps after which steps figures were shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.shown_after: list[int] = []

    def show_figures(self, *arguments: Any, **options: Any) -> None:
        self.shown_after.append(self.lightning_module.trainer.fit_loop.total_batch_idx)
        super().show_figures(*arguments, **options)


class LbBspInVirtualTime(LbBspStrategy):
    time: VirtualTime

    def new_clock(self) -> StepClock:
        return StepClock(self.global_rank, HostTimeline(self.time), clock=self.time)


class Remembers(Logger):
    """A logger of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, set[str]]] = []

    name = version = property(lambda self: "own")  # type: ignore[assignment]

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None: ...

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.logged.append((step or 0, {name for name in metrics if name.startswith("boa/")}))


def trained(
    strategy: Any, seconds: list[float], *callbacks: Any, fit: Any = None, **options: Any
) -> tuple[pl.Trainer, str, list[str]]:
    """The trainer, what it has printed and what it has warned of."""
    options = {"max_steps": STEPS, "max_epochs": -1, **options}
    trainer = trainer_with(strategy, callbacks=[emulated(strategy, seconds), *callbacks], **options)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Regression(schedules=False), loader(batch_size=8), **(fit or {}))
    return trainer, said.getvalue(), [str(each.message) for each in caught]


def read(path: Path | str) -> RunRecord | None:
    file = Path(path)
    return RunRecord.from_json(file.read_bytes()) if file.exists() else None


def boa_metrics(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if name.startswith("boa/")}


def two_loggers(rank: int) -> dict[str, Any]:
    own, strategy = Remembers(), Counted()
    keeper = ModelCheckpoint("kept", monitor="boa/idle_share", save_top_k=1)
    trainer, said, _ = trained(
        strategy,
        [1.0, 3.0],
        keeper,
        logger=[CSVLogger("csv", "", ""), own],
        log_every_n_steps=7,
        enable_checkpointing=True,
    )
    watch = strategy.orchestration.watch
    return {
        "callback": boa_metrics(trainer.callback_metrics),
        "logged": boa_metrics(trainer.logged_metrics),
        "bar": {name for name in trainer.progress_bar_metrics if name.startswith("boa")},
        "own": [step for step, names in own.logged if names == LOGGED],
        "csv": Path("csv", "metrics.csv").read_text().splitlines()[0] if rank == 0 else "",
        "said": said,
        "record": read(Path("csv", FILE_NAME)),
        "shown after": strategy.shown_after,
        "blocks": [block.first_step for block in watch.blocks],
        "best": keeper.best_model_score is not None,
        "kept by log": [
            metric.meta.name for metric in trainer.fit_loop.epoch_loop._results.values()
        ],
    }


def nothing_is_left(rank: int) -> dict[str, tuple[str, bool, set[str]]]:
    found = {}
    for name, strategy, options in (
        ("record=None", {"record": None}, {"max_steps": 30}),
        ("not verbose", {"record": None, "verbose": False}, {"max_steps": 30}),
        ("fast_dev_run", {}, {"fast_dev_run": 3}),
        ("switched off", {}, {"max_steps": 4}),
    ):
        os.environ["LIGHTNING_BOA"] = "off" if name == "switched off" else "on"
        trainer, said, _ = trained(
            Counted(**strategy), [1.0, 3.0], default_root_dir=name, **options
        )
        shown = {key for key in trainer.progress_bar_metrics if key.startswith("boa")}
        found[name] = said, Path(name, FILE_NAME).exists(), shown
    del os.environ["LIGHTNING_BOA"]
    Tuner(trainer_with(default_root_dir="tuned")).lr_find(WithRate(), loader(), num_training=10)
    found["finder"] = "", Path("tuned", FILE_NAME).exists(), set()
    return found


class Fails(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *others: Any) -> None:
        if trainer.global_step == 40:
            raise ValueError("a bad row\nof the data")


def an_error(rank: int) -> RunRecord | None:
    strategy = Counted(record="failed.json")
    with contextlib.suppress(ValueError):
        trained(strategy, [1.0, 3.0], Fails())
    return read("failed.json")


def a_full_disk(rank: int) -> tuple[int, list[str]]:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    whole, in_training.write_whole = in_training.write_whole, fail  # type: ignore[assignment]
    try:
        trainer, _, warned = trained(Counted(record="full.json"), [1.0, 3.0], max_epochs=20)
    finally:
        in_training.write_whole = whole
    return trainer.global_step, [text for text in warned if "record" in text]


def resumed(rank: int) -> list[tuple[int, RunRecord | None]]:
    """A training, its continuation from its middle, and another training at the same place."""
    records = []
    for options, fit in (
        ({"max_steps": STEPS}, None),
        ({"max_steps": 2 * STEPS}, {"ckpt_path": "middle.ckpt", "weights_only": False}),
        ({"max_steps": 4}, None),
    ):
        kept = [Saves()] if not Path("middle.ckpt").exists() else []
        strategy = Counted(record="again.json")
        _, said, _ = trained(strategy, [1.0, 3.0], *kept, fit=fit, **options)
        torch.distributed.barrier()
        records.append((said.count("\nPlan") + said.startswith("Plan"), read("again.json")))
    return records


class Saves(pl.Callback):
    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        if trainer.global_step == STEPS - 20:
            trainer.save_checkpoint("middle.ckpt")


def fixed_and_other_plans(rank: int) -> dict[str, Any]:
    _, said, _ = trained(Counted(batch_sizes=[12, 4], record="fixed.json"), [1.0, 3.0])
    trainer, quiet_said, _ = trained(
        LbBspInVirtualTime(), [1.0, 3.0], max_steps=8, log_every_n_steps=1, default_root_dir="bsp"
    )
    _, short_said, _ = trained(Counted(record="short.json"), [1.0, 3.0], max_steps=4)
    return {
        "fixed": (said, read("fixed.json")),
        "LB-BSP": (quiet_said, boa_metrics(trainer.callback_metrics), read(f"bsp/{FILE_NAME}")),
        "short": (short_said, read("short.json")),
    }


SCENES: tuple[Callable[[int], Any], ...] = (
    two_loggers,
    nothing_is_left,
    an_error,
    a_full_disk,
    resumed,
    fixed_and_other_plans,
)


def all_scenes(rank: int) -> dict[str, Any]:
    return {scene.__name__: scene(rank) for scene in SCENES}


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return run_ranks(all_scenes, RANKS)


def test_all_ranks_know_the_same_figures(found: list[dict[str, Any]]) -> None:
    one, other = (each["two_loggers"] for each in found)
    assert set(one["callback"]) == set(one["logged"]) == LOGGED
    assert one["callback"] == other["callback"]
    assert one["callback"]["boa/rank0/rows"] == 12
    assert one["callback"]["boa/rank1/rows"] == 4
    assert one["callback"]["boa/step_seconds"] == pytest.approx(12, rel=0.01)
    assert one["callback"]["boa/idle_share"] == pytest.approx(0, abs=0.01)
    assert one["bar"] == other["bar"] == {"boa_ms", "boa_idle"}
    assert one["best"]
    assert other["best"]


def test_figures_are_shown_when_they_arrive_and_in_no_other_step(
    found: list[dict[str, Any]],
) -> None:
    one, other = (each["two_loggers"] for each in found)
    after_blocks = [first + 6 for first in one["blocks"]]
    assert len(after_blocks) >= 3
    assert one["shown after"] == other["shown after"]
    exchanges = one["shown after"][: -len(after_blocks)]
    assert one["shown after"][-len(after_blocks) :] == after_blocks
    assert 2 <= len(exchanges) <= 5
    assert one["kept by log"] == ["loss"]


def test_every_logger_gets_them_as_often_as_the_trainer_logs(found: list[dict[str, Any]]) -> None:
    one = found[0]["two_loggers"]
    assert set(one["csv"].split(",")) >= LOGGED
    assert len(one["own"]) >= 3
    gaps = [later - earlier for earlier, later in pairwise(one["own"])]
    assert min(gaps) >= 7
    assert found[1]["two_loggers"]["own"] == one["own"]


def test_rank_0_prints_the_plan_once_and_at_the_end_what_was_saved(
    found: list[dict[str, Any]],
) -> None:
    said, silent = (each["two_loggers"]["said"] for each in found)
    assert silent == ""
    assert said.count("measured\n") + said.count("measured  idle") == 1
    assert " saved (± " in said
    assert f"csv/{FILE_NAME}: boa report shows it." in said
    assert "\x1b" not in said
    assert max(map(len, said.split("What was")[0].splitlines()[:-1])) <= 100


def test_the_record_lies_in_the_loggers_folder(found: list[dict[str, Any]]) -> None:
    record = found[0]["two_loggers"]["record"]
    assert record.outcome == "finished"
    assert record.last_step == STEPS - 1
    assert record.saving.gain == pytest.approx(2, rel=0.02)
    assert record.hindrance == ""
    assert [block.step for block in record.blocks] == found[0]["two_loggers"]["blocks"]
    assert record.steps
    assert "torch" in record.software


def test_nothing_is_left_where_nothing_is_wanted_or_there_is_nothing(
    found: list[dict[str, Any]],
) -> None:
    for each in found:
        for name, (said, exists, shown) in each["nothing_is_left"].items():
            assert not exists, name
            if name != "record=None":
                assert (said, shown) == ("", set()), name
    assert "saved" in found[0]["nothing_is_left"]["record=None"][0]
    assert "boa report" not in found[0]["nothing_is_left"]["record=None"][0]


def test_an_error_is_what_ended_the_training(found: list[dict[str, Any]]) -> None:
    record = found[0]["an_error"]
    assert record.outcome == "ValueError: a bad row of the data"
    assert record.last_step == 39
    assert record.blocks


def test_a_full_disk_is_told_once_and_the_training_goes_on(found: list[dict[str, Any]]) -> None:
    steps, warned = found[0]["a_full_disk"]
    assert steps == STEPS
    (warning,) = warned
    assert "No space left on device" in warning
    assert "record=None" in warning
    assert found[1]["a_full_disk"] == (STEPS, [])


def test_a_resumed_training_goes_on_with_its_record_and_a_new_one_begins_anew(
    found: list[dict[str, Any]],
) -> None:
    tables, (first, resumed, other) = zip(*found[0]["resumed"], strict=True)
    assert tables == (1, 1, 0)
    middle = STEPS - 20
    assert resumed.started == first.started != other.started
    assert resumed.last_step == 2 * STEPS - 1
    early = [block for block in first.blocks if block.step < middle]
    assert early
    assert list(resumed.blocks[: len(early)]) == early
    assert [block.step for block in resumed.blocks] == sorted({b.step for b in resumed.blocks})
    assert resumed.steps == first.steps
    assert resumed.saving.steps == 2 * STEPS - first.blocks[0].step
    assert other.last_step == 3
    assert not other.blocks


def test_plans_that_are_not_boas(found: list[dict[str, Any]]) -> None:
    plans = found[0]["fixed_and_other_plans"]
    said, record = plans["fixed"]
    assert "Fixed plan: nothing was measured." in said
    assert record.plans == ((0, (12, 4)),)
    said, metrics, record = plans["LB-BSP"]
    assert said == ""
    assert metrics["boa/rank0/rows"] > 8
    assert found[1]["fixed_and_other_plans"]["LB-BSP"][1] == metrics
    assert len(record.plans) > 2
    said, record = plans["short"]
    assert said == ""
    assert "within the warm-up" in record.hindrance
