"""Figures of recorded tables of Holmes: rates counted by hand, correlations by SciPy, and sizes by names."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from driver.tests.suites.holmes.test_recordings import written
from recipes.published.__main__ import main
from recipes.published.holmes_figures import (
    FOLDER,
    SERIES,
    Point,
    other_taus,
    rank_changes,
    scatter,
    sizes,
    write,
)
from scipy import stats

from poolbench.errors import InputError
from poolbench_driver.pages.drawing import name_axis
from poolbench_driver.suites.holmes.correlations import rates_by_type, type_taus
from poolbench_driver.suites.holmes.recordings import TYPES, read_scores

MODELS = ("EleutherAI/pythia-70m", "EleutherAI/pythia-1.4b", "EleutherAI/pythia-12b", "gpt2", "google/flan-t5-xl")
SETS = tuple((f"{kind}-{number}", kind, f"phenomenon-{number}") for kind in TYPES for number in range(4))


def made(folder: Path, name: str, scores_by_share: dict[float, np.ndarray]) -> Path:
    """Write a table of scores [models, sets] by share of the training data."""
    lines = ["probing dataset,linguistic subfield,linguistic phenomena,train portion," + ",".join(MODELS)]
    for share, scores in scores_by_share.items():
        for (set_name, kind, phenomenon), column in zip(SETS, scores.T, strict=True):
            lines.append(f"{set_name},{kind},{phenomenon},{share}," + ",".join(f"{value:.6f}" for value in column))
    return written(folder, "\n".join(lines)).rename(folder / name)


def rates_by_hand(scores: np.ndarray) -> np.ndarray:
    """Share of (set, other model) pairs won, counted in loops."""
    won = np.zeros(len(scores))
    for one in range(len(scores)):
        others = [other for other in range(len(scores)) if other != one]
        won[one] = np.mean([scores[one, n] > scores[other, n] for other in others for n in range(scores.shape[1])])
    return won


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path, dict[float, np.ndarray]]:
    """Return the whole table, one of two shares, and their scores."""
    rng = np.random.default_rng(0)
    scores = {share: rng.uniform(0.2, 0.9, (len(MODELS), len(SETS))).round(6) for share in (1.0, 0.5, 0.03125)}
    whole = made(tmp_path, "whole.csv", {1.0: scores[1.0]})
    return whole, made(tmp_path, "shares.csv", {share: scores[share] for share in (0.5, 0.03125)}), scores


@pytest.mark.lane(name="simulations")
def test_correlations_are_those_of_scipy_between_rates_counted_by_hand(
    tables: tuple[Path, Path, dict[float, np.ndarray]],
) -> None:
    whole_file, shares_file, scores = tables
    kinds = np.array([kind for _, kind, _ in SETS])
    whole = read_scores(whole_file)
    taus = type_taus(rates_by_type(whole))
    assert list(taus) == list(combinations(("overall", *TYPES), 2))
    rates = {kind: rates_by_hand(scores[1.0][:, kinds == kind]) for kind in TYPES}
    rates["overall"] = rates_by_hand(scores[1.0])
    for (one, other), tau in taus.items():
        assert tau.value == pytest.approx(stats.kendalltau(rates[one], rates[other]).statistic)
        assert tau.ends is not None and -1 <= tau.ends[0] <= tau.value <= tau.ends[1] <= 1
    beside = other_taus(whole, read_scores(shares_file, 0.03125))
    of_share = rates_by_hand(scores[0.03125])
    expected = stats.kendalltau(rates_by_hand(scores[1.0]), of_share).statistic
    assert list(beside) == ["all sets", *TYPES] and beside["all sets"].value == pytest.approx(expected)
    changes = stats.rankdata(-rates_by_hand(scores[1.0])) - stats.rankdata(-of_share)
    tau, high, error = rank_changes(whole, read_scores(shares_file, 0.03125))
    assert tau.value == pytest.approx(expected)
    assert high.value == pytest.approx(np.percentile(np.abs(changes), 95))
    assert error.value == pytest.approx(1.96 * np.std(changes, ddof=1) / np.sqrt(len(changes)))
    same = rank_changes(whole, whole)
    assert [estimate.value for estimate in same] == [pytest.approx(1.0), 0.0, 0.0] and same[1].ends is None


def test_sizes_are_read_from_the_names_of_models() -> None:
    names = [*MODELS, "EleutherAI/pythia-410m-deduped", "google/flan-t5-small", "google/flan-ul2"]
    assert sizes(names, SERIES["Pythia"]) == {MODELS[0]: 70.0, MODELS[1]: 1400.0, MODELS[2]: 12000.0}
    assert sizes(names, SERIES["Pythia, deduplicated"]) == {"EleutherAI/pythia-410m-deduped": 410.0}
    assert sizes(names, SERIES["FLAN-T5"]) == {"google/flan-t5-small": 80.0, "google/flan-t5-xl": 3000.0}


def test_a_picture_has_its_series_ticks_and_axes() -> None:
    series = {"one": [Point("here", 1.0, (0.5, 1.5))], "two": [Point("there", 2.0)]}
    drawn = scatter("t", series, name_axis(["here", "there"], "a"), "b")
    assert all(f">{text}<" in drawn for text in ("one", "two", "a", "b", "here")) and "var(--" not in drawn
    assert 'aria-label="one here: 1.00 (0.50 to 1.50)"' in drawn


@pytest.mark.lane(name="simulations")
def test_the_page_has_each_picture_and_what_the_tables_lack(
    tables: tuple[Path, Path, dict[float, np.ndarray]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, shares, _ = tables
    recorded = tmp_path / "holmes-recorded.md"
    recorded.write_text("# Claims\n")
    with pytest.raises(InputError, match="lacks the marks"):
        write(whole, shares, tmp_path)
    recorded.write_text((FOLDER / "holmes-recorded.md").read_text())
    assert "three pictures" in write(whole, shares, tmp_path)
    page = recorded.read_text()
    assert page.startswith("# Holmes") and page.count("## Does size help?") == 1 and "## What cannot" in page
    for name in ("types", "sizes", "portions"):
        assert f"(holmes-{name}.svg)" in page and (tmp_path / f"holmes-{name}.svg").read_text().startswith("<svg")
    assert "| 1/32 | 20 |" in page and "| 1/2 | 20 |" in page
    assert "| Pythia | 70 |" in page and "| Pythia | 12,000 |" in page and "| Pythia | 1,400 |" not in page
    (tmp_path / "other.csv").write_text("probing dataset,train portion,M1,M2\ndep,.5,.1,.2\n")
    assert main(["holmes-figures", str(whole), str(tmp_path / "other.csv")]) == 2
    assert "the tables share 0 models and 0 sets" in capsys.readouterr().err
