"""Which tables of its run the page on real text shows."""

from recipes.real_text.page import run_sections


def test_tables_by_strategy_and_concept_are_left_out() -> None:
    tables = "- run: a\n\n## Leaderboard\n\n| a |\n\n## d1.auroc: values\n\n| b |\n\n## Scorers\n\n| c |\n"
    text = run_sections(tables)
    assert text.startswith("- run: a\n\n### Leaderboard\n\n| a |\n\n### Scorers\n\n| c |\n\n") and "| b |" not in text
