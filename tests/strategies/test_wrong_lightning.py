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
LIGHTNINGS = {package: pytest.importorskip(package) for package in PACKAGES}
MODULES = {
    "pytorch_lightning": "lightning_boa.for_pytorch_lightning",
    "lightning.pytorch": "lightning_boa.for_lightning",
}
MIXES = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
first, second, modules = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
importlib.import_module(first)
early = importlib.import_module(modules[first])
importlib.import_module(second)
quiet = dict(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, max_steps=1,
             enable_progress_bar=False, enable_model_summary=False)

def sentences(theirs, ours):
    pl = importlib.import_module(theirs)
    classes = importlib.import_module(modules[ours])
    model = importlib.import_module(f"{theirs}.demos.boring_classes").BoringModel
    for attempt in (
        lambda: pl.Trainer(strategy=classes.BoaStrategy(), **quiet),
        lambda: pl.Trainer(callbacks=[classes.BoaCallback()], strategy="boa", **quiet).fit(model()),
        lambda: pl.Trainer(callbacks=[classes.EmulatedCluster([0.0])], **quiet).fit(model()),
    ):
        try:
            attempt()
        except Exception as error:
            yield f"{type(error).__name__}: {error}"

print("FOUND", json.dumps([list(sentences(*pair)) for pair in ((first, second), (second, first))]))
"""


@pytest.mark.parametrize(("first", "second"), [PACKAGES, PACKAGES[::-1]])
def test_a_mix_is_refused_in_one_sentence(first: str, second: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MIXES, first, second, json.dumps(MODULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    line = next(line for line in finished.stdout.splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    for (theirs, ours), sentences in zip([(first, second), (second, first)], found, strict=True):
        names = ("BoaStrategy", "BoaCallback", "EmulatedCluster")
        assert len(sentences) == len(names)
        for name, sentence in zip(names, sentences, strict=True):
            assert sentence.startswith(f"UnsupportedError: Expected a {name} of {theirs},")
            assert f"got one of {ours}." in sentence
            assert f"`from {MODULES[theirs]} import {name}`" in sentence


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_is_of_the_package_of_its_bases(package: str) -> None:
    lightning = LIGHTNINGS[package]
    of_a_user: Any = type("OfAUser", (lightning.Trainer,), {})

    assert package_of(of_a_user) == package
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
