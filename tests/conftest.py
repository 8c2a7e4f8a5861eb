"""Reproducible hypothesis, and tests that leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # Lightning would set it, for good, where several ranks are asked for

LEFT_BY_OTHERS = (
    "PYTEST_CURRENT_TEST",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
)
SET_BY_LIGHTNING = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "MASTER_PORT", "POSSIBLE_USER_WARNINGS")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """A test that leaves a process, a process group or an environment variable behind fails."""
    before = dict(os.environ)
    yield
    assert not multiprocessing.active_children(), "left a process behind"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        pytest.fail("left a process group behind")
    after = {name: value for name, value in os.environ.items() if name not in LEFT_BY_OTHERS}
    for name in SET_BY_LIGHTNING:
        after.pop(name, None)
        os.environ.pop(name, None)
    assert after == {
        name: value
        for name, value in before.items()
        if name not in LEFT_BY_OTHERS + SET_BY_LIGHTNING
    }, "left an environment variable behind"
