from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_boa import BoaStrategy
from tests.project.pages import jobs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LARGE_BATCHES = (ROOT / "docs" / "large-batches.md").read_text(encoding="utf-8")
BASELINES = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize(
    "code", [code for code in blocks("python") if "plan_batches" in code], ids=["plan_batches"]
)
def test_the_plan_without_training(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("(96, 32) 0.116")


def test_every_option_is_one_of_the_strategy() -> None:
    (code,) = [code for code in blocks("python") if "strategy=BoaStrategy(" in code]
    options = dict(re.findall(r"^        (\w+)=(.+?),\s*(?:#.*)?$", code, re.M))
    assert set(options) == set(BoaStrategy().options.__dataclass_fields__)
    BoaStrategy(**{name: eval(value) for name, value in options.items()})


def test_every_file_and_command_exists() -> None:
    for script in re.findall(r"python (benchmarks/\w+\.py)", README):
        assert (ROOT / script).is_file(), script
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (ROOT / target).exists(), target


def overrides() -> list[list[str]]:
    lines = [line.split("#")[0] for script in blocks("bash") for line in script.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("boa-train")]
    return [job for command in commands for job in jobs(command)]


def test_the_simulation_of_the_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [code for code in blocks("python", BASELINES) if "compare(" in code]
    exec(compile(code, "baselines.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["equal split", "1 backup worker", "BOA"]
    assert "33% dropped" in lines[1]


@pytest.mark.parametrize("given", overrides(), ids=" ".join)
def test_every_override_composes(given: list[str]) -> None:
    from hydra import compose, initialize_config_module

    with initialize_config_module("lightning_boa.conf.train", version_base="1.3"):
        assert compose("train", given)["strategy"]


def test_the_scaled_rate_in_a_module_of_ones_own() -> None:
    (code,) = blocks("python", LARGE_BATCHES)
    made: dict[str, Any] = {"torch": torch}
    exec(compile(code, "large-batches.md", "exec"), made)
    module = SimpleNamespace(
        parameters=torch.nn.Linear(1, 1).parameters,
        trainer=SimpleNamespace(
            estimated_stepping_batches=100,
            strategy=SimpleNamespace(global_batch_size=512),
            accumulate_grad_batches=2,
        ),
    )
    warmup = made["configure_optimizers"](module)["lr_scheduler"]["scheduler"]
    assert warmup.base_lrs == pytest.approx([0.4])
    assert warmup.get_last_lr() == pytest.approx([0.1])
    assert warmup.total_iters == 5
