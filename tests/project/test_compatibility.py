"""The table of what works names a proof in every row, and every proof exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| feature ")
]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_has_a_proof_or_a_sentence_that_refuses(row: list[str]) -> None:
    feature, under_boa, proof = row
    assert feature
    assert under_boa
    assert "should" not in under_boa
    assert re.search(r"`tests/[\w/]+\.py::\w+`", proof) or re.search(r'"[^"]+\."', proof), proof


@pytest.mark.parametrize(("path", "test"), TESTS)
def test_every_proof_exists(path: str, test: str) -> None:
    assert test in functions_of(path)


@pytest.mark.parametrize("heading", re.findall(r"^## (.+)$", TABLE, re.M))
def test_every_heading_has_rows(heading: str) -> None:
    section = TABLE.split(f"## {heading}\n")[1].split("\n## ")[0]
    assert re.search(r"^\| (?!feature )", section, re.M), heading


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
