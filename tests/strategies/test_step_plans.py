"""Which plan holds: by options, checkpoint, environment; and how several loaders share it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lightning_boa.data import source_of
from lightning_boa.errors import BoaError, LoaderError, OptionError, UnsupportedError
from lightning_boa.planning import (
    BatchPlan,
    KnownPlan,
    MadeFor,
    Orchestration,
    OrchestrationSettings,
    Profile,
    Schedule,
    fit_time,
)
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.step_plans import StepPlans, is_switched_off
from lightning_boa.strategies.training_loaders import TrainingLoaders


def source(rows: int, batch_size: int, **options: Any) -> Any:
    return source_of(DataLoader(range(rows), batch_size, **options))  # type: ignore[arg-type]


def settled(options: BoaOptions, ranks: int, *batch_sizes: int, rows: int = 480) -> TrainingLoaders:
    plans = StepPlans(options)
    loaders = TrainingLoaders(plans, ranks)
    for batch_size in batch_sizes:
        loaders.add(batch_size * ranks, source(rows, batch_size))
    loaders.close(0, refuses_single_rows=False, weighs_rows=False)
    plans.begin({}, 0)
    return loaders


def test_the_environment_keeps_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_BOA", "off")
    plans = StepPlans(BoaOptions(batch_sizes=(7, 1)))
    plans.use(8, 2, 0)
    assert plans.latest is not None
    assert plans.latest.batch_sizes == (4, 4)
    assert plans.orchestration is None
    assert "LIGHTNING_BOA=off" in plans.fixed_reason


@pytest.mark.parametrize(
    ("value", "off"), [("on", False), ("OFF", True), (None, False), ("", False)]
)
def test_the_switch(monkeypatch: pytest.MonkeyPatch, value: str | None, off: bool) -> None:
    monkeypatch.delenv("LIGHTNING_BOA", raising=False)
    if value is not None:
        monkeypatch.setenv("LIGHTNING_BOA", value)
    assert is_switched_off() is off


def test_another_word_for_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_BOA", "no")
    with pytest.raises(OptionError, match=r"LIGHTNING_BOA: expected .* got 'no'"):
        is_switched_off()


@given(
    batch_sizes=st.lists(st.integers(1, 24), min_size=2, max_size=4),
    ranks=st.integers(1, 6),
)
def test_every_rank_has_the_same_part_of_each_loader(batch_sizes: list[int], ranks: int) -> None:
    loaders = settled(BoaOptions(warmup=4), ranks, *batch_sizes, rows=2 * lcm(*batch_sizes) * ranks)
    total = sum(batch_sizes) * ranks
    assert loaders.global_batch_size == total
    for number, batch_size in enumerate(batch_sizes):
        full = batch_size * ranks
        rows = loaders.rows_of(number, 0, full)
        assert sum(rows) == full
        for rank in range(ranks):
            others = [
                loaders.rows_of(k, 0, size * ranks)[rank] for k, size in enumerate(batch_sizes)
            ]
            assert sum(others) * full == rows[rank] * total


def test_a_given_plan_must_be_in_whole_units() -> None:
    assert settled(BoaOptions(batch_sizes=(9, 3)), 2, 4, 2).rows_of(1, 0, 4) == [3, 1]
    with pytest.raises(OptionError, match="multiples of 3 with several training loaders"):
        settled(BoaOptions(batch_sizes=(8, 4)), 2, 4, 2)
    with pytest.raises(OptionError, match="the sum 12, the rows of all training loaders"):
        settled(BoaOptions(batch_sizes=(5, 3)), 2, 4, 2)
    with pytest.raises(OptionError, match="multiples of 3"):
        settled(BoaOptions(batch_sizes=(12, 0)), 2, 4, 2)


def test_a_short_step_of_several_loaders_needs_a_row_for_each_rank() -> None:
    with pytest.raises(LoaderError, match=r"a last step of 1 .*drop_last=True"):
        settled(BoaOptions(), 2, 4, 2, rows=33)
    with pytest.raises(LoaderError, match=r"a last step of 3 .*, no multiple of 4\. .*samples"):
        settled(BoaOptions(), 2, 4, 2, rows=35)
    assert settled(BoaOptions(batch_sizes=(9, 3)), 2, 4, 2, rows=36).rows_of(0, 0, 4) == [3, 1]
    loaders = TrainingLoaders(StepPlans(BoaOptions()), 2)
    loaders.add(8, source(32, 4))
    loaders.add(2, source_of(DataLoader(range(4), batch_sampler=[[0], [1]])))  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match="batches of any size"):
        loaders.close(0, refuses_single_rows=False, weighs_rows=False)


def test_several_loaders_exclude_one_global_batch_and_streams() -> None:
    with pytest.raises(OptionError, match="global_batch_size: expected none with several"):
        settled(BoaOptions(global_batch_size=8), 2, 4, 2)
    loaders = TrainingLoaders(StepPlans(BoaOptions()), 2)
    loaders.add(8, source(32, 4))
    with pytest.raises(LoaderError, match="got a stream among"):
        loaders.add_stream(8, None, by_plan=False)


def test_a_stream_is_not_planned_unless_asked() -> None:
    plans = StepPlans(BoaOptions())
    loaders = TrainingLoaders(plans, 2)
    loaders.add_stream(8, None, by_plan=False)
    loaders.close(0, refuses_single_rows=False, weighs_rows=False)
    plans.begin({}, 0)
    assert plans.orchestration is None
    assert "own loader" in plans.fixed_reason

    loaders = TrainingLoaders(StepPlans(BoaOptions(batch_sizes=(8, 0))), 2)
    loaders.add_stream(8, None, by_plan=True)
    with pytest.raises(OptionError, match="rows for every rank of a stream"):
        loaders.close(0, refuses_single_rows=False, weighs_rows=False)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sizes": (5, 3)},
        {"warmup": 9},
        {"global_batch_size": 8},
        {"granularity": 2},
        {"profile": "p.json"},
    ],
)
def test_options_that_mean_nothing_for_own_batches_are_refused(options: dict[str, Any]) -> None:
    loaders = TrainingLoaders(StepPlans(BoaOptions(**options)), 2)
    with pytest.raises(OptionError, match=f"^{next(iter(options))}: expected none"):
        loaders.add_stream(8, None, by_plan=False)


@pytest.mark.parametrize("option", [{"max_batch_size": 2}, {"profile": "p.json"}])
def test_bounds_are_refused_for_batches_of_any_size(option: dict[str, Any]) -> None:
    loaders = TrainingLoaders(StepPlans(BoaOptions(**option)), 2)
    loaders.add(2, source_of(DataLoader(range(4), batch_sampler=[[0], [1, 2]])))  # type: ignore[arg-type]
    (name,) = option
    with pytest.raises(OptionError, match=f"{name}: expected none with batches of any size"):
        loaders.close(0, refuses_single_rows=False, weighs_rows=False)


def test_batches_without_a_usual_size_are_split_in_proportion() -> None:
    for sizes, expected, split in ((None, (1, 1), (4, 3)), ((3, 1), (3, 1), (5, 2))):
        plans = StepPlans(BoaOptions(batch_sizes=sizes))
        loaders = TrainingLoaders(plans, 2)
        loaders.add(2, source_of(DataLoader(range(4), batch_sampler=[[0], [1, 2]])))  # type: ignore[arg-type]
        loaders.close(0, refuses_single_rows=False, weighs_rows=False)
        plans.begin({}, 0)
        assert plans.latest is not None
        assert plans.latest.batch_sizes == expected
        assert (plans.orchestration is None) == (sizes is not None)
        assert tuple(loaders.rows_of(0, 0, 7)) == split


def test_new_loaders_with_other_rows_or_bounds_are_measured_anew() -> None:
    plans = StepPlans(BoaOptions())
    loaders = TrainingLoaders(plans, 2)
    loaders.add(12, source(48, 6))
    loaders.close(0, refuses_single_rows=False, weighs_rows=False)
    plans.begin({}, 0)
    assert plans.orchestration is not None
    plans.orchestration = plans.orchestration.keep_split("as measured")

    loaders.add(12, source(48, 6))
    loaders.close(4, refuses_single_rows=False, weighs_rows=False)
    assert plans.orchestration.phase == "planned"

    loaders.add(8, source(48, 4))
    loaders.add(4, source(24, 2))
    loaders.close(8, refuses_single_rows=False, weighs_rows=True)
    assert plans.orchestration.phase == "warmup"
    assert plans.orchestration.settings.granularity == 3


def test_a_new_set_of_loaders_begins_after_the_last_one_is_settled() -> None:
    loaders = settled(BoaOptions(), 2, 4, 2)
    assert loaders.next_number == 0
    assert loaders.add(16, source(32, 8)) == 0
    assert loaders.is_single
    assert loaders.facts == {
        "sampling of the training data set": "SequentialOrder, drop_last=False",
        "rows in the training data set": 32,
        "global batch size": 16,
    }


class KnownProfile:
    """Knows the plan 6 / 2, and counts how often it is asked."""

    asked = 0

    def begin(self, settings: OrchestrationSettings, first_step: int) -> Orchestration:
        self.asked += 1
        profile = Profile(
            MadeFor.of(settings, **dict.fromkeys(FACTS)),
            (fit_time([6], [1.0], through_origin=True), fit_time([2], [1.0], through_origin=True)),
            BatchPlan((6, 2)),
        )
        return KnownPlan.of(profile, settings, first_step)


FACTS = ("devices", "parameters", "sync_batch_norm", "precision", "batch_weight", "software")


def begun(plans: StepPlans, profile: Any, made_for: Mapping[str, Any] | None = None) -> Any:
    plans.use(8, 2, 0)
    plans.begin(made_for or {}, 5, profile)
    return plans.latest and plans.latest.batch_sizes


def test_a_profile_decides_the_first_plan() -> None:
    profile = KnownProfile()
    plans = StepPlans(BoaOptions())
    assert begun(plans, profile) == (6, 2)
    assert plans.schedule is not None
    assert plans.schedule.entries[0][0] == 5
    assert begun(plans, profile) == (6, 2)
    assert profile.asked == 1


def test_a_plan_that_nothing_changes_comes_before_a_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert begun(StepPlans(BoaOptions(batch_sizes=(7, 1))), KnownProfile()) == (7, 1)
    monkeypatch.setenv("LIGHTNING_BOA", "off")
    assert begun(StepPlans(BoaOptions()), KnownProfile()) == (4, 4)


@pytest.mark.parametrize(("made_for", "plan"), [({"devices": 1}, (7, 1)), ({"devices": 2}, (6, 2))])
def test_a_checkpoints_plan_comes_before_a_profile(
    made_for: dict[str, Any], plan: tuple[int, int]
) -> None:
    state = replace(
        Orchestration.begin(OrchestrationSettings(2, 8, (1, 1), (8, 8)), 0),
        schedule=Schedule.starting_with(BatchPlan((7, 1))),
        phase="planned",
    )
    plans = StepPlans(BoaOptions())
    plans.restore(Restart((8,), 2, 0, state.to_dict(), {"devices": 1}))
    assert begun(plans, KnownProfile(), made_for) == plan


def test_a_profile_decides_where_a_checkpoint_has_no_plan_yet() -> None:
    state = Orchestration.begin(OrchestrationSettings(2, 8, (1, 1), (8, 8)), 0)
    plans = StepPlans(BoaOptions())
    plans.restore(Restart((8,), 2, 0, state.to_dict(), {"devices": 1}))
    assert begun(plans, KnownProfile(), {"devices": 1}) == (6, 2)


def test_other_rows_in_the_middle_need_a_warm_up() -> None:
    for warmup, refuses in (("auto", False), (0, True)):
        plans = StepPlans(BoaOptions(warmup=warmup, profile="p.json"))  # type: ignore[arg-type]
        begun(plans, KnownProfile())
        with pytest.raises(OptionError, match=r"^profile: ") if refuses else nullcontext():
            plans.use(10, 2, 20)


def restart(*rows: int, inside_epoch: bool = False) -> Restart:
    return Restart(rows, 3, 0, None, {}, inside_epoch)


def test_a_checkpoint_decides_the_rows_of_each_loader() -> None:
    plans = StepPlans(BoaOptions())
    plans.restore(restart(12, 6))
    assert [plans.rows_of_full_step(number, 99, 2) for number in (0, 1)] == [12, 6]
    assert plans.rows_of_full_step(2, 5, 2) == 15
    assert plans.batches_per_step == 3


def test_a_checkpoint_is_read_before_the_loaders() -> None:
    plans = StepPlans(BoaOptions())
    TrainingLoaders(plans, 2).add(8, source(32, 4))
    plans.restore(restart(8))
    with pytest.raises(UnsupportedError, match="of 12 rows before the training loader is set up"):
        plans.restore(restart(12))


def test_another_global_batch_is_for_the_next_epoch() -> None:
    plans = StepPlans(BoaOptions(global_batch_size=10))
    plans.restore(restart(12))
    assert plans.rows_of_full_step(0, 4, 2) == 10
    plans.restore(restart(12, inside_epoch=True))
    with pytest.raises(BoaError, match="expected the checkpoint's 12, got 10"):
        plans.rows_of_full_step(0, 4, 2)


def test_the_state_of_a_checkpoint_comes_back() -> None:
    plans = StepPlans(BoaOptions())
    assert plans.state(5) is None
    plans.rows_of_full_step(0, 4, 2)
    TrainingLoaders(plans, 2).add(8, source(32, 4))
    state = plans.state(5)
    assert state is not None
    assert Restart.of(state, inside_epoch=True) == Restart((8,), 2, 5, None, {}, True)
