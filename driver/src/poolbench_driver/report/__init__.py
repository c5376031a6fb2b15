"""The page of a run: one HTML file without scripts or outside files. The suite fills it; the frame is the same for all.

`shell` has the frame, `nulls` why figures are missing.
"""

from poolbench_driver.report.shell import write_page, write_report

__all__ = ["write_page", "write_report"]
