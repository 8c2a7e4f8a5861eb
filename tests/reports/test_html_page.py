from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lightning_boa.reports.html import page_of
from lightning_boa.reports.html.page import FOLDER
from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_record import RunRecord, Saving
from tests.reports.runs import PAIR, THESIS, THROTTLED, Device, a_run, many, unmeasured

SECTIONS = [
    "headline",
    "next",
    "timeline",
    "idle",
    "cluster",
    "plan",
    "run",
    "rebalancings",
    "warmup",
    "network",
    "software",
]
STYLE = (FOLDER / "style.css").read_text(encoding="utf-8")
VOID = {"meta", "link"}
RUNS = {
    "one": unmeasured(["cpu"], 8),
    "pair": a_run(PAIR, 64),
    "eight": a_run(THESIS, 256),
    "throttled": a_run(THROTTLED, 128, blocks=40),
    "warm-up only": a_run(PAIR, 64, blocks=0),
    "many": a_run(many(64), 4096, blocks=3),
}


class Page(HTMLParser):
    """What a page holds; fails where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("record", RUNS.values(), ids=RUNS)
def test_every_section_is_there_and_the_page_needs_nothing_else(record: RunRecord) -> None:
    text = page_of(RunFigures(record))
    page = Page(text)
    assert [section["id"] for section in page.all("section")] == SECTIONS
    headings = {heading["id"] for tag in ("h1", "h2") for heading in page.all(tag) if heading}
    assert {section["aria-labelledby"] for section in page.all("section")} <= headings
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = [attributes["href"] or "" for _, attributes in page.tags if "href" in attributes]
    assert {link for link in links if link.startswith("#")} <= {f"#{each}" for each in ids}
    assert [link for link in links if not link.startswith("#")] == ["data:,"]
    assert not page.all("script")
    assert not any("src" in attributes or "onload" in attributes for _, attributes in page.tags)
    assert "url(http" not in text
    assert "@import" not in text
    assert all("scope" in heading for heading in page.all("th"))
    assert all("aria-label" in svg for svg in page.all("svg") if svg.get("role") == "img")
    for word in ("nan", "None", "inf "):
        assert word not in page.words.split()


def test_the_figures_of_the_record_are_told() -> None:
    figures = RunFigures(RUNS["eight"])
    words = Page(page_of(figures)).words
    for told in (
        f"{figures.gain:.2f} times as fast",
        "2 min 46 s saved",
        "GTX 1080",
        "45 / 23 / 9 / 45 / 23 / 44 / 23 / 44",
        "79 %",
        "None: no device became slower or faster",
        "torch 2.13.0",
    ):
        assert told in words


def test_only_what_was_surely_saved_is_green() -> None:
    for seconds, classes in (
        (10.0, {"balance saved", "large saved"}),
        (-5.0, {"balance lost", "large lost"}),
        (3.0, {"balance unsure", "large unsure"}),
    ):
        record = replace(RUNS["pair"], saving=Saving(seconds, 2.0, 10.0, 50))
        page = Page(page_of(RunFigures(record)))
        found = {attributes.get("class") or "" for _, attributes in page.tags}
        assert {each for each in found if each.startswith(("balance", "large"))} == classes
    assert "#headline .lost, #headline .unsure { color: var(--ink); }" in STYLE


def test_what_is_longer_than_the_chart_is_marked() -> None:
    record = RUNS["pair"]
    spike = replace(record.blocks[20], period=1.7)
    blocks = (*record.blocks[:20], spike, *record.blocks[21:])
    page = Page(page_of(RunFigures(replace(record, blocks=blocks))))
    marks = [svg for svg in page.all("svg") if svg.get("class") == "beyond"]
    assert {mark["x"] for mark in marks} == {"0.00%", f"{100 * spike.step / blocks[-1].step:.2f}%"}
    assert page.texts.count("1.70 s") == 1
    assert "▲ 2 measured times are longer" in page.words


def test_devices_of_one_name_have_a_line_for_each_speed() -> None:
    devices = (Device("card", 0.001), Device("card", 0.003))
    words = Page(page_of(RunFigures(a_run(devices, 64)))).words
    assert "card (rank 0)" in words
    assert "card (rank 1)" in words
    assert "2 devices · global batch" in words
    assert "2 devices of 2 kinds" in Page(page_of(RunFigures(RUNS["pair"]))).words


def test_means_beside_medians_and_what_a_step_is_are_told() -> None:
    words = Page(page_of(RunFigures(RUNS["pair"]))).words
    assert words.count("are means of all steps since the warm-up") == 1
    assert "(a micro-batch under accumulate_grad_batches)" in words
    alone = Page(page_of(RunFigures(RUNS["warm-up only"]))).words
    assert "are means of all steps" not in alone


def test_a_bar_is_as_long_as_its_part_of_the_step() -> None:
    figures = RunFigures(RUNS["pair"])
    page = Page(page_of(figures))
    assert figures.equal_step is not None
    share = figures.equal_step.ranks[0].compute / figures.equal_step.seconds
    bars = [bar for bar in page.all("rect") if bar.get("class") == "compute" and "x" in bar]
    assert bars[0]["width"] == f"{100 * share:.2f}%"


def test_a_changed_plan_is_told_with_its_reason() -> None:
    words = Page(page_of(RunFigures(RUNS["throttled"]))).words
    assert "Rank 1 takes 2.00 times as long" in words
    assert "BOA, from step 165 on" in words
    assert "Equal shares would take 204 ms now" in words
    assert "37 / 18 / 37 / 36" in words


def test_of_very_many_changes_the_first_are_told() -> None:
    record = RUNS["throttled"]
    often = replace(record, rebalancings=record.rebalancings * 70)
    page = Page(page_of(RunFigures(often)))
    assert page.words.count("Rank 1 takes 2.00 times as long") == 50
    assert "And 20 more; boa report --json has all." in page.words


def test_what_was_not_measured_is_one_sentence() -> None:
    words = Page(page_of(RunFigures(RUNS["one"]))).words
    for sentence in (
        "No step was measured on all ranks",
        "No computation was measured",
        "Fewer than two steps were measured",
        "None: the devices were not watched",
        "Nothing was tried: the shares were given",
        "Communication was not measured",
    ):
        assert sentence in words


def test_names_are_text_whatever_they_are() -> None:
    evil = '<script>alert(1)</script> & "x"\''
    record = RUNS["pair"]
    ranks = tuple(replace(rank, device=evil) for rank in record.plan.ranks)
    plan = replace(record.plan, ranks=ranks, reason=evil, network=evil, name=evil)
    text = page_of(
        RunFigures(
            replace(
                record,
                devices=(evil, evil),
                plan=plan,
                strategy=evil,
                outcome=evil,
                started=evil,
                hindrance=evil,
                software={evil: evil},
            )
        )
    )
    page = Page(text)
    assert not page.all("script")
    assert evil in page.words
    assert f"0  {evil}" in {span.get("title") for span in page.all("span")}


def test_a_thousand_ranks_are_folded_into_a_small_page() -> None:
    text = page_of(RunFigures(a_run(many(1000), 32000, blocks=3)))
    assert len(text) < 500_000
    page = Page(text)
    assert len([lane for lane in page.all("div") if "lane" in (lane.get("class") or "")]) < 80
    assert "All 1,000 ranks" in page.words
    assert "typical of" in page.words
