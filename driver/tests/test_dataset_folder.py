"""Folders to publish: whole after an interrupt or a kill, and nothing of others is replaced."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from driver.tests.releases import content_of

from poolbench_driver.dataset_folder import replacing, write_release

_KILLED = """
import os, signal, sys
from pathlib import Path
from poolbench_driver.dataset_folder import replacing
with replacing(Path(sys.argv[1])) as partial:
    (partial / "half").write_text("written")
    {before}
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(output: Path, before: str = "") -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED.format(before=before), str(output)], check=False)
    assert ended.returncode == -signal.SIGKILL


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_killed_export_leaves_what_was_there_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    output = tmp_path / "out"
    killed(output)
    assert not output.exists() and len(hidden(tmp_path)) == 1
    with replacing(output) as partial:
        (partial / "file").write_text("first")
    assert content_of(output) == {"file": b"first"} and not hidden(tmp_path)
    killed(output)
    assert content_of(output) == {"file": b"first"}


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with replacing(output) as partial:
        (partial / "file").write_text("first")
    killed(output, "Path(sys.argv[1]).rename(partial.with_suffix('.old'))")
    assert not output.exists()
    with pytest.raises(KeyboardInterrupt), replacing(output):
        assert content_of(output) == {"file": b"first"}  # back before anything is written
        raise KeyboardInterrupt
    assert content_of(output) == {"file": b"first"} and not hidden(tmp_path)


def test_the_folder_of_a_living_export_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f".out.{os.getppid()}.part"
    other.mkdir()
    with replacing(tmp_path / "out") as partial:
        (partial / "file").write_text("mine")
    assert other.is_dir()


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/abc.txt").write_bytes(b"abc")
    manifest = write_release(tmp_path, "a card", {"kind": "k"}, {"data/abc.txt": {"num_rows": 1}})
    # The digest of "abc" in FIPS 180-2, appendix B.1.
    found = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert manifest["files"]["data/abc.txt"] == {"num_rows": 1, "bytes": 3, "sha256": found}
    card, data, last = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert data == f"{found}  data/abc.txt"
    assert card == f"{hashlib.sha256(b'a card').hexdigest()}  README.md" and last.endswith("  manifest.json")
