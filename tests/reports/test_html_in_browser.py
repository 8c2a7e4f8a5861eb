"""The page in a real browser: nothing leaves it, nothing is wrong with it, nothing is too wide."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightning_boa.reports.html import page_of
from lightning_boa.reports.run_figures import RunFigures
from lightning_boa.reports.run_record import RunRecord
from tests.reports.runs import THESIS, THROTTLED, Device, a_run, many, unmeasured

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Request

pytestmark = pytest.mark.full

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECTIONS = 11
LONG_NAME = "a-device-with-a-name-that-has-no-place-to-be-broken-at-" * 3
RUNS = {
    "empty": unmeasured(["cpu"], 8),
    "pair": a_run((Device(LONG_NAME, 0.001), Device("slow", 0.003)), 64),
    "eight": a_run(THESIS, 256),
    "throttled": a_run(THROTTLED, 128),
    "many": a_run(many(64), 8192, blocks=10),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        program = None
    if program is None:
        if os.environ.get("BOA_REQUIRE_BROWSER") == "1":
            pytest.fail("BOA_REQUIRE_BROWSER=1: expected chromium and playwright, got not both.")
        pytest.skip("needs chromium and playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("record", RUNS.values(), ids=RUNS)
def test_the_page_opens_offline_and_fits(
    browser: Browser, tmp_path: Path, record: RunRecord, width: int, scheme: str
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(RunFigures(record)), encoding="utf-8")
    complaints: list[str] = []
    requests: list[str] = []

    def complain(message: ConsoleMessage) -> None:
        complaints.append(message.text)

    def ask(request: Request) -> None:
        requests.append(request.url)

    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page.on("console", complain)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", ask)
    page.goto(file.as_uri())
    for details in page.locator("summary").all():
        details.click()
    assert complaints == []
    assert requests[0] == file.as_uri()
    assert all(url.startswith("data:") for url in requests[1:])
    assert page.locator("section:visible").count() == SECTIONS
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lightness = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    )
    assert (lightness < 128) == (scheme == "dark")
    page.close()


def test_a_bar_is_seen_with_its_colour_and_title(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(RunFigures(RUNS["eight"])), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(file.as_uri())
    bar = page.locator("#timeline figure rect.compute").first
    box = bar.bounding_box()
    assert box is not None
    assert box["width"] > 50
    assert bar.evaluate("bar => getComputedStyle(bar).fill") == "rgb(42, 111, 151)"
    assert (bar.locator("title").text_content() or "").startswith("computes ")
    page.close()
