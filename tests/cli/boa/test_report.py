from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_boa.reports.run_record import FILE_NAME, RunRecord
from tests.project.pages import PAGES, ROOT, blocks_of
from tests.reports.runs import PAIR, THROTTLED, a_run, many, unmeasured

from .conftest import Boa

RECORD = a_run(PAIR, 64, blocks=10)

Keep = Callable[..., Path]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Keeps a record in a folder of the test and returns its file."""

    def write(record: RunRecord = RECORD, folder: str = "run", age: int = 0) -> Path:
        path = tmp_path / folder / FILE_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.to_json(), encoding="utf-8")
        os.utime(path, (1_700_000_000 - age,) * 2)
        return path

    return write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_a_folder_gets_its_page_and_the_terminal_a_summary(boa: Boa, keep: Keep) -> None:
    folder = keep(a_run(THROTTLED, 128, blocks=40)).parent
    answer = boa("report", folder)
    assert (answer.code, answer.err) == (0, "")
    for told in (
        "times as fast. As with equal shares",
        "saved (±",
        "Plan",
        "Equal split vs BOA",
        "Changes of the plan since, each compared with the plan before it",
        "37 / 18 / 37 / 36",
        "How it ended: finished, last step 219.",
        "What to do next: ",
        f"Written: {folder / 'boa-report.html'}",
    ):
        assert told in answer.out
    assert (folder / "boa-report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_many_ranks_are_a_short_table(boa: Boa, keep: Keep) -> None:
    answer = boa("report", keep(a_run(many(64), 4096, blocks=1)))
    assert "Of 64 ranks those are shown that tell most" in answer.out
    assert len(answer.out.splitlines()) < 50


def test_no_line_ends_with_blanks_where_nobody_sees_them(boa: Boa, keep: Keep) -> None:
    answer = boa("report", keep(a_run(THROTTLED, 128, blocks=40)))
    assert "rank" in answer.out
    assert [line for line in answer.out.splitlines() if line != line.rstrip()] == []


def test_files_go_where_they_are_asked(boa: Boa, keep: Keep, here: Path) -> None:
    record = keep()
    answer = boa("report", record, "--html", "page.html", "--trace", "trace.json")
    assert answer.code == 0
    assert (here / "page.html").is_file()
    assert json.loads((here / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert not (record.parent / "boa-report.html").exists()


def test_json_is_one_document_and_writes_only_what_is_asked(boa: Boa, keep: Keep) -> None:
    record = keep()
    answer = boa("report", record.parent, "--json")
    assert answer.document["record"] == str(record)
    assert answer.document["files"] == {}
    assert answer.document["gain"] == pytest.approx(RECORD.saving.gain if RECORD.saving else 0)
    assert [path.name for path in record.parent.iterdir()] == [FILE_NAME]
    asked = boa("report", record, "--json", "--html", "page.html").document
    assert asked["files"] == {"html": "page.html"}


def test_below_a_folder_the_newest_is_taken(boa: Boa, keep: Keep, here: Path) -> None:
    keep(unmeasured(["old"], 8), "logs/version_0", age=60)
    newest = keep(folder="logs/version_1")
    assert boa("report", "--json").document["record"] == str(newest.relative_to(here))
    answer = boa("report", here)
    assert f"The newest of 2 records: {newest}" in answer.out
    own = keep(folder="logs", age=600)
    assert boa("report", "logs", "--json").document["record"] == str(own.relative_to(here))


def test_of_equally_new_records_one_has_to_be_named(boa: Boa, keep: Keep, here: Path) -> None:
    for number in range(7):
        keep(folder=f"sweep/{number}")
    answer = boa("report", here)
    assert (answer.code, answer.out) == (2, "")
    assert "got 7 that are equally new" in answer.err
    assert f"{here / 'sweep' / '4' / FILE_NAME} and 2 more." in answer.err


def change(record: dict[str, Any], key: str, value: Any) -> None:
    *parts, last = key.split(".")
    for part in parts:
        record = record[int(part) if part.isdigit() else part]
    record[last] = value


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("file_version", 2, "expected the record of a training of version 1, got version 2"),
        ("devices", ["fast"], "expected figures of 1 ranks, one for each device, everywhere"),
        ("devices", [], "expected figures of 0 ranks"),
        ("blocks.0.busy", [1.0], "expected figures of 2 ranks"),
        ("steps.0.rank", 7, "expected measured steps of ranks 0 to 1"),
        ("plan.ranks.0.rank", 1, "expected the plan's ranks to be 0 to 1, in this order"),
        ("plan.ranks.0.boa_rows", -1, "expected no rank with fewer rows than 0"),
        ("plan.ranks.0.boa_seconds", -1.0, "expected seconds from 0 to 1e+09 everywhere"),
        ("plan.boa_step_seconds", 1e300, "expected seconds from 0 to 1e+09 everywhere"),
        ("steps.0.compute", -1.0, "expected finite seconds > 0, got -1.0"),
        ("blocks.0.period", None, "Expected `float`, got `null`"),
        ("saving.seconds", "many", "Expected `float`, got `str`"),
    ],
)
def test_a_record_that_cannot_be_is_refused(
    boa: Boa, keep: Keep, key: str, value: Any, sentence: str
) -> None:
    path = keep()
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values, key, value)
    path.write_text(json.dumps(values), encoding="utf-8")
    answer = boa("report", path)
    assert (answer.code, answer.out) == (2, "")
    assert f"boa: {path}: expected the record of a training" in answer.err
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


def test_not_a_number_is_no_json(boa: Boa, keep: Keep) -> None:
    path = keep()
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'"period":[0-9.e-]+', '"period":NaN', text), encoding="utf-8")
    answer = boa("report", path)
    assert answer.code == 2
    assert "JSON is malformed" in answer.err


@pytest.mark.parametrize("option", ["--html", "--png", "--trace"])
def test_a_file_needs_a_folder(boa: Boa, keep: Keep, option: str) -> None:
    answer = boa("report", keep(), option, "nowhere/report.png")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"boa: {option}: expected a file")


def test_nothing_measured_is_no_picture(boa: Boa, keep: Keep) -> None:
    answer = boa("report", keep(unmeasured(["cpu"], 8)), "--png", "run.png")
    assert answer.code == 2
    assert "--png: expected a run whose steps were measured" in answer.err


def test_a_place_that_cannot_be_written_is_a_mistake(boa: Boa, keep: Keep) -> None:
    path = keep()
    (path.parent / "boa-report.html").mkdir()
    answer = boa("report", path)
    assert (answer.code, answer.out) == (2, "")
    assert "--html: expected a place that can be written to" in answer.err


def test_every_report_that_is_named_is_made(boa: Boa, keep: Keep, here: Path) -> None:
    keep(a_run(THROTTLED, 128, blocks=40), "outputs/one")
    keep(folder="lightning_logs/version_0", age=60)
    named = [
        words[1:]
        for page in (ROOT / "README.md", *PAGES)
        for block in blocks_of(page)
        if block.language == "bash"
        for words in block.commands
        if words[:2] == ["boa", "report"]
    ]
    assert len(named) >= 8
    for command in named:
        answer = boa(*command)
        assert (answer.code, answer.err) == (0, "")
    for name in ("boa-report.html", "report.png", "trace.json", "run.png", "run.json"):
        assert list(here.rglob(name)), name
    assert (here / "report.png").read_bytes().startswith(b"\x89PNG")
