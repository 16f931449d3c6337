"""``report.html`` in a real browser: all of it can be read in a wide and in a narrow window."""

from __future__ import annotations

from pathlib import Path

import pytest

from colocate.report.main import report
from tests.report.browser import Browser

DEAD_LINKS = """[...document.querySelectorAll("a[href], area[href], link[href]")]
    .map((link) => link.getAttribute("href"))
    .filter((to) => !to.startsWith("#") || document.getElementById(to.slice(1)) === null)"""

NOT_DRAWN = """[...document.images].filter((image) => !image.complete || image.naturalWidth === 0)
    .map((image) => image.alt)"""

NARROW_ONES = "[...document.images].filter((image) => image.currentSrc !== image.src).length"

BEYOND_THE_WINDOW = """[...document.body.querySelectorAll("*")]
    .filter((each) => each.closest(".scroll, pre") === null)
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
    .map((each) => `${each.tagName} ${each.className}: ${each.textContent.slice(0, 40)}`)"""
"""What can be reached by scrolling inside the page does not count."""


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_a_report_can_be_read_at_any_width_and_has_no_dead_link(
    kind: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue({"run": "whole_run", "sweep": "sweep"}[kind])
    assert report(folder) == 0
    browser.open((folder / "report.html").as_uri())
    num_pictures = browser.evaluate("document.images.length")
    assert num_pictures >= 4
    for is_open in ("false", "true"):
        browser.evaluate(f"document.querySelectorAll('details').forEach((d) => d.open = {is_open})")
        for width in (1280, 390):
            browser.resize(width, 900)
            browser.wait_for(f"innerWidth === {width}")
            # Which picture a window takes is decided a moment after its size.
            num_narrow = num_pictures if width == 390 else 0
            browser.wait_for(f"{NARROW_ONES} === {num_narrow}")
            browser.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(BEYOND_THE_WINDOW) == []
            assert browser.evaluate(NOT_DRAWN) == []
            assert browser.evaluate(DEAD_LINKS) == []
    assert browser.faults == []


def test_a_dead_link_and_what_reaches_beyond_the_window_would_be_seen(
    browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<body><a href='#nowhere'>a</a><a href='gone.html'>b</a><a href='#here'>c</a>"
        "<p id='here' style='width: 2000px'>wide</p><img src='gone.png' alt='gone'></body>"
    )
    browser.open(page.as_uri())
    assert browser.evaluate(DEAD_LINKS) == ["#nowhere", "gone.html"]
    assert browser.evaluate(BEYOND_THE_WINDOW) == ["P : wide"]
    assert browser.evaluate(NOT_DRAWN) == ["gone"]
    assert any("ERR_FILE_NOT_FOUND" in fault for fault in browser.faults)
