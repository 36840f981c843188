"""A real Chromium for tests of pages; they skip where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Error, Page, Playwright, expect, sync_playwright

CHROMIUM_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PAGE_MILLISECONDS = 60_000
PHONE_WIDTH, DESKTOP_WIDTH = 360, 1280
AXE_SCRIPT = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")

expect.set_options(timeout=30_000)  # Playwright's default of 5 s is too short on a busy machine


@contextmanager
def launch_chromium() -> Iterator[Browser]:
    program = os.environ.get("AGENT2RL_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUM_PROGRAMS)), None
    )
    if program is None:
        pytest.skip("no Chromium here: scripts/chromium installs one or says how")
    with sync_playwright() as playwright:
        started = _launch_program(playwright, program)
        yield started
        started.close()


def _launch_program(playwright: Playwright, program: str) -> Browser:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        return playwright.chromium.launch(executable_path=program, args=flags)
    except Error as error:
        pytest.skip(f"{program} does not start: {error.message.splitlines()[0]}")


def open_patient_page(browser: Browser, **options: Any) -> Page:
    """Open a page with a long timeout."""
    page = browser.new_page(**options)
    page.set_default_timeout(PAGE_MILLISECONDS)
    return page


@contextmanager
def open_checked_page(browser: Browser, url: str, width: int = DESKTOP_WIDTH, **how: Any) -> Iterator[Page]:
    """A page that sees to it at the end that nothing was asked of others, and nothing complained of."""
    found: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **how)
    page = context.new_page()
    page.set_default_timeout(PAGE_MILLISECONDS)
    page.on("console", lambda message: found.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    page.on(
        "request", lambda asked: None if asked.url.startswith((url, "data:")) else found.append(asked.url)
    )
    yield page
    context.close()
    assert [fault for fault in found if "status of 404" not in fault] == []


def find_accessibility_violations(page: Page, **options: Any) -> list[str]:
    """Serious ones for readers who see or move otherwise, by axe.

    What is drawn in a figure has its label for readers; of many rows that are alike some are enough.
    """
    page.evaluate("document.querySelectorAll('figure svg').forEach((each) => each.replaceChildren())")
    page.evaluate(
        "document.querySelectorAll('li:nth-child(n+9), tr:nth-child(n+9)').forEach((x) => x.remove())"
    )
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    page.evaluate(AXE_SCRIPT)
    result = page.evaluate("(how) => axe.run(document, how)", {"resultTypes": ["violations"], **options})
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]
