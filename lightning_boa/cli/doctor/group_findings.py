"""What a process group of real ranks has shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightning_boa.cli.doctor.facts import Finding, Group, RankFacts, Speed

SLOW_PAIR = 2.0
CEILING_WORTH_SAYING = 0.02
ALIKE = ("python", "torch", "lightning_boa")


def findings_of_group(group: Group) -> Iterator[Finding]:
    """Who shares a device, who has other versions, who kept the others waiting, and what the links are like."""
    yield from _of_shared_devices(group)
    yield from _of_versions(group.ranks)
    if group.trouble:
        yield Finding("problem", f"The process group failed: {group.trouble}.", group.mend)
        return
    if group.large_seconds is not None:
        yield Finding(
            "ok",
            f"{len(group.ranks)} ranks joined and reduced by {group.backend}.",
        )
    yield from _of_pairs(group)
    yield from _of_speeds(group.speeds)


def sharing_ranks(ranks: Sequence[RankFacts]) -> list[list[int]]:
    """Sets of ranks that have the same device."""
    by_device: dict[tuple[str, str], list[int]] = {}
    for facts in ranks:
        if facts.device is not None:
            place = facts.device.uuid or f"{facts.device.kind}:{facts.device.index}"
            by_device.setdefault((facts.host, place), []).append(facts.rank)
    return [sharing for sharing in by_device.values() if len(sharing) > 1]


def linear_ceiling(speeds: Sequence[Speed]) -> float:
    """How many times as fast as the equal split shares in proportion to speed are."""
    rates = [speed.rows_per_second for speed in speeds]
    return sum(rates) / len(rates) / min(rates)


def _of_shared_devices(group: Group) -> Iterator[Finding]:
    for sharing in sharing_ranks(group.ranks):
        device = next(facts.device for facts in group.ranks if facts.rank == sharing[0])
        assert device is not None
        yield Finding(
            "problem",
            f"Ranks {' and '.join(map(str, sharing))} are on the same device: {device.name} {device.uuid}".rstrip()
            + f" of {group.ranks[sharing[0]].host}.",
            "Give each rank its own: as many ranks per machine as devices, and no CUDA_VISIBLE_DEVICES that hides all"
            " but one without --gpus-per-task.",
        )


def _of_versions(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for name in ALIKE:
        by_version: dict[str, list[int]] = {}
        for facts in ranks:
            by_version.setdefault(str(getattr(facts, name)), []).append(facts.rank)
        if len(by_version) > 1:
            said = "; ".join(
                f"{version} on {'rank' if len(those) == 1 else 'ranks'} {', '.join(map(str, those))}"
                for version, those in by_version.items()
            )
            yield Finding(
                "warning" if name == "python" else "problem",
                f"Ranks have different versions of {name.replace('_', '-')}: {said}.",
                "Install the same versions on all machines.",
            )


def _of_pairs(group: Group) -> Iterator[Finding]:
    if len(group.pairs) < 2:
        return
    slowest = max(group.pairs, key=lambda pair: pair.seconds)
    fastest = min(group.pairs, key=lambda pair: pair.seconds)
    if slowest.seconds > SLOW_PAIR * fastest.seconds:
        yield Finding(
            "note",
            f"Between ranks {slowest.ranks[0]} and {slowest.ranks[1]} {group.large_bytes / 1e6:.0f} MB take"
            f" {1000 * slowest.seconds:.1f} ms, between {fastest.ranks[0]} and {fastest.ranks[1]}"
            f" {1000 * fastest.seconds:.1f} ms; a ring is as fast as its slowest link.",
            "boa says after its warm-up whether fewer ranks would be faster.",
        )


def _of_speeds(speeds: Sequence[Speed]) -> Iterator[Finding]:
    if len(speeds) < 2:
        return
    gain = linear_ceiling(speeds) - 1
    doubt = max(speed.spread for speed in speeds)
    if gain > max(CEILING_WORTH_SAYING, 2 * doubt):
        yield Finding(
            "ok",
            f"In a small convolution, all at once, shares that fit would make a step {1 + gain:.2f} times as fast as"
            f" equal ones (repeats differ by {100 * doubt:.0f} %). It is not your model, and leaves out fixed costs and"
            " communication.",
        )
    else:
        yield Finding(
            "note",
            "In a small convolution, all at once, the devices are equally fast within what repeats differ by"
            f" ({100 * doubt:.0f} %). It is not your model.",
        )
