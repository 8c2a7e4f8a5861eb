from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


def test_the_example_has_one_import_more_than_a_ddp_script() -> None:
    lines = DIGITS.read_text(encoding="utf-8").splitlines()
    ours = [line for line in lines if re.search("boa", line) and not line.startswith('"""')]
    assert ours[0].startswith("import lightning_boa")
    assert [line.strip() for line in ours[1:]] == [
        'trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="boa", max_epochs=3)'
    ]


@pytest.mark.full
def test_the_example_trains_and_prints_the_plan(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DIGITS)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (rows,) = re.findall(r"^rows per device: \((\d+), (\d+)\)", done.stdout, re.M)
    assert int(rows[0]) + int(rows[1]) == 64
