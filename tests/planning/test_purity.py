from __future__ import annotations

import ast
import sys
from pathlib import Path

from lightning_boa import planning

ALLOWED = {"numpy", "lightning_boa.errors", "lightning_boa.planning"}


def test_planning_imports_numpy_and_its_own_errors_only():
    for file in Path(planning.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                standard = name.split(".")[0] in sys.stdlib_module_names
                ours = any(name == top or name.startswith(f"{top}.") for top in ALLOWED)
                assert standard or ours, f"{file.name} imports {name}"


def test_public_names_exist_once():
    assert len(planning.__all__) == len(set(planning.__all__))
    assert all(hasattr(planning, name) for name in planning.__all__)
