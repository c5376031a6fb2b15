"""The documentation is built as a site: no broken link, no undocumented name, nothing read from a network."""

import subprocess
import sys

import pytest
from driver.tests.console.conftest import chromium
from tests.pages import REPOSITORY


@pytest.mark.lane(name="pages")
def test_the_site_is_whole_and_loads_nothing_from_elsewhere() -> None:
    command = [sys.executable, str(REPOSITORY / "docs" / "make_site.py")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = REPOSITORY / "site" / "html"
    filled = ("results", "suites", "observability", "architecture", "operations/settings")
    assert [name for name in filled if "The site that" in (html / f"docs/{name}.html").read_text("utf-8")] == []
    loaded: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: loaded.append(request.url))
        for name in ("index", "docs/reference/python", "docs/reference/http", "docs/reference/commands"):
            page.goto((html / f"{name}.html").as_uri())
            assert page.locator("h1").first.inner_text()
    assert loaded and not [address for address in loaded if not address.startswith("file:")]
