"""The Python of the pages runs, and prints what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.pages import PAGES, answer_to, blocks, blocks_of, missing_lines, name_of

MOST_NOT_RUN = 6


def with_python(page: Path) -> bool:
    return any(block.language == "python" and block.file is None for block in blocks_of(page))


@pytest.mark.parametrize("page", [page for page in PAGES if with_python(page)], ids=name_of)
def test_what_a_page_says_in_python_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(page):
        if block.language != "python":
            continue
        code = compile("\n" * block.line + block.text, str(page), "exec")
        if block.why_not is None and block.file is None:
            exec(code, names)
            printed = capsys.readouterr().out
            said = answer_to(block)
            assert said is None or not missing_lines(said, printed), (block.place, printed)


def test_little_is_left_out_and_each_time_for_a_reason() -> None:
    left_out = [block.place for block in blocks("python") if block.why_not is not None]
    assert len(left_out) <= MOST_NOT_RUN, left_out
