"""The tables of concepts and strategies hold what the PoolBench card and SCIENCE say, and read well as Markdown."""

import json
from types import ModuleType

import pytest
from tests.pages import REPOSITORY, site_maker

#: From the card: neighbours (distant, close) and the window in tokens.
CONCEPTS = {
    "hedging": ("conditionality", "academic_tone", "300 to 500"),
    "legal_formality": ("academic_tone", "bureaucratic", "300 to 500"),
    "frustration": ("deference", "toxicity", "300 to 500"),
    "numerical_precision": ("academic_tone", "code_docs", "300 to 500"),
    "imdb_sentiment": ("narrative", "frustration", "300 to 500"),
    "toxicity": ("frustration", "depression", "30 to 500"),
    "depression": ("imdb_sentiment", "frustration", "200 to 500"),
    "causation": ("conditionality", "contrast", "300 to 500"),
    "contrast": ("causation", "negation_density", "300 to 500"),
    "conditionality": ("negation_density", "hedging", "300 to 500"),
    "negation_density": ("contrast", "conditionality", "300 to 500"),
    "academic_tone": ("narrative", "code_docs", "300 to 500"),
    "code_docs": ("planning", "academic_tone", "300 to 500"),
    "bureaucratic": ("narrative", "legal_formality", "300 to 500"),
    "narrative": ("academic_tone", "planning", "300 to 500"),
    "deference": ("toxicity", "frustration", "8 to 128"),
    "planning": ("bureaucratic", "code_docs", "300 to 500"),
}
#: What strategies need beside the hidden states of a passage; all others of the 37 need nothing.
NEEDS = {
    "S1_attention": "attention",
    "S2_gradient": "backward pass",
    "S3_iti_probe": "attention per head, labels",
    "S4_sif": "token counts",
    "G1_input_x_gradient": "backward pass",
    **dict.fromkeys(("X1_learned_query", "R1_mean_score", "R2_max_score"), "token states, labels"),
    **dict.fromkeys(("L1_pos_filtered", "L2_dependency_rel", "L3_entity", "L4_clause"), "annotation"),
    **dict.fromkeys(("L5_keyword", "L6_sentence", "L7_subword_root", "L8_svo", "L2_dependency_trigger"), "annotation"),
}


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    module = site_maker().reference.benchmark_tables
    assert isinstance(module, ModuleType)
    return module


def rows(table: str) -> dict[str, dict[str, str]]:
    """Return the rows of a Markdown table by the name in their first cell, each by its heads."""
    head, _, *lines = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in _lines(table))
    return {line[0].split("`")[1]: dict(zip(head, line, strict=True)) for line in lines}


def _lines(table: str) -> list[str]:
    return [line.replace("|  |", "| - |").replace("|  |", "| - |") for line in table.splitlines()]


def test_concepts_have_the_neighbours_and_windows_of_the_card(tables: ModuleType) -> None:
    concepts = rows(tables.concept_parts()["concepts"])
    assert {
        name: (*row["neighbours (distant, close)"].replace("`", "").split(", "), row["tokens"])
        for name, row in concepts.items()
    } == CONCEPTS
    assert {name for name, row in concepts.items() if "sensitive" in row["concept"]} == {"toxicity", "depression"}


def test_columns_of_real_text_are_those_of_the_corpus_that_ships(tables: ModuleType) -> None:
    """Counts, verdicts and licences are read from the card of the corpus, which its recipe wrote."""
    concepts, card = rows(tables.concept_parts()["concepts"]), (REPOSITORY / "assets/real_corpus/card.md").read_text()
    shipped = {cells[0]: cells[1:] for line in card.splitlines() if len(cells := line.strip("| ").split(" | ")) == 6}
    assert len(shipped.keys() & concepts.keys()) == 14
    for name, row in concepts.items():
        train, test, scorer, _, verdict = shipped.get(name, ("", "", "", "", "-"))
        assert row["train / test / scorer"] == (f"{train} / {test} / {scorer}" if train else "-")
        assert row["audit"] == verdict.partition(":")[0]
    assert concepts["frustration"]["real passages from"] == "complaints"
    assert concepts["deference"]["licences"] == "share-alike"
    assert concepts["depression"]["real passages from"] == "none" and concepts["depression"]["licences"] == "-"


def test_sources_of_real_text_are_those_of_the_manifest(tables: ModuleType) -> None:
    sources = rows(tables.concept_parts()["sources"])
    manifest = json.loads((REPOSITORY / "assets/real_corpus/manifest.json").read_text())["sources"]
    assert {name: (row["licence"], row["origin"]) for name, row in sources.items()} == {
        name: (facts["licence"], facts["origin"]) for name, facts in manifest.items()
    }
    assert sum(int(row["passages"].replace(",", "")) for row in sources.values()) == sum(
        facts["passages"] for facts in manifest.values()
    )
    assert sources["politeness"]["concepts"] == "deference" and "masc" not in sources


def test_boards_have_all_strategies_and_what_they_need(tables: ModuleType) -> None:
    parts = tables.strategy_parts()
    card, extended = rows(parts["card"]), rows(parts["extended"])
    assert (len(card), len(extended)) == (19, 18)
    strategies = card | extended
    assert {name: row["needs"] for name, row in strategies.items() if row["needs"] != "-"} == NEEDS
    assert {name for name, row in strategies.items() if row["cost"] != "-"} == set(NEEDS)
