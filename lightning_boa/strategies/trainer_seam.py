"""Every private name of Lightning that we rely on, each with its reason. Read in pytorch-lightning 2.5 to 2.6.6.

`_data_connector._prepare_dataloader`
    Lightning re-creates loaders with a sampler of its own before `Strategy.process_dataloader` is asked. Re-creating
    loses or rejects arguments of subclasses, and only this method knows the stage. It is replaced on the instance.
`_data_source` of the fit loop and of those for validation and test
    A set of loaders begins when it is asked for them: at the start, at a reload, and for the learning-rate finder. Its
    `dataloader` is replaced on the instance.
`_accelerator_connector.use_distributed_sampler`
    Not readable elsewhere: the user has taken the distribution of samples into their own hands.
`_logger_connector.on_batch_end`
    Nothing else runs after all hooks at the end of a batch. It is replaced on the instance.
`_logger_connector.log_metrics` and the three dictionaries of metrics beside it
    `LightningModule.log` keeps each value until the epoch ends and gathers all of them again after every step. Figures
    that come now and then are shown at once instead.
`callbacks.lr_finder._LRCallback`, `loggers.logger.DummyLogger`
    They alone tell the steps of the learning-rate finder, of the batch-size finder and of fast_dev_run from a training.
`_results` of a loop, and `_ResultMetric` in it
    `extract_batch_size` takes the first tensor it meets; the rows of a step are known here. A rank without rows must
    leave no trace in what is logged.
`fit_loop.epoch_loop.batch_progress`
    The position in the epoch and in the whole training, as Lightning itself restores it.
`_evaluation_loop`, and its `batch_progress`
    Which of the four loops evaluates, and which of its steps runs.
`LightningModule._on_before_batch_transfer`
    Batches of later passes take the way to the device that the loop's own batches take.
`fit_loop._skip_backward`
    Stochastic weight averaging ends with an epoch of forwards.
`_combined_loader` of a loop and its `_mode`
    How several loaders are combined.
`LightningModule._current_fx_name`
    What is logged in a hook at the end of a batch is reduced outside of the strategy's steps. Later passes log as the
    training step does.
`overrides.distributed._IndexBatchSamplerWrapper`
    Prediction writers find the indices of a batch in it.
`_signal_connector`, `fit_loop.epoch_loop._broadcast_sigterm_tensor`
    From 2.6 on the handler of SIGTERM calls a collective wherever in a step the rank is, which the other ranks do not
    meet; only rank 0's flag reaches all ranks; and what fails before a step is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from lightning_boa.data import ShareBatchSampler

PrepareLoader = Callable[[DataLoader[Any], str], Any]

TRAIN, PREDICT = "train", "predict"
NEXT_TO_NOTHING = 2.0**-40


def divert_loaders(trainer: Any, prepare: PrepareLoader) -> None:
    """Let `prepare(loader, stage)` stand where Lightning would put a distributed sampler into a DataLoader.

    Stages are "train", "validate", "sanity_check", "test" and "predict". Other iterables are given to it as well in
    training. Where it answers None, Lightning's own way is taken.
    """
    connector = trainer._data_connector
    connector._prepare_dataloader = partial(_prepare_dataloader, connector, prepare)


def _prepare_dataloader(
    connector: Any, prepare: PrepareLoader, dataloader: Any, shuffle: bool, mode: Any
) -> Any:
    prepared = prepare(dataloader, mode.value)
    if prepared is not None:
        return prepared
    return type(connector)._prepare_dataloader(connector, dataloader, shuffle, mode)


def announce_loaders(
    trainer: Any, begin: Callable[[int], object], begin_evaluated: Callable[[int], object]
) -> None:
    """Let `begin(number)` run before a set of so many training loaders is prepared, one by one; `begin_evaluated`
    before one of validation or test.
    """
    evaluations = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
    for loop, act in (
        (trainer.fit_loop, begin),
        *((each, begin_evaluated) for each in evaluations),
    ):
        source = loop._data_source
        source.dataloader = partial(_request_loaders, trainer, source, act)


def _request_loaders(trainer: Any, source: Any, begin: Callable[[int], object]) -> Any:
    loaders = type(source).dataloader(source)
    combined: Any = import_module(f"{_package_of(trainer)}.utilities").CombinedLoader
    made = loaders if isinstance(loaders, combined) else combined(loaders)
    begin(len(made.flattened))
    return loaders


def divert_batch_end(trainer: Any, act: Callable[[], object]) -> None:
    """Let `act()` run after the hooks at the end of each batch, before what they have logged is read."""
    connector = trainer._logger_connector
    connector.on_batch_end = partial(_on_batch_end, connector, act)


def _on_batch_end(connector: Any, act: Callable[[], object]) -> None:
    act()
    type(connector).on_batch_end(connector)


def show_now(
    trainer: Any, logged: Mapping[str, float], in_bar: Mapping[str, float], *, to_loggers: bool
) -> None:
    """Show values to callbacks (`trainer.callback_metrics`), to the progress bar and, if wanted, to the loggers."""
    connector = trainer._logger_connector
    values = {name: torch.tensor(value) for name, value in logged.items()}
    connector._callback_metrics.update(values)
    connector._logged_metrics.update(values)
    connector._progress_bar_metrics.update(in_bar)
    if to_loggers:
        connector.log_metrics(values)


def is_only_a_trial(trainer: Any) -> bool:
    """Whether the steps are no part of a training: fast_dev_run, finders of a learning rate or a batch size, and what
    is to run bare of everything.
    """
    stand_ins = ("DummyLogger", "_LRCallback")
    beside = [*trainer.loggers, *trainer.callbacks]
    return bool(
        trainer.fast_dev_run
        or trainer.barebones
        or any(type(each).__name__ in stand_ins for each in beside)
    )


def uses_distributed_sampler(trainer: Any) -> bool:
    """Whether Lightning may distribute the samples over ranks."""
    return bool(trainer._accelerator_connector.use_distributed_sampler)


def steps_done(trainer: Any) -> tuple[int, int]:
    """Training steps (batches) done in this epoch, and since the training began."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return int(progress.current.ready), int(progress.total.ready)


def is_inside_epoch(trainer: Any) -> bool:
    """Before the first step of a training: whether it goes on in the middle of an epoch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return bool(progress.current.ready and not progress.is_last_batch)


def present_step(trainer: Any) -> int:
    """The training step that is running, counted since the training began."""
    return int(trainer.fit_loop.epoch_loop.total_batch_idx)


def next_step(trainer: Any) -> int:
    """The training step whose batch is fetched next, where none is fetched ahead."""
    return steps_done(trainer)[1]


def cycles(trainer: Any) -> bool:
    """Whether a training loader that is over begins again beside a longer one."""
    return str(trainer.fit_loop._combined_loader._mode) == "max_size_cycle"


def evaluation_mode(trainer: Any) -> tuple[str, list[Any]]:
    """How the validation loaders of a fit, or those that are evaluated now, are combined, and the loaders.

    "sequential" and none before they are set up.
    """
    combined = trainer._evaluation_loop._combined_loader
    return ("sequential", []) if combined is None else (str(combined._mode), combined.flattened)


def evaluated_loader(trainer: Any) -> Any:
    """The loader of the evaluation's present step, where loaders are used one after the other."""
    loop = trainer._evaluation_loop
    return loop._combined_loader.flattened[loop._results.dataloader_idx or 0]


def stop_together(trainer: Any, requested: Callable[[], bool], request: Callable[[], bool]) -> None:
    """Let SIGTERM on any rank end the training on all ranks before the same step.

    `request()` is called when the signal arrives and says whether rank 0 will learn of it; if not, or outside of a
    training, this rank ends as Lightning has it. `requested()` is asked before each step.
    """
    loop = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        trainer._signal_connector._sigterm_notifier_fn = partial(_note_sigterm, trainer, request)
        loop._broadcast_sigterm_tensor = partial(_stop_if_requested, trainer, requested)


def stop_apart(trainer: Any) -> None:
    """Let SIGTERM end this rank alone, without a collective in its handler or before each step."""
    loop = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        trainer._signal_connector._sigterm_notifier_fn = partial(
            _note_sigterm, trainer, lambda: False
        )
        loop._broadcast_sigterm_tensor = partial(_stop_if_signalled, trainer)


def _stop_if_signalled(trainer: Any) -> None:
    if trainer._signal_connector.received_sigterm:
        exceptions = import_module(f"{_package_of(trainer)}.utilities.exceptions")
        raise exceptions.SIGTERMException


def _note_sigterm(trainer: Any, request: Callable[[], bool], signum: int, frame: Any) -> None:
    launcher = trainer.strategy.launcher
    if launcher is not None:
        launcher.kill(signum)
    if not request():
        trainer._signal_connector.received_sigterm = True


def _stop_if_requested(trainer: Any, requested: Callable[[], bool]) -> None:
    flag = torch.tensor([int(requested())], device=trainer.strategy.root_device)
    torch.distributed.broadcast(flag, src=0)
    if flag.item():
        trainer._signal_connector.received_sigterm = True
        trainer.strategy.barrier()
        exceptions = import_module(f"{_package_of(trainer)}.utilities.exceptions")
        raise exceptions.SIGTERMException


def evaluation_step(trainer: Any) -> tuple[int, bool]:
    """A number above 0 that each step of all evaluation loaders has for itself, and whether this step is the last."""
    loop = trainer._evaluation_loop
    number = loop.batch_progress.current.ready * loop.num_dataloaders
    return number + (loop._results.dataloader_idx or 0), bool(loop.batch_progress.is_last_batch)


def index_recorder(trainer: Any, batch_sampler: ShareBatchSampler) -> Any:
    """The batch sampler, wrapped so that prediction writers see its indices."""
    wrapper: Any = import_module(
        f"{_package_of(trainer)}.overrides.distributed"
    )._IndexBatchSamplerWrapper
    present = property(lambda recorder: recorder._batch_sampler.iteration)
    return type(wrapper.__name__, (wrapper,), {"iteration": present})(batch_sampler)


def _package_of(trainer: Any) -> str:
    return next(
        base.__module__.removesuffix(".trainer.trainer")
        for base in type(trainer).__mro__
        if base.__module__.endswith(".trainer.trainer")
    )


def log_rows(trainer: Any, rows: int, *, training: bool) -> None:
    """Let `self.log` weigh what is logged now by the rows behind it, those of the present batch or of a whole epoch.

    Where there are none it weighs next to nothing, so that what a rank logs for itself alone stays a number.
    """
    results = trainer.fit_loop.epoch_loop._results if training else trainer._results
    if results is not None:
        results.batch_size = rows or NEXT_TO_NOTHING


def to_device(trainer: Any, batch: Any) -> Any:
    """A batch as the loader gives it, as the training step gets it."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def skips_backward(trainer: Any) -> bool:
    """Whether training steps are run for what they do to buffers alone."""
    return bool(trainer.fit_loop._skip_backward)


def backward_begins_with(trainer: Any, output: Any) -> torch.Tensor:
    """The loss in what a training step has returned, as Lightning divides it in a window of several batches."""
    loss = output["loss"] if isinstance(output, Mapping) else output
    divided: torch.Tensor = loss / trainer.accumulate_grad_batches
    return divided


@contextmanager
def inside_training_step(module: Any) -> Iterator[None]:
    """`self.log` takes what runs here for the training step."""
    before, module._current_fx_name = module._current_fx_name, "training_step"
    try:
        yield
    finally:
        module._current_fx_name = before


def values_of_step(trainer: Any) -> dict[str, tuple[torch.Tensor, str]]:
    """What this rank has logged for itself alone as values of steps, by name, and how several of one become one."""
    return {
        key: (metric._forward_cache, metric.meta.reduce_fx.__name__)
        for key, metric in trainer._results.items()
        if metric.is_tensor
        and metric.meta.on_step
        and not metric.meta.sync.should
        and not metric.meta.is_custom_reduction
    }


def write_values_of_step(trainer: Any, values: Mapping[str, torch.Tensor]) -> None:
    """Put other values in place of some of those."""
    for key, value in values.items():
        metric = trainer._results[key]
        metric._forward_cache = value
        if not metric.meta.on_epoch:
            metric.value = value


class Logged(NamedTuple):
    """A value that training steps have logged, and what was said of it: the last step's, and what the epoch holds."""

    key: str
    arguments: dict[str, Any]
    reduction: str
    step_value: torch.Tensor | None
    of_epoch: dict[str, torch.Tensor]


def logged_values(trainer: Any) -> list[Logged]:
    """What this rank has logged since the epoch began, for all ranks."""
    return [
        Logged(
            key,
            {
                **{name: getattr(metric.meta, name) for name in _SAID},
                "sync_dist": bool(metric.meta.sync.should),
            },
            "metric" if not metric.is_tensor else metric.meta.reduce_fx.__name__,
            metric._forward_cache.detach().cpu()
            if metric.is_tensor and metric.meta.on_step
            else None,
            {name: getattr(metric, name).detach().cpu() for name in metric._defaults}
            if metric.is_tensor and metric.meta.on_epoch and not metric.meta.sync.should
            else {},
        )
        for key, metric in trainer.fit_loop.epoch_loop._results.items()
        if not metric.has_reset and not metric.meta.sync.rank_zero_only
    ]


_SAID = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "add_dataloader_idx",
    "metric_attribute",
)


def log_if_missing(trainer: Any, logged: Logged) -> None:
    """Log, on a rank that has not, what counts for nothing in what all ranks reduce."""
    results = trainer.fit_loop.epoch_loop._results
    if logged.key in results and not results[logged.key].has_reset:
        return
    is_synced = logged.arguments["sync_dist"]
    if logged.reduction == "metric":
        modules = dict(trainer.lightning_module.named_modules())
        value = modules[logged.arguments["metric_attribute"]]
        reduction = torch.mean
    else:
        value = torch.zeros((), device=trainer.strategy.root_device)
        if is_synced and logged.reduction in ("min", "max"):
            value.fill_(float("inf") if logged.reduction == "min" else -float("inf"))
        reduction = getattr(torch, logged.reduction)
    results.log(
        **logged.arguments,
        value=value,
        reduce_fx=reduction,
        sync_dist_fn=trainer.strategy.reduce,
        batch_size=0 if is_synced else NEXT_TO_NOTHING,
    )


def log_epoch_for(trainer: Any, logged: Logged) -> None:
    """Let what the epoch holds of a value that each rank logs for itself be what another rank has logged."""
    metric = trainer.fit_loop.epoch_loop._results[logged.key]
    for name, value in logged.of_epoch.items():
        setattr(metric, name, value.to(trainer.strategy.root_device))


def log_for(trainer: Any, logged: Logged) -> None:
    """Let the value of this step be the one that another rank has logged."""
    if logged.step_value is None:
        return
    log_if_missing(trainer, logged)
    metric = trainer.fit_loop.epoch_loop._results[logged.key]
    metric._forward_cache = logged.step_value.to(trainer.strategy.root_device)
    if not metric.meta.on_epoch:
        metric.value = metric._forward_cache


def is_batch_end(module: Any) -> bool:
    """Whether a hook at the end of a batch runs, in which `self.log` still speaks of the rows of that batch."""
    return str(module._current_fx_name).endswith("_batch_end")


def remember_logged(trainer: Any, *, keeps_first_means: bool = True) -> Callable[[], None]:
    """Copy what has been logged; the returned function puts it back, with what is new counting for nothing.

    The first mean that this rank logs for itself alone stays, weighing next to nothing, unless it must not.
    """
    results = trainer._results
    before = {key: _logged_state(metric) for key, metric in results.items()}

    def restore() -> None:
        for key, metric in results.items():
            if not metric.is_tensor:
                continue
            earlier = before.get(key, metric._defaults)
            if not (keeps_first_means and _is_first_own_mean(metric, earlier)):
                for name in metric._defaults:
                    setattr(metric, name, earlier[name].to(getattr(metric, name)))
            if key in before and not metric.meta.sync.should:
                metric._forward_cache = earlier["_forward_cache"]

    return restore


def _is_first_own_mean(metric: Any, earlier: Mapping[str, Any]) -> bool:
    own = metric.meta.is_mean_reduction and not metric.meta.sync.should
    first = own and not bool(earlier["cumulated_batch_size"])
    return first and bool(torch.isfinite(metric.value).all())


def _logged_state(metric: Any) -> dict[str, Any]:
    state = {name: _clone(getattr(metric, name)) for name in metric._defaults}
    state["_forward_cache"] = metric._forward_cache
    return state


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
