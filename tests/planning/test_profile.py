"""A profile comes back as it was written, refuses what is no profile, and its plan is checked by the first steps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.errors import OptionError
from lightning_boa.planning import KnownPlan, LinearTime, MadeFor, Profile

DEVICES = [LinearTime(0.004, 0.001), LinearTime(0.004, 0.002), LinearTime(0.004, 0.004)]
BATCH = 60
FACTS = {
    "devices": ("fast", "middle", "slow"),
    "parameters": 1000,
    "sync_batch_norm": False,
    "precision": "32-true",
    "batch_weight": "samples",
    "software": {"torch": "2.13.0", "cuda": "12.8"},
}


def made_for(settings, **facts):
    return MadeFor.of(settings, **{**FACTS, **facts})


@pytest.fixture(scope="module")
def trained(cluster):
    ours = cluster(DEVICES, BATCH)
    return ours.train(ours.settings())


@pytest.fixture(scope="module")
def profile(trained):
    return Profile.of(trained, made_for(trained.settings))


def test_comes_back_as_it_was_written(profile):
    assert Profile.from_json(profile.to_json()) == profile


def test_holds_what_was_measured(profile, trained):
    assert profile.plan == trained.plan
    assert Profile.from_json(profile.to_json()).fits == trained.fits


def test_a_rank_that_never_had_rows_has_no_figures(cluster):
    ours = cluster([*DEVICES, LinearTime(0.0, 50.0)], BATCH)
    settings = ours.settings(lower=(1, 1, 1, 0), upper=(BATCH, BATCH, BATCH, 0))
    state = ours.train(settings)
    written = Profile.of(state, made_for(settings, devices=("a", "b", "c", "d")))
    assert written.plan.batch_sizes[3] == 0
    assert written.fits[3] is None
    assert Profile.from_json(written.to_json()) == written


DELETED = object()
WRONG = [
    ("version", 2, "a profile of version 1 in .*, got version 2"),
    ("version", True, "got version True"),
    ("version", 1.0, r"got version 1\.0"),
    ("version", DELETED, "got version None"),
    ("plan", [1], r"plan to be an object in .*, got \[1\]"),
    ("ranks", DELETED, "the whole to have ranks in .*, got it is missing"),
    ("code", "print()", "the whole to have .*, got also 'code'"),
    ("ranks", {}, "ranks to be a list of 3, each an object or null"),
    ("made_for.devices", [], "made_for.devices to be a list of one or more, each a text"),
    ("made_for.devices", "abc", "made_for.devices to be a list"),
    ("made_for.devices", ["a", "b"], "made_for.min_batch_size to be a list of 2"),
    ("made_for.devices", ["a", "b", 3], "each a text in .*, got .*3]"),
    ("made_for.parameters", "1000", "made_for.parameters to be a whole number of at least 0"),
    ("made_for.parameters", -1, "made_for.parameters"),
    ("made_for.sync_batch_norm", 0, "true or false in .*, got 0"),
    ("made_for.precision", 32, "made_for.precision to be a text"),
    ("made_for.software", {"torch": 2}, "made_for.software to be an object of texts"),
    ("made_for.global_batch_size", 0, "a whole number of at least 1 in .*, got 0"),
    ("made_for.global_batch_size", 61, "plan.batch_sizes to be 61 rows in all"),
    ("made_for.granularity", 16, "in multiples of 16 but for one rank"),
    ("made_for.max_batch_size", [60, 60, 1], r"from \[1, 1, 1\] to \[60, 60, 1\]"),
    ("plan.batch_sizes", [30, 30], "plan.batch_sizes to be a list of 3"),
    ("plan.batch_sizes", [20.0, 20, 20], "each a whole number of at least 0"),
    ("plan.batch_sizes", [True, 29, 30], "each a whole number of at least 0"),
    ("plan.batch_sizes", [58, 1, 1], r"ranks\[0\].batch_sizes .* among them the plan's 58"),
    ("plan.step_seconds", "1", "seconds from 1e-12 to .* or null"),
    ("plan.step_seconds", 0, "seconds from 1e-12 to .* or null"),
    ("plan.rank_seconds", [1.0, 1.0], "plan.rank_seconds to be a list of 3"),
    ("plan.rank_seconds", [1.0, 1.0, -1.0], "each a number from 0"),
    ("plan.equal_step_seconds", -1.0, "plan.equal_step_seconds"),
    ("ranks.1.seconds", [], r"ranks\[1\].seconds to be a list of 3"),
    ("ranks.1.seconds", [0.1, -0.1, 0.1], "each seconds from 1e-12 to"),
    ("ranks.1.seconds", [0.1, 0.1, 10**400], "each seconds from 1e-12 to"),
    ("ranks.1.seconds", [0.1, 0.1, float("nan")], "got .*nan"),
    ("ranks.1.seconds", [0.1, 0.1, float("inf")], "got .*inf"),
    ("ranks.1.batch_sizes", [3, 2, 1], "rising whole numbers"),
    ("ranks.1.batch_sizes", [0, 20], "rising whole numbers"),
    ("ranks.1.batch_sizes", ["1", 2], "rising whole numbers"),
    ("ranks.1.batch_sizes", 20, "rising whole numbers"),
    ("ranks.2.counts", [4, 4, 0], "each a whole number of at least 1"),
    ("ranks.2.noise", None, "a number from 0 to 1e.12 in .*, got None"),
    ("ranks.2.noise", -0.1, "a number from 0 to 1e.12 in .*, got -0.1"),
    ("ranks.2.noise", 1e300, "a number from 0 to"),
    ("ranks.2.counts", [4, 4, 10**20], "each a whole number of at least 1"),
    ("ranks.1.seconds", [0.1, 0.1, 1e-200], "each seconds"),
    ("ranks.2", None, r"ranks\[2\] to be an object in .*, got None"),
    ("ranks.2.noise", DELETED, r"ranks\[2\] to have noise"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG)
def test_a_wrong_value_is_named(profile, place, value, message):
    values = json.loads(profile.to_json())
    *way, last = (int(name) if name.isdigit() else name for name in place.split("."))
    inside = values
    for name in way:
        inside = inside[name]
    if value is DELETED:
        del inside[last]
    else:
        inside[last] = value
    with pytest.raises(OptionError, match=f"^profile: expected .*{message}") as caught:
        Profile.from_json(json.dumps(values), "some.json")
    assert " in some.json, got " in str(caught.value)
    assert str(caught.value).endswith("Delete the file to have the devices measured anew.")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5000, "\x00", "[1]", "null"])
def test_another_text_is_refused(text):
    with pytest.raises(OptionError, match=r"^profile: expected .* in some\.json, got "):
        Profile.from_json(text, "some.json")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
anything = st.recursive(
    leaves, lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=3), each)
)


@given(st.data())
def test_any_other_value_is_taken_or_refused(profile, data):
    values = json.loads(profile.to_json())
    inside = values
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(inside[key], dict | list) and inside[key] and data.draw(st.booleans())):
            break
        inside = inside[key]
    inside[key] = data.draw(anything)
    try:
        read = Profile.from_json(json.dumps(values))
    except OptionError:
        return
    assert Profile.from_json(read.to_json()) == read


def test_the_figures_of_the_cluster_have_three_sizes(profile):
    """The wrong lists above are wrong for one reason each."""
    assert [len(fit.batch_sizes) for fit in profile.fits] == [3, 3, 3]


@pytest.mark.parametrize(
    ("facts", "difference"),
    [
        ({}, None),
        (
            {"devices": ("fast", "new", "slow")},
            "the device of rank 1 was 'middle', and here it is 'new'",
        ),
        ({"devices": ("fast", "middle")}, "the number of devices was 3, and here it is 2"),
        ({"parameters": 7}, "the number of parameters was 1000, and here it is 7"),
        ({"sync_batch_norm": True}, "the use of SyncBatchNorm was False, and here it is True"),
        ({"precision": "bf16"}, "the precision was '32-true', and here it is 'bf16'"),
        ({"batch_weight": "sum"}, "the batch_weight was 'samples', and here it is 'sum'"),
        (
            {"software": {"torch": "2.13.0"}},
            "the version of cuda was '12.8', and here it is None",
        ),
        (
            {"software": {**FACTS["software"], "hip": "6"}},
            "the version of hip was None, and here it is '6'",
        ),
    ],
)
def test_says_which_fact_differs(profile, trained, facts, difference):
    assert profile.made_for.difference(made_for(trained.settings, **facts)) == difference


@pytest.mark.parametrize(
    ("rows", "difference"),
    [
        ({"lower": (2, 1, 1)}, "the list of least rows was [1, 1, 1], and here it is [2, 1, 1]"),
        ({"upper": (60, 60, 9)}, "the list of most rows was [60, 60, 60], and here it is"),
        ({"granularity": 2}, "the granularity was 1, and here it is 2"),
        ({"global_batch_size": 59}, "the global batch was 60, and here it is 59"),
    ],
)
def test_rows_are_facts_too(profile, trained, rows, difference):
    present = made_for(replace(trained.settings, **rows))
    assert profile.made_for.difference(present).startswith(difference)


def begun(profile, settings, **options):
    return KnownPlan.of(profile, settings, 0, **options)


def test_begins_with_the_plan_and_keeps_it_if_the_first_steps_agree(cluster, profile, trained):
    ours = cluster(DEVICES, BATCH, noise=0.03)
    state = ours.train(trained.settings, state=begun(profile, trained.settings))
    assert state.schedule.entries == ((0, trained.plan),)
    assert (state.phase, state.exchange_after) == ("planned", None)
    assert state.reason == "the first steps took as long as the profile says, so its plan stays"
    assert state.planned_measurement.steps >= 8
    assert type(state).from_dict(state.to_dict()) == state


def test_the_devices_are_watched_by_what_the_profile_knows_of_them(cluster, profile, trained):
    ours = cluster(DEVICES, BATCH)
    state = ours.train(trained.settings, state=begun(profile, trained.settings))
    assert trained.watch is not None
    assert state.watch == trained.watch
    assert KnownPlan.from_dict(state.to_dict()).watch == trained.watch


def test_the_first_steps_check_the_plan_and_make_no_other(cluster, profile, trained):
    explored = trained.schedule.entries[1][1]
    assert explored.batch_sizes != trained.plan.batch_sizes
    ours = cluster(DEVICES, BATCH)
    state = begun(replace(profile, plan=explored), trained.settings)
    assert ours.train(trained.settings, state=state).schedule.entries == ((0, explored),)


@pytest.mark.parametrize("change", [1.09, 0.92])
def test_a_small_difference_changes_nothing(cluster, profile, trained, change):
    ours = cluster([*DEVICES[:2], _times(DEVICES[2], change)], BATCH)
    state = ours.train(trained.settings, state=begun(profile, trained.settings))
    assert state.schedule.entries == ((0, trained.plan),)


def test_noise_that_hides_a_difference_changes_nothing(cluster, profile, trained):
    noisy = replace(profile, fits=tuple(replace(fit, noise=0.5) for fit in profile.fits))
    ours = cluster([*DEVICES[:2], _times(DEVICES[2], 1.3)], BATCH)
    state = ours.train(trained.settings, state=begun(noisy, trained.settings))
    assert state.schedule.entries == ((0, trained.plan),)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("change", [0.4, 0.85, 1.15, 3.0])
@pytest.mark.parametrize("read_ahead", [0, 7])
def test_other_speeds_are_measured_anew(cluster, profile, trained, rank, change, read_ahead):
    devices = [_times(model, change if at == rank else 1.0) for at, model in enumerate(DEVICES)]
    ours = cluster(devices, BATCH, read_ahead=read_ahead)
    reasons = []

    def note(state):
        reasons.append(state.reason)
        return state

    ours.after_exchange = note
    state = ours.train(trained.settings, state=begun(profile, trained.settings))
    assert reasons[0].startswith(f"rank {rank} takes ")
    assert reasons[0].endswith(" s of the profile, so the warm-up measures anew")
    (first, plan), (second, equal), *_ = state.schedule.entries
    assert (first, plan) == (0, trained.plan)
    assert second == 10 + read_ahead
    assert equal.batch_sizes == state.settings.equal_batch_sizes
    assert all(record.step >= second for record in state.records)
    assert ours.true_step(state.plan.batch_sizes) <= 1.01 * ours.optimum(state.settings)


def test_without_a_warm_up_the_plan_stays_and_the_reason_says_why(cluster, profile, trained):
    ours = cluster([_times(DEVICES[0], 2.0), *DEVICES[1:]], BATCH)
    state = begun(profile, trained.settings, measures_anew=False)
    state = ours.train(trained.settings, state=state)
    assert state.schedule.entries == ((0, trained.plan),)
    assert state.reason.startswith("rank 0 takes ")
    assert "its plan stays, since warmup=0" in state.reason


def test_steps_that_were_not_measured_are_waited_for(cluster, profile, trained):
    state = begun(profile, trained.settings)
    later = state.observe((), first_free_step=12)
    assert later.exchange_after == 12 + 8 - 1
    for _ in range(20):
        later = later.observe((), first_free_step=12)
    assert later.exchange_after is None
    assert later.reason == "none of the first steps could be measured, so the profile's plan stays"


def _times(model, factor):
    return LinearTime(model.overhead * factor, model.seconds_per_sample * factor)
