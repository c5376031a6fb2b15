"""Which tables of its run the page on real text shows."""

from typing import Any

from recipes.real_text.page import run_sections, separated


def test_tables_by_strategy_and_concept_are_left_out() -> None:
    tables = "- run: a\n\n## Leaderboard\n\n| a |\n\n## d1.auroc: values\n\n| b |\n\n## Attention sinks\n\n| c |\n"
    text = run_sections(tables)
    assert text.startswith("- run: a\n\n### Leaderboard\n\n| a |\n\n### Attention sinks\n\n| c |\n\n")
    assert "| b |" not in text


def test_a_verdict_names_what_separates_the_classes_alone() -> None:
    def row(concept: str, check: str, ci_low: float | None, kind: str = "confound") -> dict[str, Any]:
        return {
            "concept": concept, "verdict": "confounded" if concept == "a" else "pass", "check": check, "kind": kind,
            "value": 0.9, "ci_low": ci_low, "limit": 0.6,
        }  # fmt: skip

    audit = [
        row("a", "length", 0.7),
        row("a", "casing", 0.5),
        row("a", "words", 0.8, "words"),
        row("b", "domain", None),
    ]
    assert separated(audit) == {"a": "confounded: length 0.90", "b": "pass"}
