"""The page of a run as one HTML file, as Markdown and as JSON; the same frame for every suite."""

from poolbench_driver.report.page import leaderboard_markdown, page_of, write_page, write_report

__all__ = ["leaderboard_markdown", "page_of", "write_page", "write_report"]
