"""All policies side by side on one emulated cluster, interleaved in one run, and beside them what the simulator says.

    python benchmarks/compare.py --cluster thesis_8gpu --picture compare.png
    python benchmarks/compare.py --cluster thesis_8gpu --learning --picture learning.png

Each policy trains a small network on real processes. A step is what uses up one global batch, from one update to the
next; for the asynchronous policies it is as many updates as there are ranks. Steps in which a policy still measures, or
in which the simulator says that its shares have not settled, are left out. The median step counts; for asynchronous
policies, and where a device changes its speed, the mean. What a step costs beside what is emulated is measured under
the equal split (for backup workers under the parameter server) and given to the simulator. Idle is the share of time in
which a rank does not compute.

With --learning the policies train on handwritten digits for some epochs, and what is compared is the validation loss
over time. Prints tables and one JSON line; the status is 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compared_clusters import cluster_of
from compared_policies import POLICIES
from learning_comparison import compare_learning
from rich.console import Console
from step_comparison import compare_steps, network

from lightning_boa.cli.convnet import ConvNet

CLUSTERS = (
    "thesis_8gpu",
    "thesis_8gpu_fixed_costs",
    "two_generation_pair",
    "cloud_spot_mix",
    "one_slow_link",
)
ALL = "all"
CONFIGS = Path(__file__).parents[1] / "conf" / "train" / "cluster"
PICTURES = (".png", ".svg", ".pdf")
SLOWEST, SLOWEST_IN_LONG_RUNS = 1.0, 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console()
    policies = {key: POLICIES[key] for key in options.policies}
    compare, model = (
        (compare_learning, ConvNet()) if options.learning else (compare_steps, network())
    )
    names = CLUSTERS if options.cluster == ALL else (options.cluster,)
    results = []
    for name in names:
        make = partial(cluster_of, name, rows_per_device=options.rows, model=model)
        is_long = options.learning or make(slowest=None).changes
        cluster = make(slowest=options.slowest or (SLOWEST_IN_LONG_RUNS if is_long else SLOWEST))
        cluster.devices.prepare_process()
        console.print(
            f"{name}: {', '.join(policy.name for policy in policies.values())} on {cluster.ranks} ranks;"
            f" {cluster.slowest_seconds:.2f} s for the slowest device's equal share",
            highlight=False,
            soft_wrap=True,
        )
        picture = options.picture
        if picture is not None and len(names) > 1:
            picture = picture.with_stem(f"{picture.stem}-{name}")
        results.append(compare(cluster, policies, options, picture, console))
    passed = all(result["passed"] for result in results)
    kind = "learning" if options.learning else "steps"
    print(json.dumps({"benchmark": "compare", "kind": kind, "clusters": results, "passed": passed}))
    return 0 if passed else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--cluster",
        type=_cluster,
        default=CLUSTERS[0],
        help=f"of conf/train/cluster, or {ALL}: {', '.join(CLUSTERS)}",
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument(
        "--slowest",
        type=_seconds,
        help=f"seconds of the slowest device's equal share; default: {SLOWEST:g}, with --learning or where a device"
        f" changes its speed {SLOWEST_IN_LONG_RUNS:g}",
    )
    parser.add_argument("--rows", type=_count, default=16, help="of each device's equal share")
    parser.add_argument("--repetitions", type=_count, default=3)
    parser.add_argument(
        "--steps", type=_count, default=12, help="measured steps in each repetition"
    )
    parser.add_argument("--learning", action="store_true", help="validation loss over time instead")
    parser.add_argument("--epochs", type=_count, default=12, help="with --learning")
    parser.add_argument("--picture", type=_picture, help="draws into this file (PNG, SVG, PDF)")
    return parser.parse_args(arguments)


def _cluster(text: str) -> str:
    known = sorted({each.stem for each in CONFIGS.glob("*.yaml")} - {"none"})
    if text not in (ALL, *known):
        raise argparse.ArgumentTypeError(f"expected {ALL} or one of {', '.join(known)}, got {text}")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return seconds


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in PICTURES or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"expected a file that ends in {', '.join(PICTURES)}, in a folder that exists, got {text}"
        )
    return path


if __name__ == "__main__":
    raise SystemExit(main())
