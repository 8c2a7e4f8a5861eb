"""Every command of the pages exists; those that take no time run, and print what the pages say."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lightning_boa.cli.boa.app import main
from tests.project.pages import (
    DOCS,
    PAGES,
    ROOT,
    Block,
    answer_to,
    blocks,
    blocks_of,
    jobs,
    missing_lines,
    name_of,
    plain,
    save_files,
)

FOR_THE_READER = {
    "cd",
    "export",
    "git",
    "mkdocs",
    "pip",
    "ray",
    "sbatch",
    "srun",
    "ssh",
    "nvidia-smi",
}
CHECKED = {"boa", "boa-train", "python", "torchrun"}
QUICK = {"plan", "simulate"}
SEVERAL_MACHINES = DOCS / "multi-node.md"
FIRST_MACHINE, PORT = "machine0", "29511"
SHELL = list(blocks("bash"))


def commands(name: str) -> list[tuple[Block, list[str]]]:
    return [(block, words[1:]) for block in SHELL for words in block.commands if words[0] == name]


TRAININGS = sorted({tuple(job) for _, given in commands("boa-train") for job in jobs(given)})


def spoken(value: object) -> str:
    return value.place if isinstance(value, Block) else " ".join(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", SHELL, ids=spoken)
def test_every_command_is_known(block: Block) -> None:
    for words in block.commands:
        assert words[0] in CHECKED | FOR_THE_READER, (block.place, words)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.page == page for block, _ in commands("boa"))],
    ids=name_of,
)
def test_what_boa_is_asked_it_answers(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_files(page, tmp_path)
    for block in blocks_of(page):
        shell = block.commands if block.language == "bash" else []
        asked = [words[1:] for words in shell if words[0] == "boa"]
        answers = [
            answer_of_boa(each, capsys, code=said_code(block))
            for each in asked
            if is_answered_at_once(each)
        ]
        said = answer_to(block)
        if said is not None and shell and len(answers) == len(shell):
            assert not missing_lines(said, "".join(answers)), (block.place, answers)


def said_code(block: Block) -> int:
    said = re.search(r"# exit code (\d)", block.text)
    return int(said[1]) if said else 0


@pytest.mark.parametrize(("block", "asked"), commands("boa"), ids=spoken)
def test_every_option_of_boa_is_one(
    block: Block, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_answered_at_once(asked):
        known = answer_of_boa([asked[0], "--help"], capsys)
        for option in (each.split("=")[0] for each in asked if each.startswith("--")):
            assert option in known, block.place


def is_answered_at_once(asked: list[str]) -> bool:
    return asked[0] in QUICK or bool({"--help", "--version"} & set(asked))


def answer_of_boa(asked: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    with pytest.raises(SystemExit) as end:
        main(asked)
    answer = capsys.readouterr()
    assert (end.value.code or 0) == code, (asked, answer.err)
    return answer.err if code else answer.out


@pytest.mark.parametrize("overrides", TRAININGS, ids=spoken)
def test_what_boa_train_is_given_composes(overrides: tuple[str, ...]) -> None:
    from hydra import compose, initialize_config_module

    with initialize_config_module("lightning_boa.conf.train", version_base="1.3"):
        assert compose("train", list(overrides))["strategy"]


@pytest.mark.parametrize(
    ("block", "arguments"), [*commands("python"), *commands("torchrun")], ids=spoken
)
def test_every_script_is_there(block: Block, arguments: list[str]) -> None:
    script = next((part for part in arguments if part.endswith(".py")), None)
    if script is None:
        assert find_spec(arguments[arguments.index("-m") + 1]), block.place
    else:
        assert script in files_of(block.page) or (ROOT / script).is_file(), block.place


def files_of(page: Path) -> set[str]:
    return {block.file for block in blocks_of(page) if block.file is not None}


def names_a_machine(words: list[str]) -> bool:
    return any(FIRST_MACHINE in part for part in words)


def runs_on_one_machine(block: Block, words: list[str]) -> bool:
    """Whether a command runs a script of its page."""
    is_ours = words[0] in ("python", "torchrun") and bool(set(words) & files_of(block.page))
    return is_ours and not names_a_machine(words)


@pytest.mark.full
@pytest.mark.parametrize(
    ("block", "words"),
    [
        (block, words)
        for block in SHELL
        for words in block.commands
        if runs_on_one_machine(block, words)
    ],
    ids=spoken,
)
def test_a_script_of_a_page_trains(block: Block, words: list[str], tmp_path: Path) -> None:
    save_files(block.page, tmp_path)
    done = subprocess.run(
        [program(words[0]), *words[1:]],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = answer_to(block)
    assert said is None or not missing_lines(masked(said), masked(done.stdout)), done.stdout


def masked(text: str) -> str:
    """The text with every figure replaced, since they differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


def plain_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def program(name: str) -> str:
    if name == "python":
        return sys.executable
    return shutil.which(name, path=str(Path(sys.executable).parent)) or name


@pytest.mark.full
def test_two_launchers_train_together_as_on_two_machines(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    launches = [
        [
            program(words[0]),
            *(part.replace(FIRST_MACHINE, "127.0.0.1").replace(PORT, port) for part in words[1:]),
        ]
        for block in blocks_of(SEVERAL_MACHINES)
        if block.language == "bash"
        for words in block.commands
        if names_a_machine(words)
    ]
    assert_trains(launches, [{}, {}], tmp_path)


@pytest.mark.full
def test_ranks_with_the_variables_of_slurm_train_together(tmp_path: Path) -> None:
    job = {
        "JOB_ID": "1",
        "JOB_NAME": "train",
        "NNODES": "1",
        "NODEID": "0",
        "NODELIST": "127.0.0.1",
    }
    variables = [
        {**job, "NTASKS": "2", "NTASKS_PER_NODE": "2", "PROCID": str(rank), "LOCALID": str(rank)}
        for rank in range(2)
    ]
    command = [sys.executable, "train.py", "--devices", "2", "--accelerator", "cpu"]
    of_each = [{f"SLURM_{name}": value for name, value in each.items()} for each in variables]
    assert_trains([command, command], of_each, tmp_path)


def assert_trains(commands: list[list[str]], variables: list[dict[str, str]], folder: Path) -> None:
    """That the processes, started together, make one training of two ranks."""
    save_files(SEVERAL_MACHINES, folder)
    assert len(commands) == 2
    running = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**plain_environment(), **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, own in zip(commands, variables, strict=True)
    ]
    try:
        printed = [each.communicate(timeout=200)[0] for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()
    assert [each.returncode for each in running] == [0, 0], printed
    (rows,) = re.findall(r"rows per device: \((\d+), (\d+)\)", "".join(map(plain, printed)))
    assert sum(map(int, rows)) == 64
