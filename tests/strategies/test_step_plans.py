"""Which plan holds: by options, checkpoint, environment; and how several loaders share it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_utilities.core.rank_zero import rank_zero_only
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
from lightning_boa.strategies.abilities import NO_ABILITIES
from lightning_boa.strategies.options import BoaOptions
from lightning_boa.strategies.restart import Restart
from lightning_boa.strategies.step_plans import StepPlans, is_switched_off
from lightning_boa.strategies.training_loaders import TrainingLoaders


def source(rows: int, batch_size: int, **options: Any) -> Any:
    return source_of(DataLoader(range(rows), batch_size, **options))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def on_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)


def close(loaders: TrainingLoaders, first_step: int = 0, *, weighs_rows: bool = False) -> None:
    loaders.close(
        first_step, refuses_single_rows=False, weighs_rows=weighs_rows, abilities=NO_ABILITIES
    )


def settled(options: BoaOptions, ranks: int, *batch_sizes: int, rows: int = 480) -> TrainingLoaders:
    plans = StepPlans(options)
    loaders = TrainingLoaders(plans, ranks)
    for batch_size in batch_sizes:
        loaders.add(batch_size * ranks, source(rows, batch_size))
    close(loaders)
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
        close(loaders)


def test_several_loaders_exclude_one_global_batch_and_streams() -> None:
    with pytest.raises(OptionError, match="global_batch_size: expected none with several"):
        settled(BoaOptions(global_batch_size=8), 2, 4, 2)
    loaders = TrainingLoaders(StepPlans(BoaOptions()), 2)
    loaders.add(8, source(32, 4))
    with pytest.raises(LoaderError, match="got a stream among"):
        loaders.add_stream(8, None, (4, 4))


def test_a_stream_is_not_planned_unless_asked() -> None:
    plans = StepPlans(BoaOptions())
    loaders = TrainingLoaders(plans, 2)
    loaders.add_stream(8, None, (4, 4))
    close(loaders)
    plans.begin({}, 0)
    assert plans.orchestration is None
    assert "own loader" in plans.fixed_reason

    loaders = TrainingLoaders(StepPlans(BoaOptions(batch_sizes=(8, 0))), 2)
    loaders.add_stream(8, None)
    with pytest.raises(OptionError, match="rows for every rank of a stream"):
        close(loaders)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sizes": (5, 3)},
        {"warmup": 9},
        {"global_batch_size": 8},
        {"granularity": 2},
        {"profile": "p.json"},
        {"max_batch_size": "auto"},
    ],
)
def test_options_that_mean_nothing_for_own_batches_are_refused(options: dict[str, Any]) -> None:
    loaders = TrainingLoaders(StepPlans(BoaOptions(**options)), 2)
    with pytest.raises(OptionError, match=f"^{next(iter(options))}: expected none"):
        loaders.add_stream(8, None, (4, 4))


@pytest.mark.parametrize("option", [{"max_batch_size": 2}, {"profile": "p.json"}])
def test_bounds_are_refused_for_batches_of_any_size(option: dict[str, Any]) -> None:
    loaders = TrainingLoaders(StepPlans(BoaOptions(**option)), 2)
    loaders.add(2, source_of(DataLoader(range(4), batch_sampler=[[0], [1, 2]])))  # type: ignore[arg-type]
    (name,) = option
    with pytest.raises(OptionError, match=f"{name}: expected none with batches of any size"):
        close(loaders)


def test_batches_without_a_usual_size_are_split_in_proportion() -> None:
    for sizes, expected, split in ((None, (1, 1), (4, 3)), ((3, 1), (3, 1), (5, 2))):
        plans = StepPlans(BoaOptions(batch_sizes=sizes))
        loaders = TrainingLoaders(plans, 2)
        loaders.add(2, source_of(DataLoader(range(4), batch_sampler=[[0], [1, 2]])))  # type: ignore[arg-type]
        close(loaders)
        plans.begin({}, 0)
        assert plans.latest is not None
        assert plans.latest.batch_sizes == expected
        assert (plans.orchestration is None) == (sizes is not None)
        assert tuple(loaders.rows_of(0, 0, 7)) == split


def test_new_loaders_with_other_rows_or_bounds_are_measured_anew() -> None:
    plans = StepPlans(BoaOptions())
    loaders = TrainingLoaders(plans, 2)
    loaders.add(12, source(48, 6))
    close(loaders)
    plans.begin({}, 0)
    assert plans.orchestration is not None
    plans.orchestration = plans.orchestration.keep_split("as measured")

    loaders.begin()
    loaders.add(12, source(48, 6))
    close(loaders, 4)
    assert plans.orchestration.phase == "planned"

    loaders.begin()
    loaders.add(8, source(48, 4))
    loaders.add(4, source(24, 2))
    close(loaders, 8, weighs_rows=True)
    assert plans.orchestration.phase == "warmup"
    assert plans.orchestration.settings.granularity == 3


def test_a_new_set_of_loaders_takes_the_place_of_the_last_one() -> None:
    loaders = settled(BoaOptions(), 2, 4, 2)
    loaders.begin()
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


def restart(*rows: int, inside_epoch: bool = False, own: tuple[int, ...] = ()) -> Restart:
    return Restart(rows, 3, 0, None, {}, inside_epoch, own)


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
    assert Restart.of(state, inside_epoch=True) == Restart((8,), 2, 5, None, {}, True, (4,))


def test_a_checkpoint_of_an_older_version_says_nothing_of_the_loaders_own_batch_sizes() -> None:
    state = restart(12, own=(4,)).to_dict()
    del state["batch_sizes_of_loaders"]
    assert Restart.of(state, inside_epoch=False) == restart(12)
    assert rows_after(restart(12), 6) == [12]


def rows_after(state: Restart, *batch_sizes: int, **options: Any) -> list[int]:
    """Rows of the loaders that are set up after a checkpoint has been read, on three ranks as before."""
    plans = StepPlans(BoaOptions(**options))
    plans.restore(state)
    plans.begin_loaders(len(batch_sizes))
    return [plans.rows_of_full_step(number, size, 3) for number, size in enumerate(batch_sizes)]


def test_another_batch_size_than_in_the_checkpoint_is_said() -> None:
    with pytest.warns(
        UserWarning, match=r"12 rows \(batch_size=4 .* batch_size=6 now\. global_bat"
    ) as said:
        assert rows_after(restart(12, own=(4,)), 6) == [12]
    assert len(said) == 1
    with pytest.warns(UserWarning, match=r"batch_size=3 now\.$"):
        assert rows_after(restart(12, 6, own=(4, 2)), 3, 2) == [12, 6]


def test_the_same_rows_need_no_word() -> None:
    assert rows_after(restart(12, own=(4,)), 4) == [12]
    assert rows_after(restart(12, own=(4,)), 6, global_batch_size=18) == [18]
    plans = StepPlans(BoaOptions())
    plans.restore(restart(12, own=(4,)))
    assert plans.rows_of_full_step(0, 6, 2) == 12


def test_lists_of_another_size_count_and_it_is_said() -> None:
    plans = StepPlans(BoaOptions())
    plans.restore(restart(12, own=(4,)))
    with pytest.warns(UserWarning, match="batch_size=6 now, 4 when"):
        assert plans.rows_of_full_step(0, 6, 2, of_lists=True) == 18
    assert plans.rows_of_full_step(0, 6, 2, of_lists=True) == 18


def test_loaders_that_change_later_leave_the_checkpoint_behind() -> None:
    plans = StepPlans(BoaOptions())
    plans.restore(restart(12, own=(4,)))
    plans.begin_loaders(1)
    assert plans.rows_of_full_step(0, 4, 3) == 12
    plans.use(12, 3, 0)
    plans.begin({}, 0)
    for batch_size, rows in ((4, 12), (5, 15)):
        plans.begin_loaders(1)
        assert plans.rows_of_full_step(0, batch_size, 3) == rows
    plans.begin_loaders(2)


def test_another_number_of_loaders_than_in_the_checkpoint() -> None:
    with pytest.warns(UserWarning, match="number of training loaders is 2, now it is 1"):
        assert rows_after(restart(12, 6, own=(4, 2)), 5) == [15]
    with pytest.raises(UnsupportedError, match="as in the checkpoint, 2, got 1"):
        rows_after(restart(12, 6, inside_epoch=True), 4)


def test_batch_sizes_that_do_not_fit_the_checkpoint_are_refused_with_its_name() -> None:
    for state, sizes, names_it in (
        (restart(12, own=(4,)), (6, 6, 6), True),
        (restart(12, own=(4,)), (9, 9), False),
        (restart(18, own=(6,)), (4, 4, 4), False),
    ):
        plans = StepPlans(BoaOptions(batch_sizes=sizes))
        plans.restore(state)
        plans.begin_loaders(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = plans.rows_of_full_step(0, 6, 3)
        with pytest.raises(OptionError, match="batch_sizes") as refused:
            plans.use(rows, 3, 0)
        assert ("those of the checkpoint" in str(refused.value)) == names_it


def test_a_checkpoint_that_is_read_while_training_goes_on_changes_nothing() -> None:
    """As the learning-rate finder does after its steps."""
    plans = StepPlans(BoaOptions())
    plans.rows_of_full_step(0, 4, 2)
    TrainingLoaders(plans, 2).add(8, source(32, 4))
    plans.use(8, 2, 0)
    plans.begin({}, 0)
    before = plans.orchestration
    state = plans.state(5)
    assert state is not None
    plans.restore(Restart.of(state, inside_epoch=False))
    assert before is not None
    assert plans.orchestration is before


def test_each_rank_may_have_batches_of_its_own_size() -> None:
    plans = StepPlans(BoaOptions())
    loaders = TrainingLoaders(plans, 2)
    rows = plans.rows_of_own_batches(0, (6, 2), rank=1)
    loaders.add_stream(rows, None, (6, 2))
    close(loaders)
    assert loaders.facts["global batch size"] == 8
    assert plans.latest == BatchPlan((6, 2))
    state = plans.state(0)
    assert state is not None
    assert (state["rows_of_loaders"], state["batch_sizes_of_loaders"]) == ([8], [2])


@pytest.mark.parametrize("sizes", [None, (9, 3)])
def test_several_loaders_are_split_in_units_before_they_are_settled(sizes: Any) -> None:
    """As in the steps of the learning-rate finder."""
    loaders = TrainingLoaders(StepPlans(BoaOptions(batch_sizes=sizes)), 2)
    loaders.add(8, source(32, 4))
    loaders.add(4, source(16, 2))
    shares = [6, 2] if sizes else [4, 4]
    assert loaders.rows_of(0, 0, 8) == shares
    assert loaders.rows_of(1, 0, 4) == [rows // 2 for rows in shares]
