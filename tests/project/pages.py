"""What the pages of docs/ hold: their blocks of code, the files they make, the commands they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<why>.+?) -->\n\s*)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)[ ]?(?P<rest>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A block of code; `why_not` says why it is not run, `file` is the name under which a reader saves it.

    `answers` is the block before it, where nothing but a few words stand between the two: what that one prints.
    """

    page: Path
    line: int
    language: str
    text: str
    file: str | None
    why_not: str | None
    answers: Block | None

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block, without comments and variables that are set before it."""
        lines = self.text.replace("\\\n", " ").splitlines()
        parts = [part for line in lines for part in _without_comment(line).split(" && ")]
        words = [shlex.split(part) for part in parts]
        return [each for each in map(_without_variables, words) if each]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["rest"])
        between = text[end : match.start()]
        is_near = len(between.split()) <= 12 and "\n#" not in between
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start("language")) + 1,
                language=match["language"],
                text=dedent(match["text"]),
                file=title[1] if title else None,
                why_not=match["why"],
                answers=found[-1] if found and is_near and match["language"] == "text" else None,
            )
        )
        end = match.end()
    return tuple(found)


def blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        yield from (block for block in blocks_of(page) if block.language == language)


def save_files(page: Path, folder: Path) -> None:
    """Writes the files that a page shows."""
    for block in blocks_of(page):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def answer_to(block: Block) -> str | None:
    """What a page says that a block prints."""
    return next((each.text for each in blocks_of(block.page) if each.answers is block), None)


def missing_lines(said: str, printed: str) -> list[str]:
    """Lines that a page promises and that were not printed; spaces do not count, nor lines with an ellipsis."""
    have = {plain(line) for line in printed.splitlines()}
    return [line for line in said.splitlines() if "…" not in line and plain(line) not in have]


def plain(text: str) -> str:
    return " ".join(text.split())


def jobs(overrides: list[str]) -> list[list[str]]:
    """The overrides of a command of Hydra, of each job of a sweep; without its flags."""
    given = [part for part in overrides if not part.startswith("-")]
    if not {"-m", "--multirun"} & set(overrides):
        return [given]
    choices = [
        [f"{name}={value}" for value in values.split(",")]
        for name, _, values in (p.partition("=") for p in given)
    ]
    return [list(job) for job in product(*choices)]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line).strip()


def _without_variables(words: list[str]) -> list[str]:
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    return words
