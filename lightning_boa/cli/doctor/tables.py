"""The examination for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightning_boa.cli.doctor import facts
from lightning_boa.cli.doctor.facts import Card, Device, Examination, Finding, Level, Machine
from lightning_boa.cli.doctor.findings import card_of
from lightning_boa.reports.tables import new_table

UNKNOWN = "-"
WIDE = 100
SHORT_UUID = 12
_STYLES: dict[Level, str] = {
    "problem": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "ok": "green",
}


def show(examination: Examination, console: Console) -> None:
    """Machine, group and findings, in the order in which they are read."""
    machine, group = examination.machine, examination.group
    console.print(_machine_table(machine))
    if machine.accelerators.devices:
        console.print(_device_table(machine, wide=console.width >= WIDE))
    if len(machine.cards.present) > 1 and machine.cards.links and console.width >= WIDE:
        console.print(Padding(Text(machine.cards.links, no_wrap=True), (0, 1)), soft_wrap=True)
    if group is not None and group.ranks:
        console.print(_rank_table(group))
    if group is not None and group.pairs:
        console.print(_pair_table(group))
    console.print(_findings(examination.findings))


def _machine_table(machine: Machine) -> RenderableType:
    processor, software = machine.processor, machine.software
    cores = f"{processor.cores} cores"
    if processor.quota is not None:
        cores += f" (the container may use {processor.quota:g})"
    memory = [
        f"{size / 2**30:.3g} GiB {where}"
        for size, where in (
            (processor.memory_bytes, "of memory"),
            (processor.shared_memory_bytes, "in /dev/shm"),
        )
        if size is not None
    ]
    built = ", ".join(
        f"{name} {value}"
        for name, value in (("CUDA", software.cuda), ("NCCL", software.nccl))
        if value
    )
    versions = [f"Python {software.python}"] + [
        f"{package.name} {package.version}"
        + (f" ({built})" if package.name == "torch" and built else "")
        for package in software.packages
    ]
    lines = {
        "machine": machine.host,
        "processor": ", ".join([cores, *memory]),
        "torch drives": _driven(machine),
        "software": ", ".join(versions),
    }
    lines["environment"] = ", ".join(
        f"{name}={value}" for name, value in machine.environment.items()
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, said in lines.items():
        if said:
            table.add_row(name, Text(said))
    return Padding(table, (1, 1))


def _driven(machine: Machine) -> str:
    accelerators, driver = machine.accelerators, machine.cards.driver
    if not accelerators.devices:
        return "the processor alone"
    driven = f"{len(accelerators.devices)} by {accelerators.api}"
    return f"{driven}, driver {driver}" if driver else driven


def _device_table(machine: Machine, *, wide: bool) -> Table:
    table = new_table("Devices in torch's order")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("device", overflow="fold")
    for heading in ("memory\n(GiB)", "capa-\nbility", "bf16", "nvidia-\nsmi"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("UUID", no_wrap=True)
    if wide:
        table.add_column("PCI bus", no_wrap=True)
        table.add_column("power\n(W)", justify="right", no_wrap=True)
    for device in machine.accelerators.devices:
        card = card_of(device, machine.cards.present)
        table.add_row(*_device_cells(device, card, wide=wide))
    return table


def _device_cells(device: Device, card: Card | None, *, wide: bool) -> list[str | Text]:
    memory = device.memory_bytes
    cells: list[str | Text] = [
        str(device.index),
        Text(device.name),
        UNKNOWN if memory is None else f"{memory / 2**30:.0f}",
        device.capability or UNKNOWN,
        {True: "yes", False: "no", None: UNKNOWN}[device.bf16],
        UNKNOWN if card is None else str(card.index),
        device.uuid[:SHORT_UUID] or UNKNOWN,
    ]
    if wide:
        limit = None if card is None else card.power_limit
        cells += [device.pci_bus_id or UNKNOWN, UNKNOWN if limit is None else f"{limit:.0f}"]
    return cells


def _rank_table(group: facts.Group) -> RenderableType:
    table = new_table(f"Process group ({group.backend})")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("machine", overflow="fold")
    table.add_column("device", overflow="fold")
    if group.speeds:
        table.add_column("a small convolution\n(rows/s)", justify="right", no_wrap=True)
    for place, each in enumerate(group.ranks):
        device = "processor" if each.device is None else each.device.name
        cells: list[str | Text] = [str(each.rank), Text(each.host), Text(device)]
        if group.speeds:
            speed = group.speeds[place]
            cells.append(f"{speed.rows_per_second:.0f} ± {100 * speed.spread:.0f} %")
        table.add_row(*cells)
    if group.small_seconds is None or group.large_seconds is None:
        return table
    rate = group.large_bytes / group.large_seconds / 1e9
    said = (
        f"all-reduce among all: 4 bytes {1000 * group.small_seconds:.2f} ms, {group.large_bytes / 1e6:.0f} MB"
        f" {1000 * group.large_seconds:.1f} ms ({rate:.2f} GB/s)"
    )
    return Group(table, Padding(Text(said), (0, 1, 1, 1)))


def _pair_table(group: facts.Group) -> Table:
    table = new_table(f"Pairs, {group.large_bytes / 1e6:.0f} MB")
    for heading in ("ranks", "ms", "GB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair in group.pairs:
        first, second = pair.ranks
        table.add_row(
            f"{first} - {second}",
            f"{1000 * pair.seconds:.1f}",
            f"{group.large_bytes / pair.seconds / 1e9:.2f}",
        )
    return table


def _findings(findings: Sequence[Finding]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for finding in findings:
        said = Text(finding.what)
        if finding.mend:
            said.append(f"\n{finding.mend}", style="dim")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), said)
    return Padding(table, (1, 1, 1, 1))
