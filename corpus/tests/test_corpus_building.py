"""`corpus build`: what it takes, concepts that fail, and interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.folders import building
from poolbench_corpora.folders.building import BuildOptions, build_folder, parse_window, what_to_build
from poolbench_corpora.io import read_concept, read_manifest

REAL = building.build_planted


def build(output: Path, *concepts: str, required: bool = False, seed: int = 0) -> int:
    return build_folder(output, "planted", concepts, "demo", seed, required=required)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_command_names() -> None:
    assert what_to_build("all", None, None, "real") == (None, Path("corpora/real"))
    assert what_to_build("hedging,contrast", Path("x"), None, "real") == ("hedging,contrast", Path("x"))
    assert what_to_build("corpora/mine", None, "hedging", "real") == ("hedging", Path("corpora/mine"))
    assert what_to_build("mine", None, None, "planted") == (None, Path("mine"))
    with pytest.raises(ConfigError, match="both name concepts"):
        what_to_build("all", None, "hedging", "real")
    with pytest.raises(ConfigError, match="names the folder"):
        what_to_build("corpora/mine", Path("other"), None, "real")
    for wrong in ("hedgin", "contrast,hedgin", "al"):
        with pytest.raises(UnknownNameError, match="did you mean"):
            what_to_build(wrong, None, None, "real")


def test_a_concept_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_fails(name: str, **settings: Any) -> pa.Table:
        if name == "frustration":
            raise CorpusError("no source has it")
        return REAL(name, **settings)

    monkeypatch.setattr(building, "build_planted", one_fails)
    assert build(tmp_path, "hedging", "frustration", "contrast") == 0
    assert build(tmp_path, "hedging", "frustration", required=True) == 1
    said = capsys.readouterr().out
    assert "frustration (2 of 3) ... none: no source has it" in said
    assert f"2 concepts written to {tmp_path}; 1 could not be made" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["contrast", "hedging", "manifest.json", "yields.json"]


def test_an_interrupted_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    build(whole, "hedging", "contrast")

    def interrupted(name: str, **settings: Any) -> pa.Table:
        if name == "contrast":
            raise KeyboardInterrupt
        return REAL(name, **settings)

    monkeypatch.setattr(building, "build_planted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(broken, "hedging", "contrast")
    assert not (broken / "hedging").exists() and not (broken / "manifest.json").exists()
    monkeypatch.setattr(building, "build_planted", REAL)
    capsys.readouterr()
    build(broken, "hedging", "contrast")
    assert "hedging (1 of 2) ... there already" in capsys.readouterr().out
    assert files(broken) == files(whole)


def test_an_interruption_while_folders_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    build(whole, "hedging", "contrast")
    real = Path.rename

    def stops(self: Path, target: Path) -> Path:
        if Path(target) == broken / "contrast":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", stops)
    with pytest.raises(KeyboardInterrupt):
        build(broken, "hedging", "contrast")
    monkeypatch.undo()
    build(broken, "hedging", "contrast")
    assert files(broken) == files(whole)


def test_another_seed_replaces_the_corpus(tmp_path: Path) -> None:
    build(tmp_path, "hedging")
    before = read_concept(tmp_path, "hedging")
    build(tmp_path, "hedging", seed=1)
    assert not read_concept(tmp_path, "hedging").equals(before)
    found = read_manifest(tmp_path)
    assert found is not None and found.recipe.endswith("--seed 1")


def test_a_missing_folder_of_archives_is_said_once_before_any_concept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POOLBENCH_REAL_TEXT", raising=False)
    with pytest.raises(CorpusError, match="no folder of real-text archives was named"):
        build_folder(tmp_path, "real", ["hedging", "contrast"], "demo", 0, required=True)
    assert "hedging" not in capsys.readouterr().out


def test_a_window_of_tokens_cuts_the_passages(tmp_path: Path) -> None:
    options = BuildOptions(window=parse_window("90-140"))
    build_folder(tmp_path, "planted", ["contrast"], "demo", 0, required=True, options=options)
    manifest = read_manifest(tmp_path)
    assert manifest is not None and 90 <= manifest.window[0] < manifest.window[1] <= 140
    assert "--window 90-140" in manifest.recipe


@pytest.mark.parametrize("text", ["", "90", "0-10", "160-90", "a-b", "90-160-200", "-5-10"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="smallest and the largest number of tokens"):
        parse_window(text)
