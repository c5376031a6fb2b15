"""The page of a run: one HTML file without scripts or outside files, the same frame for every suite.

`page` has the frame and the same figures as text, `plain` the board of a suite that says nothing of its own.
"""

from poolbench_driver.report.page import leaderboard_markdown, report_of, write_page, write_report

__all__ = ["leaderboard_markdown", "report_of", "write_page", "write_report"]
