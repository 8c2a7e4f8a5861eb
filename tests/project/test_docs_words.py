"""What the pages quote, list and show is what the code says, names and draws."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import lightning_boa
from tests.project.pages import DOCS, ROOT, Block, blocks_of, plain

LIGHTNING = ("trainer/connectors/accelerator_connector.py", "callbacks/batch_size_finder.py")
PICTURES = DOCS / "pictures"
QUOTES = [
    block
    for page in ("troubleshooting.md", "comparison.md")
    for block in blocks_of(DOCS / page)
    if block.language == "text" and (block.answers is None or block.answers.language == "text")
]


@pytest.mark.parametrize("quote", QUOTES, ids=lambda block: block.place)
def test_every_message_is_in_the_code(quote: Block) -> None:
    said = plain(quote.text)
    assert len(said) > 20
    assert any(said in message for message in messages()), said


@cache
def messages() -> tuple[str, ...]:
    """Every string of the package and of some files of Lightning, with … for what is filled in."""
    import pytorch_lightning

    theirs = Path(pytorch_lightning.__file__).parent
    files = [*(ROOT / "lightning_boa").rglob("*.py"), *(theirs / name for name in LIGHTNING)]
    return tuple(
        message
        for file in files
        for message in strings_of(ast.parse(file.read_text(encoding="utf-8")))
    )


def strings_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield plain(
                "".join(
                    part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                )
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield plain(node.value)


def made_by(script: str) -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make" / script))


def test_the_reference_is_that_of_the_docstrings() -> None:
    written = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert written == made_by("reference.py")["page"](), "run: python docs/make/reference.py"
    for name in lightning_boa.__all__:
        assert re.search(rf"^##+ {name}$", written, re.M), name
    for option in lightning_boa.BoaStrategy().options.__dataclass_fields__:
        assert f"| `{option}` |" in written, option


def test_the_pictures_are_those_that_are_drawn_anew(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the extra plot")
    drawn = made_by("pictures.py")["draw_all"](tmp_path)
    kept = {path.name: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert kept.keys() == {path.name for path in drawn}
    for path in drawn:
        if f"Matplotlib v{matplotlib.__version__}," in kept[path.name]:
            is_the_same = kept[path.name] == path.read_text(encoding="utf-8")
            assert is_the_same, f"{path.name}: run python docs/make/pictures.py"


def test_the_pictures_show_what_the_pages_say() -> None:
    pytest.importorskip("matplotlib", reason="the extra plot")
    plan = made_by("pictures.py")["plan"]()
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    assert f"{plan.batch_sizes}\n" in page
    assert f"{1000 * plan.equal_step_seconds:.0f} ms -> {1000 * plan.step_seconds:.0f} ms" in page
