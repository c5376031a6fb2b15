"""`make real-text` says what is missing before it measures."""

import sys
from pathlib import Path

import pytest
from recipes.real_text.__main__ import main


def test_without_a_cluster_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("POOLBENCH_STORE", "POOLBENCH_BROKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["real_text", "--output", str(tmp_path / "runs")])
    assert main() == 1
    assert "no cluster found" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
