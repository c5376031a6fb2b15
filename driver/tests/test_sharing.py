"""Sharing without a run: what is no bundle, and a vector that is pushed and pulled."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from driver.tests.vector_cards import vector_of
from tests.servers.hub import serving

from poolbench.errors import InputError, RestrictedError
from poolbench_driver.contract.verification import State
from poolbench_driver.dataset_folder import CHECKSUMS, files_below, sha256_of, write_checksums
from poolbench_driver.sharing.exchange import pull, push, write_vector
from poolbench_driver.sharing.verification import Verification, verify
from poolbench_driver.vectors.card import Vector, VectorCard


def failed(verdict: Verification) -> list[str]:
    return [check.stage for check in verdict.stages if check.state == State.FAILED]


def refuse(root: Path, name: str, data: bytes = b"x", mode: int = 0o100644 << 16) -> Path:
    file = root / "bad.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr, entry.compress_type = mode, zipfile.ZIP_DEFLATED
        archive.writestr(entry, data)
    return file


@pytest.mark.parametrize(
    ("name", "data", "mode", "why"),
    [
        ("../outside.json", b"x", 0o100644 << 16, "does not belong"),
        ("/tmp/outside.json", b"x", 0o100644 << 16, "does not belong"),
        ("run/../../outside.json", b"x", 0o100644 << 16, "does not belong"),
        ("run/link.json", b"/etc/passwd", 0o120777 << 16, "does not belong"),
        ("run/report.html", b"x", 0o100644 << 16, "does not belong"),
        ("run/bomb.json", bytes(50_000_000), 0o100644 << 16, "50,000,000 bytes, packed as"),
        ("run/config.resolved.yaml", b"x", 0o100644 << 16, "one run and SHA256SUMS are needed"),
    ],
)
def test_a_file_that_is_no_bundle_is_refused(name: str, data: bytes, mode: int, why: str, tmp_path: Path) -> None:
    verdict = verify(refuse(tmp_path, name, data, mode))
    assert failed(verdict) == ["container"] and why in verdict.stages[0].note
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


def saved(folder: Path, **facts: Any) -> VectorCard:
    """Save a vector of a demo model with its card."""
    vector = vector_of(2, width=4, **facts)
    vector.save(folder)
    return vector.card


def test_a_vector_has_a_repository_of_its_own(tmp_path: Path) -> None:
    card, place = saved(tmp_path / "vector", model="owner/model"), f"file://{tmp_path}/there"
    assert write_vector(tmp_path / "vector", tmp_path / "out", "mit") == "demo+contrast"
    header = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---")[1])
    assert header["license"] == "mit" and header["base_model"] == "owner/model"
    assert header["tags"] == ["poolbench", "steering-vector", "activation-steering", "contrast"]
    push(tmp_path / "out", place, "model")
    (tmp_path / "out/old.txt").write_text("of an earlier push")
    sums = {name: sha256_of(tmp_path / "out" / name) for name in files_below(tmp_path / "out") if name != CHECKSUMS}
    write_checksums(tmp_path / "out", sums)
    push(tmp_path / "out", place, "model")
    assert (pull(place, tmp_path / "with") / "old.txt").is_file()
    write_vector(tmp_path / "vector", tmp_path / "again", "mit")
    push(tmp_path / "again", place, "model")
    folder = pull(place, tmp_path / "vectors")
    assert Vector.load(folder).card == card and not (folder / "old.txt").exists()
    assert pull(place, tmp_path / "vectors") == folder
    (folder / "README.md").write_text("mine")
    with pytest.raises(InputError, match="is there and differs"):
        pull(place, tmp_path / "vectors")
    saved(tmp_path / "sensitive", concept="toxicity")
    with pytest.raises(RestrictedError):
        write_vector(tmp_path / "sensitive", tmp_path / "refused", None)


#: Runs commands, each with a token of its own.
COMMANDS = """
import json, os, sys
from poolbench_driver.cli import main
for token, *arguments in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"], sys.argv = token, ["poolbench-driver", *arguments]
    try:
        main()
    except SystemExit as ended:
        print("ended", ended.code)
"""


def test_the_hub_gets_a_vector_as_a_model_and_gives_it_back(tmp_path: Path) -> None:
    """The client of the hub against a server of this test, in a process of its own: it reads settings when imported."""
    card, pushed = saved(tmp_path / "vector"), ("push", str(tmp_path / "vector"), "hf:me/vector")
    pulled = ("hf_write", "pull", "hf:me/vector", "--output", str(tmp_path / "vectors"))
    with serving({}, tmp_path / "uploads") as hub:
        environment = {**os.environ, **hub.environment, "HF_HUB_CACHE": str(tmp_path / "cache")}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        commands = [("hf_read", *pushed), ("hf_write", *pushed), pulled]
        asked = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=600, check=True)
    ended = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ended == ["ended 1", "ended 0", "ended 0"], done.stderr
    assert "set HF_TOKEN to a token that may write" in done.stderr
    assert set(files_below(tmp_path / "uploads")) == {
        "README.md", "SHA256SUMS", "card.json", "manifest.json", "vector.safetensors"
    }  # fmt: skip
    assert Vector.load(tmp_path / "vectors/demo+contrast").card == card
