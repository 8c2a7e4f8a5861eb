"""Our classes of one Lightning beside a Trainer of the other: one sentence, whichever is imported first."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_boa.errors import UnsupportedError
from lightning_boa.wrong_lightning import package_of, refuse_mix

PACKAGES = ["pytorch_lightning", "lightning.pytorch"]
MODULES = {
    "pytorch_lightning": "lightning_boa.for_pytorch_lightning",
    "lightning.pytorch": "lightning_boa.for_lightning",
}
MIXES = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
first, second, theirs, ours = sys.argv[1:]
for name in (first, second):
    importlib.import_module(name)
classes = importlib.import_module({"pytorch_lightning": "lightning_boa.for_pytorch_lightning",
                                   "lightning.pytorch": "lightning_boa.for_lightning"}[ours])
pl = importlib.import_module(theirs)
module = importlib.import_module(f"{theirs}.demos.boring_classes")
quiet = dict(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, max_steps=1,
             enable_progress_bar=False, enable_model_summary=False)

def trained(**options):
    pl.Trainer(**quiet, **options).fit(module.BoringModel())

def constructed(**options):
    pl.Trainer(**quiet, **options)

found = {}
for name, attempt in {
    "BoaStrategy": lambda: constructed(strategy=classes.BoaStrategy()),
    "BoaCallback": lambda: trained(strategy="boa", callbacks=[classes.BoaCallback()]),
    "EmulatedCluster": lambda: trained(callbacks=[classes.EmulatedCluster([0.0])]),
}.items():
    try:
        attempt()
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]
print("FOUND", json.dumps(found))
"""


@pytest.mark.parametrize(("first", "second"), [PACKAGES, PACKAGES[::-1]])
@pytest.mark.parametrize(("theirs", "ours"), [PACKAGES, PACKAGES[::-1]])
def test_a_mix_is_refused_in_one_sentence(first: str, second: str, theirs: str, ours: str) -> None:
    for package in PACKAGES:
        pytest.importorskip(package)
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MIXES, first, second, theirs, ours],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    line = next(line for line in finished.stdout.splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    assert set(found) == {"BoaStrategy", "BoaCallback", "EmulatedCluster"}
    for name, (kind, sentence) in found.items():
        assert kind == "UnsupportedError", sentence
        assert f"Expected a {name} of {theirs}," in sentence
        assert f"got one of {ours}." in sentence
        assert f"`from {MODULES[theirs]} import {name}`" in sentence


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_is_of_the_package_of_its_bases(package: str) -> None:
    lightning = pytest.importorskip(package)

    class OfAUser(lightning.Trainer):  # type: ignore[misc, name-defined]
        pass

    assert package_of(OfAUser) == package
    assert package_of(lightning.strategies.DDPStrategy) == package
    assert package_of(dict) is None


def test_what_is_of_no_lightning_is_let_through() -> None:
    refuse_mix(SimpleNamespace(), SimpleNamespace())


def test_similar_names_are_not_mixed_up() -> None:
    stranger: Any = type("Stranger", (), {"__module__": "lightning.pytorch_extras"})
    assert package_of(stranger) is None


def test_the_sentence_names_both() -> None:
    ours = type("BoaCallback", (), {"__module__": "pytorch_lightning.callbacks"})()
    trainer = type("Trainer", (), {"__module__": "lightning.pytorch.trainer"})()
    with pytest.raises(UnsupportedError, match=r"BoaCallback of lightning\.pytorch, .* got one of"):
        refuse_mix(ours, trainer)
