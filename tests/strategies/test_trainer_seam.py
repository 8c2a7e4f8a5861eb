"""The seam against small fakes, and against Lightning's own result collections where only those prove something."""

from __future__ import annotations

import importlib
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_boa.data import EvenSteps, SequentialOrder, ShareBatchSampler
from lightning_boa.strategies import trainer_seam
from tests.strategies.trainers import quiet_trainer

PACKAGES = ["pytorch_lightning", "lightning.pytorch"]


class Stage(Enum):
    TRAINING = "train"
    PREDICTING = "predict"


class Connector:
    def _prepare_dataloader(self, loader: Any, shuffle: bool, mode: Any) -> Any:
        return ("lightning's own way", loader, shuffle, mode)


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    return importlib.import_module(request.param)


def test_loaders_are_diverted_on_the_instance_alone() -> None:
    ours, others = Connector(), Connector()
    asked = []

    def prepare(loader: Any, stage: str) -> Any:
        asked.append((loader, stage))
        return None if loader == "odd" else f"twin of {loader}"

    trainer_seam.divert_loaders(SimpleNamespace(_data_connector=ours), prepare)

    assert ours._prepare_dataloader("loader", True, Stage.TRAINING) == "twin of loader"
    assert ours._prepare_dataloader("loader", shuffle=False, mode=Stage.PREDICTING) == (
        "twin of loader"
    )
    assert ours._prepare_dataloader("odd", True, Stage.TRAINING) == (
        "lightning's own way",
        "odd",
        True,
        Stage.TRAINING,
    )
    assert asked == [("loader", "train"), ("loader", "predict"), ("odd", "train")]
    assert others._prepare_dataloader("loader", True, Stage.TRAINING)[0] == "lightning's own way"


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_set_of_loaders_is_announced_whenever_it_is_asked_for(package: Any) -> None:
    trainer = quiet_trainer(package)
    combined = importlib.import_module(f"{package.__name__}.utilities").CombinedLoader
    evaluations = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
    for loaders, number in (([1, 2], 1), ({"a": [1], "b": [[2], [3]]}, 3), (combined([[1]]), 1)):
        trained: list[int] = []
        evaluated: list[int] = []
        for _ in range(2):
            trainer_seam.announce_loaders(trainer, trained.append, evaluated.append)
            for loop in (trainer.fit_loop, *evaluations):
                loop._data_source.instance = loaders
                assert loop._data_source.dataloader() is loaders
        assert trained == [number] * 2
        assert evaluated == [number] * 6


def test_diverting_again_forgets_the_first_strategy() -> None:
    connector = Connector()
    trainer = SimpleNamespace(_data_connector=connector)
    trainer_seam.divert_loaders(trainer, lambda loader, stage: "first")
    trainer_seam.divert_loaders(trainer, lambda loader, stage: None)

    assert connector._prepare_dataloader("loader", True, Stage.TRAINING)[0] == (
        "lightning's own way"
    )


def test_the_end_of_a_batch_is_known_before_it_is_read(package: Any) -> None:
    module = "trainer.connectors.logger_connector.logger_connector"
    kind = importlib.import_module(f"{package.__name__}.{module}")._LoggerConnector
    told: list[str] = []

    class Logger(kind):  # type: ignore[misc]
        def __init__(self) -> None: ...

        def on_batch_end(self) -> None:
            told.append("read")

    connector = Logger()
    trainer = SimpleNamespace(_logger_connector=connector)
    for name in ("forgotten", "ended"):
        trainer_seam.divert_batch_end(trainer, partial(told.append, name))
    connector.on_batch_end()

    assert callable(kind.on_batch_end)
    assert told == ["ended", "read"]


def test_the_names_of_lightning_that_we_rely_on(package: Any) -> None:
    trainer = quiet_trainer(package, use_distributed_sampler=False)
    assert callable(type(trainer._data_connector)._prepare_dataloader)
    assert not trainer_seam.uses_distributed_sampler(trainer)
    assert trainer_seam.steps_done(trainer) == (0, 0)
    stages = importlib.import_module(f"{package.__name__}.trainer.states").RunningStage
    assert {stage.value for stage in stages} == {
        "train",
        "validate",
        "sanity_check",
        "test",
        "predict",
    }
    assert stages.TRAINING.value == trainer_seam.TRAIN
    assert stages.PREDICTING.value == trainer_seam.PREDICT


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("stage", ["FITTING", "VALIDATING", "TESTING"])
def test_how_evaluation_loaders_are_combined_and_which_step_runs(package: Any, stage: str) -> None:
    trainer = quiet_trainer(package)
    states = importlib.import_module(f"{package.__name__}.trainer.states")
    utilities = importlib.import_module(f"{package.__name__}.utilities")
    trainer.state.fn = states.TrainerFn[stage]
    assert trainer_seam.evaluation_mode(trainer) == ("sequential", [])

    loop = trainer._evaluation_loop
    loop._combined_loader = utilities.CombinedLoader([[1], [2]], "min_size")
    assert trainer_seam.evaluation_mode(trainer) == ("min_size", [[1], [2]])
    loop.batch_progress.current.ready = 3
    assert trainer_seam.evaluation_step(trainer) == (6, False)
    assert trainer_seam.evaluated_loader(trainer) == [1]
    loop.batch_progress.is_last_batch = True
    loop._results.dataloader_idx = 1
    assert trainer_seam.evaluation_step(trainer) == (7, True)
    assert trainer_seam.evaluated_loader(trainer) == [2]


def test_the_position_is_that_of_finished_steps(package: Any) -> None:
    trainer = quiet_trainer(package)
    progress = trainer.fit_loop.epoch_loop.batch_progress
    progress.current.ready, progress.total.ready = 4, 19

    assert trainer_seam.steps_done(trainer) == (4, 19)


def batch_sampler() -> ShareBatchSampler:
    return ShareBatchSampler(
        EvenSteps(SequentialOrder(7), 4, drop_last=False),
        rank=0,
        seed=0,
        rows_of=lambda _, rows: (rows,),
        first_step=lambda: (0, 0),
        skip_ghosts=True,
    )


def seen_by_a_prediction_writer(package: Any, trainer: Any) -> list[Any]:
    recorder = trainer_seam.index_recorder(trainer, batch_sampler())
    wrapper = importlib.import_module(f"{package.__name__}.overrides.distributed")
    assert isinstance(recorder, wrapper._IndexBatchSamplerWrapper)
    assert len(recorder) == 2
    batches = list(recorder)
    assert recorder.seen_batch_indices == batches
    assert recorder.iteration.total == 2
    return batches


def test_prediction_writers_see_indices(package: Any) -> None:
    trainer = package.Trainer.__new__(package.Trainer)

    assert seen_by_a_prediction_writer(package, trainer) == [[0, 1, 2, 3], [4, 5, 6]]


def test_prediction_writers_see_indices_under_a_users_trainer(package: Any) -> None:
    class OwnTrainer(package.Trainer):  # type: ignore[misc]
        pass

    seen_by_a_prediction_writer(package, OwnTrainer.__new__(OwnTrainer))


@pytest.fixture
def logged(package: Any) -> Any:
    """A trainer that runs a training step, and Lightning's own collection of what is logged in it."""
    results = importlib.import_module(
        f"{package.__name__}.trainer.connectors.logger_connector.result"
    )._ResultCollection(training=True)
    return SimpleNamespace(training=False, _results=results)


def log(trainer: Any, name: str, value: float, **options: Any) -> None:
    options = {"on_step": False, "on_epoch": True, **options}
    trainer._results.log("training_step", name, torch.tensor(value), **options)


def epoch_value(trainer: Any, name: str) -> float:
    return float(trainer._results.metrics(on_step=False)["callback"][name])


def test_logged_values_weigh_their_rows(logged: Any) -> None:
    trainer_seam.log_rows(logged, 3, training=False)
    log(logged, "loss", 1.0)
    trainer_seam.log_rows(logged, 1, training=False)
    log(logged, "loss", 9.0)

    assert epoch_value(logged, "loss") == 3.0


def test_outside_of_a_loop_nothing_is_weighed() -> None:
    trainer_seam.log_rows(SimpleNamespace(training=False, _results=None), 3, training=False)


def test_a_ghost_leaves_what_was_logged_as_it_was(logged: Any) -> None:
    trainer_seam.log_rows(logged, 3, training=False)
    log(logged, "loss", 1.0)
    log(logged, "smallest", 4.0, reduce_fx="min")
    log(logged, "total", 4.0, reduce_fx="sum")
    restore = trainer_seam.remember_logged(logged)
    trainer_seam.log_rows(logged, 0, training=False)
    log(logged, "loss", float("nan"))
    log(logged, "smallest", -7.0, reduce_fx="min")
    log(logged, "total", 100.0, reduce_fx="sum")
    restore()
    trainer_seam.log_rows(logged, 1, training=False)
    log(logged, "loss", 9.0)

    assert epoch_value(logged, "loss") == 3.0
    assert epoch_value(logged, "smallest") == 4.0
    assert epoch_value(logged, "total") == 4.0


def test_a_name_that_only_a_ghost_has_logged_counts_for_nothing(logged: Any) -> None:
    restore = trainer_seam.remember_logged(logged)
    trainer_seam.log_rows(logged, 0, training=False)
    log(logged, "loss", 1000.0)
    log(logged, "largest", 1000.0, reduce_fx="max")
    restore()
    assert set(logged._results) == {"training_step.loss", "training_step.largest"}

    trainer_seam.log_rows(logged, 2, training=False)
    log(logged, "loss", 5.0)
    log(logged, "largest", -3.0, reduce_fx="max")
    assert epoch_value(logged, "loss") == 5.0
    assert epoch_value(logged, "largest") == -3.0


def test_the_value_of_the_last_real_step_is_shown(logged: Any) -> None:
    trainer_seam.log_rows(logged, 2, training=False)
    log(logged, "loss", 5.0, on_step=True)
    restore = trainer_seam.remember_logged(logged)
    log(logged, "loss", 1000.0, on_step=True)
    restore()

    assert float(logged._results.metrics(on_step=True)["callback"]["loss"]) == 5.0


class EpochLoop:
    def _broadcast_sigterm_tensor(self) -> None:
        raise AssertionError("the way of Lightning")


def signalled(loop: Any) -> Any:
    killed: list[int] = []
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=loop),
        _signal_connector=SimpleNamespace(received_sigterm=False, _sigterm_notifier_fn=None),
        strategy=SimpleNamespace(launcher=SimpleNamespace(kill=killed.append)),
        killed=killed,
    )


@pytest.mark.parametrize("reaches_rank_0", [True, False])
def test_sigterm_is_left_to_rank_0_where_it_learns_of_it(reaches_rank_0: bool) -> None:
    trainer = signalled(EpochLoop())
    trainer_seam.stop_together(trainer, lambda: False, lambda: reaches_rank_0)

    trainer._signal_connector._sigterm_notifier_fn(15, None)

    assert trainer._signal_connector.received_sigterm is not reaches_rank_0
    assert trainer.killed == [15]


def test_a_lightning_without_a_flag_in_every_step_keeps_its_way() -> None:
    trainer = signalled(object())
    trainer_seam.stop_together(trainer, lambda: True, lambda: True)
    assert trainer._signal_connector._sigterm_notifier_fn is None
