"""What will hold boa back, from plain facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from lightning_boa.cli.doctor.facts import (
    Accelerators,
    Card,
    Device,
    Finding,
    Group,
    Level,
    Machine,
)
from lightning_boa.cli.doctor.group_findings import findings_of_group
from lightning_boa.cli.doctor.variable_findings import findings_of_variables

LITTLE_SHARED_MEMORY = 2**30
OF_AN_IDLE_CONTEXT_MIB = 50.0
_LEVELS: tuple[Level, ...] = ("problem", "warning", "note", "ok")


def findings_of(machine: Machine, group: Group | None, ranks: int) -> tuple[Finding, ...]:
    """The worst first; `ranks` are those on this machine."""
    found = [
        *_of_devices(machine.accelerators, machine.cards.present),
        *_of_nvidia_smi(machine),
        *_of_order(machine),
        *_of_bf16(machine, group),
        *_of_cards(machine.cards.present),
        *_of_processor(machine, ranks),
        *_of_software(machine),
        *findings_of_variables(machine),
        *([] if group is None else findings_of_group(group)),
    ]
    return tuple(sorted(found, key=lambda finding: _LEVELS.index(finding.level)))


def _of_devices(accelerators: Accelerators, cards: tuple[Card, ...]) -> Iterator[Finding]:
    devices = accelerators.devices
    if accelerators.error:
        yield Finding(
            "problem",
            f"torch cannot ask its devices: {accelerators.error}.",
            "See whether driver and torch fit together: python -c 'import torch; torch.cuda.init()'.",
        )
    elif not devices and cards:
        yield Finding(
            "problem",
            f"nvidia-smi shows {_count(len(cards), 'card')}, torch sees none.",
            "Install a torch built for CUDA whose version the driver knows, and look at CUDA_VISIBLE_DEVICES.",
        )
    elif not devices:
        yield Finding(
            "note",
            "There is no accelerator that torch can drive: ranks compute on the processor.",
            "For a look at boa without a second GPU: boa-train, or EmulatedCluster.",
        )
    elif len(devices) == 1:
        yield Finding(
            "note",
            f"There is one device ({devices[0].name}): boa has nothing to divide on this machine.",
            "With more machines, run this by torchrun or srun on all of them.",
        )
    elif len({device.name for device in devices}) == 1:
        yield Finding(
            "note",
            f"All {len(devices)} devices are alike ({devices[0].name}): boa keeps the equal split, and gains only where"
            " one of them becomes slower.",
        )
    else:
        yield Finding("ok", f"The devices differ, which is what boa is for: {_kinds(devices)}.")
    yield from _of_architectures(accelerators)
    yield from _of_memory(devices)
    yield from _of_peers(accelerators)


def _of_architectures(accelerators: Accelerators) -> Iterator[Finding]:
    if accelerators.api != "CUDA" or not accelerators.architectures:
        return
    strange = [
        device
        for device in accelerators.devices
        if not _is_built_for(device.capability, accelerators.architectures)
    ]
    if strange:
        yield Finding(
            "problem",
            f"This torch was not built for {_named(strange)} (compute capability {_capabilities(strange)}); it has"
            f" {', '.join(accelerators.architectures)}.",
            "Install a torch built for all cards (an earlier CUDA for old ones), or leave these out with"
            " CUDA_VISIBLE_DEVICES.",
        )


def _is_built_for(capability: str, architectures: tuple[str, ...]) -> bool:
    """Machine code runs on later minor versions of its major one, PTX ("compute_…") on everything later."""
    major, minor = map(int, capability.split("."))
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        number = int("".join(filter(str.isdigit, digits)) or 0)
        built = divmod(number, 10)
        if kind == "compute" and built <= (major, minor):
            return True
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return True
    return False


def _of_memory(devices: tuple[Device, ...]) -> Iterator[Finding]:
    sizes = {device: device.memory_bytes for device in devices if device.memory_bytes}
    if sizes and max(sizes.values()) > 1.1 * min(sizes.values()):
        least, most = (_gigabytes(find(sizes.values())) for find in (min, max))
        yield Finding(
            "note",
            f"Memory differs, from {least} to {most}: it may bound the share of the smaller card.",
            'BoaStrategy(max_batch_size="auto") lets such a card run its share in several passes.',
        )


def _of_peers(accelerators: Accelerators) -> Iterator[Finding]:
    if accelerators.peers and not all(map(all, accelerators.peers)):
        yield Finding(
            "note",
            "Not all cards read each other's memory: gradients go through the host, as cards of different kinds mostly"
            " do.",
        )


def _of_nvidia_smi(machine: Machine) -> Iterator[Finding]:
    cards, devices = machine.cards, machine.accelerators.devices
    if cards.error:
        yield Finding(
            "warning",
            f"{cards.error}: power limits, heat and other processes are not known.",
            "Run nvidia-smi by hand; a driver that hangs needs its machine's administrator.",
        )
    elif machine.accelerators.api == "CUDA" and not cards.present:
        yield Finding(
            "note",
            "nvidia-smi is not there: power limits, heat and other processes are not known.",
            "In a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        )
    elif 0 < len(devices) < len(cards.present):
        yield Finding(
            "note",
            f"torch sees {len(devices)} of the {len(cards.present)} cards.",
            "CUDA_VISIBLE_DEVICES says which; unset it for all.",
        )


def _of_order(machine: Machine) -> Iterator[Finding]:
    """Where the ranks' order is not that of nvidia-smi, by which people number their cards."""
    devices, cards = machine.accelerators.devices, machine.cards.present
    if machine.accelerators.api != "CUDA" or len(devices) < 2:
        return
    fixed = machine.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    places = [card_of(device, cards) for device in devices]
    known = [place for place in places if place is not None]
    mixed = len({device.name for device in devices}) > 1
    if fixed or not mixed:
        return
    if any(later.index < earlier.index for earlier, later in pairwise(known)):
        pairs = ", ".join(
            f"torch's {device.index} ({device.name}) is its {card.index}"
            for device, card in zip(devices, places, strict=True)
            if card is not None
        )
        yield Finding(
            "warning",
            f"torch counts the cards in another order than nvidia-smi: {pairs}. CUDA puts what it takes for the fastest"
            " first.",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID for training, so that lists per rank (batch_sizes) mean those cards.",
        )
    else:
        yield Finding(
            "note",
            "CUDA_DEVICE_ORDER is not set: with mixed cards their order may change with a driver or another card.",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID where you give lists per rank (batch_sizes).",
        )


def card_of(device: Device, cards: tuple[Card, ...]) -> Card | None:
    """The card in nvidia-smi's list that torch's device is."""
    for card in cards:
        if device.uuid and device.uuid == card.uuid:
            return card
    for card in cards:
        if device.pci_bus_id and device.pci_bus_id == card.pci_bus_id:
            return card
    return None


def _of_bf16(machine: Machine, group: Group | None) -> Iterator[Finding]:
    devices: Mapping[str, Device] = {
        f"device {device.index}": device for device in machine.accelerators.devices
    }
    if group is not None and any(facts.device is not None for facts in group.ranks):
        devices = {
            f"rank {facts.rank}": facts.device for facts in group.ranks if facts.device is not None
        }
    lacking = [f"{place} ({each.name})" for place, each in devices.items() if each.bf16 is False]
    having = [place for place, each in devices.items() if each.bf16]
    if lacking and having:
        yield Finding(
            "warning",
            f"bfloat16 is native on {', '.join(having)}, but not on {', '.join(lacking)}: bf16-mixed is emulated there"
            " and slow, or fails in single operations.",
            "Use precision=32 or 16-mixed on this mix, or leave those cards out.",
        )
    elif lacking:
        yield Finding("note", "No device has native bfloat16.", "Use precision=32 or 16-mixed.")


def _of_cards(cards: tuple[Card, ...]) -> Iterator[Finding]:
    for card in cards:
        name = f"Card {card.index} ({card.name})"
        for rule in _RULES_OF_A_CARD:
            yield from rule(name, card)


def _throttled(name: str, card: Card) -> Iterator[Finding]:
    if not card.throttled_by:
        return
    clocks = (
        f" and runs at {card.sm_clock_mhz:.0f} of {card.max_sm_clock_mhz:.0f} MHz"
        if card.sm_clock_mhz and card.max_sm_clock_mhz
        else ""
    )
    warm = f" at {card.temperature:.0f} °C" if card.temperature is not None else ""
    yield Finding(
        "warning",
        f"{name} is held back by {' and '.join(card.throttled_by)}{clocks}{warm}.",
        'boa gives it fewer rows for as long (rebalance="auto"); more air or a higher power limit gains more.',
    )


def _limited(name: str, card: Card) -> Iterator[Finding]:
    limit, default = card.power_limit, card.default_power_limit
    if limit is not None and default is not None and limit < 0.99 * default:
        yield Finding(
            "note",
            f"{name} is limited to {limit:.0f} W, by default it has {default:.0f} W.",
            "boa measures what is left; nvidia-smi -pl changes it.",
        )


def _shared(name: str, card: Card) -> Iterator[Finding]:
    busy = [
        each
        for each in card.processes
        if each.memory_mib is None or each.memory_mib > OF_AN_IDLE_CONTEXT_MIB
    ]
    if busy:
        who = ", ".join(f"{each.pid} ({each.name.rpartition('/')[2]})" for each in busy)
        yield Finding(
            "warning",
            f"{name} computes for {_count(len(busy), 'other process', 'other processes')}: {who}.",
            "boa follows what they leave, but their memory is missing; end them or leave the card out.",
        )


def _divided(name: str, card: Card) -> Iterator[Finding]:
    if card.mig:
        yield Finding(
            "warning",
            f"{name} is divided by MIG: NCCL does not join several parts of one card.",
            "Use one part per card, or switch MIG off.",
        )


def _reserved(name: str, card: Card) -> Iterator[Finding]:
    if card.compute_mode == "Prohibited":
        yield Finding(
            "problem",
            f"{name} is in compute mode Prohibited: nothing may compute on it.",
            "nvidia-smi -c DEFAULT, or leave it out with CUDA_VISIBLE_DEVICES.",
        )


def _narrow(name: str, card: Card) -> Iterator[Finding]:
    width, most = card.link_width, card.max_link_width
    if width is not None and most is not None and width < most:
        yield Finding(
            "note",
            f"{name} has {width} of its {most} PCIe lanes: its gradients travel more slowly, and all wait for them.",
            "Another slot may have more; boa says after its warm-up what communication costs.",
        )


_RULES_OF_A_CARD: tuple[Callable[[str, Card], Iterator[Finding]], ...] = (
    _throttled,
    _limited,
    _shared,
    _divided,
    _reserved,
    _narrow,
)


def _of_processor(machine: Machine, ranks: int) -> Iterator[Finding]:
    processor = machine.processor
    if processor.quota is not None and processor.quota < processor.cores:
        yield Finding(
            "note",
            f"The container may use {processor.quota:g} of {processor.cores} cores; a thread for each is too many.",
            "Count loader workers and OMP_NUM_THREADS by the quota.",
        )
    each = processor.usable_cores / ranks
    if each < 1:
        yield Finding(
            "warning",
            f"{ranks} ranks share {processor.usable_cores:g} cores: loaders and launches of one slow another one down.",
            "Fewer ranks, or more cores.",
        )
    elif machine.accelerators.devices:
        yield Finding(
            "ok",
            f"{each:.3g} cores for each of {_count(ranks, 'rank')}: num_workers={max(0, int(each) - 1)} leaves one for"
            " training.",
        )
    threads = machine.environment.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) * ranks > processor.usable_cores >= ranks:
        yield Finding(
            "warning",
            f"OMP_NUM_THREADS={threads} for {ranks} ranks is more than {processor.usable_cores:g} cores.",
            f"Set it to {max(1, int(each))}.",
        )
    shared = processor.shared_memory_bytes
    if shared is not None and shared < LITTLE_SHARED_MEMORY:
        yield Finding(
            "warning",
            f"/dev/shm holds {shared / 2**20:.0f} MiB: loader workers and NCCL end with a bus error when it is full.",
            "docker run --shm-size=8g, or --ipc=host; in Kubernetes an emptyDir of medium Memory.",
        )


def _of_software(machine: Machine) -> Iterator[Finding]:
    software = machine.software
    for package in software.packages:
        if not package.is_accepted:
            yield Finding(
                "problem",
                f"{package.name} {package.version} is not in the range that lightning-boa needs ({package.accepted}).",
                f'pip install "{package.name}{package.accepted}"',
            )
        elif package.tested and _minor(package.version) > _minor(package.tested):
            yield Finding(
                "note",
                f"{package.name} {package.version} is newer than what lightning-boa is tested with ({package.tested}).",
                f"If something fails: pip install {package.name}=={package.tested}",
            )
    for lightning in software.lightnings:
        if lightning.error:
            yield Finding(
                "problem",
                f"{lightning.name} cannot be imported: {lightning.error}.",
                f"python -c 'import {lightning.name}' shows it in full; mostly a package's version does not fit.",
            )
        elif not lightning.registered:
            yield Finding(
                "problem",
                f'{lightning.name} does not know strategy="boa".',
                "Write `import lightning_boa` before the Trainer.",
            )
    served = [each.name for each in software.lightnings if each.registered]
    if len(served) == 2:
        yield Finding(
            "ok",
            f'{served[0]} and {served[1]} both know strategy="boa"; take Trainer, module and callbacks from one.',
        )
    elif served:
        yield Finding("ok", f'{served[0]} knows strategy="boa".')
    elif not software.lightnings:
        yield Finding("problem", "No Lightning is installed.", "pip install pytorch-lightning")
    if machine.environment.get("LIGHTNING_BOA") == "off":
        yield Finding(
            "warning",
            "LIGHTNING_BOA=off is set: every training keeps equal shares.",
            "unset LIGHTNING_BOA",
        )


def _minor(version: str) -> tuple[int, ...]:
    """Major and minor version, by which ranges of tested versions go."""
    numbers = ["".join(filter(str.isdigit, part)) for part in version.split("+")[0].split(".")[:2]]
    return tuple(int(number or 0) for number in numbers)


def _kinds(devices: tuple[Device, ...]) -> str:
    names = [device.name for device in devices]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _named(devices: list[Device]) -> str:
    return ", ".join(f"device {device.index} ({device.name})" for device in devices)


def _capabilities(devices: list[Device]) -> str:
    return ", ".join(dict.fromkeys(device.capability for device in devices))


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
