"""The site is built without a warning, and neither building nor reading it needs a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.project.pages import ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Loaded(HTMLParser):
    """What a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attributes}
        if tag in LOADED:
            self.addresses.append(known.get(LOADED[tag], ""))
        elif tag == "link" and known.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(known.get("href", ""))


def loaded_by(page: Path) -> list[str]:
    parser = Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    return [address for address in parser.addresses if address]


def test_every_page_loads_what_lies_beside_it(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        for address in loaded_by(page):
            file = address.split("?")[0].split("#")[0]
            assert not re.match(r"(https?:)?//", address), (page, address)
            assert (
                address.startswith("data:")
                or page.name == "404.html"
                or (page.parent / file).is_file()
            ), (
                page,
                address,
            )
        assert 'class="mermaid"' not in page.read_text(encoding="utf-8"), (
            "its script comes from elsewhere"
        )
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"(url\(|@import )['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet


@pytest.fixture
def chromium() -> str:
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        found = None
    if found is None and os.environ.get("BOA_REQUIRE_BROWSER") == "1":
        pytest.fail("expected chromium and playwright")
    if found is None:
        pytest.skip("needs chromium and playwright")
    return found


@pytest.mark.full
def test_a_reader_without_a_network_sees_and_searches_it(site: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "cli" / "plan.html").as_uri())
        page.click("input.md-search__input")
        page.wait_for_selector("text=Type to start searching")
        page.keyboard.type("accumulation")
        page.wait_for_selector(".md-search-result__item")
        found = page.inner_text(".md-search-result__list")
        for width in (400, 1400):
            narrow = browser.new_page(viewport={"width": width, "height": 900})
            for file in sorted(site.rglob("*.html")):
                narrow.goto(file.as_uri())
                widest = narrow.evaluate("document.documentElement.scrollWidth")
                assert widest <= width, file
            narrow.close()
        browser.close()
    assert "batch" in found.lower()
    assert not errors
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
