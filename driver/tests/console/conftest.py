"""The console in a real Chromium, over runs that are made once."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from starlette.types import ASGIApp
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: Settings of a reader's browser: colour scheme and width in pixels. Colours do not depend on the width.
SCREENS = (("light", 1280), ("dark", 360))


@contextmanager
def serving(application: ASGIApp) -> Iterator[str]:
    """An application on a port of this machine; yields its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    ends_at = time.monotonic() + PATIENCE_S
    while not server.started and thread.is_alive() and time.monotonic() < ends_at:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium of this machine; without one, the test is skipped."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for a module's tests."""
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """``opened(address, scheme, width)``, as `opening`."""
    with opening(browser) as open_page:
        yield open_page


@contextmanager
def opening(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Yields a function that opens an address on a screen; at the end no script may have had an error."""
    errors: list[str] = []
    contexts = []

    def open_page(address: str, scheme: Any = "light", width: int = 1280, **settings: Any) -> Page:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors, errors


#: Elements that reach beyond the screen, but for those that scroll on their own.
_TOO_WIDE = """document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth && !node.closest(".scroll, svg"))
    .map((node) => node.outerHTML.slice(0, 200)).concat(document.documentElement.scrollWidth)"""


def check_reading(page: Page) -> None:
    """Assert that axe finds nothing, and that the page fits the width of the screen."""
    from axe_playwright_python.sync_playwright import Axe

    violations = [(one["id"], one["nodes"][0]["html"]) for one in Axe().run(page).response["violations"]]
    assert not violations, violations
    assert not page.evaluate(_TOO_WIDE)
