"""What changed between two runs, paired by cell."""

from poolbench_driver.comparison.changes import compare_runs
from poolbench_driver.comparison.page import changes_page
from poolbench_driver.comparison.pairing import join_rows, read_results
from poolbench_driver.comparison.render import as_markdown, as_sentence, as_tables
