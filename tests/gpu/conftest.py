"""The device under test: a CUDA device, or what BOA_TEST_DEVICE names (cpu: a dry run of what a CPU can run).

python -m pytest -m gpu tests/gpu
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    """The device, awake: what CUDA and Lightning set once for the process is set before the first test begins."""
    asked = torch.device(os.environ.get("BOA_TEST_DEVICE", "cuda:0"))
    if asked.type != "cuda":
        yield asked
        return
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        torch.cuda.init()
        torch.zeros(1, device=asked)
        yield asked
