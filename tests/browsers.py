"""A real Chromium for tests of pages; they skip where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Error, Playwright, sync_playwright

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PHONE, DESK = 360, 1280


@contextmanager
def chromium() -> Iterator[Browser]:
    program = os.environ.get("AGENT2RL_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium here: scripts/chromium installs one or says how")
    with sync_playwright() as playwright:
        started = _start(playwright, program)
        yield started
        started.close()


def _start(playwright: Playwright, program: str) -> Browser:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        return playwright.chromium.launch(executable_path=program, args=flags)
    except Error as error:
        pytest.skip(f"{program} does not start: {error.message.splitlines()[0]}")
