"""The examples do what their pages say; the full set runs each as a user would."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from difflib import ndiff
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from .conftest import outside_the_checkout

pytest.importorskip(
    "sklearn", reason="it sets variables at its first import, which a test must not"
)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WALKTHROUGH = EXAMPLES / "walkthrough.ipynb"
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
SCRIPTS = sorted(path for path in EXAMPLES.rglob("*.py") if "lightning_hydra" not in path.parts)
SMALL_NOTEBOOK = 250_000
SECONDS_UNTIL_RANKS_ARE_GONE = 20.0


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands_of(text: str) -> list[list[str]]:
    return [
        line.split("#")[0].split() for line in re.findall(r"^ *python (examples/.+)$", text, re.M)
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_command_that_is_named_has_its_options(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    path = script.relative_to(ROOT).as_posix()
    named = [each for each in commands_of(PAGE) + commands_of(code) if each[0] == path]
    assert [path] in named
    for option in (word for command in named for word in command if word.startswith("--")):
        assert f'add_argument("{option}"' in code, option


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("language_model", ["--devices", "0"], "argument --devices: expected a whole number"),
        ("image_classification", ["--devices", "-1"], "argument --devices: expected a whole"),
        ("gan", ["--epochs", "0"], "argument --epochs: expected a whole number of at least 1"),
        *(
            (name, ["--strategy", "boat"], "You selected an invalid strategy name")
            for name in ("gan", "image_classification", "language_model")
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    name: str,
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = load(name)
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as end:
        example.main()
    assert end.value.code == 2
    assert f"{name}.py: error: {sentence}" in capsys.readouterr().err


def test_the_page_names_nothing_else() -> None:
    for command in commands_of(PAGE):
        assert (ROOT / command[0]).is_file(), command[0]


def test_a_ddp_script_needs_two_lines() -> None:
    before, after = (
        (EXAMPLES / "before_after" / f"{name}.py").read_text(encoding="utf-8").splitlines()
        for name in ("before", "after")
    )
    changed = [line for line in ndiff(before, after) if line[0] in "+-"]
    assert [line.partition("  #")[0] for line in changed] == [
        "+ import lightning_boa",
        '-     trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=3)',
        '+     trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="boa", max_epochs=3)',
    ]


def test_the_image_classifier_is_a_residual_network() -> None:
    example = load("image_classification")
    model = example.ResNet8()
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    kernels = [layer for layer in model.modules() if getattr(layer, "kernel_size", None) == (3, 3)]
    assert len(kernels) + 1 == 8
    train, validation = example.digits_loaders()
    assert len(train.dataset) + len(validation.dataset) == 1797


def test_the_language_models_loss_is_the_mean_of_its_parts_by_their_weights() -> None:
    example = load("language_model")
    torch.manual_seed(2)
    model = example.LanguageModel().double()
    rows = [row for row in example.paragraphs()[:40] if len(row) != example.LONGEST + 1][:9]
    assert len({len(row) for row in rows}) > 3
    whole = example.collate(rows)
    parts = [example.collate(rows[:2]), example.collate(rows[2:])]
    weights = [model.boa_batch_weight(part) for part in parts]
    assert sum(weights) == sum(len(row) - 1 for row in rows) == model.boa_batch_weight(whole)
    mean = sum(
        weight * model.loss(part) for weight, part in zip(weights, parts, strict=True)
    ) / sum(weights)
    torch.testing.assert_close(mean, model.loss(whole), rtol=1e-12, atol=0)


def test_the_language_model_does_not_look_ahead() -> None:
    example = load("language_model")
    model = example.LanguageModel()
    tokens = torch.arange(10)[None]
    other = torch.where(tokens < 5, tokens, tokens + 50)
    scores, others = model(tokens), model(other)
    torch.testing.assert_close(scores[:, :5], others[:, :5])
    assert not torch.allclose(scores[:, 5:], others[:, 5:])


def test_the_distance_of_pictures() -> None:
    example = load("gan")
    real = example.digits()
    assert example.distance(real, real) == pytest.approx(0, abs=1e-3)
    assert 0.02 < example.distance(real[::2], real[1::2]) < 0.2
    assert example.distance(real + 1, real) == pytest.approx(64, rel=1e-3)


def cells(kind: str) -> list[Any]:
    notebook = json.loads(WALKTHROUGH.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_small_and_knows_no_machine() -> None:
    text = WALKTHROUGH.read_text(encoding="utf-8")
    assert len(text) < SMALL_NOTEBOOK
    assert not re.search(r"/(home|tmp|work|root|Users)\b|site-packages|iopub", text)
    code = "".join("".join(cell["source"]) + "\n" for cell in cells("code"))
    ast.parse(re.sub(r"^[%!].*$", "", code, flags=re.M))
    assert 'strategy="boa_notebook"' in code


def test_the_notebook_shows_plan_and_picture() -> None:
    check_outputs(cells("code"))


def check_outputs(cells: Sequence[Any]) -> None:
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [output["output_type"] for output in outputs if output["output_type"] == "error"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    shown = json.dumps(outputs, ensure_ascii=False)
    ((*sizes,),) = re.findall(r"\((\d+), (\d+), (\d+), (\d+)\)", shown)
    check_shares([int(size) for size in sizes], total=64, seconds_per_row=[2, 2, 8, 8])
    assert "boa-run.json" in shown
    (difference,) = re.findall(r"largest difference: ([\d.e+-]+)", shown)
    assert float(difference) < 1e-5


def check_shares(sizes: Sequence[int], *, total: int, seconds_per_row: Sequence[float]) -> None:
    """Rows follow the speeds of the emulated devices, but for what fixed costs, noise and whole rows make of them."""
    assert sum(sizes) == total
    speeds = [1 / seconds for seconds in seconds_per_row]
    for rows, speed in zip(sizes, speeds, strict=True):
        assert rows == pytest.approx(total * speed / sum(speeds), rel=0.15, abs=2)


def run(programs: Path, folder: Path, *command: str) -> str:
    """What a script prints that a user starts in some folder; all its processes have to be gone afterwards."""
    printed = folder / "printed.txt"
    with printed.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [str(programs / "python"), *command],
            cwd=folder,
            env=outside_the_checkout(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert process.wait(timeout=240) == 0, printed.read_text(encoding="utf-8")
        assert are_gone(process.pid), "left a process behind"
    finally:
        if not are_gone(process.pid, seconds=0):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return printed.read_text(encoding="utf-8")


def are_gone(group: int, seconds: float = SECONDS_UNTIL_RANKS_ARE_GONE) -> bool:
    """Whether nothing of a process group runs any more, at the latest after some seconds."""
    ends = time.monotonic() + seconds
    while states_of(group) - {"Z"}:
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True


def states_of(group: int) -> set[str]:
    """The states of the processes of a group, "Z" for those that have ended and that nobody has asked for."""
    listed = subprocess.run(
        ["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True
    )
    found = (line.split() for line in listed.stdout.splitlines())
    return {state[0] for number, state in found if int(number) == group}


def rows_per_device(printed: str) -> list[list[int]]:
    found = re.findall(r"^rows per device: \((.+)\)$", printed, re.M)
    return [[int(rows) for rows in each.split(",")] for each in found]


@pytest.mark.full
def test_the_image_classifier_goes_on_with_its_plan(user_environment: Path, tmp_path: Path) -> None:
    printed = run(user_environment, tmp_path, str(EXAMPLES / "image_classification.py"))
    first, second = rows_per_device(printed)
    for sizes in (first, second):
        check_shares(sizes, total=60, seconds_per_row=[2, 8, 4])
    assert "stopped after step 60" in printed
    assert "went on to step 150" in printed
    assert float(re.search(r"^validation accuracy: (.+)$", printed, re.M)[1]) > 0.9  # type: ignore[index]


@pytest.mark.full
def test_the_language_model_learns_what_one_device_learns(
    user_environment: Path, tmp_path: Path
) -> None:
    printed = run(
        user_environment, tmp_path, str(EXAMPLES / "language_model.py"), "--check", "--epochs", "2"
    )
    (sizes,) = rows_per_device(printed)
    check_shares(sizes, total=48, seconds_per_row=[2, 8, 4])
    assert float(re.search(r"^largest difference to one device: (.+)$", printed, re.M)[1]) < 1e-10  # type: ignore[index]


@pytest.mark.full
def test_the_language_model_learns(user_environment: Path, tmp_path: Path) -> None:
    printed = run(user_environment, tmp_path, str(EXAMPLES / "language_model.py"))
    assert float(re.search(r"^validation loss: (.+) per character$", printed, re.M)[1]) < 2.8  # type: ignore[index]


@pytest.mark.full
def test_the_gan_draws_digits(user_environment: Path, tmp_path: Path) -> None:
    printed = run(user_environment, tmp_path, str(EXAMPLES / "gan.py"))
    (sizes,) = rows_per_device(printed)
    check_shares(sizes, total=64, seconds_per_row=[1, 3])
    before, after = re.findall(r"^distance to real digits: (\S+) (?:un)?trained$", printed, re.M)
    assert float(after) < float(before) / 3


@pytest.mark.full
def test_after_is_as_good_as_before(user_environment: Path, tmp_path: Path) -> None:
    losses = []
    for name in ("before", "after"):
        printed = run(user_environment, tmp_path, str(EXAMPLES / "before_after" / f"{name}.py"))
        (found,) = re.findall(r"^loss: ([\d.]+)$", printed, re.M)
        losses.append(float(found))
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)


@pytest.mark.full
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    programs = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([programs, os.environ["PATH"]]))
    notebook = nbformat.read(WALKTHROUGH, as_version=4)
    for cell in notebook.cells:
        cell.get("outputs", []).clear()
    nbclient.NotebookClient(
        notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    check_outputs([cell for cell in notebook.cells if cell.cell_type == "code"])
