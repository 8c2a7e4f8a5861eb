"""From `boa-train` to `boa report`: the record that a training leaves tells what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import BoaTrain
from .conftest import Boa

pytestmark = pytest.mark.full


def test_a_training_leaves_what_the_report_needs(
    boa_train: BoaTrain, boa: Boa, tmp_path: Path
) -> None:
    trained = boa_train(
        "cluster.devices=[{name: fast, seconds_per_sample: 0.001}, {name: slow, seconds_per_sample: 0.003}]",
        "trainer.devices=2",
        "data.batch_size=32",
        "trainer.max_epochs=3",
        "strategy.warmup=12",
    )
    told = boa("report", tmp_path, "--json", "--html", tmp_path / "page.html").document
    assert told["outcome"] == "finished"
    assert told["devices"] == ["fast", "slow"]
    assert told["global_batch_size"] == 64
    assert told["gain"] is not None
    assert told["warmup_gain"] == pytest.approx(trained["plan"]["gain"])
    equal = told["typical_step"]["equal"]
    assert equal["batch_sizes"] == [32, 32]
    fast, slow = equal["ranks"]
    assert fast["compute"] < slow["compute"]
    assert fast["waiting"] > slow["waiting"]
    assert told["measured_steps"] >= 12
    assert told["measured_blocks"] > 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'aria-label="0  fast: ' in page
    assert 'class="period" d="M' in page
