"""`boa simulate`: which way to train together is how fast on some devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from lightning_boa.cli.boa.arguments import (
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
from lightning_boa.cli.boa.output import console, print_json, say
from lightning_boa.cli.boa.policies import BACKUP_WORKERS, EQUAL, NAMES, OPTION, policies_of
from lightning_boa.cli.boa.quantities import share, whole_number
from lightning_boa.cli.boa.sources import Source, source_of
from lightning_boa.cli.simulated import simulated_cluster
from lightning_boa.errors import OptionError
from lightning_boa.reports.simulation import SimulatedPolicy, simulation_table, verdicts
from lightning_boa.simulation import Cluster, EqualSplit, Policy, Simulated
from lightning_boa.simulation import simulate as simulate_policy

TRAINING = "Training"
ALL = ",".join(NAMES)
CHANGES_SAID = 8
MOST_STEPS_OF_ALL = 2_000_000
SHOWN_PART = 0.005


def simulate(
    source: SourceArgument = None,
    device: DeviceOption = None,
    policies: Annotated[
        str,
        option(
            "--policies",
            metavar="NAMES",
            panel=TRAINING,
            help=f"Out of {', '.join(NAMES)}; backup_workers=2 and asynchronous=2 (steps ahead) take a number.",
        ),
    ] = ALL,
    global_batch: Annotated[
        str | None,
        option(
            "--global-batch",
            "-b",
            metavar="ROWS",
            panel=TRAINING,
            help="Rows of a step over all devices. Default: the profile's, else 16 for each device.",
        ),
    ] = None,
    steps: Annotated[
        str, typer.Option("--steps", metavar="COUNT", help="How many.", rich_help_panel=TRAINING)
    ] = "200",
    noise: Annotated[
        str,
        typer.Option(
            "--noise",
            metavar="SHARE",
            help="By how much the time of a step varies, as a standard deviation.",
            rich_help_panel=TRAINING,
        ),
    ] = "0.02",
    seed: Annotated[
        str,
        typer.Option("--seed", metavar="NUMBER", help="Of the noise.", rich_help_panel=TRAINING),
    ] = "0",
    gradient_bytes: GradientBytesOption = None,
    parameters: ParametersOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    picture: PictureOption = None,
    json: JsonOption = False,
) -> None:
    """Simulates ways to train together on the same devices: plain DDP, BOA, and other systems.

    Examples:

    boa simulate thesis_8gpu

    boa simulate cloud_spot_mix --policies ddp,boa,backup_workers=2 --steps 400

    boa simulate devices.yaml -b 256 --parameters 25M --bandwidth 10Gbit/s --picture systems.png
    """
    given = source_of(source, device or ())
    network = network_of(gradient_bytes, parameters, latency, given)
    members = linked(given.members, bandwidth, network)
    chosen = policies_of(policies)
    if policies == ALL and len(members) == 1:
        del chosen[BACKUP_WORKERS]
    cluster = simulated_cluster(
        [member.device for member in members],
        network.gradient_bytes,
        latency=network.latency if network.gradient_bytes else 0.0,
        noise=share("--noise", noise),
        restart_seconds=given.restart_seconds,
        server_bandwidth=given.server_bandwidth,
    )
    rows = (
        default_rows(given)
        if global_batch is None
        else whole_number("--global-batch", global_batch, least=1)
    )
    count = _steps(steps, len(members))
    noise_seed = whole_number("--seed", seed, least=0)
    file = None if picture is None else picture_path("--picture", picture)
    trainings = {EQUAL: EqualSplit(), **chosen}
    console_of_progress = Console(stderr=True)
    with Progress(
        console=console_of_progress,
        transient=True,
        disable=json or not console_of_progress.is_terminal,
    ) as progress:
        task = progress.add_task("Simulating", total=len(trainings))
        results = {
            name: _trained(
                name,
                policy,
                Part(progress, task, number),
                cluster=cluster,
                global_batch_size=rows,
                steps=count,
                seed=noise_seed,
            )
            for number, (name, policy) in enumerate(trainings.items())
        }
    comparison = Comparison(given, cluster, rows, results, tuple(chosen))
    if file is not None:
        comparison.draw(file)
    if json:
        print_json(comparison.to_dict())
    else:
        comparison.show(console())


def _steps(text: str, devices: int) -> int:
    steps = whole_number("--steps", text, least=1)
    if steps * devices > MOST_STEPS_OF_ALL:
        raise OptionError(
            f"--steps: expected at most {MOST_STEPS_OF_ALL // devices:,} for {devices:,} devices (steps x devices up "
            f"to {MOST_STEPS_OF_ALL:,}), got {steps:,}."
        )
    return steps


def _trained(name: str, policy: Policy, part: Part, **options: Any) -> Simulated:
    try:
        return simulate_policy(policy=policy, progress=part, **options)
    except OptionError as error:
        raise OptionError(f"{OPTION} {name}: {error}") from error


class Part:
    """Shows how far one of the simulations is, in steps that an eye can see."""

    def __init__(self, progress: Progress, task: TaskID, before: int) -> None:
        self._progress, self._task, self._before = progress, task, before
        self._next = 0.0

    def __call__(self, done: float) -> None:
        if done >= self._next:
            self._next = done + SHOWN_PART
            self._progress.update(self._task, completed=self._before + done)


@dataclass(frozen=True)
class Comparison:
    """What came out, by the name of each policy; ``chosen`` are those that were asked for."""

    source: Source
    cluster: Cluster
    global_batch_size: int
    results: Mapping[str, Simulated]
    chosen: tuple[str, ...]

    @property
    def policies(self) -> list[SimulatedPolicy]:
        equal = self.results[EQUAL].rows_per_second
        return [
            SimulatedPolicy(
                name=name,
                policy=result.policy,
                step_seconds=result.step_seconds,
                rows_per_second=result.rows_per_second,
                dropped_share=result.dropped_share,
                idle_share=result.idle_share,
                against_equal=result.rows_per_second / equal,
                gradient_age=result.mean_staleness,
                plans=result.plans,
            )
            for name, result in ((name, self.results[name]) for name in self.chosen)
        ]

    @property
    def title(self) -> str:
        steps = len(self.results[EQUAL].step_seconds)
        return f"{steps:,} steps of {self.global_batch_size:,} rows on {self.source.name}"

    def show(self, output: Console) -> None:
        if self.source.note:
            say(output, self.source.note)
        output.print(simulation_table(self.title, self.policies))
        for sentence in (*verdicts(self.policies), *self._what_happens()):
            say(output, sentence)

    def draw(self, file: Path) -> None:
        from lightning_boa.reports.simulation_pictures import save_simulation_picture

        save_simulation_picture(self.title, self.policies, file)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source.name,
            "note": self.source.note,
            "devices": [device.name for device in self.source.devices],
            "global_batch_size": self.global_batch_size,
            "steps": len(self.results[EQUAL].step_seconds),
            "policies": [each.to_dict() for each in self.policies],
        }

    def _what_happens(self) -> list[str]:
        """Changes in the cluster that fall into the simulated steps."""
        steps = len(self.results[EQUAL].step_seconds)
        devices = self.source.devices
        changes = [
            (
                step,
                rank,
                "is as fast as at first"
                if factor == 1
                else f"takes {factor:g} times as long as at first",
            )
            for rank, factors in self.cluster.throttle.items()
            for step, factor in factors.items()
        ]
        changes += [
            (step, rank, "takes no part: it has failed")
            for rank, step in self.cluster.failures.items()
        ]
        said = [
            f"From step {step} on {devices[rank].name} (rank {rank}) {what}."
            for step, rank, what in sorted(changes)
            if step < steps
        ]
        more = len(said) - CHANGES_SAID
        return said if more <= 0 else [*said[:CHANGES_SAID], f"There are {more} more changes."]
