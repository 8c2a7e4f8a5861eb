from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_boa.profiling import MemoryProfile, hopeful_rows, memory_profile_of, most_rows

bytes_ = st.integers(0, 2**36)
bytes_per_row = st.integers(1, 2**24)
sizes = st.integers(1, 2**12)


@dataclass
class Gauge:
    """A device whose step takes `fixed` bytes and `per_row` for each row, on top of what is resident."""

    resident: int
    fixed: int
    per_row: int
    all_bytes: int
    rows: int = 0
    begun: int = 0

    def begin_step(self) -> int:
        self.begun += 1
        return self.resident

    def peak(self) -> int:
        return self.resident + self.fixed + self.per_row * self.rows

    def available(self) -> int:
        return self.all_bytes


def run(profile: MemoryProfile, gauge: Gauge, *steps: int) -> None:
    for rows in steps:
        gauge.rows = rows
        profile.begin_step()
        profile.end_step(rows)


@given(rows=sizes, resident=bytes_, fixed=bytes_, per_row=bytes_per_row, room=st.integers(0, 2**20))
def test_one_size_errs_on_the_safe_side(
    rows: int, resident: int, fixed: int, per_row: int, room: int
) -> None:
    peak = resident + fixed + per_row * rows
    available = int((peak + room * per_row) / 0.9) + 1
    cap = most_rows([rows], [resident], [peak], available)

    true_peak = resident + fixed + per_row * cap
    assert cap >= rows
    assert cap == rows or true_peak <= 0.9 * available * (1 + 1e-9)


def test_one_size_without_a_workspace_is_exact() -> None:
    assert most_rows([10], [400], [500], available=1000) == 50
    assert most_rows([10], [400], [500], available=1011) == 50
    assert most_rows([10], [400], [500], available=1012) == 51


@given(
    ran=st.lists(sizes, min_size=2, max_size=4),
    resident=bytes_,
    fixed=bytes_,
    per_row=bytes_per_row,
    available=st.integers(0, 2**40),
)
def test_what_is_allowed_fits_whatever_the_fixed_part(
    ran: list[int], resident: int, fixed: int, per_row: int, available: int
) -> None:
    peaks = [resident + fixed + per_row * rows for rows in ran]
    cap = most_rows(ran, [resident] * len(ran), peaks, available)

    true_peak = resident + fixed + per_row * cap
    assert cap == max(ran) or true_peak <= 0.9 * available * (1 + 1e-9)


def test_larger_sizes_sharpen_the_prediction() -> None:
    caps = [
        most_rows([10, rows], [0, 0], [150, 50 + 10 * rows], available=1000)
        for rows in (10, 20, 40, 80)
    ]
    assert caps == [60, 72, 80, 84]
    assert max(caps) <= (900 - 50) // 10


def test_the_largest_peak_of_a_size_counts() -> None:
    calm = most_rows([10, 20], [0, 0], [100, 200], available=1000)
    with_peaks = most_rows([10, 20, 20, 10], [0] * 4, [100, 200, 300, 90], available=1000)

    assert calm == 90
    assert with_peaks == most_rows([10, 20], [0, 0], [100, 300], available=1000) < calm


@pytest.mark.parametrize("available", [0, 100, 199])
def test_never_below_the_largest_size_that_has_run(available: int) -> None:
    assert most_rows([8], [0], [200], available) == 8
    assert most_rows([8, 12], [0, 0], [200, 210], available) == 12


@given(peak=bytes_, pair=st.lists(sizes, min_size=1, max_size=3, unique=True))
def test_memory_that_does_not_grow_gives_a_cap_that_can_be_sent(peak: int, pair: list[int]) -> None:
    """The optimizer's step, not the rows, may set the peak; 64 bits carry the cap to the other ranks."""
    cap = most_rows(pair, [peak] * len(pair), [peak] * len(pair), available=2**50)

    assert max(pair) <= cap < 2**31


def test_another_share_may_be_used() -> None:
    assert most_rows([10], [0], [100], available=1000, share=0.5) == 50


def test_optimizer_states_that_come_later_do_not_hide_the_slope() -> None:
    """Accumulation: 20 rows run before the optimizer's states exist, 10 rows after. A row costs 10 bytes."""
    cap = most_rows([20, 10], [100, 150], [100 + 200, 150 + 100], available=1000)

    assert 150 + 10 * cap <= 900


def test_a_floor_under_the_peaks_does_not_flatten_the_line() -> None:
    """The optimizer's step takes 200 bytes whatever the rows, a row 10 bytes: 18 rows below, 22 above the bend."""
    cap = most_rows([18, 22], [0, 0], [200, 220], available=1000)

    assert max(200, 10 * cap) <= 900


def test_a_profile_knows_nothing_before_the_first_step() -> None:
    assert MemoryProfile(Gauge(0, 0, 1, 100)).row_cap() is None


def test_a_profile_of_one_and_of_two_sizes() -> None:
    gauge = Gauge(resident=100, fixed=50, per_row=10, all_bytes=2000)
    profile = MemoryProfile(gauge)

    run(profile, gauge, 10)
    assert profile.row_cap() == (1800 - 100) // 15
    run(profile, gauge, 20, 10)
    assert profile.row_cap() == int((1800 - 100) / 12.5)
    assert gauge.begun == 3


def test_a_step_without_rows_is_not_measured() -> None:
    gauge = Gauge(resident=100, fixed=50, per_row=10, all_bytes=2000)
    profile = MemoryProfile(gauge)

    run(profile, gauge, 0)
    assert profile.row_cap() is None
    run(profile, gauge, 10, 0)
    assert profile.row_cap() == (1800 - 100) // 15


def test_what_is_available_is_read_when_it_is_asked() -> None:
    gauge = Gauge(resident=0, fixed=0, per_row=10, all_bytes=1000)
    profile = MemoryProfile(gauge)
    run(profile, gauge, 10)
    gauge.all_bytes = 500

    assert profile.row_cap() == 45


def test_only_devices_with_a_memory_of_their_own_are_profiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda", 0)
    resets = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 300)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (500, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 500)
    profile = memory_profile_of(device)
    assert profile is not None
    profile.begin_step()
    profile.end_step(10)

    assert resets == [device]
    assert profile.row_cap() == (900 - 100) // 20
    assert memory_profile_of(torch.device("cpu")) is None


def test_nothing_is_proven_before_a_failure() -> None:
    gauge = Gauge(resident=100, fixed=0, per_row=10, all_bytes=2000)
    profile = MemoryProfile(gauge)

    assert profile.proven_cap is None
    run(profile, gauge, 10, 20)
    assert profile.proven_cap is None
    assert profile.row_cap() == 170


@given(failed=st.lists(sizes, min_size=1, max_size=4))
def test_what_failed_before_anything_ran_is_the_only_bound(failed: list[int]) -> None:
    profile = MemoryProfile(Gauge(resident=0, fixed=0, per_row=1, all_bytes=2**40))
    for rows in failed:
        profile.note_failure(rows)

    assert profile.row_cap() is None
    assert profile.proven_cap == max(min(failed) - 1, 1)


@given(
    ran=st.lists(sizes, min_size=1, max_size=4),
    failed=st.lists(sizes, min_size=1, max_size=4),
    all_bytes=st.integers(0, 2**30),
)
def test_a_cap_is_below_what_failed_and_as_predicted_otherwise(
    ran: list[int], failed: list[int], all_bytes: int
) -> None:
    gauge = Gauge(resident=100, fixed=50, per_row=10, all_bytes=all_bytes)
    profile = MemoryProfile(gauge)
    run(profile, gauge, *ran)
    predicted = profile.row_cap()
    for rows in failed:
        profile.note_failure(rows)

    cap = profile.row_cap()
    assert predicted is not None
    assert cap == max(min(predicted, min(failed) - 1), 1) == profile.proven_cap


def test_a_failure_begins_the_measurement_anew() -> None:
    gauge = Gauge(resident=100, fixed=0, per_row=10, all_bytes=1000)
    profile = MemoryProfile(gauge)
    profile.begin_step()
    gauge.resident, gauge.rows = 200, 20
    profile.note_failure(40)
    profile.end_step(20)

    assert gauge.begun == 2
    assert most_rows([20], [200], [400], available=1000) == 70
    assert profile.row_cap() == profile.proven_cap == 39
    profile.note_failure(60)
    assert profile.row_cap() == 39
    profile.note_failure(30)
    assert profile.row_cap() == 29
    gauge.all_bytes = 100
    assert profile.row_cap() == 20


def test_where_a_failure_can_be_mended_a_line_through_two_sizes_is_believed() -> None:
    rows, resident = [8, 16], [100, 100]
    fixed, per_row = 200, 10
    peak = [100 + fixed + per_row * each for each in rows]
    for available, fits in ((500, 16), (550, 19), (600, 24), (2000, 75)):
        assert hopeful_rows(rows, resident, peak, available) == fits
        assert most_rows(rows, resident, peak, available) <= hopeful_rows(
            rows, resident, peak, available
        )
    assert most_rows(rows, resident, peak, 600) == 19


@pytest.mark.parametrize(
    ("rows", "peak"), [([16], [460]), ([15, 16], [450, 460]), ([8, 16], [480, 460])]
)
def test_without_a_line_nothing_is_hoped_for(rows: list[int], peak: list[int]) -> None:
    resident = [100] * len(rows)
    for available in (500, 600, 2000):
        hoped = hopeful_rows(rows, resident, peak, available)
        assert hoped == most_rows(rows, resident, peak, available)
