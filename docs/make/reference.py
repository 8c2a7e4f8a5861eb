"""Writes docs/reference.md anew from signatures and docstrings: python docs/make/reference.py."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import lightning_boa
from lightning_boa import errors, simulation
from lightning_boa.for_pytorch_lightning import BoaStrategy

ATTRIBUTES = (
    "plan",
    "orchestration",
    "schedule",
    "global_batch_size",
    "share",
    "rows_of_pass",
    "worker_set",
    "communication",
    "fixed_reason",
)
PAGE = Path(__file__).parents[1] / "reference.md"
SECTION = re.compile(r"^(Args|Returns|Raises):\n((?:(?:    .*)?\n)+)", re.M)
ENTRY = re.compile(r"^    (\*{0,2}[\w., ]+): ((?:.*\n)(?:(?:        .*)?\n)*)", re.M)
HEAD = """# Names and options

Written by `python docs/make/reference.py` from the docstrings of the package; a test compares the two. How things are
used is in [Get started](get-started.md), [Losses and weights](losses.md) and the other pages.

`import lightning_boa` registers `boa`, `boa_spawn`, `boa_fork`, `boa_notebook` and the `…_find_unused_parameters_…`
variants of `ddp` for `Trainer(strategy=…)`, in `pytorch_lightning` and in `lightning.pytorch`. The environment variable
`LIGHTNING_BOA=off` keeps equal shares without touching code. A module may declare the weight of a batch as
`boa_batch_weight`, a method `(self, batch) -> float` or one of the words of the option `batch_weight`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, _strategy(), _names(), _simulation(), _errors()])


def _strategy() -> str:
    rows = [
        f"| `{name}` | {_in_a_cell(inspect.getdoc(getattr(BoaStrategy, name)) or '')} |"
        for name in ATTRIBUTES
    ]
    return "\n".join(
        [
            _entry("BoaStrategy", BoaStrategy, "##"),
            "### What the strategy knows",
            "",
            "Attributes of `trainer.strategy`; `plan` and `orchestration` are there after `trainer.fit`, too.",
            "",
            "| attribute | |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _names() -> str:
    named = [name for name in lightning_boa.__all__ if name != "BoaStrategy"]
    entries = [_entry(name, getattr(lightning_boa, name), "###") for name in named]
    return "\n".join(["## Other names of lightning_boa", "", *entries])


def _simulation() -> str:
    rows = [
        f"| `{name}` | {_in_a_cell(_paragraphs(getattr(simulation, name))[0])} |"
        for name in simulation.__all__
    ]
    return "\n".join(["## lightning_boa.simulation", "", "| name | |", "|---|---|", *rows, ""])


def _errors() -> str:
    known = [
        (name, kind)
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.BoaError)
    ]
    rows = [
        f"| `{name}` | `{kind.__bases__[-1].__name__}` | {_in_a_cell(inspect.getdoc(kind) or '')} |"
        for name, kind in known
    ]
    return "\n".join(
        ["## lightning_boa.errors", "", "| exception | is a | |", "|---|---|---|", *rows, ""]
    )


def _entry(name: str, thing: Any, heading: str) -> str:
    parts = [f"{heading} {name}", "", f"```py\n{name}{_signature(thing)}\n```", ""]
    parts += [part for text in _paragraphs(thing) for part in (text, "")]
    sections = dict(SECTION.findall(_documentation(thing)))
    if "Args" in sections:
        rows = [
            f"| `{option.strip()}` | {_in_a_cell(meaning)} |"
            for option, meaning in ENTRY.findall(sections["Args"])
        ]
        parts += ["| option | meaning |", "|---|---|", *rows, ""]
    if "Returns" in sections:
        parts += [f"Returns: {_in_a_cell(sections['Returns'])}", ""]
    for error, reason in ENTRY.findall(sections.get("Raises", "")):
        parts += [f"Raises `{error}`: {_in_a_cell(reason)}", ""]
    return "\n".join(parts)


def _signature(thing: Any) -> str:
    signature = inspect.signature(thing)
    shown = [
        str(parameter.replace(annotation=parameter.empty))
        for name, parameter in signature.parameters.items()
        if name not in ("clock", "sleep", "work_clock")
    ]
    keyword = next(
        (
            place
            for place, parameter in enumerate(signature.parameters.values())
            if parameter.kind is parameter.KEYWORD_ONLY
        ),
        None,
    )
    if keyword is not None:
        shown.insert(keyword, "*")
    line = f"({', '.join(shown)})"
    if len(line) < 80:
        return line
    return "(\n" + "".join(f"    {each},\n" for each in shown) + ")"


def _documentation(thing: Any) -> str:
    return f"{inspect.getdoc(thing) or ''}\n"


def _paragraphs(thing: Any) -> list[str]:
    words = SECTION.split(_documentation(thing))[0]
    return [_markdown(part) for part in words.strip().split("\n\n")]


def _in_a_cell(text: str) -> str:
    return _markdown(" ".join(text.split())).replace("|", "\\|")


def _markdown(text: str) -> str:
    return text.replace("``", "`").strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
