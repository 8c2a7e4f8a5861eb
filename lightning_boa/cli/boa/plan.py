"""`boa plan`: the plan for devices that one has, or might buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from lightning_boa.cli.boa.arguments import (
    DEVICES,
    BandwidthOption,
    DeviceOption,
    GradientBytesOption,
    JsonOption,
    LatencyOption,
    ParametersOption,
    PictureOption,
    SourceArgument,
    default_rows,
    linked,
    network_of,
    option,
)
from lightning_boa.cli.boa.files import picture_path
from lightning_boa.cli.boa.fleet import WORTH_SAYING, Fleet, Outlook
from lightning_boa.cli.boa.output import console, print_json, say
from lightning_boa.cli.boa.plan_tables import (
    Impossible,
    Scenario,
    best_scenario,
    plan_dict,
    scenario_table,
    sweep_table,
    where_it_stops_paying,
)
from lightning_boa.cli.boa.quantities import whole_number, whole_numbers
from lightning_boa.cli.boa.scenarios import applied
from lightning_boa.cli.boa.sources import Source, source_of
from lightning_boa.errors import OptionError
from lightning_boa.planning import WorkerSet
from lightning_boa.reports.folded import MOST_RANKS, folded_plan_table
from lightning_boa.reports.tables import comparison_table, milliseconds

QUESTIONS = "Questions"
NOW = "now"


def plan(
    source: SourceArgument = None,
    device: DeviceOption = None,
    global_batch: Annotated[
        str | None,
        option(
            "--global-batch",
            "-b",
            metavar="ROWS",
            panel=QUESTIONS,
            help="Rows of a step over all devices; several, as in 64,128,256, are a sweep."
            " Default: the profile's, else 16 for each device.",
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        option(
            "--what-if",
            metavar="CHANGES",
            panel=QUESTIONS,
            help="Other devices beside the present ones: add=3090, add=2x5090=0.6ms, drop=M2000, drop='rank 3';"
            " several with commas between them. Repeatable.",
        ),
    ] = None,
    grow: Annotated[
        bool,
        typer.Option(
            "--grow",
            help="With --what-if: also a global batch that grows with the number of devices.",
            rich_help_panel=QUESTIONS,
        ),
    ] = False,
    least: Annotated[
        str | None,
        option(
            "--min",
            metavar="ROWS",
            panel=DEVICES,
            help="Least rows of each device: a number, or one for each, as in 4,4,2.",
        ),
    ] = None,
    most: Annotated[
        str | None,
        option(
            "--max",
            metavar="ROWS",
            panel=DEVICES,
            help="Most rows of each device: a number, or one for each.",
        ),
    ] = None,
    granularity: Annotated[
        str | None,
        option(
            "--granularity", metavar="ROWS", panel=DEVICES, help="Shares are multiples of this."
        ),
    ] = None,
    gradient_bytes: GradientBytesOption = None,
    parameters: ParametersOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Plans the rows of each device, and says what that gains over equal shares.

    Examples:

    boa plan thesis_8gpu -b 256

    boa plan --device 3090=2.1ms --device 4090=0.9ms+12ms -b 256

    boa plan devices.yaml -b 256 --what-if add=3090 --what-if drop=M2000

    boa plan profile.json --global-batch 64,128,256

    boa plan devices.yaml -b 256 --parameters 25M --bandwidth 10Gbit/s
    """
    given = source_of(source, device or ())
    network = network_of(gradient_bytes, parameters, latency, given)
    fleet = Fleet.of(given, network).with_bounds(
        None if least is None else whole_numbers("--min", least, least=0),
        None if most is None else whole_numbers("--max", most, least=0),
        None if granularity is None else whole_number("--granularity", granularity, least=1),
    )
    fleet = fleet.with_members(linked(fleet.members, bandwidth, network))
    batches = (
        (default_rows(given),)
        if global_batch is None
        else sorted(set(whole_numbers("--global-batch", global_batch, least=1)))
    )
    file = None if picture is None else _picture_of(picture, fleet, batches)
    if len(batches) > 1:
        if what_if:
            raise OptionError(
                f"--global-batch: expected one number beside --what-if, got {len(batches)}."
            )
        outlooks = [fleet.outlook(rows) for rows in batches]
        _show_sweep(given, fleet, outlooks, json=json)
        return
    (rows,) = batches
    outlook = fleet.outlook(rows)
    answers = [
        scenario
        for question in what_if or ()
        for scenario in _scenarios(question, fleet, rows, bandwidth, grow=grow)
    ]
    if grow and not answers:
        raise OptionError("--grow: expected --what-if beside it, got none.")
    impossible = [each for each in answers if isinstance(each, Impossible)]
    if impossible and len(impossible) == len(answers):
        raise OptionError(f"--what-if {impossible[0].name}: {impossible[0].reason}")
    prediction = Prediction(given, fleet, outlook, fleet.best_workers(outlook), answers)
    if file is not None:
        _draw(outlook, file)
    if json:
        print_json(prediction.to_dict())
    else:
        prediction.show(console())


@dataclass(frozen=True)
class Prediction:
    """All that `boa plan` says of one global batch."""

    source: Source
    fleet: Fleet
    outlook: Outlook
    workers: WorkerSet | None
    scenarios: Sequence[Scenario | Impossible]

    def show(self, output: Console) -> None:
        rows = self.outlook.plan.global_batch_size
        if self.source.note:
            say(output, self.source.note)
        table = folded_plan_table(self.outlook.report)
        table.title = escape(f"Plan of {rows:,} rows for {self.source.name}")
        output.print(table)
        output.print(comparison_table(self.outlook.report))
        reason = self.outlook.report.reason
        say(output, f"{reason[0].upper()}{reason[1:]}.")
        for sentence in self._about_workers():
            say(output, sentence)
        if self.scenarios:
            now = Scenario(NOW, len(self.fleet.members), self.outlook)
            output.print()
            output.print(scenario_table(now, self.scenarios))
            possible = [each for each in self.scenarios if isinstance(each, Scenario)]
            say(output, best_scenario(now, possible))

    def to_dict(self) -> dict[str, Any]:
        workers = self.workers
        now = Scenario(NOW, len(self.fleet.members), self.outlook)
        return {
            "source": self.source.name,
            "note": self.source.note,
            "plan": plan_dict(self.outlook),
            "workers": None
            if workers is None
            else {
                "ranks": workers.ranks,
                "left_out": workers.left_out,
                "batch_sizes": workers.batch_sizes,
                "step_seconds": workers.step_seconds,
                "gain": workers.gain,
                "advice": workers.advice,
            },
            "what_if": [each.to_dict(now) for each in self.scenarios],
        }

    def _about_workers(self) -> list[str]:
        workers = self.workers
        seconds = self.outlook.communication_seconds
        said = []
        if seconds:
            said.append(f"Communication takes {milliseconds(seconds)} ms of each step.")
        gain = 0.0 if workers is None else workers.gain
        if workers is not None and (seconds or gain is None or gain > WORTH_SAYING):
            said.append(f"{workers.advice[0].upper()}{workers.advice[1:]}.")
        has_links = any(each.device.bandwidth < float("inf") for each in self.fleet.members)
        if has_links and not self.fleet.network.gradient_bytes:
            said.append(
                "The links are given, but communication does not count without --gradient-bytes or --parameters."
            )
        return said


def _scenarios(
    question: str, fleet: Fleet, rows: int, bandwidth: str | None, *, grow: bool
) -> list[Scenario | Impossible]:
    members = linked(applied(question, fleet.members, fleet.newcomers), bandwidth, fleet.network)
    other = fleet.changed_to(members)
    batches = [rows]
    if grow and len(members) != len(fleet.members):
        batches.append(max(1, round(rows * len(members) / len(fleet.members))))
    return [_answer(question, other, each) for each in batches]


def _answer(question: str, fleet: Fleet, rows: int) -> Scenario | Impossible:
    devices = len(fleet.members)
    try:
        return Scenario(question, devices, fleet.outlook(rows))
    except OptionError as error:
        return Impossible(question, devices, rows, f"{error}".removesuffix("."))


def _show_sweep(source: Source, fleet: Fleet, outlooks: Sequence[Outlook], *, json: bool) -> None:
    sentence = where_it_stops_paying(outlooks)
    if json:
        sweep = [plan_dict(outlook) for outlook in outlooks]
        print_json({"source": source.name, "note": source.note, "sweep": sweep, "advice": sentence})
        return
    output = console()
    if source.note:
        say(output, source.note)
    output.print(sweep_table(source.name, outlooks, fleet.names))
    say(output, sentence)


def _picture_of(text: str, fleet: Fleet, batches: Sequence[int]) -> Path:
    if len(batches) > 1:
        raise OptionError(f"--picture: expected one --global-batch beside it, got {len(batches)}.")
    if len(fleet.members) > MOST_RANKS:
        raise OptionError(
            f"--picture: expected at most {MOST_RANKS} devices to draw, got {len(fleet.members)}."
        )
    return picture_path("--picture", text)


def _draw(outlook: Outlook, file: Path) -> None:
    from lightning_boa.reports.pictures import save_plan_picture

    save_plan_picture(outlook.report, file)
