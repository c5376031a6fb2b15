"""Damage of a vector by strength: its figures by hand, its texts, and the page that shows them beside the gain."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.test_find import candidate, simulated
from driver.tests.vector_cards import vector_of

from poolbench.errors import CellError, CorpusError, InputError
from poolbench_driver.find.damage import (
    Damage,
    UserTexts,
    lenses_of,
    pairs_of,
    pairs_table,
    read_pairs,
)
from poolbench_driver.find.figures import pair_accuracy, strength_at, text_damage
from poolbench_driver.find.page import search_page
from poolbench_driver.find.search import SearchResult, _with_figures
from poolbench_driver.find.selection import select
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.pages.html import html_of
from poolbench_driver.pages.text import json_of
from poolbench_driver.vectors.card import CardMeasure, Lens, LensToken, Strength, VectorCard
from poolbench_driver.vectors.words import facts_of, measures_of

RULES = SteeringRules(num_bootstrap=300)


def rows(log_likelihood: dict[str, list[float]], num_tokens: dict[str, int], strengths: list[float]) -> list[Any]:
    """Rows of DAMAGE; the divergence of a text is its strength, in the first text, and twice that in others."""
    first = next(iter(log_likelihood))
    return [
        {
            "passage_id": name, "direction_id": "C1" if s else "unsteered", "strength": s, "log_likelihood": values[at],
            "num_tokens": num_tokens[name], "kl": s if name == first else 2 * s, "status": "ok", "reason": None,
        }
        for name, values in log_likelihood.items()
        for at, s in enumerate(strengths)
    ]  # fmt: skip


def by_name(measures: Any) -> dict[tuple[str, float | None], CardMeasure]:
    return {(measure.name, measure.strength): measure for measure in measures}


def test_figures_are_those_of_all_tokens_by_hand() -> None:
    table = rows({"a": [-30.0, -30.0, -33.0], "b": [-10.0, -10.2, -12.0]}, {"a": 30, "b": 10}, [0.0, 0.1, 0.2])
    measures, safe = text_damage(table, {"a": "d1", "b": "d2"}, RULES)
    figures = by_name(measures)
    assert figures["damage.perplexity", 0.0].value == pytest.approx(np.exp(40 / 40))
    assert figures["damage.kl", 0.1].value == pytest.approx((0.1 * 30 + 0.2 * 10) / 40)
    ratios = [np.exp(0.2 / 40), np.exp(5 / 40)]
    assert figures["damage.perplexity_ratio", 0.1].value == pytest.approx(ratios[0])
    assert figures["damage.perplexity_ratio", 0.2].value == pytest.approx(ratios[1])
    at = 0.1 + 0.1 * (np.log(1.01) - 0.2 / 40) / (5 / 40 - 0.2 / 40)
    assert figures["damage.strength_at_1_percent", None].value == pytest.approx(at)
    measure = figures["damage.perplexity_ratio", 0.2]
    assert measure.n == 2 and measure.ci_low is not None and measure.ci_low <= ratios[1] <= (measure.ci_high or 0)
    assert safe == 0.2  # the ratio stays below 1.5


def test_an_interval_needs_two_documents_and_covers_the_mean() -> None:
    measures, _ = text_damage(
        rows({"a": [-3.0, -4.0], "b": [-3.0, -5.0]}, {"a": 3, "b": 3}, [0.0, 1.0]), {"a": "d", "b": "d"}, RULES
    )
    assert all(measure.ci_low is None for measure in measures)
    rng, num_covered = np.random.default_rng(0), 0
    for seed in range(100):
        drops = rng.normal(0.1, 0.05, 30)
        texts = {f"t{n}": [-20.0, -20.0 - 20 * drop] for n, drop in enumerate(drops)}
        table = rows(texts, dict.fromkeys(texts, 20), [0.0, 1.0])
        measure = by_name(text_damage(table, {}, replace(RULES, seed=seed))[0])["damage.perplexity_ratio", 1.0]
        assert measure.ci_low is not None and measure.ci_high is not None
        num_covered += measure.ci_low <= np.exp(0.1) <= measure.ci_high
    assert num_covered >= 88


def test_strength_at_a_ratio_is_the_first_crossing() -> None:
    strengths = np.array([0.0, 1.0, 2.0, 3.0])
    ratios = np.array([[1, 1.02, 1.0, 1.5], [1, 0.9, 1.01, 1.0], [1, 1.0, 1.0, np.exp(0.2)], [1, np.inf, 1, 1]])
    reached = strength_at(ratios, strengths, 1.01)
    assert reached == pytest.approx([np.log(1.01) / np.log(1.02), np.inf, 2 + np.log(1.01) / 0.2, 0.0])


def test_no_damage_is_a_null_with_the_largest_strength() -> None:
    measures, safe = text_damage(rows({"a": [-3.0, -3.0], "b": [-3.0, -3.0]}, {"a": 3, "b": 3}, [0.0, 0.5]), {}, RULES)
    measure = by_name(measures)["damage.strength_at_1_percent", None]
    assert measure.value is None and measure.status == "no_effect" and "up to strength 0.5" in str(measure.reason)
    assert safe == 0.5


def test_texts_that_fail_are_left_out_and_none_left_is_an_error() -> None:
    table = rows({"a": [-3.0, -4.0], "b": [-3.0, -5.0]}, {"a": 3, "b": 3}, [0.0, 1.0])
    broken = [row | ({"status": "failed", "reason": "too long"} if row["passage_id"] == "a" else {}) for row in table]
    assert text_damage(broken, {}, RULES)[0][0].n == 1
    with pytest.raises(CellError, match="too long"):
        text_damage([row | {"status": "failed", "reason": "too long"} for row in table], {}, RULES)


def test_a_pair_is_right_where_the_good_sentence_is_the_likelier_one() -> None:
    likelihoods = {
        "0/good": [-5.0, -6.0], "0/bad": [-6.0, -5.0], "1/good": [-5.0, -5.0], "1/bad": [-5.5, -9.0],
        "2/good": [-4.0, -4.0], "2/bad": [-4.0, -3.0],
    }  # fmt: skip
    table = rows(likelihoods, dict.fromkeys(likelihoods, 4), [0.0, 0.5])
    measures = by_name(pair_accuracy(table, {name: name[0] for name in likelihoods}, RULES))
    assert measures["damage.pair_accuracy", 0.0].value == pytest.approx(2 / 3)  # a tie is not right
    assert measures["damage.pair_accuracy", 0.5].value == pytest.approx(1 / 3)
    assert measures["damage.pair_accuracy", 0.5].n == 3


@pytest.mark.parametrize(
    ("content", "message", "error"),
    [
        ("", "is empty", CorpusError),
        ('{"good": "a"}', "line 1: no 'bad'", CorpusError),
        ('{"good": "a", "bad": 3}', "'bad' is '3'", CorpusError),
        ('{"good": "a", "bad": " "}', "two sentences that differ", InputError),
        ('{"good": "a", "bad": "b"}\n{"good": "a", "bad": "a"}', "line 2: a pair needs", InputError),
    ],
)
def test_wrong_pairs_are_refused_with_file_and_line(
    tmp_path: Path, content: str, message: str, error: type[Exception]
) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(content)
    with pytest.raises(error, match=message):
        read_pairs(file)
    with pytest.raises(CorpusError):
        UserTexts.read(tmp_path / "none.txt", None)


def test_pairs_and_texts_of_files(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"good": "a", "bad": "b"}\n{"sentence_good": "c", "sentence_bad": "d"}\n')
    table = read_pairs(file)
    assert table.equals(pairs_table([("line-1", ("a", "b")), ("line-2", ("c", "d"))]))
    assert table["passage_id"].to_pylist()[:2] == ["0/good", "0/bad"]
    assert len(set(table["group"].to_pylist())) == 2
    texts = tmp_path / "texts.txt"
    texts.write_text("Rain fell.\n\nThe tide was high.\n")
    read = UserTexts.read(texts, None)
    assert read.texts is not None and read.texts["text"].to_pylist() == ["Rain fell.", "The tide was high."]
    texts.write_text("x" * 1_000_001)
    with pytest.raises((InputError, CorpusError)):
        UserTexts.read(texts, None)


def test_pairs_are_of_every_paradigm_that_ships_where_the_corpus_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pairs_of("real", UserTexts())
    assert table.num_rows == 59 * 3 * 2 and len(set(table["group"].to_pylist())) == 59
    assert table.to_pylist()[:2] == [  # the first line of adjunct_island.jsonl
        {"passage_id": "0/good", "text": "Who should Derek hug after shocking Richard?", "group": "adjunct_island"},
        {"passage_id": "0/bad", "text": "Who should Derek hug Richard after shocking?", "group": "adjunct_island"},
    ]
    with pytest.raises(CellError, match="--pairs"):
        pairs_of("planted", UserTexts())
    monkeypatch.setenv("POOLBENCH_ASSETS", str(tmp_path / "nowhere"))
    with pytest.raises(CellError, match="the sets that ship are not here; name a file of some with --pairs"):
        pairs_of("real", UserTexts())


def test_lenses_are_the_direct_one_and_that_of_the_recommended_strength() -> None:
    tokens = [
        {"strength": s, "promoted": up, "rank": 1, "token": f"{s} {up}", "value": 1.0, "reason": None}
        for s in (None, 0.1, 0.2)
        for up in (True, False)
    ]
    direct, measured = lenses_of(tokens, 0.2)
    assert direct.strength is None and direct.promoted[0].token == "None True"
    assert measured.strength == 0.2 and measured.suppressed[0].token == "0.2 False"
    (missing,) = lenses_of([{"strength": None, "reason": "no norm", "promoted": None}], 0.2)
    assert missing.reason == "no norm" and not missing.promoted


def result(safe_high: float = 0.15) -> SearchResult:
    selection = select(simulated(np.random.default_rng(1), np.array([0.05, 0.05, 0.6, 0.05])), RULES)
    strength = Strength(recommended=0.2, safe_low=0, safe_high=0.4)
    vector = vector_of(2, strategy="S2", construction="C1", strength=strength)
    table = rows(
        {"a": [-30.0, -30.1, -31.0, -36.0], "b": [-10.0, -10.2, -12.0, -14]}, {"a": 30, "b": 10}, [0, 0.1, 0.2, 0.4]
    )
    lens = Lens(promoted=(LensToken(token=" but", value=2.0),), suppressed=(LensToken(token='"<b>', value=-1.0),))
    measures = (
        *text_damage(table, {}, RULES)[0],
        CardMeasure(name="damage.pair_accuracy", status="no_coverage", reason="none"),
    )
    return SearchResult(_with_figures(vector, selection, Damage(measures, (lens,), safe_high)), selection, [])


def test_the_card_has_damage_beside_gain_and_reads_back(tmp_path: Path) -> None:
    found = result()
    card, selection = found.vector.card, found.selection
    assert VectorCard.parse(card.model_dump_json()) == card
    figures = by_name(card.measures)
    assert [at.strength for at in selection.curve] == [0.1, 0.2, 0.4]
    at_best = next(at for at in selection.curve if at.strength == selection.strength)
    assert at_best.gain == pytest.approx(selection.naive) and at_best.interval is not None
    assert figures["find.gain_by_strength", 0.2].value == pytest.approx(figures["find.naive_gain", None].value)
    assert card.strength.safe_high == 0.15 and result(0.9).vector.card.strength.safe_high == 0.4
    assert any(row["measure"] == "damage.kl at 0.2" for row in measures_of(card))
    assert dict(facts_of(card))["lens"] == 'promotes " but"; suppresses "\\"<b>"'


def test_the_share_moved_the_wrong_way_is_that_of_single_openings() -> None:
    """A gain that is the mean of large rises and some falls."""
    grids = simulated(np.random.default_rng(4), np.array([0.3]), num_openings=60)
    (grid,) = grids.values()
    score = grid.score.copy()
    score[::4, 1:] = score[::4, :1] - 0.1
    selection = select({candidate(0): replace(grid, score=score)}, RULES)
    _, read = grid.halves
    column = [0.0, 0.1, 0.2, 0.4].index(selection.strength)
    falls = [score[opening, column] < score[opening, 0] for opening in read]
    assert selection.wrong_way == sum(falls) / 30 > 0.1
    low, high = selection.wrong_way_interval
    assert 0 < low < selection.wrong_way < high < 1


def test_the_page_shows_gain_against_damage_and_the_tokens() -> None:
    page = search_page(result())
    text = html_of(page) + json_of(page)
    assert page.picture is not None and "Gain against damage" in text and "strength 0.2: gain" in text
    parts = {part.anchor: part for part in page.parts}
    (table,) = parts["damage"].blocks
    assert [line.cells[0].text for line in table.lines] == ["0.1", "0.2", "0.4"]  # type: ignore[union-attr]
    assert "it stays at most 1.01" in parts["damage"].note and "no_coverage: none" in text
    html = html_of(page)
    assert ("&quot; but&quot;" in html or "&#34; but&#34;" in html) and '"<b>' not in html
    above = "the recommended strength 0.2 is above the safe range, which ends at 0.15"
    assert (page.problems[0].text, page.problems[0].anchor) == (f"T{above[1:]}", "damage")
    assert dict(facts_of(result().vector.card))["strength"].endswith(above)
    assert not any("safe range" in problem.text for problem in search_page(result(0.3)).problems)


def test_a_page_without_damage_says_why() -> None:
    found = result()
    null = CardMeasure(name="damage.kl", status="failed", reason="no head")
    card = found.vector.card.model_copy(update={"measures": (null,), "lenses": (Lens(reason="no head"),)})
    page = search_page(replace(found, vector=replace(found.vector, card=card)))
    assert page.picture is None and "failed: no head" in json_of(page) and "unknown: no head" in json_of(page)
    assert html_of(page) and page.problems[-1].text == "Its damage is unknown: no head"
