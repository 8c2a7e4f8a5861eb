"""What TensorBoard shows of a training: the figures lie together in one group, and begin in the warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning.loggers import TensorBoardLogger

from lightning_boa.reports.run_record import FILE_NAME, RunRecord
from tests.processes.ranks import run_ranks
from tests.processes.test_in_training import LOGGED, STEPS, Counted, trained
from tests.processes.test_surface import RANKS


def with_tensorboard(rank: int, folder: Path) -> None:
    logger = TensorBoardLogger(str(folder), name="", version="")
    trained(Counted(), [1.0, 3.0], logger=logger, log_every_n_steps=1)


@pytest.mark.full
def test_the_figures_are_a_group_of_their_own(tmp_path: Path) -> None:
    events: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_ranks(with_tensorboard, RANKS, tmp_path)
    found = events.EventAccumulator(str(tmp_path)).Reload()
    tags = {tag for tag in found.Tags()["scalars"] if tag.startswith("boa/")}
    assert tags == LOGGED
    rows = [(event.step, event.value) for event in found.Scalars("boa/rank0/rows")]
    assert rows[0] == (4, 8)  # the first epoch has four steps
    assert rows[-1][1] == 12
    record = RunRecord.from_json((tmp_path / FILE_NAME).read_bytes())
    assert [step for step, _ in rows][-len(record.blocks) :] == [
        block.step + 6 for block in record.blocks
    ]
    assert STEPS - 10 <= rows[-1][0] < STEPS
