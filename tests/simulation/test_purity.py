from __future__ import annotations

import subprocess
import sys

from lightning_boa import simulation


def test_simulating_needs_neither_torch_nor_lightning():
    code = (
        "import sys, lightning_boa.simulation\n"
        "print([name for name in ('torch', 'pytorch_lightning', 'lightning', 'hydra', 'rich') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_public_names_exist_once():
    assert len(simulation.__all__) == len(set(simulation.__all__))
    assert all(hasattr(simulation, name) for name in simulation.__all__)
