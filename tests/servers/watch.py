"""`python -m tests.servers.watch FILE`: ask every service for its health again and again, and write who answers."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from poolbench.contracts.wire import HEALTH_PATH, SERVICES, bearer

_TIMEOUT_S = 10.0
_PAUSE_S = 0.5


def main() -> None:
    """Write the time at which the questions were asked, and who answered, until this process is ended."""
    target = Path(sys.argv[1])
    base, headers = os.environ["POOLBENCH_HTTP"], bearer(os.environ["POOLBENCH_TOKEN"])

    def answers(name: str) -> bool:
        try:  # with a connection of its own: an old one may lead to a machine that is no more
            return httpx.get(f"{base}/{name}{HEALTH_PATH}", headers=headers, timeout=_TIMEOUT_S).is_success
        except httpx.HTTPError:
            return False

    partial = target.with_suffix(".partial")
    with ThreadPoolExecutor(len(SERVICES)) as pool:
        while True:
            asked_at = time.time()
            up = dict(zip(SERVICES, pool.map(answers, SERVICES), strict=True))
            partial.write_text(json.dumps([asked_at, [name for name, answered in up.items() if answered]]))
            partial.replace(target)
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
