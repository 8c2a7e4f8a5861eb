from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "order.py"


def test_the_benchmark_prints_a_table_and_one_line_of_json() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rows=2000000", "--ranks=4", "--batch-size=2"],
        check=True,
        capture_output=True,
        text=True,
    )
    *table, last = done.stdout.splitlines()
    summary = json.loads(last)

    assert "DistributedSampler" in "".join(table)
    assert summary["rows"] == 2_000_000
    assert summary["same_first_row"] is True
    assert summary["boa"]["peak_extra_bytes"] < 40_000_000
    assert summary["boa"]["peak_extra_bytes"] < summary["distributed_sampler"]["peak_extra_bytes"]
