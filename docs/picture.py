"""Take the pictures of the documentation, as Chromium shows the console.

`make picture` (or `python docs/picture.py`) reads the latest run and those beside it, and writes `docs/images/`. Where
a cluster runs, it takes those of the live view and of the playground too. It needs Debian's package `chromium`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx

from poolbench.errors import ConfigError
from poolbench.settings import ClusterSettings
from poolbench_driver.console.app import Console
from poolbench_driver.console.guard import COOKIE, SESSION_S, session_of
from poolbench_driver.records import Runs

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from driver.tests.console.conftest import chromium, serving  # noqa: E402

RUNS, IMAGES = REPOSITORY / "runs", REPOSITORY / "docs" / "images"
WIDTH, HEIGHT = 1240, 930
#: What the playground is asked for its picture.
ASKED = "concept=contrast&strategy=P1_last_token&strengths=0.35,0.6&read=contrast&prompt=In the morning the driver"


def wait_for_texts(page: Any) -> None:
    """Let the playground generate, and wait until it has."""
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("Done.").wait_for()


def take(address: str, shots: Iterable[tuple[str, str, Callable[[Any], None]]], cookie: str = "") -> None:
    """Write pictures of pages: each has a name, a path and what is done before."""
    with chromium() as browser:
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        if cookie:
            context.add_cookies([{"name": COOKIE, "value": cookie, "url": f"{address}/"}])
        for name, path, prepare in shots:
            page = context.new_page()
            page.goto(f"{address}{path}")
            prepare(page)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"wrote {IMAGES / name}.png")


def main() -> None:
    """Read the arguments and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="latest", help="run of the report's picture")
    parser.add_argument("--real-text", help="run of a pretrained model: its report is the only picture")
    arguments = parser.parse_args()
    run = (RUNS / (arguments.real_text or arguments.run)).resolve().name
    report = ("real-text" if arguments.real_text else "report", f"/runs/{run}/", lambda page: None)
    board = ("board", "/board", lambda page: None)
    with serving(Console(Runs(RUNS)).application()) as address:
        take(address, [report, *([] if arguments.real_text else [board])])
    if arguments.real_text:
        return
    try:
        settings = ClusterSettings.load()
        httpx.get(f"{settings.http_address}/console/login").raise_for_status()
    except (ConfigError, httpx.HTTPError):
        print("no cluster runs: the pictures of the live view and of the playground stay")
        return
    cookie = session_of(settings.token, int(time.time()) + SESSION_S)
    console = f"{settings.http_address}/console"
    take(console, [("playground", f"/playground#{ASKED}", wait_for_texts)], cookie)
    if httpx.get(f"{console}/api/live", cookies={COOKIE: cookie}, timeout=60).json()["in_work"]:
        take(console, [("live", "/live", lambda page: None)], cookie)
    else:
        print("no run is in work: the picture of the live view stays")


if __name__ == "__main__":
    main()
