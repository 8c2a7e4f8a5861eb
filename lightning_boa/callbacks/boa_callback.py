"""Feeds the planning loop with measured steps and keeps its state in checkpoints, for whichever Lightning."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from lightning_boa.callbacks.in_training import InTraining, IsSeen
from lightning_boa.callbacks.network import HasNetwork, look_at_network
from lightning_boa.callbacks.step_watch import StepWatch
from lightning_boa.emulation import EmulatedClusterBehaviour
from lightning_boa.errors import UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    Orchestration,
    StepRecord,
)
from lightning_boa.profiling import (
    MOST_ROWS,
    BlockExchange,
    Exchange,
    MemoryProfile,
    check_digest,
    check_same,
    decide_once,
    exchange_records,
    host_group,
)
from lightning_boa.wrong_lightning import refuse_mix

STATE_KEY = "lightning_boa"
WINDOW_KEY = "accumulate_grad_batches"
RECORD_KEY = "record"


class PlansBatches(HasNetwork, IsSeen, Protocol):
    """What the callback needs of a strategy."""

    memory: MemoryProfile | None

    @property
    def plan(self) -> BatchPlan | None: ...

    @property
    def first_free_step(self) -> int: ...

    @property
    def has_refused_rows(self) -> bool: ...

    @property
    def has_ranks_without_rows(self) -> bool: ...

    def standing_still(self) -> AbstractContextManager[Any]: ...

    def take_new_facts(self) -> Mapping[str, Any]: ...

    def take_drawn_order(self) -> int | None: ...

    def log_rows(self, trainer: Any, training: bool) -> None: ...

    def log_epoch_rows(self) -> None: ...

    def begin_planning(self) -> None: ...

    def keep_profile(self, before: Orchestration, after: Orchestration) -> None: ...

    def measure(self, enabled: bool, *, memory: bool = True) -> None: ...

    def begin_epoch(self) -> None: ...

    def end_epoch(self) -> None: ...

    def finish_step(self) -> None: ...

    def state(self) -> dict[str, Any] | None: ...

    def restore(self, state: Mapping[str, Any], inside_epoch: bool) -> None: ...


class BoaCallbackBehaviour:
    """Lets all ranks exchange their figures when the planning loop asks for it, and announces the plan.

    The strategy attaches it; add it to the trainer yourself only to place it among other callbacks.

    Hooks that would do nothing in every step are None: Lightning enters a profiler's context for each that it can call.
    """

    on_before_zero_grad: Any = None
    on_before_backward: Any = None
    on_after_backward: Any = None
    on_before_optimizer_step: Any = None

    _watch: StepWatch | None = None
    _seen: InTraining | None = None
    _known_as: str | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        refuse_mix(self, trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        strategy = _strategy_of(trainer)
        _refuse_windows_of_static_graphs(trainer)
        check_same(strategy.take_new_facts())
        strategy.device_names = _gather_device_names(trainer)
        strategy.begin_planning()
        plan, orchestration = strategy.plan, strategy.orchestration
        assert plan is not None
        check_digest(plan.digest, "plan", strategy.root_device)
        if orchestration is None:
            rows = "" if trainer.world_size == 1 else f": {_rows(plan)} rows per rank"
            rank_zero_info(f"boa: {strategy.fixed_reason}{rows}.")
        if strategy.has_refused_rows:
            rank_zero_warn(
                "boa: some ranks have a single row in a step, which BatchNorm refuses where it has nothing else to"
                " average over. Give them two (a larger global batch, fewer ranks, batch_sizes)."
            )
        if _synchronizes_batch_norm(pl_module):
            self._do_without_measurements(strategy)
        self._seen = None if strategy.is_unseen else InTraining(trainer, strategy, self._known_as)
        if self._seen is not None:
            self._seen.begin()
        self._known_as = None if self._seen is None else self._seen.known_as
        self._watch = None
        self._measure_while_needed(strategy)
        if strategy.schedule is not None:
            self._watch_from(strategy, strategy.schedule.entries[-1][0])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        strategy = _strategy_of(trainer)
        _compare_new_loaders(strategy)
        strategy.begin_epoch()
        self._stop_watching_what_is_gone(strategy)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        _strategy_of(trainer).clock.interrupt()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        _strategy_of(trainer).clock.interrupt()

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        _on_batch_start(trainer, training=True)

    def on_validation_batch_start(self, trainer: Any, *arguments: Any) -> None:
        _on_batch_start(trainer, training=False)

    def on_test_batch_start(self, trainer: Any, *arguments: Any) -> None:
        _on_batch_start(trainer, training=False)

    def on_train_batch_end(self, trainer: Any, *arguments: Any) -> None:
        strategy = _strategy_of(trainer)
        strategy.finish_step()
        orchestration = strategy.orchestration
        if orchestration is None:
            return
        step = trainer.fit_loop.total_batch_idx
        if self._watch is not None:
            self._look_after(self._watch, strategy, orchestration, step)
        elif orchestration.exchange_after is not None and step >= orchestration.exchange_after:
            self._exchange(trainer, strategy, closing=False)
            self._watch_from(strategy, step + 1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        strategy = _strategy_of(trainer)
        strategy.log_epoch_rows()
        strategy.end_epoch()
        orchestration = strategy.orchestration
        if orchestration is None:
            pass
        elif orchestration.phase == "warmup":
            self._exchange(trainer, strategy, closing=True)
            self._watch_from(strategy, trainer.fit_loop.total_batch_idx + 1)
        elif self._watch is not None and orchestration.settings.rebalance == "epoch":
            self._rebalance(strategy)
        if self._seen is not None:
            self._seen.end_epoch()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        _strategy_of(trainer).log_epoch_rows()

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        _strategy_of(trainer).log_epoch_rows()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        state = _strategy_of(trainer).state()
        if state is not None:
            checkpoint[STATE_KEY] = {
                **state,
                WINDOW_KEY: trainer.accumulate_grad_batches,
                RECORD_KEY: self._known_as,
            }
        _leave_out_empty_loader_states(checkpoint)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn.value != "fit":
            return
        state = checkpoint.get(STATE_KEY)
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        inside_epoch = _stops_inside_epoch(progress)
        if state is not None:
            self._known_as = state.get(RECORD_KEY)
            _rewind_to_optimizer_step(progress, state[WINDOW_KEY])
            _strategy_of(trainer).restore(state, inside_epoch)
        elif inside_epoch:
            rank_zero_warn(
                "boa: this checkpoint was saved by another strategy in the middle of an epoch; its order of rows is not"
                " known, so some rows of this epoch may be used twice and others not at all."
            )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._watch is not None:
            self._watch.finish()
            self._watch = None
        orchestration = _strategy_of(trainer).orchestration
        if orchestration is not None and orchestration.phase == "warmup":
            rank_zero_info(
                "boa: the training ended within the warm-up, so no plan was made; the last split was only tried."
            )
        if self._seen is not None:
            self._seen.end()
            self._seen = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let the strategy speak before callbacks that save now, which wait for ranks that may be gone."""
        trainer.strategy.on_exception(exception)
        if self._seen is not None:
            self._seen.fail(exception)
            self._seen = None

    def _exchange(self, trainer: Any, strategy: PlansBatches, *, closing: bool) -> None:
        before, after, exchanged = self._decide(
            strategy,
            strategy.clock.records(),
            lambda before, exchanged: before.observe(
                exchanged.records,
                first_free_step=exchanged.first_free_step,
                row_caps=exchanged.row_caps,
                closing=closing,
            ),
            may_fail=_may_fail(strategy.orchestration),
        )
        strategy.keep_profile(before, after)
        self._measure_while_needed(strategy)
        if not after.changes_always:
            self._announce(before, after)
        if not closing:
            look_at_network(trainer, strategy)
        if self._seen is not None:
            step = trainer.fit_loop.total_batch_idx
            self._seen.after_exchange(before, after, exchanged.records, step)

    def _announce(self, before: Orchestration, after: Orchestration) -> None:
        is_new = before.phase == "warmup" or before.plan.batch_sizes != after.plan.batch_sizes
        if after.phase == "planned" and is_new:
            rank_zero_info(f"boa: {_rows(after.plan)} rows per rank; {after.reason}")
        elif before.phase == "planned" and before.reason != after.reason:
            rank_zero_info(f"boa: {after.reason}")

    def _decide(
        self,
        strategy: PlansBatches,
        records: Sequence[StepRecord],
        next_state: Callable[[Orchestration, Exchange], Orchestration],
        *,
        may_fail: bool = False,
    ) -> tuple[Orchestration, Orchestration, Exchange]:
        """All ranks exchange their figures and stand still while rank 0 decides; the states before and after, and the
        figures.

        Where plans change after every step each rank decides for itself, which is a broadcast less; digests are
        compared all the same.
        """
        before = strategy.orchestration
        assert before is not None
        device = strategy.root_device
        memory = strategy.memory
        row_cap = MOST_ROWS if memory is None else memory.row_cap(may_fail=may_fail)
        with strategy.standing_still():
            exchanged = exchange_records(records, strategy.first_free_step, row_cap, device)
            decide = partial(next_state, before, exchanged)
            after = decide() if before.changes_always else decide_once(decide, device)
            check_digest(after.schedule.digest, "schedule of plans", device)
            strategy.orchestration = after
        return before, after, exchanged

    def _watch_from(self, strategy: PlansBatches, step: int) -> None:
        orchestration = strategy.orchestration
        if orchestration is None or orchestration.watch is None:
            return
        world_size = orchestration.settings.world_size
        exchange = BlockExchange(world_size, host_group())
        self._watch = StepWatch(step, strategy.clock.rank, exchange)
        strategy.measure(self._watch.measures(step), memory=False)

    def _stop_watching_what_is_gone(self, strategy: PlansBatches) -> None:
        """New loaders of an epoch may begin a warm-up anew."""
        orchestration = strategy.orchestration
        if self._watch is not None and (orchestration is None or orchestration.watch is None):
            self._watch.finish()
            self._watch = None
            self._measure_while_needed(strategy)

    def _look_after(
        self, watch: StepWatch, strategy: PlansBatches, orchestration: Orchestration, step: int
    ) -> None:
        after, is_to_change = watch.end_step(step, strategy.clock, orchestration)
        if after is not orchestration:
            strategy.orchestration = after
            _announce_outcome(orchestration, after)
            _warn_of_slow_loader(watch)
            if self._seen is not None:
                self._seen.after_block(after, step)
        if is_to_change and after.settings.rebalance == "auto":
            self._rebalance(strategy)
        if strategy.clock.enabled != watch.measures(step + 1):
            strategy.measure(watch.measures(step + 1), memory=False)

    def _rebalance(self, strategy: PlansBatches) -> None:
        before, after, _ = self._decide(
            strategy,
            [],
            lambda before, exchanged: before.rebalanced(
                exchanged.first_free_step, exchanged.row_caps
            ),
        )
        if after.rebalancings != before.rebalancings:
            change = after.rebalancings[-1]
            rank_zero_info(
                f"boa: {_rows(after.plan)} rows per rank from step {change.step} on; {change.reason}."
            )
            if self._seen is not None:
                self._seen.write()

    def _do_without_measurements(self, strategy: PlansBatches) -> None:
        if strategy.has_ranks_without_rows:
            raise UnsupportedError(
                "Expected rows on every rank in every step, since SyncBatchNorm would count the rows of a rank that"
                " only takes part. Leave the short last batch out (drop_last=True), or give every rank rows."
            )
        orchestration = strategy.orchestration
        if orchestration is not None and not orchestration.is_settled:
            reason = (
                "SyncBatchNorm makes every rank look as slow as the slowest, so nothing can be planned from measured"
                " steps and the equal split stays. Give batch_sizes=[…] to use other shares."
            )
            strategy.orchestration = orchestration.keep_split(reason)
            rank_zero_warn(f"boa: {reason}")

    def _measure_while_needed(self, strategy: PlansBatches) -> None:
        orchestration = strategy.orchestration
        strategy.measure(orchestration is not None and orchestration.exchange_after is not None)


def _may_fail(orchestration: Orchestration | None) -> bool:
    """Whether steps of the next plan are run again where memory is short, until the plan has been confirmed."""
    return (
        orchestration is not None
        and orchestration.phase == "warmup"
        and orchestration.settings.in_passes
    )


def _announce_outcome(before: Orchestration, after: Orchestration) -> None:
    if before.rebalancings == after.rebalancings:
        return
    last = after.rebalancings[-1]
    rank_zero_info(
        f"boa: since step {last.step} a step takes {last.seconds_after:.3g} s; before it took"
        f" {last.seconds_before:.3g} s."
    )


def _warn_of_slow_loader(watch: StepWatch) -> None:
    if watch.slow_loader is None:
        return
    (rank, share), watch.slow_loader = watch.slow_loader, None
    rank_zero_warn(
        f"boa: rank {rank} waits for its loader in {share:.0%} of a step. Other shares would not help; more workers"
        " (DataLoader(num_workers=…)) or a faster data set would."
    )


def _strategy_of(trainer: Any) -> PlansBatches:
    strategy = trainer.strategy
    if not hasattr(strategy, "begin_planning"):
        raise UnsupportedError(
            f'Expected BoaCallback beside strategy="boa", got {type(strategy).__name__}. Set the strategy, or leave the'
            " callback out."
        )
    planner: PlansBatches = strategy
    return planner


def _refuse_windows_of_static_graphs(trainer: Any) -> None:
    windows = [trainer.accumulate_grad_batches]
    for callback in trainer.callbacks:
        if hasattr(callback, "going_to_accumulate_grad_batches"):
            windows += callback.scheduling.values()
    window = max(windows)
    if window > 1 and getattr(trainer.strategy.model, "static_graph", False):
        raise UnsupportedError(
            f"Expected no accumulation of gradients beside static_graph=True, got windows of {window} batches, in which"
            " torch's DDP fails. Leave static_graph out, or accumulate_grad_batches."
        )


def _gather_device_names(trainer: Any) -> tuple[str, ...]:
    for callback in trainer.callbacks:
        if isinstance(callback, EmulatedClusterBehaviour) and callback.names is not None:
            return callback.names
    names: list[str] = [""] * trainer.world_size
    torch.distributed.all_gather_object(names, _device_name(trainer.strategy.root_device))
    return tuple(names)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"


def _compare_new_loaders(strategy: PlansBatches) -> None:
    facts = strategy.take_new_facts()
    if facts:
        check_same(facts)


def _on_batch_start(trainer: Any, *, training: bool) -> None:
    strategy = _strategy_of(trainer)
    strategy.log_rows(trainer, training)
    drawn = strategy.take_drawn_order()
    if drawn is not None:
        check_digest(drawn, "order of rows from the sampler", strategy.root_device)


def _synchronizes_batch_norm(module: torch.nn.Module) -> bool:
    return any(isinstance(part, torch.nn.SyncBatchNorm) for part in module.modules())


def _leave_out_empty_loader_states(checkpoint: Mapping[str, Any]) -> None:
    """Our loaders' position is the trainer's; another strategy, whose loaders keep no state, would refuse theirs."""
    loops = checkpoint.get("loops") or {}
    fit_state = loops.get("fit_loop", {}).get("state_dict", {})
    if not any(fit_state.get("combined_loader", ())):
        fit_state.pop("combined_loader", None)


def _stops_inside_epoch(progress: Mapping[str, Any]) -> bool:
    return progress["current"]["ready"] > 0 and not progress["is_last_batch"]


def _rewind_to_optimizer_step(progress: Mapping[str, Any], window: int) -> None:
    """Forget the steps after the last optimizer step: their gradients are not in the checkpoint."""
    if progress["is_last_batch"]:
        return
    unfinished = progress["current"]["processed"] % window
    if unfinished:
        for counts in (progress["current"], progress["total"]):
            done = counts["processed"] - unfinished
            counts.update(dict.fromkeys(counts, done))


def _rows(plan: BatchPlan) -> str:
    return " / ".join(map(str, plan.batch_sizes))
