"""What the doctor says of machines that are not here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_boa.cli.doctor.facts import (
    Card,
    Cards,
    LightningPackage,
    Package,
    PairSeconds,
    Process,
    Speed,
)

from .machines import (
    PROCESSOR,
    SOFTWARE,
    card_for,
    devices_of,
    finding,
    group_on,
    machine_with,
    said_of,
)


def test_without_a_gpu_there_is_a_note_and_no_problem() -> None:
    said = said_of(machine_with())
    assert set(said.values()) == {"note", "ok"}
    assert any("There is no accelerator" in what for what in said)


def test_mixed_cards_are_what_boa_is_for() -> None:
    machine = machine_with("RTX 3090", "RTX 4090", environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert finding(machine, "1 x RTX 3090, 1 x RTX 4090").level == "ok"
    assert not set(said_of(machine).values()) & {"problem", "warning", "note"}


def test_equal_cards_leave_little_to_gain() -> None:
    found = finding(machine_with(*["RTX 3090"] * 4), "All 4 devices are alike", ranks=4)
    assert found.level == "note"
    assert "equal split" in found.what


def test_a_single_card_has_nothing_to_divide() -> None:
    assert finding(machine_with("A100"), "There is one device (A100)", ranks=1).level == "note"


def test_a_mix_with_and_without_bfloat16_is_a_trap() -> None:
    found = finding(machine_with("V100", "A100"), "bfloat16")
    assert found.level == "warning"
    assert "native on device 1, but not on device 0 (V100)" in found.what
    assert "16-mixed" in found.mend
    across = group_on(devices_of("A100")[0], devices_of("V100")[0])
    assert "not on rank 1 (V100)" in finding(machine_with("A100"), "bfloat16", across).what


def test_cards_that_torch_counts_in_another_order() -> None:
    new, old = devices_of("RTX 4090", "RTX 3090")
    cards = Cards((card_for(old, 0), card_for(new, 1)))
    machine = machine_with("RTX 4090", "RTX 3090", cards=cards)
    found = finding(machine, "another order")
    assert found.level == "warning"
    assert "torch's 0 (RTX 4090) is its 1, torch's 1 (RTX 3090) is its 0" in found.what
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.mend
    equal = machine_with("RTX 3090", "RTX 3090", cards=cards)
    assert not any("order" in what for what in said_of(equal))


@pytest.mark.parametrize(
    ("card", "level", "words", "mend"),
    [
        (
            {
                "throttled_by": ("heat (driver)",),
                "sm_clock_mhz": 900.0,
                "max_sm_clock_mhz": 2100.0,
                "temperature": 91.0,
            },
            "warning",
            "is held back by heat (driver) and runs at 900 of 2100 MHz at 91 °C",
            "fewer rows",
        ),
        (
            {"power_limit": 250.0, "default_power_limit": 350.0},
            "note",
            "is limited to 250 W, by default it has 350 W",
            "-pl",
        ),
        (
            {"processes": (Process(7, "/usr/bin/python", 900.0), Process(8, "Xorg", 4.0))},
            "warning",
            "computes for 1 other process: 7 (python)",
            "end them",
        ),
        ({"mig": True}, "warning", "is divided by MIG", "MIG off"),
        ({"compute_mode": "Prohibited"}, "problem", "nothing may compute", "-c DEFAULT"),
        (
            {"link_width": 4, "max_link_width": 16},
            "note",
            "has 4 of its 16 PCIe lanes",
            "slot",
        ),
    ],
    ids=["hot", "limited", "shared", "divided", "prohibited", "narrow"],
)
def test_a_card_that_is_held_back(
    card: dict[str, object], level: str, words: str, mend: str
) -> None:
    first, second = (card_for(device, device.index) for device in devices_of("V100", "V100"))
    bad = replace(second, **card)  # type: ignore[arg-type]
    found = finding(machine_with("V100", "V100", cards=Cards((first, bad))), words)
    assert (found.level, "Card 1 (V100)" in found.what) == (level, True)
    assert mend in found.mend
    alike = said_of(machine_with("V100", "V100", cards=Cards((first, second))))
    assert not any("Card" in what for what in alike)


@pytest.mark.parametrize(
    ("architectures", "is_built"),
    [
        (("sm_70", "sm_80"), True),
        (("sm_75", "sm_80"), False),
        (("compute_60", "sm_80"), True),
        (("sm_60", "sm_80"), False),
        ((), True),
    ],
)
def test_an_old_card_for_which_torch_was_not_built(
    architectures: tuple[str, ...], is_built: bool
) -> None:
    machine = machine_with("V100", "A100", architectures=architectures)
    said = [what for what, level in said_of(machine).items() if level == "problem"]
    assert said == [] if is_built else "device 0 (V100) (compute capability 7.0)" in said[0]


def test_cards_that_torch_does_not_see() -> None:
    cards = Cards((Card(0, "V100", "GPU-0", ""), Card(1, "V100", "GPU-1", "")))
    found = finding(machine_with(cards=cards), "nvidia-smi shows 2 cards, torch sees none")
    assert found.level == "problem"
    fewer = machine_with("V100", cards=cards)
    assert finding(fewer, "torch sees 1 of the 2 cards").level == "note"


def test_nvidia_smi_that_gives_no_answer() -> None:
    machine = machine_with("V100", cards=Cards(error="nvidia-smi gave no answer within 10 s"))
    assert finding(machine, "gave no answer within 10 s: power limits").level == "warning"
    assert finding(machine_with("V100", cards=Cards()), "nvidia-smi is not there").level == "note"


def test_two_ranks_on_one_card() -> None:
    (card,) = devices_of("A100")
    machine = machine_with("A100")
    found = finding(
        machine, "Ranks 0 and 1 are on the same device: A100 GPU-000", group_on(card, card)
    )
    assert found.level == "problem"
    elsewhere = group_on(card, card)
    apart = replace(
        elsewhere, ranks=(elsewhere.ranks[0], replace(elsewhere.ranks[1], host="there"))
    )
    assert not any("same device" in what for what in said_of(machine, apart))


def test_ranks_of_different_versions() -> None:
    group = group_on(*devices_of("A100", "A100"))
    mixed = replace(group, ranks=(group.ranks[0], replace(group.ranks[1], torch="2.6.0")))
    found = finding(machine_with("A100"), "versions of torch", mixed)
    assert found.level == "problem"
    assert "2.13.0 on rank 0; 2.6.0 on rank 1" in found.what


def test_a_group_that_failed_is_a_problem() -> None:
    group = group_on(trouble="rank 1 hangs while starting")
    assert finding(machine_with(), "rank 1 hangs while starting", group).level == "problem"


def test_a_slow_link_is_named() -> None:
    pairs = (PairSeconds((0, 1), 0.01), PairSeconds((0, 2), 0.05), PairSeconds((1, 2), 0.011))
    group = replace(group_on(), pairs=pairs, large_bytes=16_000_000)
    found = finding(machine_with(), "Between ranks 0 and 2", group)
    assert "16 MB take 50.0 ms, between 0 and 1 10.0 ms" in found.what


@pytest.mark.parametrize(
    ("rates", "spread", "words"),
    [
        ((100.0, 300.0), 0.01, "2.00 times as fast as equal ones"),
        ((100.0, 101.0), 0.001, "equally fast"),
        ((100.0, 120.0), 0.06, "equally fast"),
    ],
    ids=["unequal", "equal", "within the noise"],
)
def test_speeds_say_what_there_is_to_gain(
    rates: tuple[float, ...], spread: float, words: str
) -> None:
    group = replace(group_on(), speeds=tuple(Speed(rate, spread) for rate in rates))
    assert "not your model" in finding(machine_with(), words, group).what


@pytest.mark.parametrize(
    ("changed", "environment", "ranks", "words", "level"),
    [
        ({"quota": 1.5}, {}, 1, "may use 1.5 of 16 cores", "note"),
        ({"cores": 2}, {}, 4, "4 ranks share 2 cores", "warning"),
        ({}, {"OMP_NUM_THREADS": "16"}, 2, "OMP_NUM_THREADS=16 for 2 ranks", "warning"),
        ({"shared_memory_bytes": 64 * 2**20}, {}, 2, "/dev/shm holds 64 MiB", "warning"),
        ({}, {"LIGHTNING_BOA": "off"}, 2, "LIGHTNING_BOA=off", "warning"),
    ],
)
def test_a_processor_that_is_too_small(
    changed: dict[str, object], environment: dict[str, str], ranks: int, words: str, level: str
) -> None:
    processor = replace(PROCESSOR, **changed)  # type: ignore[arg-type]
    machine = machine_with(processor=processor, environment=environment)
    assert finding(machine, words, ranks=ranks).level == level
    assert not any(words in what for what in said_of(machine_with(), ranks=2))


def test_software() -> None:
    software = replace(
        SOFTWARE,
        packages=(
            Package("torch", "2.3.0", ">=2.4", False, "2.13.0"),
            Package("torchmetrics", "2.0.1", ">=1.0", True, "1.9.0"),
        ),
        lightnings=(
            LightningPackage("pytorch_lightning", False, "ImportError: no"),
            LightningPackage("lightning.pytorch", False),
        ),
    )
    machine = machine_with(software=software)
    assert finding(machine, "torch 2.3.0 is not in the range").mend == 'pip install "torch>=2.4"'
    assert finding(machine, "torchmetrics 2.0.1 is newer").level == "note"
    assert (
        finding(machine, "pytorch_lightning cannot be imported: ImportError: no").level == "problem"
    )
    assert finding(machine, 'lightning.pytorch does not know strategy="boa"').level == "problem"
    both = replace(
        SOFTWARE, lightnings=(*SOFTWARE.lightnings, LightningPackage("lightning.pytorch", True))
    )
    assert finding(machine_with(software=both), "both know").level == "ok"


def test_the_worst_comes_first() -> None:
    said = list(said_of(machine_with("V100", "A100", architectures=("sm_80",))).values())
    assert said == sorted(said, key=["problem", "warning", "note", "ok"].index)
    assert said[0] == "problem"
