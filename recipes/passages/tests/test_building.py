"""`python -m recipes.passages`: what it takes, failures and interruptions."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from recipes.passages import building
from recipes.passages.building import BuildOptions, build_folder, parse_window

from poolbench.errors import CorpusError
from poolbench_corpora.io import read_concept, read_manifest
from poolbench_corpora.planted import build_planted
from poolbench_corpora.planted.build import DEMO_WINDOW

pytestmark = pytest.mark.lane(name="recipes")


def small(name: str, **settings: Any) -> pa.Table:
    """Passages of a concept, few of them, in place of those of the archives."""
    cut = {"num_train": 8, "num_test": 4, "num_scorer": 4, "window": settings.get("window", DEMO_WINDOW)}
    return build_planted(name, seed=settings["seed"], **cut)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "archives_folder", Path)
    monkeypatch.setattr(building, "require_sources", lambda folder: None)
    monkeypatch.setattr(building, "build_real", small)


def build(output: Path, *concepts: str, required: bool = False, seed: int = 0) -> int:
    return build_folder(output, "archives", concepts, "demo", seed, required=required)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_concept_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_fails(name: str, **settings: Any) -> pa.Table:
        if name == "frustration":
            raise CorpusError("no source has it")
        return small(name, **settings)

    monkeypatch.setattr(building, "build_real", one_fails)
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
        return small(name, **settings)

    monkeypatch.setattr(building, "build_real", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(broken, "hedging", "contrast")
    assert not (broken / "hedging").exists() and not (broken / "manifest.json").exists()
    monkeypatch.setattr(building, "build_real", small)
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

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", stops)
        build(broken, "hedging", "contrast")
    build(broken, "hedging", "contrast")
    assert files(broken) == files(whole)


def test_another_seed_replaces_the_corpus(tmp_path: Path) -> None:
    build(tmp_path, "hedging")
    before = read_concept(tmp_path, "hedging")
    build(tmp_path, "hedging", seed=1)
    assert not read_concept(tmp_path, "hedging").equals(before)
    found = read_manifest(tmp_path)
    assert found is not None and found.recipe.endswith("--seed 1")


def test_a_window_of_tokens_cuts_the_passages(tmp_path: Path) -> None:
    options = BuildOptions(window=parse_window("90-140"))
    build_folder(tmp_path, "archives", ["contrast"], "demo", 0, required=True, options=options)
    manifest = read_manifest(tmp_path)
    assert manifest is not None and 90 <= manifest.window[0] < manifest.window[1] <= 140
    assert "--window 90-140" in manifest.recipe
