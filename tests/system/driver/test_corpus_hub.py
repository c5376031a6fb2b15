"""`corpus import hf:...`: the real client of the hub against a server of this test, and its cache without one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.hub import Hub, serving

from poolbench_corpora.io import CorpusManifest, read_concept, write_corpus
from poolbench_corpora.planted import build_planted

LONG_S = 600
NAME = "owner/data"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    names = ("hedging", "toxicity")
    tables = [build_planted(name, seed=0, num_train=8, num_test=4, num_scorer=4) for name in names]
    manifest = CorpusManifest(revision="1", tokenizer="words", window=(1, 500))
    with monkeypatch.context() as allowed:
        allowed.setenv("POOLBENCH_SENSITIVE", "true")
        write_corpus(pa.concat_tables(tables), tmp_path / "served", manifest)
    with serving({f"datasets/{NAME}": tmp_path / "served"}) as server:
        yield server


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}


def driver(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, because the hub's client reads its settings when it is imported."""
    command = [sys.executable, "-m", "poolbench_driver.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False)


def test_a_dataset_is_downloaded_and_imported_and_again_without_a_network(
    environment: dict[str, str], hub: Hub, tmp_path: Path
) -> None:
    done = driver({**environment, **hub.environment}, "corpus", "import", f"hf:{NAME}", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "left out, because they are sensitive (POOLBENCH_SENSITIVE=true takes them): toxicity" in done.stdout
    expected = read_concept(tmp_path / "served", "hedging")
    assert read_concept(tmp_path / "out", "hedging")["text"].equals(expected["text"])
    offline = {**environment, "HF_HUB_OFFLINE": "1", "POOLBENCH_SENSITIVE": "true"}
    done = driver(offline, "corpus", "import", f"hf:{NAME}@main", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert (
        read_concept(tmp_path / "again", "toxicity").num_rows == read_concept(tmp_path / "served", "toxicity").num_rows
    )
    assert read_concept(tmp_path / "again", "hedging")["text"].equals(expected["text"])


@pytest.mark.lane(name="series")
def test_a_download_that_breaks_off_writes_nothing_and_continues(
    environment: dict[str, str], hub: Hub, tmp_path: Path
) -> None:
    online, command = {**environment, **hub.environment}, ("corpus", "import", f"hf:{NAME}", str(tmp_path / "out"))
    hub.broken = "hedging/test_pos.jsonl"
    done = driver(online, *command)
    assert done.returncode == 2 and f"dataset {NAME} could not be downloaded" in done.stderr
    assert "the same command continues" in done.stderr and "Traceback" not in done.stderr
    done = driver({**environment, "HF_HUB_OFFLINE": "1"}, *command)
    assert done.returncode == 2, "a part of a dataset is not taken for the whole"
    assert not (tmp_path / "out").exists()
    hub.broken = ""
    assert driver(online, *command).returncode == 0


@pytest.mark.lane(name="series")
def test_what_cannot_be_had_says_what_to_do(environment: dict[str, str], hub: Hub, tmp_path: Path) -> None:
    online, output = {**environment, **hub.environment}, str(tmp_path / "out")
    hub.gated = True
    gated = driver(online, "corpus", "import", f"hf:{NAME}", output)
    assert gated.returncode == 2 and f"dataset {NAME} is gated" in gated.stderr and "HF_TOKEN" in gated.stderr
    offline = driver({**environment, "HF_HUB_OFFLINE": "1"}, "corpus", "import", "hf:owner/other", output)
    assert offline.returncode == 2 and "give its folder instead" in offline.stderr
    wrong = driver(environment, "corpus", "import", "hf:other", output)
    assert wrong.returncode == 2 and "write hf:OWNER/NAME" in wrong.stderr
    assert not Path(output).exists()
