"""The page of a run: one HTML file without scripts or outside files. The suite fills it; the frame is the same for all.

`shell` has the frame, `nulls` why figures are missing, `markdown` the same figures as text.
"""

from poolbench_driver.report.markdown import leaderboard_markdown
from poolbench_driver.report.shell import report_of, write_page, write_report

__all__ = ["leaderboard_markdown", "report_of", "write_page", "write_report"]
