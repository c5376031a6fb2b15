"""The commands of docs/own-concepts.md for HTTP work as typed, against the pooler's own application."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.servers.services import TOKEN, serving
from tests.waiting import PATIENCE_S

from poolbench.library import Library
from poolbench.storage import open_store
from poolbench_pooler.service import PoolerService

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_the_commands_for_http_work_as_typed(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "examples" / "messages", tmp_path / "docs" / "examples" / "messages")
    section = (DOCS / "own-concepts.md").read_text("utf-8").partition("## Over HTTP")[2]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found is not None
    store = open_store(str(tmp_path / "store"))
    with serving({"pooler": PoolerService(lambda: Library(store))}) as address:
        environment = {**os.environ, "B": address, "H": f"Authorization: Bearer {TOKEN}"}
        done = subprocess.run(
            ["bash", "-e", "-c", found[1]],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f'"registered":{value}') for value in ("false", "true")] == [1, 1]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [], "the reader's folder stays as it was"
    assert '"concepts":[{"id":"gratitude"' in done.stdout and done.stdout.endswith('{"removed":"gratitude"}')
